"""A compiled model as a folder: a manifest and the target's files. No pickle; written whole or not at all."""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from prepbench.errors import ArtifactError, sentence
from prepbench.storage import write_file
from prepbench.storage import write_folder as write_whole_folder

MANIFEST = "manifest.json"
FORMAT = "prepbench compiled model"
VERSION = "2.3"
MANIFEST_LIMIT = 64 * 2**20
"""The limit on the bytes of a manifest; that of a model of 100,000 layers is smaller."""

_AGAIN = "Save the model again."


def write_folder(folder: Path, manifest: dict[str, Any], write_files: Callable[[Path], None]) -> None:
    """Write the folder as a whole; an empty folder or an earlier compiled model is replaced.

    Raises:
        ArtifactError: the folder holds something else.
        StorageError: the disk is full or read-only; an earlier model is still there.
    """
    folder = Path(folder)
    if folder.exists() and (not folder.is_dir() or (any(folder.iterdir()) and not (folder / MANIFEST).exists())):
        raise ArtifactError(f"{folder} exists and is no compiled model, so it is left alone. Choose another folder.")

    def fill(place: Path) -> None:
        write_files(place)
        files = {name: {"bytes": size, "sha256": _digest(place / name)} for name, size in _entries(place)}
        content = {"format": FORMAT, "version": VERSION, **manifest, "files": files}
        write_file(place / MANIFEST, json.dumps(content, indent=1))

    write_whole_folder(folder, fill)


def read_manifest(folder: Path) -> dict[str, Any]:
    """Check the folder and return its manifest: the folder has exactly the files in the manifest, unchanged.

    Raises:
        ArtifactError: no manifest, another major version, a missing, changed or further file, or one that is no
            regular file.
    """
    folder = Path(folder)
    manifest = _parsed(folder / MANIFEST, folder)
    listed = _listed(manifest, folder / MANIFEST)
    found = dict(_entries(folder))
    found.pop(MANIFEST, None)
    for name in sorted(found.keys() - listed.keys()):
        raise ArtifactError(
            f"{folder} holds {name!r}, which its manifest does not list. Remove it, or copy the folder again."
        )
    for name, (size, digest) in listed.items():
        if name not in found:
            raise ArtifactError(
                f"{folder} is incomplete: {name} is missing. Copy the whole folder, or save the model again."
            )
        if found[name] != size or _digest(folder / name) != digest:
            raise ArtifactError(f"{folder / name} is damaged: it changed since it was saved. {_AGAIN}")
    return manifest


def _parsed(path: Path, folder: Path) -> dict[str, Any]:
    try:
        status = path.lstat()
        if not stat.S_ISREG(status.st_mode):
            raise ArtifactError(f"{path} is no regular file. {_AGAIN}")
        if status.st_size > MANIFEST_LIMIT:
            raise ArtifactError(f"{path} has {status.st_size} bytes, more than any manifest. {_AGAIN}")
        manifest = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError) as error:
        raise ArtifactError(
            f"{folder} holds no {MANIFEST}: it is no compiled model. CompiledModel.save(folder) writes one."
        ) from error
    except (OSError, ValueError, RecursionError) as error:
        raise ArtifactError(f"{path} cannot be read: {sentence(error)} {_AGAIN}") from error
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise ArtifactError(f"{path} does not describe a compiled model (format {FORMAT!r} expected). {_AGAIN}")
    version = str(manifest.get("version"))[:40]
    if version.partition(".")[0] != VERSION.partition(".")[0]:
        raise ArtifactError(
            f"{path} is of version {version}; this prepbench reads {VERSION}. Load it with the prepbench that "
            "wrote it, or compile again."
        )
    return manifest


def _listed(manifest: dict[str, Any], path: Path) -> dict[str, tuple[int, str]]:
    """Return size and digest of each file in the manifest."""
    files = manifest.get("files")
    if not isinstance(files, dict) or not files:
        raise ArtifactError(f"{path}: `files` must list the files of the model. {_AGAIN}")
    for name, row in files.items():
        place = PurePosixPath(name)
        if not name or place.is_absolute() or ".." in place.parts or str(place) != name or "\\" in name:
            raise ArtifactError(f"{path} names {name!r}, which is no place inside the folder. {_AGAIN}")
        known = isinstance(row, dict) and set(row) == {"bytes", "sha256"} and type(row["bytes"]) is int
        if not known or not re.fullmatch("[0-9a-f]{64}", str(row["sha256"])):
            raise ArtifactError(f"{path}: the entry of {name!r} must give its bytes and sha256. {_AGAIN}")
    return {name: (row["bytes"], row["sha256"]) for name, row in files.items()}


def _entries(folder: Path, inside: str = "") -> Iterator[tuple[str, int]]:
    """Yield relative name and size of each file; raise for anything but regular files and folders."""
    with os.scandir(folder / inside) as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            name = f"{inside}/{entry.name}" if inside else entry.name
            if entry.is_dir(follow_symlinks=False):
                yield from _entries(folder, name)
            elif entry.is_file(follow_symlinks=False):
                yield name, entry.stat(follow_symlinks=False).st_size
            else:
                raise ArtifactError(f"{folder / name} is no regular file, which no saved model holds. Remove it.")


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
