"""Every error that prepbench raises on purpose.

Each class is a :class:`PrepbenchError` and also the standard exception that a caller
would expect, so both ``except pb.PrepbenchError`` and ``except ValueError`` work. A message says what went
wrong, where (layer name, argument path, sample index), what was expected and what to do about it.
"""

from __future__ import annotations


class PrepbenchError(Exception):
    """Base class of all errors raised by prepbench."""


class InputError(PrepbenchError, ValueError):
    """A sample input has the wrong structure, type or value."""


class CaptureError(PrepbenchError, RuntimeError):
    """A model could not be captured as one graph."""


class PreparationError(PrepbenchError, RuntimeError):
    """A prepared model does not compute what the original computes, or a pass cannot be applied to it."""


class SettingsError(PrepbenchError, ValueError):
    """A setting is invalid, contradicts another one, or matches no layer."""


class CalibrationError(PrepbenchError, ValueError):
    """Calibration could not give usable scales."""


class TargetError(PrepbenchError, RuntimeError):
    """A deployment target cannot take the model."""


class MissingPackageError(PrepbenchError, ImportError):
    """An optional package or program is not installed."""


class TorchVersionError(PrepbenchError, ImportError):
    """The installed torch lacks something private that prepbench needs."""


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
        return str(self.args[0]) if self.args else ""


def sentence(error: BaseException) -> str:
    """What another library says, in one sentence for a message: its first line, or the type of a wordless error."""
    words = str(error).strip().partition("\n")[0].rstrip() or type(error).__name__
    return words if words.endswith((".", "!", "?")) else f"{words}."
