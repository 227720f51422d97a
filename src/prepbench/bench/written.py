"""The generated text of candidates, beside the float model's."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from typing import Any

import torch

from prepbench.errors import InputError, PrepbenchError, printable
from prepbench.generate.greedy import CompiledSteps, ModelSteps
from prepbench.internal_errors import raise_if_internal
from prepbench.jobs import Progress, ProgressCallback
from prepbench.measure.comparison import CandidateResult
from prepbench.measure.generation import Generation, Prompt
from prepbench.measure.scores import eval_mode
from prepbench.objects.copy import Twin
from prepbench.package import CompiledModel
from prepbench.results.measurement import RunGeneration, WrittenText

Decode = Callable[[list[int]], str]
Rows = Sequence[Sequence[int]]
"""The new tokens of each prompt, all batches one after the other."""

SHOWN = 8
"""Prompts whose texts are kept and shown."""
_CHARACTERS = 4_000  # of one text


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


def text_of(tokens: Sequence[int], decode: Decode | None) -> str:
    """Return token numbers as text; as numbers without a function for it.

    Raises:
        InputError: the function fails, or returns no text.
    """
    if decode is None:
        return " ".join(map(str, tokens))
    remedy = "Give a function from a list of token numbers to text, such as tokenizer.decode."
    try:
        text = decode(list(tokens))
    except Exception as error:
        raise InputError(f"decode failed for the tokens {list(tokens)[:5]}: {error}. {remedy}") from error
    if not isinstance(text, str):
        raise InputError(f"decode returned {type(text).__name__} for the tokens {list(tokens)[:5]}. {remedy}")
    return printable(text[:_CHARACTERS])


def compared_text(tokens: Sequence[int], expected: Sequence[int], decode: Decode | None) -> WrittenText:
    """Return the text of tokens, split at the first one that differs from the expected ones.

    Example:
        >>> compared_text([4, 9, 7], [4, 9, 8], None)
        WrittenText(same='4 9', other=' 7', rest='', agree=2, tokens=3)
    """
    agree = next((i for i, (one, other) in enumerate(zip(tokens, expected, strict=False)) if one != other), len(tokens))
    whole = text_of(tokens, decode)
    if agree == len(tokens):
        return WrittenText(whole, agree=agree, tokens=len(tokens))
    # the text of a token may depend on its neighbours, such as the bytes of one letter
    same = _shared_start(text_of(tokens[:agree], decode), whole)
    upto = _shared_start(text_of(tokens[: agree + 1], decode), whole)
    return WrittenText(same, whole[len(same) : len(upto)], whole[max(len(same), len(upto)) :], agree, len(tokens))


def _shared_start(one: str, other: str) -> str:
    pairs = enumerate(zip(one, other, strict=False))
    return one[: next((at for at, (a, b) in pairs if a != b), min(len(one), len(other)))]


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
    """Return the generation of a candidate as part of its run; None where it did not generate.

    Args:
        row: the candidate.
        first: the float model.
        workload: the prompts and the number of tokens.
        decode: makes text of token numbers.
    """
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
