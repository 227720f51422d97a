"""The generated text of candidates, beside the float model's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from prepbench.errors import InputError, printable
from prepbench.measure.comparison import CandidateResult
from prepbench.measure.generation import Generation
from prepbench.results.written_text import RunGeneration, WrittenText

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
