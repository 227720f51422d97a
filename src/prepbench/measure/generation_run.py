"""Generate with several candidates in turns: ``compare`` for a :class:`Generation`."""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from prepbench.errors import InputError, PrepbenchError
from prepbench.generate.greedy import CompiledSteps, Generated, ModelSteps
from prepbench.inputs import Sample
from prepbench.internal_errors import raise_if_internal
from prepbench.jobs import Progress, ProgressCallback
from prepbench.measure import latency, metrics
from prepbench.measure.artifacts import Artifact, is_float, save_candidate
from prepbench.measure.comparison import CandidateResult, Comparison, with_references
from prepbench.measure.generation import (
    NOTE,
    Generation,
    GenerationResult,
    Prompt,
    PyTorchFirst,
    loops_with_first_step,
    needs_first_step,
)
from prepbench.measure.kept_samples import kept_prompts
from prepbench.measure.process import OtherPrograms, Steps, WorkerProcess, busy_share
from prepbench.measure.scores import Candidate, eval_mode
from prepbench.measure.transfer import inputs_of, save_sample
from prepbench.objects.copy import Twin
from prepbench.package import CompiledModel
from prepbench.storage import temporary_folder

Loop = CompiledSteps | ModelSteps | PyTorchFirst


@dataclass(frozen=True)
class _Timed:
    """Times of each token, by prompt and round, and the memory of the process; empty without timing.

    ``busy_cores`` is how many cores other programs used meanwhile, ``why`` says why it was not timed.
    """

    times_ns: list[list[int]]
    peak_bytes: int | None
    timed_in: str
    busy_cores: float = 0.0
    why: str = ""


def compare_generation(
    candidates: Mapping[str, Candidate],
    workload: Generation,
    *,
    metric: Any,
    rounds: int,
    timeout: float | None,
    progress: ProgressCallback,
) -> Comparison:
    """Generate with each candidate, and compare tokens and times; ``compare`` has checked the other arguments.

    Raises:
        InputError: a metric that is for outputs, or a candidate that does not generate.
        LatencyError: a timing process failed.
    """
    if metric is not None and metric is not metrics.token_agreement:
        raise InputError(
            "metric: a generation is scored by the tokens that agree with the first candidate's. Leave metric out, or "
            "give prepbench.metrics.token_agreement; for other metrics give data instead of the Generation."
        )
    called = {name: _as_called(one) for name, one in candidates.items()}
    loops = _loops(called, workload)
    with eval_mode(called.values()):
        tokens = {}
        for position, (name, loop) in enumerate(loops.items()):
            progress(Progress("generate", position, len(loops), name))
            # mistakes show here, before anything slow happens
            tokens[name] = [_generate(name, loop, workload, index).tokens for index in range(len(workload.batches))]
        with temporary_folder("compare") as folder:
            artifacts = {}
            for position, (name, candidate) in enumerate(candidates.items()):
                progress(Progress("save", position, len(candidates), name))
                artifacts[name] = _saved(
                    name, candidate, called[name], loops[name], workload, folder / str(position), progress
                )
            timed = _times(loops, artifacts, workload, folder, rounds=rounds, timeout=timeout, progress=progress)
    floats = {name: is_float(candidate) for name, candidate in candidates.items()}
    return _comparison(workload, loops, tokens, artifacts, timed, floats, rounds)


def _as_called(candidate: Candidate) -> Candidate:
    # for other threads the models stay in their modes
    twin: Candidate = candidate if isinstance(candidate, CompiledModel) else Twin(candidate).model
    return twin


def _loops(candidates: Mapping[str, Candidate], workload: Generation) -> Mapping[str, Loop]:
    # all of them or none, so that their first tokens compare
    if any(needs_first_step(one, workload) for one in candidates.values()):
        return loops_with_first_step(candidates)
    return {name: _loop(name, one) for name, one in candidates.items()}


def _saved(
    name: str,
    candidate: Candidate,
    called: Candidate,
    loop: Loop,
    workload: Generation,
    folder: Path,
    progress: ProgressCallback,
) -> Artifact:
    """Save the candidate in a folder, with the state after the first step where PyTorch runs that step."""
    if not isinstance(loop, PyTorchFirst):
        return save_candidate(candidate, _samples(called, loop, workload.batches[0]), folder, progress)
    samples = [] if isinstance(candidate, CompiledModel) else loop.samples(workload)
    artifact = save_candidate(candidate, samples, folder, progress)
    if artifact.folder is not None:
        try:
            loop.save_begun(workload, artifact.folder, inputs_of(artifact.folder))
        except InputError as error:
            raise InputError(f"candidate {name!r}: {error}") from error
    return artifact


def _loop(name: str, candidate: Candidate) -> CompiledSteps | ModelSteps:
    try:
        return CompiledSteps(candidate) if isinstance(candidate, CompiledModel) else ModelSteps(candidate)
    except PrepbenchError as error:
        raise InputError(f"candidate {name!r}: {error}") from error


def _generate(name: str, loop: Loop, workload: Generation, index: int) -> Generated:
    prompt = workload.batches[index]
    try:
        if isinstance(loop, PyTorchFirst):
            return loop.generate(prompt, workload.new_tokens)
        return loop.generate(prompt.ids, prompt.mask, workload.new_tokens)
    except Exception as error:
        raise_if_internal(error)
        if isinstance(loop, PyTorchFirst):
            remedy = _FIRST_REMEDY
        else:
            remedy = _COMPILED_REMEDY if isinstance(loop, CompiledSteps) else _MODEL_REMEDY
        raise InputError(
            f"candidate {name!r} failed to generate {workload.new_tokens} tokens after prompts[{index}] of shape "
            f"{tuple(prompt.ids.shape)}: {type(error).__name__}: {str(error).strip().rstrip('.')}. {remedy}"
        ) from error


_COMPILED_REMEDY = (
    "Compile with tracing inputs whose cache is empty in some and filled in others, of two batch sizes and lengths."
)
_MODEL_REMEDY = (
    "A model that generates is called as those of transformers are, model(input_ids=..., attention_mask=..., "
    "past_key_values=..., use_cache=True), and returns logits and past_key_values."
)
_FIRST_REMEDY = (
    "Its first step runs in the PyTorch model, by model.generate(**prompt), and the others by the candidate: give "
    "prompts that generate takes, and compile with samples of later steps of two batch sizes and lengths."
)


def _samples(candidate: Candidate, loop: Loop, prompt: Prompt) -> list[Sample]:
    """Return calls from which a float model can be captured for generation; none for a compiled one."""
    if isinstance(loop, CompiledSteps):
        return []
    ids = prompt.ids[:1].repeat(1, 11)

    def sample(batch: int, past: int, new: int) -> Sample:
        with torch.no_grad():
            cache: Any = candidate(input_ids=ids[:, : past or 1].repeat(batch, 1), use_cache=True).past_key_values
        if not past:
            cache = _empty_like(cache, candidate)
        further = {
            "attention_mask": torch.ones(batch, past + new, dtype=torch.long),
            "position_ids": past + torch.arange(new).expand(batch, new),
            "past_key_values": cache,
        }
        given = {name: value for name, value in further.items() if name in loop.takes}
        return Sample((), {"input_ids": ids[:, :new].repeat(batch, 1), **given})

    # no two sizes or sums of them are the same in all
    return [sample(2, 0, 5), sample(3, 11, 1), sample(2, 4, 2)]


def _empty_like(cache: Any, candidate: Any) -> Any:
    try:
        return type(cache)(config=candidate.config)
    except (TypeError, AttributeError):
        return type(cache)()


def _times(
    loops: Mapping[str, Loop],
    artifacts: Mapping[str, Artifact],
    workload: Generation,
    folder: Path,
    *,
    rounds: int,
    timeout: float | None,
    progress: ProgressCallback,
) -> dict[str, _Timed]:
    """Let each candidate generate after all prompts in each round, in a process of its own where it could be saved."""
    if not rounds:
        return {name: _Timed([], None, latency.NOT_TIMED) for name in loops}
    left_out = {name: why for name, artifact in artifacts.items() if (why := latency.not_timed(artifact.target))}
    loops = {name: loop for name, loop in loops.items() if name not in left_out}
    steps = Steps(progress)
    tensors = [tensor for prompt in workload.batches for tensor in (prompt.ids, prompt.mask)]
    save_sample(Sample(tuple(tensors)), folder / "inputs")
    prompts = range(len(workload.batches))
    folders = {name: artifacts[name].folder for name in loops}
    with latency.started_workers(folders, folder, timeout, steps) as workers:
        makers = {name: _maker(name, loop, workers.get(name), workload) for name, loop in loops.items()}
        times: dict[str, list[list[int]]] = {name: [] for name in loops}
        peaks: dict[str, int | None] = {}
        with OtherPrograms() as others:
            for turn in range(-1, rounds):  # the first wakes threads and fills caches
                for position, (name, make) in enumerate(makers.items()):
                    steps(Progress("time", max(turn, 0) * len(loops) + position, rounds * len(loops), name))
                    made = [make(index) for index in prompts]
                    peaks[name] = made[-1][1]
                    times[name] += [list(one) for one, _ in made] if turn >= 0 else []
    places = {name: latency.OWN_PROCESS if name in workers else latency.THIS_PROCESS for name in loops}
    timed = {name: _Timed(times[name], peaks[name], places[name], others.cores) for name in loops}
    return {**timed, **{name: _Timed([], None, latency.NOT_TIMED, why=why) for name, why in left_out.items()}}


Maker = Callable[[int], tuple[Sequence[int], int | None]]


def _maker(name: str, loop: Loop, worker: WorkerProcess | None, workload: Generation) -> Maker:
    if worker is not None and isinstance(loop, PyTorchFirst):
        return functools.partial(_with_first_step, loop, worker, workload)
    if worker is not None:
        return functools.partial(worker.generated, workload.new_tokens)
    return lambda index: (_generate(name, loop, workload, index).times_ns, None)


def _with_first_step(loop: PyTorchFirst, worker: WorkerProcess, workload: Generation, index: int) -> Any:
    """Return the times of the first step in this process, and of the later ones in the worker."""
    first = loop.generate(workload.batches[index], 1).times_ns
    later, peak = worker.generated(workload.new_tokens, index)
    return [*first, *later], peak


def _comparison(
    workload: Generation,
    loops: Mapping[str, Loop],
    tokens: Mapping[str, list[torch.Tensor]],
    artifacts: Mapping[str, Artifact],
    timed: Mapping[str, _Timed],
    floats: Mapping[str, bool],
    rounds: int,
) -> Comparison:
    reference = next(iter(tokens.values()))
    calls = {name: _per_token(one.times_ns) for name, one in timed.items()}
    rows = []
    for name, made in tokens.items():
        agreements = [metrics.token_agreement(one, other) for one, other in zip(made, reference, strict=True)]
        score, artifact = statistics.fmean(agreements), artifacts[name]
        rows.append(
            CandidateResult(
                name=name,
                metric=score,
                change=score - 1.0,
                p50_ms=latency.percentile(calls[name], 50),
                p90_ms=latency.percentile(calls[name], 90),
                interval_ms=latency.interval(calls[name], rounds),
                size_bytes=artifact.size_bytes,
                size_of=artifact.size_of,
                target=artifact.target,
                timed_in=timed[name].timed_in,
                note="; ".join(filter(None, [artifact.note, timed[name].why, *_remarks(loops[name], workload)])),
                times_ms=calls[name],
                generation=GenerationResult.of(timed[name].times_ns, made, timed[name].peak_bytes),
                is_float=floats[name],
                busy=busy_share(timed[name].busy_cores),
            )
        )
    count, first = len(workload.batches), workload.batches[0].ids
    return Comparison(
        rows=with_references(rows),
        metric=metrics.token_agreement.__name__,
        unit="",
        higher_is_better=True,
        samples=sum(len(prompt.ids) for prompt in workload.batches),
        batch_size=len(first),
        rounds=rounds,
        threads=torch.get_num_threads(),
        busy_cores=max(one.busy_cores for one in timed.values()),
        workload=f"{workload.new_tokens} tokens after {count} prompt{'s' * (count != 1)} of {first.shape[1]} tokens"
        if count == 1
        else f"{workload.new_tokens} tokens after each of {count} prompts",
        kept=kept_prompts(workload, tokens),
    )


def _per_token(times_ns: list[list[int]]) -> tuple[float, ...]:
    """Return milliseconds of each token but the first; of the first where there is no other."""
    return tuple(time / 1e6 for times in times_ns for time in times[min(1, len(times) - 1) :])


def _remarks(loop: Loop, workload: Generation) -> list[str]:
    # an encoder reads prompts that are padded on the right
    remarks = [] if isinstance(loop, PyTorchFirst) and "decoder_input_ids" in loop.takes else list(workload.remarks)
    if isinstance(loop, PyTorchFirst):
        return [*remarks, NOTE]
    if workload.is_padded and "position_ids" not in loop.takes:
        remarks.append("prompts are padded and it takes no position_ids, so padding shifts the positions of its tokens")
    if workload.is_padded and "attention_mask" not in loop.takes:
        remarks.append("prompts are padded and it takes no attention_mask, so padding is read as text")
    if not loop.has_cache:
        remarks.append("it has no cache: each step computes all tokens again")
    return remarks
