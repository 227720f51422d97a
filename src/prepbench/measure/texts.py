"""Token numbers as text, split where two candidates differ."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from prepbench.errors import InputError, printable
from prepbench.results.measurement import WrittenText

Decode = Callable[[list[int]], str]
_CHARACTERS = 4_000  # of one text


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
