"""How actions of the bench end, as cards: a sentence, numbers, places with their code, and what can be done next."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
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
from prepbench.results.speed_up import SpeedUp

About = Literal["", "capture", "compile", "recover", "search", "layers", "samples"]
"""The actions of the bench that take time."""

LEAF_LABEL = "Keep what fails in PyTorch"
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
        action: what it does: it shows results, two runs compared, what can be taken away, or the code; or it compiles
            and measures again, as before, in float beside runs, with all proven fixes, with what fails in PyTorch, with
            a dim made dynamic, or for another target.
        value: the path of the dim with its number (``"ids:0"``), the name of the target, or the ids of runs with
            spaces between them.
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
        "keep_float",
        "make_dynamic",
        "make_static",
        "use_target",
    ]
    value: str = ""


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
    if failures and about == "compile" and {failure.fqn for failure in failures} <= set(proven):
        buttons.append(CardButton(f"Apply the fix{'es' * (len(troubles) > 1)} and compile", "apply_fixes"))
    if not leaf_wrap and "fullgraph=False" in said:
        what = "it" if len(troubles) == 1 else "these"
        buttons.append(CardButton(f"Keep {what} in PyTorch and compile", "keep_in_pytorch"))
    if about == "compile":
        buttons += _of_compiles(error, others)
    return Card("error", title, troubles, details, about, outcomes, tuple(buttons))


def _of_axes(error: BaseException, failures: Sequence[Failure], axes: DynamicAxes | None) -> Iterator[CardButton]:
    """Yield the other choice for an axis that is the reason of an error."""
    if isinstance(error, StaticAxisError):
        what = axis_words(error.path, error.dim)
        yield CardButton(f"Make {what} dynamic and compile", "make_dynamic", f"{error.path}:{error.dim}")
    for axis, _ in specialised(failures, axes) if axes is not None else ():
        if len(set(axis.sizes)) == 1:  # samples of other sizes would not fit a static axis
            what = axis_words(axis.path, axis.dim)
            yield CardButton(f"Fix {what} at {axis.sizes[0]} and compile", "make_static", f"{axis.path}:{axis.dim}")
            return


def axis_words(path: str, dim: int) -> str:
    """Return what a dim of an argument is called beside buttons."""
    return "the batch" if dim == 0 else f"dim {dim} of {path}"


def _of_compiles(error: BaseException, others: Sequence[str]) -> Iterator[CardButton]:
    """Yield what compiles all the same: the model in float, or on another target."""
    if isinstance(error, CalibrationError):
        yield CardButton("Compile in float", "keep_float")
    if isinstance(error, TargetError | MissingPackageError | PackageVersionError) and others:
        yield CardButton(f"Use {others[0]}", "use_target", others[0])


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
