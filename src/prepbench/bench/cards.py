"""How actions of the bench end, as cards: a sentence, numbers, places with their code, and what can be done next."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import PurePath
from typing import Literal

from prepbench.capture.aten.variants import specialised
from prepbench.capture.sizes.dynamic_axes import DynamicAxes
from prepbench.document.model import Failure, alike_failures
from prepbench.errors import (
    CalibrationError,
    InputError,
    MissingPackageError,
    PackageVersionError,
    PrepbenchError,
    TargetError,
)
from prepbench.internal_errors import internal_error
from prepbench.quantize.insert import NothingQuantizedError
from prepbench.results.speed_up import SpeedUp

About = Literal["", "capture", "compile", "recover", "search", "layers", "samples", "export"]
"""The actions of the bench that have a place for their outcome."""

_AGAIN: Mapping[About, str] = {"compile": "compile", "recover": "train back", "search": "search", "layers": "measure"}
"""What can be asked for again once its error is repaired, in words."""

LEAF_LABEL = "Keep what fails in PyTorch"
"""The words beside the checkbox for leaves."""

NEED_ONE_GRAPH: Collection[About] = ("search", "recover")
"""Actions that no part kept in PyTorch can take part in."""

_SENT = {"export_onnx": "onnx", "save_model": "model", "report": "report"}
"""What the browser can save instead of a file on the machine of the kernel, by the action that writes it."""

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
class CardFact:
    """A number of an outcome.

    Attributes:
        label: what it is.
        value: it, in words.
        note: more about it; "" for nothing.
    """

    label: str
    value: str
    note: str = ""


@dataclass(frozen=True)
class RunOutcome:
    """What a run came to.

    Attributes:
        name: of the run.
        facts: speed, score and size.
        note: why it is as it is; "" for nothing.
        is_doubtful: whether its time is better measured again.
    """

    name: str
    facts: tuple[CardFact, ...]
    note: str = ""
    is_doubtful: bool = False


@dataclass(frozen=True)
class CardButton:
    """What can be done next.

    Attributes:
        label: of the button.
        action: what it does. It shows results, two runs compared, what can be taken away, or the code; it writes or
            sends a file; or it changes a choice: all proven fixes, what fails in PyTorch or nothing there, float or 8
            bits for all layers, a dim made dynamic or static, another target.
        value: the path of the dim with its number (``"ids:0"``), the name of the target, the ids of runs with spaces
            between them, the path to write to, or the file to send.
        again: the action that is asked for again after the change; ``""`` for none.
    """

    label: str
    action: Literal[
        "results",
        "compare",
        "export",
        "code",
        "measure_again",
        "compare_with_float",
        "apply_fixes",
        "keep_in_pytorch",
        "one_graph",
        "keep_float",
        "eight_bits",
        "make_dynamic",
        "make_static",
        "use_target",
        "save_model",
        "download",
    ]
    value: str = ""
    again: About = ""


@dataclass(frozen=True)
class Card:
    """How an action ended: a sentence with what it came to, or an error with its places.

    Attributes:
        kind: ``""`` for no card.
        text: the sentence, or the title of an error.
        troubles: the failing modules.
        details: the whole text of the error, collapsed at first.
        about: the action, under whose button it stands; ``""`` for one that has no place of its own.
        outcomes: the runs that it made.
        buttons: what can be done next; what repairs an error comes first.
    """

    kind: Literal["", "info", "error"] = ""
    text: str = ""
    troubles: tuple[Trouble, ...] = ()
    details: str = ""
    about: About = ""
    outcomes: tuple[RunOutcome, ...] = ()
    buttons: tuple[CardButton, ...] = ()


WHOLE_AGAIN = CardButton("Keep nothing in PyTorch", "one_graph")
"""Beside an action that needs the model as one graph."""


class StaticAxisError(InputError):
    """Data has a size that a static axis does not take.

    Attributes:
        path: the argument of the axis.
        dim: of the argument.
    """

    def __init__(self, message: str, path: str, dim: int) -> None:
        super().__init__(message)
        self.path, self.dim = path, dim


def error_card(
    error: BaseException,
    *,
    leaf_wrap: bool,
    about: About = "",
    others: Sequence[str] = (),
    axes: DynamicAxes | None = None,
    outcomes: tuple[RunOutcome, ...] = (),
    proven: Collection[str] = (),
) -> Card:
    """Return the card of an error; it names arguments by the labels of the bench's controls, where there are any.

    Args:
        error: the error.
        leaf_wrap: whether what cannot be captured runs in PyTorch already.
        about: the action that failed.
        others: the names of targets that may do what this one cannot, the best first.
        axes: those that were asked for.
        outcomes: what the action came to all the same.
        proven: the modules with a proven fix that is not applied.
    """
    error = internal_error(error, of_libraries=True) or error
    said = str(error) if isinstance(error, PrepbenchError) else f"{type(error).__name__}: {error}"
    text = _with_control_labels(said)
    failures = tuple(getattr(error, "failures", ()))
    troubles = tuple(map(_trouble, alike_failures(failures)))
    title = _title(failures) if failures else first_sentence(text)
    details = "" if text == title else text
    buttons = [*_of_axes(error, failures, axes)]
    if failures and about in _AGAIN and {failure.fqn for failure in failures} <= set(proven):
        buttons.append(CardButton(f"Apply the fix{'es' * (len(troubles) > 1)}", "apply_fixes"))
    if not leaf_wrap and "fullgraph=False" in said and about not in NEED_ONE_GRAPH:
        what = "it" if len(troubles) == 1 else "these"
        buttons.append(CardButton(f"Keep {what} in PyTorch", "keep_in_pytorch"))
    if about == "search" and isinstance(error, NothingQuantizedError):
        buttons.append(CardButton("Choose 8 bits for all layers", "eight_bits"))
    if about == "compile" and isinstance(error, CalibrationError):
        buttons.append(CardButton("Keep all layers in float", "keep_float"))
    if about in _AGAIN and others and isinstance(error, TargetError | MissingPackageError | PackageVersionError):
        buttons.append(CardButton(f"Use {others[0]}", "use_target", others[0]))
    return Card("error", title, troubles, details, about, outcomes, tuple(_repeating(each, about) for each in buttons))


def _repeating(button: CardButton, about: About) -> CardButton:
    """Return a button that asks for the failed action again; a compile where that cannot be repeated."""
    again: About = about if about in _AGAIN else "compile"
    return replace(button, label=f"{button.label} and {_AGAIN[again]}", again=again)


def export_error_card(error: BaseException, action: str, path: str, *, leaf_wrap: bool) -> Card:
    """Return the card of a file that could not be written or sent, with the other way to get it.

    Args:
        error: the error.
        action: ``"save"``, ``"report"``, ``"export_onnx"`` or ``"save_model"``, to a path; else ``"download"``.
        path: where it was to be written, or the file that was to be sent.
        leaf_wrap: as for :func:`error_card`.
    """
    card = error_card(error, leaf_wrap=leaf_wrap)
    buttons = []
    if isinstance(error, OSError) and action in _SENT:
        buttons.append(CardButton("Download it", "download", _SENT[action]))
    elif action == "export_onnx":
        buttons.append(CardButton("Save the model as a folder", "save_model", path.removesuffix(".onnx")))
    elif action == "save_model" and os.path.lexists(path):
        free = next(name for number in count(2) if not os.path.lexists(name := f"{path}-{number}"))
        buttons.append(CardButton(f"Save as {os.path.basename(free)}", "save_model", free))
    elif action == "download" and path == "onnx":
        buttons.append(CardButton("Download the model as a folder", "download", "model"))
    return replace(card, about="export", buttons=tuple(buttons))


def _of_axes(error: BaseException, failures: Sequence[Failure], axes: DynamicAxes | None) -> Iterator[CardButton]:
    """Yield the other choice for an axis that is the reason of an error."""
    if isinstance(error, StaticAxisError):
        what = axis_words(error.path, error.dim)
        yield CardButton(f"Make {what} dynamic", "make_dynamic", f"{error.path}:{error.dim}")
    for axis, _ in specialised(failures, axes) if axes is not None else ():
        if len(set(axis.sizes)) == 1:  # samples of other sizes would not fit a static axis
            what = axis_words(axis.path, axis.dim)
            yield CardButton(f"Fix {what} at {axis.sizes[0]}", "make_static", f"{axis.path}:{axis.dim}")
            return


def axis_words(path: str, dim: int) -> str:
    """Return what a dim of an argument is called beside buttons."""
    return "the batch" if dim == 0 else f"dim {dim} of {path}"


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


def first_sentence(text: str) -> str:
    """Return the first sentence of a text, shortened where it is long."""
    line = text.strip().partition("\n")[0]
    sentence = re.split(r"(?<=[a-z0-9)'\"”])\. ", line, maxsplit=1)[0]
    return sentence if len(sentence) <= _TITLE else f"{sentence[:_TITLE]} …"


def size_words(megabytes: str, *, note: str) -> str:
    """Return the size in words, or the reason why it is unknown."""
    if megabytes.strip("*") not in ("–", "0"):
        return f"{megabytes} MB"
    return f"size – ({note.partition('. ')[0] or 'it cannot be saved'})"


def slower_because(found: SpeedUp | None, *, fallbacks: Iterable[str], leaves: Iterable[str], quantized: bool) -> str:
    """Return why a result is slower than its baseline, if known; "" where it is not slower beyond doubt."""
    if found is None or not found.is_slower:
        return ""
    slower = f"Slower than {found.baseline}"
    in_pytorch, in_python = len(tuple(fallbacks)), len(tuple(leaves))
    if in_pytorch:
        return f"{slower}: it waits for {in_pytorch} operator{'s' * (in_pytorch != 1)} in PyTorch."
    if in_python:
        return f"{slower}: it waits for {in_python} part{'s' * (in_python != 1)} kept in PyTorch."
    if quantized:
        return f"{slower}: converting between int8 and float takes longer here than int8 saves, as in small models."
    return f"{slower}: calling the target takes longer here than it saves, as in small models."
