"""``compare``: accuracy, latency and size of several candidates on the same data."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from prepbench.checks import check_count, check_progress, check_seconds, check_switch, described
from prepbench.errors import InputError, SettingsError
from prepbench.jobs import Progress, ProgressCallback, report_nothing
from prepbench.measure.artifacts import HERE, Artifact, is_compiled, is_float, save_candidate
from prepbench.measure.batches import Batch, read_batches
from prepbench.measure.comparison import CandidateResult as CandidateResult
from prepbench.measure.comparison import Comparison as Comparison
from prepbench.measure.comparison import with_references
from prepbench.measure.generation import Generation
from prepbench.measure.kept_samples import Keeper, WorstSamples
from prepbench.measure.latency import NOT_TIMED, Latency, interval, measure_latency, not_timed, percentile
from prepbench.measure.metrics import Metric
from prepbench.measure.modality import SAMPLING_RATE, Modality
from prepbench.measure.process import busy_share
from prepbench.measure.scores import Candidate, Scores, draws, eval_mode, run
from prepbench.package.compiled import what_runs
from prepbench.progress_bar import shows_progress
from prepbench.running.check_inputs import twin_with_own_writes
from prepbench.running.given_samples import with_tokenizer
from prepbench.running.metric_facts import facts_of, is_higher_better
from prepbench.running.metric_scores import takes_targets
from prepbench.running.transforms import chosen_transform, length_of
from prepbench.storage import temporary_folder


@shows_progress("compare")
def compare(
    candidates: Mapping[str, torch.nn.Module | Callable[..., Any]],
    data: Any,
    *,
    metric: Metric | None = None,
    higher_is_better: bool | None = None,
    rounds: int = 20,
    timeout: float | None = 600.0,
    progress: ProgressCallback = report_nothing,
    tokenizer: Callable[..., Any] | None = None,
    transform: Callable[[Any], Any] | None = None,
) -> Comparison:
    """Compare accuracy, latency and size of float modules and compiled models.

    With a ``Generation`` as data every candidate generates text: its score is the share of tokens that agree with
    the first candidate's, and its times are those of the first and of further tokens (``row.generation``).

    The metric is averaged over the batches, weighted by batch size (the first dimension of the first input tensor).
    Latency is that of one call on the first batch: each candidate is saved to a temporary folder and timed in a
    process of its own, all with the same number of threads, in interleaved rounds. A float module is timed as its
    exported graph, which PyTorch runs operator by operator. A candidate that cannot be saved is timed in this
    process, and the result says so. Models keep their parameters, flags, buffers and attributes. Data is not
    changed.

    Args:
        candidates: models by name, all taking the same inputs. The others are compared with the first one.
        data: an iterable of batches, read once, or a :class:`prepbench.Generation`. With a ``metric``, every element is
            a pair ``(input, target)``, or a dict with the target under a name such as ``"label"``; without one, and for
            metrics that compare with the first candidate (``kl_divergence``, ``token_agreement``), every element is an
            input alone. An input has any form that ``compile_model`` takes: a tensor, an array, an image, a tuple of
            positional arguments (a dict of keyword arguments may come last), or a dict of keyword arguments.
        metric: ``metric(output, target)`` giving one finite number for a batch, e.g. ``prepbench.metrics.accuracy``.
            None: SQNR of the outputs in dB against the first candidate's.
        higher_is_better: False where less is better; by default as known for the metric, False for a loss by its name,
            else True.
        rounds: interleaved rounds of timing; 0 leaves latency out.
        timeout: seconds to wait for each answer of a timing process; None waits for ever.
        progress: receives each step; it may raise :class:`prepbench.Cancelled`.
        tokenizer: makes tensors of texts where samples are texts or lists of them, called as
            ``tokenizer(texts, return_tensors="pt", padding=True)``.
        transform: applied to each sample first, of a data set of torch or Hugging Face ``datasets`` or of any other
            form: makes of it what the model is called with, batch dimension and all, with the target
            beside it: ``lambda row: (pixels(row["image"])[None], row["label"])``.

    Returns:
        One row for each candidate.

    Raises:
        InputError: the candidates or an element of data do not have the form above, or a candidate fails on it.
        MetricError: the metric returned no finite number.
        SettingsError: a tokenizer or a transform is given with a :class:`prepbench.Generation`, which has tokens.
        StorageError: there is no space for temporary files, or they cannot be written.
        LatencyError: a timing process failed; its error output is in the message.

    Example:
        >>> model = torch.nn.Linear(4, 2)
        >>> compare({"float32": model}, [torch.ones(8, 4)], rounds=0).samples
        8
    """
    if higher_is_better is not None:
        check_switch("higher_is_better", higher_is_better)
    check_progress(progress)
    _check(candidates, metric, rounds, timeout)
    candidates = {name: what_runs(candidate) for name, candidate in candidates.items()}
    prepared = with_tokenizer(tokenizer, chosen_transform(transform))
    if isinstance(data, Generation):
        if prepared is not None:
            raise SettingsError(
                "data is a Generation, whose prompts are tokens already, so nothing reads tokenizer= and transform=. "
                "Leave them out."
            )
        from prepbench.measure.generation_run import compare_generation

        return compare_generation(candidates, data, metric=metric, rounds=rounds, timeout=timeout, progress=progress)
    batches = read_batches(candidates.values(), data, with_targets=takes_targets(metric), transform=prepared)
    total = length_of(data) or 0
    first = next(batches)
    # for other threads the models stay in their modes
    called = {
        name: candidate if is_compiled(candidate) else twin_with_own_writes(candidate, first.sample).model
        for name, candidate in candidates.items()
    }
    scores = Scores(called, metric)
    with eval_mode(called.values()):
        # the first batch is scored before anything slow happens: most mistakes show there
        _score(scores, first, total, progress)
        artifacts, latencies = _sizes_and_latencies(
            candidates, called, first, rounds=rounds, timeout=timeout, progress=progress
        )
        for batch in batches:
            _score(scores, batch, total, progress)
    facts = facts_of(metric)
    return Comparison(
        rows=_rows(scores, candidates, artifacts, latencies, rounds),
        metric=scores.name,
        unit="dB" if scores.is_sqnr else "",
        higher_is_better=is_higher_better(metric, higher_is_better),
        samples=scores.samples,
        batch_size=first.size,
        rounds=rounds,
        threads=torch.get_num_threads(),
        busy_cores=max((latency.busy_cores for latency in latencies.values()), default=0.0),
        kept=scores.kept(),
        bounds=(facts.low, facts.high) if facts is not None else (-math.inf, math.inf),
    )


def _score(scores: Scores, batch: Batch, total: int, progress: ProgressCallback) -> None:
    done = batch.sample.index
    progress(Progress("accuracy", done, max(total, done + 1)))
    scores.add(batch)


def _sizes_and_latencies(
    candidates: Mapping[str, Candidate],
    called: Mapping[str, Candidate],
    first: Batch,
    *,
    rounds: int,
    timeout: float | None,
    progress: ProgressCallback,
) -> tuple[dict[str, Artifact], dict[str, Latency]]:
    with temporary_folder("compare") as folder:
        artifacts = {}
        for position, (candidate_name, candidate) in enumerate(candidates.items()):
            progress(Progress("save", position, len(candidates), candidate_name))
            artifacts[candidate_name] = save_candidate(candidate, [first.sample], folder / str(position), progress)
        reasons = {name: not_timed(artifact.target) if rounds else "" for name, artifact in artifacts.items()}
        timed = measure_latency(
            {name: one for name, one in called.items() if not reasons[name]},
            {name: one for name, one in artifacts.items() if not reasons[name]},
            first.sample,
            folder,
            rounds=rounds,
            timeout=timeout,
            progress=progress,
        )
        return artifacts, {name: timed.get(name) or Latency((), NOT_TIMED, why) for name, why in reasons.items()}


def _rows(
    scored: Scores,
    candidates: Mapping[str, Candidate],
    artifacts: Mapping[str, Artifact],
    latencies: Mapping[str, Latency],
    rounds: int,
) -> tuple[CandidateResult, ...]:
    scores, spreads = scored.values(), scored.spreads()
    first = scores[next(iter(scores))]
    rows = []
    for name, score in scores.items():
        artifact, latency, change = artifacts[name], latencies[name], score - first
        note = artifact.note.removeprefix(HERE) if latency.note else artifact.note
        row = CandidateResult(
            name=name,
            metric=score,
            change=change if math.isfinite(change) else None,
            p50_ms=percentile(latency.times_ms, 50),
            p90_ms=percentile(latency.times_ms, 90),
            interval_ms=interval(latency.times_ms, latency.rounds or rounds),
            size_bytes=artifact.size_bytes,
            size_of=artifact.size_of,
            target=artifact.target,
            timed_in=latency.timed_in,
            note="; ".join(filter(None, [note, latency.note])),
            times_ms=latency.times_ms,
            spread=spreads[name],
            busy=busy_share(latency.busy_cores),
            is_float=is_float(candidates[name]),
        )
        rows.append(row)
    return with_references(rows)


def _check(candidates: Any, metric: Any, rounds: Any, timeout: Any) -> None:
    if not isinstance(candidates, Mapping) or isinstance(candidates, torch.nn.Module):
        raise InputError(
            f'candidates must be a dict of models by name, e.g. {{"float32": model, "int8": compiled}}, '
            f"got {type(candidates).__name__}."
        )
    if not candidates:
        raise InputError('candidates is empty: give at least one, e.g. {"float32": model}.')
    for name, candidate in candidates.items():
        if not isinstance(name, str) or not name.strip():
            raise InputError(f"candidates: every key must be a name (non-empty text), got {name!r}.")
        if not callable(candidate):
            raise InputError(f"candidates[{name!r}] must be a module or a function, got {type(candidate).__name__}.")
    if metric is not None and not callable(metric):
        raise InputError(
            f"metric must be a function of (output, target), got {described(metric)}; e.g. prepbench.metrics.accuracy."
        )
    check_count("rounds", rounds)
    check_seconds("timeout", timeout, optional=True)


def farthest_samples(
    candidates: Mapping[str, Candidate],
    data: Iterable[Any],
    *,
    metric: Metric | None,
    n: int,
    progress: ProgressCallback = report_nothing,
    decode: Callable[[list[int]], str] | None = None,
    modality: Modality | Mapping[str, Modality] | None = None,
    sampling_rate: int = SAMPLING_RATE,
    caller: Callable[..., Any] | None = None,
) -> WorstSamples:
    """Return the samples on which the second of two compiled models is farthest from the first; nothing is timed.

    Args:
        candidates: the two by name.
        data: as in :func:`compare`.
        metric: decides whether data has targets, and how far rows are apart.
        n: how many samples.
        progress: receives each batch; it may raise :class:`prepbench.Cancelled`.
        decode: makes text of token numbers.
        modality: how inputs and outputs are shown; None for what their values tell.
        sampling_rate: of audio, in values a second.
        caller: whose forward names the inputs; the first of the two if left out.

    Raises:
        InputError: a candidate fails on an element of data, or the outputs cannot be compared row by row.
    """
    (first, one), (second, other) = candidates.items()
    keeper, samples, seeded = Keeper(metric, caller or one), 0, None
    total = length_of(data) or 0
    with eval_mode(candidates.values()):
        for batch in read_batches([one, other], data, with_targets=takes_targets(metric)):
            progress(Progress("samples", batch.sample.index, max(total, batch.sample.index + 1)))
            if seeded is None:
                seeded = {name: draws(name, candidate, batch) for name, candidate in candidates.items()}
            reference = run(first, one, batch, is_seeded=seeded[first])
            keeper.add(first, reference, reference, batch)
            keeper.add(second, run(second, other, batch, is_seeded=seeded[second]), reference, batch)
            samples += batch.size
    kept = keeper.kept()
    if second in kept.reasons:
        raise InputError(f"{first} and {second} cannot be compared sample by sample: {kept.reasons[second]}.")
    about = first, second, kept.measure, samples
    return WorstSamples(*about, kept.worst.get(second, ())[:n], decode, modality, sampling_rate)
