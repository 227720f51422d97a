"""Errors of the bench as cards: a title, the places with their code, and the possible actions."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import PurePath
from typing import Literal

from prepbench.document.failures import alike_failures
from prepbench.document.model import Failure
from prepbench.errors import PrepbenchError
from prepbench.internal_errors import internal_error

LEAF_LABEL = "Lines that fail run in PyTorch"
"""The words beside the checkbox for leaves."""

_TITLE = 180  # characters


@dataclass(frozen=True)
class Trouble:
    """One module that fails.

    Attributes:
        fqn: its name; of several that fail alike, a pattern with their number.
        type: its class.
        reason: why.
        place: the line in short, e.g. ``"net.py:7"``; "" if it is not known.
        code: the text of the line.
        remedy: how to fix it.
        file: the file of the line, as Python names it.
        line: its number, from 1.
    """

    fqn: str
    type: str
    reason: str
    place: str
    code: str
    remedy: str
    file: str = ""
    line: int = 0


@dataclass(frozen=True)
class Card:
    """A line of text, or an error with its places.

    Attributes:
        kind: ``""`` for no message.
        text: the sentence, or the title of an error.
        troubles: the failing modules.
        details: the whole text of the error, collapsed at first.
        can_be_leaf: whether the compile may continue with the failing parts as leaves.
    """

    kind: Literal["", "info", "error"] = ""
    text: str = ""
    troubles: tuple[Trouble, ...] = ()
    details: str = ""
    can_be_leaf: bool = False


def error_card(error: BaseException, *, leaf_wrap: bool) -> Card:
    """Return the card of an error; it names arguments by the labels of the bench's controls, where there are any."""
    error = internal_error(error, of_libraries=True) or error
    said = str(error) if isinstance(error, PrepbenchError) else f"{type(error).__name__}: {error}"
    text = _with_control_labels(said)
    failures = tuple(getattr(error, "failures", ()))
    troubles = tuple(map(_trouble, alike_failures(failures)))
    title = _title(failures) if failures else _first_sentence(text)
    details = "" if text == title else text
    helps = not leaf_wrap and "fullgraph=False" in said
    return Card("error", title, troubles, details, can_be_leaf=helps)


def _title(failures: tuple[Failure, ...]) -> str:
    first = failures[0]
    if len(failures) == 1:
        return f"{first.fqn or 'The model itself'} cannot be captured: {first.kind}"
    kinds = list(dict.fromkeys(failure.kind for failure in failures))
    return f"{len(failures)} modules cannot be captured: {', '.join(kinds[:3])}{' …' if len(kinds) > 3 else ''}"


def _trouble(failure: Failure) -> Trouble:
    source = failure.source
    place = f"{PurePath(source.file).name}:{source.line}" if source else ""
    code = source.code if source else ""
    file, line = (source.file, source.line) if source else ("", 0)
    return Trouble(
        failure.fqn, failure.module_type, failure.kind, place, code, remedy_words(failure.remedy), file, line
    )


def remedy_words(text: str) -> str:
    """Return a remedy without the clause about arguments, which the buttons of the page replace."""
    return re.sub(r"[;,] or [^;]*leaf_modules=.*$", ".", text, flags=re.DOTALL)


def _with_control_labels(text: str) -> str:
    text = text.replace("capture with fullgraph=False, which keeps", f"choose “{LEAF_LABEL}”, which keeps")
    return text.replace("fullgraph=False", f"“{LEAF_LABEL}”")


def _first_sentence(text: str) -> str:
    line = text.strip().partition("\n")[0]
    sentence = re.split(r"(?<=[a-z0-9)'\"”])\. ", line, maxsplit=1)[0]
    return sentence if len(sentence) <= _TITLE else f"{sentence[:_TITLE]} …"


def size_words(megabytes: str, *, note: str) -> str:
    """Return the size in words, or the reason why it is unknown."""
    if megabytes.strip("*") not in ("–", "0"):
        return f"{megabytes} MB"
    return f"size – ({note.partition('. ')[0] or 'it cannot be saved'})"


def slower_because(speedup: float | None, *, fallbacks: Iterable[str], leaves: Iterable[str], quantized: bool) -> str:
    """Return why a result is slower than the float model, if known; "" where it is not slower."""
    if speedup is None or speedup >= 1:
        return ""
    in_pytorch, in_python = len(tuple(fallbacks)), len(tuple(leaves))
    if in_pytorch:
        return f"Slower: it waits for {in_pytorch} operator{'s' * (in_pytorch != 1)} in PyTorch."
    if in_python:
        return f"Slower: it waits for {in_python} {'leaves' if in_python != 1 else 'leaf'} in Python."
    if quantized:
        return "Slower: converting between int8 and float takes longer here than int8 saves, as in small models."
    return "Slower: calling the target takes longer here than it saves, as in small models."
