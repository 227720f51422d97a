"""A compiled model as a folder: a manifest, and the files of its target. No pickle; written whole or not at all."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from prepbench.errors import ArtifactError

MANIFEST = "manifest.json"
FORMAT = "prepbench compiled model"
VERSION = "1.0"


def write_folder(folder: Path, manifest: dict[str, Any], write_files: Callable[[Path], None]) -> None:
    """Write the folder beside its place first, then move it there; an empty folder or an earlier compiled model is
    replaced.

    Raises:
        ArtifactError: the folder holds something else.
    """
    folder = Path(folder)
    if folder.exists() and (not folder.is_dir() or (any(folder.iterdir()) and not (folder / MANIFEST).exists())):
        raise ArtifactError(f"{folder} exists and is no compiled model, so it is left alone. Choose another folder.")
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        write_files(temporary)
        files = {
            path.relative_to(temporary).as_posix(): _digest(path)
            for path in sorted(temporary.rglob("*"))
            if path.is_file()
        }
        content = {"format": FORMAT, "version": VERSION, **manifest, "files": files}
        (temporary / MANIFEST).write_text(json.dumps(content, indent=1))
        os.chmod(temporary, 0o755)
        if folder.exists():
            shutil.rmtree(folder)
        os.replace(temporary, folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def read_manifest(folder: Path) -> dict[str, Any]:
    """Check the folder and return its manifest.

    Raises:
        ArtifactError: no manifest, a newer major version, a missing or changed file.
    """
    path = Path(folder) / MANIFEST
    try:
        manifest = json.loads(path.read_text())
    except FileNotFoundError as error:
        raise ArtifactError(
            f"{folder} holds no {MANIFEST}: it is no compiled model. CompiledModel.save(folder) writes one."
        ) from error
    except (OSError, ValueError) as error:
        raise ArtifactError(f"{path} cannot be read: {error}. Save the model again.") from error
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise ArtifactError(
            f"{path} does not describe a compiled model (format {FORMAT!r} expected). Save the model again."
        )
    version = str(manifest.get("version"))
    if version.partition(".")[0] != VERSION.partition(".")[0]:
        raise ArtifactError(
            f"{path} is of version {version}; this prepbench reads {VERSION}. Load it with the prepbench that "
            "wrote it, or compile again."
        )
    for name, digest in dict(manifest.get("files", {})).items():
        file = Path(folder) / name
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise ArtifactError(f"{path} names {name!r}, which is outside the folder. Save the model again.")
        if not file.exists():
            raise ArtifactError(
                f"{folder} is incomplete: {name} is missing. Copy the whole folder, or save the model again."
            )
        if _digest(file) != digest:
            raise ArtifactError(f"{file} is damaged: its contents changed since it was saved. Save the model again.")
    return manifest


def folder_bytes(folder: Path) -> int:
    """Bytes of all files in a folder."""
    return sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
