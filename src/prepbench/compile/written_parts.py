"""The files of a compiled model: those of its runtime, and those of its leaves."""

from __future__ import annotations

from pathlib import Path

from prepbench.compile.leaves.model_leaves import ModelLeaves
from prepbench.errors import ArtifactError, TargetError
from prepbench.storage import folder_bytes, temporary_folder, temporary_space
from prepbench.targets import Runtime


def write_parts(runtime: Runtime, leaves: ModelLeaves | None, folder: Path) -> None:
    """Write a runtime, and the leaves that are programs of their own."""
    runtime.save(folder)
    if leaves is not None:
        leaves.save(folder)


def measured_size(runtime: Runtime, leaves: ModelLeaves | None = None) -> int | None:
    """Bytes that a runtime and its leaves take on disk; None when they cannot be saved."""
    with temporary_space(), temporary_folder("size") as folder:
        try:
            write_parts(runtime, leaves, folder)
        except (ArtifactError, TargetError):
            return None
        return folder_bytes(folder)
