"""Every error that prepbench raises on purpose.

Each class is a :class:`PrepbenchError` and also the standard exception that a caller
would expect, so both ``except pb.PrepbenchError`` and ``except ValueError`` work. A message says what went
wrong, where (layer name, argument path, sample index), what was expected and what to do about it.
"""

from __future__ import annotations

import re

UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters, which steer a terminal, characters that reverse text, and halves of surrogate pairs."""


def printable(text: str) -> str:
    """The text with what a terminal or a page must not receive written as Python escapes it.

    Example:
        >>> printable("block\\x1b[31m")
        'block\\\\x1b[31m'
    """
    return UNPRINTABLE.sub(lambda match: ascii(match[0])[1:-1], text)


_LONGEST = 20_000
"""Characters of a message; a file from somebody else may hold a name that is longer than anybody reads."""


def _readable(text: str) -> str:
    """The text printable, and its middle left out where it is too long."""
    if len(text) > _LONGEST:
        text = f"{text[: _LONGEST // 2]} [...] {text[-_LONGEST // 2 + 10 :]}"
    return printable(text)


def page_of(name: str) -> str:
    """Where the documentation explains an error class or a kind of failure, as a link inside of it.

    Example:
        >>> page_of("data-dependent branch")
        'errors.html#data-dependent-branch'
    """
    return f"errors.html#{re.sub('[^a-z0-9]+', '-', name.lower()).strip('-')}"


class PrepbenchError(Exception):
    """Base class of all errors raised by prepbench. Its text is printable and not too long, whatever it quotes.

    Args:
        args: the message, as of any exception.

    Example:
        >>> try:
        ...     pb.capture(model, [torch.ones(2, 5)])
        ... except PrepbenchError as error:
        ...     print(type(error).__name__)
        CaptureError
    """

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        # a traceback prints it last; the text itself stays free of it
        self.add_note(f"Documentation: {page_of(type(self).__name__)}")

    def __str__(self) -> str:
        return _readable(super().__str__())


class PrepbenchWarning(UserWarning):
    """Something goes on in another way than its caller may think.

    Example:
        >>> import warnings
        >>> with warnings.catch_warnings():
        ...     warnings.simplefilter("error", pb.PrepbenchWarning)  # raises it in this block
    """


class InputError(PrepbenchError, ValueError):
    """A sample input has the wrong structure, type or value."""


class ConditionError(InputError):
    """A call breaks a condition on sizes under which the graph equals the model; says which sizes fulfil it."""


class CaptureError(PrepbenchError, RuntimeError):
    """A model could not be captured as one graph."""


class PreparationError(PrepbenchError, RuntimeError):
    """A prepared model does not compute what the original computes, or a pass cannot be applied to it."""


class SettingsError(PrepbenchError, ValueError):
    """A setting is invalid, contradicts another one, or matches no layer."""


class TrainingError(PrepbenchError, RuntimeError):
    """Training cannot go on; says at which step, on which sample, and what the model holds now."""


class UnknownNameError(PrepbenchError, KeyError):
    """Something was looked up under a name that is not there; the message gives the names that are."""

    def __str__(self) -> str:  # KeyError would print the message in quotes
        return _readable(str(self.args[0])) if self.args else ""


class CalibrationError(PrepbenchError, ValueError):
    """Calibration could not give usable scales."""


class TargetError(PrepbenchError, RuntimeError):
    """A deployment target cannot take the model."""


class MissingPackageError(PrepbenchError, ImportError):
    """An optional package or program is not installed, or is and does not import."""


class PackageVersionError(PrepbenchError, ImportError):
    """An installed package lacks something private that prepbench needs."""


class TorchVersionError(PackageVersionError):
    """The installed torch lacks something private that prepbench needs."""


class InternalError(PrepbenchError, RuntimeError):
    """Prepbench itself failed, and the user's code is not the reason; says where, in which versions, and to report it.

    The cause is what was raised.
    """


class MetricError(PrepbenchError, TypeError):
    """A metric did not return a number."""


class DocumentError(PrepbenchError, ValueError):
    """A graph-collection document is damaged or of an unknown version."""


class ArtifactError(PrepbenchError, ValueError):
    """A saved model folder is damaged, incomplete or of an unknown version."""


class StorageError(PrepbenchError, OSError):
    """A file or folder could not be written; says what is still there.

    ``errno`` and ``filename`` are those of the cause.
    """

    def __str__(self) -> str:  # OSError would print the number of the error in place of the message
        return _readable(str(self.args[0])) if self.args else ""


def sentence(error: BaseException) -> str:
    """What another library says, in one sentence for a message: its first line, or the type of a wordless error."""
    words = printable(str(error)).strip().partition("\n")[0].rstrip() or type(error).__name__
    return words if words.endswith((".", "!", "?")) else f"{words}."
