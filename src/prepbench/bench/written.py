"""The generated text of candidates, beside the float model's."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from typing import Any

import torch

from prepbench.errors import InputError, PrepbenchError
from prepbench.generate.greedy import CompiledSteps, ModelSteps
from prepbench.internal_errors import raise_if_internal
from prepbench.jobs import Progress, ProgressCallback
from prepbench.measure.comparison import CandidateResult
from prepbench.measure.generation import Generation, Prompt
from prepbench.measure.scores import eval_mode
from prepbench.measure.texts import Decode as Decode
from prepbench.measure.texts import compared_text as compared_text
from prepbench.measure.texts import text_of as text_of
from prepbench.objects.copy import Twin
from prepbench.package.compiled import CompiledModel, what_runs
from prepbench.results.measurement import RunGeneration, WrittenText

Rows = Sequence[Sequence[int]]
"""The new tokens of each prompt, all batches one after the other."""

SHOWN = 8
"""Prompts whose texts are kept and shown."""


@dataclass(frozen=True)
class WrittenBy:
    """The generated text of one candidate.

    Attributes:
        name: of the candidate.
        texts: the text after each prompt that is shown.
        numbers: the cost, in words; empty before it is measured.
    """

    name: str
    texts: tuple[WrittenText, ...]
    numbers: str = ""


def rows_of(candidate: CandidateResult) -> list[tuple[int, ...]]:
    """Return the new tokens of each shown prompt."""
    found = candidate.generation
    return [] if found is None else [row for batch in found.tokens for row in batch][:SHOWN]


def prompt_texts(workload: Generation, decode: Decode | None) -> tuple[str, ...]:
    """Return the shown prompts, without their padding."""
    rows = [
        [token for token, counts in zip(ids, mask, strict=True) if counts]
        for batch in workload.batches
        for ids, mask in zip(batch.ids.tolist(), batch.mask.tolist(), strict=True)
    ]
    return tuple(text_of(row, decode) for row in rows[:SHOWN])


def compared_texts(rows: Rows, expected: Rows, decode: Decode | None) -> tuple[WrittenText, ...]:
    """Return the texts of a candidate, compared with the tokens of the float model."""
    return tuple(compared_text(one, other, decode) for one, other in zip(rows, expected, strict=True))


def run_generation(
    row: CandidateResult, first: CandidateResult, workload: Generation, decode: Decode | None
) -> RunGeneration | None:
    """Return a candidate's generation, beside the float model's, as part of its run; None if it did not generate."""
    if row.generation is None or first.generation is None:
        return None
    expected = rows_of(first)
    return RunGeneration(
        row.generation.first_token_ms,
        row.generation.tokens_per_second,
        row.generation.peak_bytes,
        first.generation.first_token_ms,
        first.generation.tokens_per_second,
        first.generation.peak_bytes,
        prompt_texts(workload, decode),
        compared_texts(rows_of(row), expected, decode),
        tuple(text_of(tokens, decode) for tokens in expected),
    )


def workload_words(workload: Generation) -> str:
    """Describe a generation, e.g. ``"16 tokens after each of 2 prompts"``."""
    count = sum(len(batch.ids) for batch in workload.batches)
    which = f"a prompt of {workload.batches[0].ids.shape[1]} tokens" if count == 1 else f"each of {count} prompts"
    tokens = f"{workload.new_tokens} token{'s' * (workload.new_tokens != 1)}"
    return " · ".join([f"{tokens} after {which}", *workload.remarks])


# Live generation: each token is shown as it comes, and is a place to cancel.


WRITING = "generate"
"""The stage in which a candidate generates."""

Told = Callable[[tuple[WrittenBy, ...]], None]
_Heard = Callable[[torch.Tensor], None]
_PAUSE = 0.1  # seconds between two texts


class Writing:
    """Lets candidates generate one after the other; the others are compared with the first.

    Args:
        workload: the prompts and the number of tokens.
        decode: makes text of token numbers.
        told: called with the texts of all candidates so far.
        progress: receives each token; it may raise :class:`prepbench.Cancelled`.
    """

    def __init__(self, workload: Generation, decode: Decode | None, told: Told, progress: ProgressCallback) -> None:
        self._decode, self._told, self._progress = decode, told, progress
        self._new_tokens = workload.new_tokens
        self._prompts = _shown(workload.batches)
        self._expected: list[list[int]] | None = None
        self._done: tuple[WrittenBy, ...] = ()
        self._last = 0.0

    def write(self, name: str, candidate: Any) -> None:
        """Let a candidate continue the shown prompts.

        Raises:
            InputError: it cannot generate; the message says what it lacks.
            Cancelled: ``progress`` raised it.
        """
        rows: list[list[int]] = []
        total, made = len(self._prompts) * self._new_tokens, 0

        def hear(tokens: torch.Tensor) -> None:
            nonlocal made
            made += 1
            for row, token in zip(rows[-len(tokens) :], tokens.tolist(), strict=True):
                row.append(token)
            if time.monotonic() - self._last > _PAUSE:
                self._tell(name, rows)
            self._progress(Progress(WRITING, made, total, name))

        with ExitStack() as ends:
            steps = _heard_steps(name, candidate, hear, ends.enter_context)
            for index, prompt in enumerate(self._prompts):
                rows += [[] for _ in prompt.ids]
                self._generate(name, steps, prompt, index)
        self._expected = self._expected or rows
        self._tell(name, rows)
        self._done = self._so_far(name, rows)

    def _generate(self, name: str, steps: CompiledSteps | ModelSteps, prompt: Prompt, index: int) -> None:
        try:
            steps.generate(prompt.ids, prompt.mask, self._new_tokens)
        except PrepbenchError:
            raise
        except Exception as error:
            raise_if_internal(error)
            raise InputError(
                f"{name} does not generate {self._new_tokens} tokens after prompts[{index}] of shape "
                f"{tuple(prompt.ids.shape)}: {type(error).__name__}: {str(error).strip().rstrip('.')}. Generation "
                "calls a model with input_ids, and needs logits and past_key_values in what it returns. For other "
                "models, give samples as data instead of the Generation."
            ) from error

    def _tell(self, name: str, rows: Sequence[list[int]]) -> None:
        self._last = time.monotonic()
        self._told(self._so_far(name, rows))

    def _so_far(self, name: str, rows: Sequence[list[int]]) -> tuple[WrittenBy, ...]:
        expected = rows if self._expected is None else self._expected[: len(rows)]
        return (*self._done, WrittenBy(name, compared_texts(rows[:SHOWN], expected[:SHOWN], self._decode)))


def _shown(batches: Sequence[Prompt]) -> list[Prompt]:
    """Return the batches that hold the shown prompts."""
    found, count = [], 0
    for batch in batches:
        if count < SHOWN:
            found.append(batch)
        count += len(batch.ids)
    return found


class _HeardSteps(CompiledSteps):
    """The steps of a compiled model, with a callback for each token."""

    def __init__(self, compiled: CompiledModel, hear: _Heard) -> None:
        super().__init__(compiled)
        run = self._run

        def heard(leaves: Sequence[Any]) -> Sequence[Any]:
            outputs = run(leaves)
            hear(outputs[self._logits][:, -1].argmax(-1))
            return outputs

        self._run = heard


def _heard_steps(
    name: str, candidate: Any, hear: _Heard, enter: Callable[[AbstractContextManager[Any]], Any]
) -> CompiledSteps | ModelSteps:
    """Return a candidate's steps with a callback for each token; ``enter`` receives the cleanup."""
    candidate = what_runs(candidate)
    if isinstance(candidate, CompiledModel):
        try:
            return _HeardSteps(candidate, hear)
        except PrepbenchError as error:
            raise InputError(f"{name} does not generate: {error}") from error

    def after(module: torch.nn.Module, args: Any, output: Any) -> None:
        if getattr(output, "logits", None) is not None:  # else the loop says what is missing
            hear(output.logits[:, -1].argmax(-1))

    twin = Twin(candidate).model  # others may call the model meanwhile
    enter(eval_mode([twin]))
    twin.register_forward_hook(after)
    return ModelSteps(twin)
