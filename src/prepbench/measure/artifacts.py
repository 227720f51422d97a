"""Save each candidate to a folder: the folder's size is its size, and its timing process loads it from there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch

from prepbench.errors import SettingsError, StorageError
from prepbench.inputs import Sample
from prepbench.internal_errors import raise_if_internal
from prepbench.jobs import Cancelled, ProgressCallback
from prepbench.objects.flatten import holds_objects
from prepbench.objects.restore import state_bytes
from prepbench.storage import folder_bytes, temporary_space, write_file

SAVED = "saved artifact"
HERE = "timed in this process, because "
"""Begins the note of a candidate that another process cannot load; what follows also holds where nothing is timed."""
PARAMETERS = "parameters and buffers"


@runtime_checkable
class Compiled(Protocol):
    """The interface of a compiled model: a protocol, so that comparing does not import the compiler."""

    @property
    def target(self) -> Any: ...
    @property
    def size_bytes(self) -> Any: ...
    def save(self, folder: Any) -> Any: ...


@dataclass(frozen=True)
class Artifact:
    """A candidate on disk, or the reason why it could not be saved.

    Attributes:
        folder: where it was saved; None when that was not possible, or when another process cannot load it.
        size_bytes: bytes of the saved model, or of parameters and buffers; None for a plain function.
        size_of: the content that ``size_bytes`` counts.
        target: name of the deployment target that runs it.
        note: why it could not be saved, or loaded elsewhere; empty when it was.
        leaves: of the sample that is timed, as the candidate takes them, where objects such as caches are in it; else
            None.
    """

    folder: Path | None
    size_bytes: int | None
    size_of: str
    target: str
    note: str = ""
    leaves: tuple[Any, ...] | None = None


def is_compiled(candidate: Any) -> bool:
    """Return whether the candidate is compiled and can save itself."""
    return isinstance(candidate, Compiled)


def is_float(candidate: Any) -> bool:
    """Return whether the candidate is a model as it was: not compiled, or compiled without quantizing or pruning."""
    report = getattr(candidate, "report", None)
    if not is_compiled(candidate) or report is None:
        return not is_compiled(candidate)
    return not report.pruned and not any(layer.quantized for layer in report.layers)


def save_candidate(
    candidate: Callable[..., Any], samples: Sequence[Sample], folder: Path, progress: ProgressCallback
) -> Artifact:
    """Save ``candidate`` to ``folder``; a float module is captured first, to be run operator by operator.

    A candidate that cannot be captured or saved is no error: it is timed in this process, and ``note`` says why.

    Raises:
        StorageError: the disk is full, or cannot be written to.
    """
    compiled: Any = candidate
    try:
        with temporary_space():
            folder.mkdir(parents=True)
        if not isinstance(candidate, Compiled):
            compiled = _captured(candidate, samples, progress)
        with temporary_space():
            compiled.save(folder)
        if getattr(compiled, "allow_unproven", False):
            write_file(_unproven(folder), "")
    except (Cancelled, StorageError):
        raise
    except Exception as error:
        raise_if_internal(error)
        target = _target_name(candidate.target) if isinstance(candidate, Compiled) else "eager"
        stage = "saved" if isinstance(compiled, Compiled) else "captured"
        reason = f"could not be {stage}: {type(error).__name__}: {_first_line(error)}"
        return Artifact(None, _state_bytes(candidate), PARAMETERS, target, reason)
    size = compiled.size_bytes or folder_bytes(folder)  # as its own report says it
    target, needs = _target_name(compiled.target), getattr(compiled, "needs_model", ())
    if needs:  # the timing process has no model to hand in
        return Artifact(None, size, SAVED, target, f"{HERE}these parts run in Python: {'; '.join(needs)}")
    return Artifact(folder, size, SAVED, target, leaves=_leaves(compiled, samples))


def load_candidate(folder: Path) -> Any:
    """Read what :func:`save_candidate` saved; it allows the calls that the candidate allows."""
    from prepbench.package import load_compiled

    compiled = load_compiled(folder, allow_code=True)
    compiled.allow_unproven = _unproven(folder).exists()
    return compiled


def _unproven(folder: Path) -> Path:
    """A file beside an artifact of a candidate that computes calls beyond its conditions; no saved model says so."""
    return folder.with_name(f"{folder.name}-unproven")


def _leaves(compiled: Any, samples: Sequence[Sample]) -> tuple[Any, ...] | None:
    if not samples or not holds_objects((samples[0].args, samples[0].kwargs)):
        return None
    from prepbench.calls.call_spec import runtime_and_calls

    return tuple(runtime_and_calls(compiled)[1].flatten(samples[0].args, samples[0].kwargs))


def _captured(candidate: Callable[..., Any], samples: Sequence[Sample], progress: ProgressCallback) -> Any:
    from prepbench.adapt.trainable_model import TrainableModel
    from prepbench.compile import compile_model
    from prepbench.settings import EagerDeployment

    if isinstance(candidate, TrainableModel):
        raise SettingsError(
            "it is a model of pb.trainable, which only simulates. Compare pb.compile_model(model) to know its size and "
            "time."
        )
    target = EagerDeployment()
    return compile_model(candidate, tracing_inputs=list(samples), deployment_settings=target, progress=progress)


def _state_bytes(candidate: Any) -> int | None:
    return (state_bytes(candidate) or None) if isinstance(candidate, torch.nn.Module) else None


def _target_name(target: Any) -> str:
    return target if isinstance(target, str) else str(getattr(target, "name", target))


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), "no message")[:200]
