"""Every error that prepbench raises deliberately.

Each class is a :class:`PrepbenchError` and also the standard exception that a caller
would expect, so both ``except pb.PrepbenchError`` and ``except ValueError`` work. A message says what went
wrong, where (layer name, argument path, sample index), what was expected and what to do about it.
"""

from __future__ import annotations

import re
from typing import ClassVar

from prepbench.error_display import UNPRINTABLE as UNPRINTABLE
from prepbench.error_display import install, notebook_lines
from prepbench.error_display import printable as printable

_LONGEST = 20_000
"""The limit on the characters of a message; an untrusted file may hold a name of any length."""


def _readable(text: str) -> str:
    """Return the text printable, and shortened in the middle if it is too long."""
    if len(text) > _LONGEST:
        text = f"{text[: _LONGEST // 2]} [...] {text[-_LONGEST // 2 + 10 :]}"
    return printable(text)


def page_of(name: str) -> str:
    """Return the link to the documentation of an error class or a kind of failure.

    Example:
        >>> page_of("data-dependent branch")
        'errors.html#data-dependent-branch'
    """
    return f"errors.html#{re.sub('[^a-z0-9]+', '-', name.lower()).strip('-')}"


class PrepbenchError(Exception):
    """Base class of all errors of prepbench. Its text is printable and bounded in length, whatever it quotes.

    Args:
        args: the message, as of any exception.

    Example:
        >>> try:
        ...     pb.capture(model, [torch.ones(2, 5)])
        ... except PrepbenchError as error:
        ...     print(type(error).__name__)
        CaptureError
    """

    is_short_in_terminal: ClassVar[bool] = True
    is_repaired_in_bench: ClassVar[bool] = False

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        install(PrepbenchError)
        # a traceback prints it last; the text itself stays free of it
        self.add_note(f"Documentation: {page_of(type(self).__name__)}")

    def __str__(self) -> str:
        return _readable(super().__str__())

    def _render_traceback_(self) -> list[str]:
        """Return what IPython shows in place of a traceback, and show the card of this error in a notebook."""
        return notebook_lines(self)


class PrepbenchWarning(UserWarning):
    """A warning that something proceeds differently than the caller may expect.

    Example:
        >>> import warnings
        >>> with warnings.catch_warnings():
        ...     warnings.simplefilter("error", pb.PrepbenchWarning)  # raises it in this block
    """


class InputError(PrepbenchError, ValueError):
    """A sample input with the wrong structure, type or value."""


class ConditionError(InputError):
    """A call that breaks a condition on sizes under which the graph equals the model; names sizes that meet it."""


class CaptureError(PrepbenchError, RuntimeError):
    """A model that could not be captured as one graph."""


class PreparationError(PrepbenchError, RuntimeError):
    """A prepared model that differs from the original, or a pass that cannot be applied to it."""


class SettingsError(PrepbenchError, ValueError):
    """A setting that is invalid, contradicts another one, or matches no layer."""


class TrainingError(PrepbenchError, RuntimeError):
    """Training that cannot go on; names the step, the sample, and the state of the model."""


class UnknownNameError(PrepbenchError, KeyError):
    """A lookup of an unknown name; the message lists the known ones."""

    def __str__(self) -> str:  # KeyError would print the message in quotes
        return _readable(str(self.args[0])) if self.args else ""


class CalibrationError(PrepbenchError, ValueError):
    """A calibration without usable scales."""


class TargetError(PrepbenchError, RuntimeError):
    """A model that a deployment target does not support."""

    is_repaired_in_bench = True  # by another target, or by parts that stay in PyTorch


class MissingPackageError(PrepbenchError, ImportError):
    """An optional package or program that is not installed, or fails to import."""


class PackageVersionError(PrepbenchError, ImportError):
    """An installed package without a private part that prepbench needs."""


class TorchVersionError(PackageVersionError):
    """An installed torch without a private part that prepbench needs."""


class InternalError(PrepbenchError, RuntimeError):
    """A failure of prepbench itself, not of the user's code; names the place and versions, and asks for a report.

    The cause is the original exception.
    """

    is_short_in_terminal = False  # the report needs its traceback


class MetricError(PrepbenchError, TypeError):
    """A metric that did not return a number."""


class DocumentError(PrepbenchError, ValueError):
    """A graph-collection document that is damaged or of an unknown version."""


class ArtifactError(PrepbenchError, ValueError):
    """A saved model folder that is damaged, incomplete or of an unknown version."""


class StorageError(PrepbenchError, OSError):
    """A file or folder that could not be written; names the files that are left.

    ``errno`` and ``filename`` are those of the cause.
    """

    def __str__(self) -> str:  # OSError would print the number of the error in place of the message
        return _readable(str(self.args[0])) if self.args else ""


def sentence(error: BaseException) -> str:
    """Return another library's error in one sentence: its first line, or the type of an empty message."""
    words = printable(str(error)).strip().partition("\n")[0].rstrip() or type(error).__name__
    return words if words.endswith((".", "!", "?")) else f"{words}."
