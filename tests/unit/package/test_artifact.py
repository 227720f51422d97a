"""A saved folder is read only as it was written: any change of a file, or of which files there are, is named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from prepbench.errors import ArtifactError
from prepbench.package.artifact import MANIFEST, read_manifest, write_folder

CONTENT = bytes(range(64))


def _files(place: Path) -> None:
    (place / "inner").mkdir()
    for name in ("weights.bin", "inner/graph.json"):
        (place / name).write_bytes(CONTENT)


CHANGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "another first byte": (lambda file: file.write_bytes(b"x" + CONTENT[1:]), "is damaged"),
    "another last byte": (lambda file: file.write_bytes(CONTENT[:-1] + b"x"), "is damaged"),
    "a byte less": (lambda file: file.write_bytes(CONTENT[:-1]), "is damaged"),
    "a byte more": (lambda file: file.write_bytes(CONTENT + b"x"), "is damaged"),
    "nothing in it": (lambda file: file.write_bytes(b""), "is damaged"),
    "no file": (lambda file: file.unlink(), "is missing"),
    "another name": (lambda file: file.rename(file.with_suffix(".old")), "which its manifest does not list"),
    "a link": (lambda file: (file.unlink(), file.symlink_to(__file__)), "regular file"),
}  # fmt: skip


@pytest.mark.parametrize("name", ["weights.bin", "inner/graph.json"])
@pytest.mark.parametrize("change", CHANGES)
def test_a_folder_that_was_changed_is_refused(tmp_path: Path, name: str, change: str) -> None:
    folder = tmp_path / "model"
    write_folder(folder, {"target": "eager"}, _files)
    assert read_manifest(folder)["target"] == "eager"
    act, said = CHANGES[change]
    act(folder / name)
    with pytest.raises(ArtifactError, match=said):
        read_manifest(folder)


def test_a_folder_with_a_further_file_is_refused_and_one_that_is_no_model_is_left_alone(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    write_folder(folder, {}, _files)
    (folder / "further").touch()
    with pytest.raises(ArtifactError, match="'further', which its manifest does not list"):
        read_manifest(folder)
    (folder / MANIFEST).unlink()
    with pytest.raises(ArtifactError, match="is no compiled model, so it is left alone"):
        write_folder(folder, {}, _files)
    assert (folder / "further").exists()
