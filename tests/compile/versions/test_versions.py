"""What the table of ``make versions`` tells; files of earlier revisions open, and those of later ones say so."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import prepbench as pb
from prepbench.document.codec import from_json
from prepbench.errors import ArtifactError, DocumentError
from prepbench.packages import TESTED
from tests.versions import worker
from tests.versions.__main__ import ENVIRONMENTS, EXTRAS, REFERENCE, SAVED, interpreter, lowest, table, why

SAVED_FILES = sorted(path for path in SAVED.iterdir() if path.suffix != ".sqlite")


def test_what_differs_from_the_pinned_environment_is_a_fault() -> None:
    text, faults = table(
        {REFERENCE: {"trace a": "ok", "trace b": "ok"}, "other": {"trace a": "ok", "trace b": "no"}}, ()
    )
    assert faults == 1
    assert "FAULT other: trace b: no (pinned: ok)" in text
    assert "1/2" in text


@pytest.mark.parametrize("result", ["RAW TypeError: x", "WRONG values", "InternalError", "TorchVersionError"])
def test_errors_that_are_nobodys_are_faults_in_every_environment(result: str) -> None:
    _, faults = table({REFERENCE: {"trace a": result}, "other": {"trace a": result}}, ())
    assert faults == 2


def test_a_difference_is_explained_by_its_whole_line() -> None:
    reasons = [("old*", "compile * Some", "Missing*", "it is not there")]
    assert why("oldest", "compile net Some", "MissingPackageError", reasons) == "it is not there"
    assert why("newest", "compile net Some", "MissingPackageError", reasons) is None
    assert why("oldest", "trace net", "MissingPackageError", reasons) is None


def test_the_oldest_environment_has_the_lower_bounds() -> None:
    pins = dict(pin.split("==") for pin in lowest())
    assert {"torch", "onnxruntime", "openvino", "jupyterlab"} <= pins.keys()
    for package in pins.keys() & TESTED.keys():
        assert TESTED[package][0].startswith(pins[package]), package
    assert EXTRAS.split(",")


def test_the_python_of_the_pinned_environment_is_found() -> None:
    pinned = next(environment for environment in ENVIRONMENTS if environment.name == REFERENCE)
    assert interpreter(pinned) is not None


@pytest.mark.parametrize("path", SAVED_FILES, ids=lambda path: path.name)
def test_files_of_the_first_revision_open(path: Path) -> None:
    assert worker._load(path) == "ok"


def test_a_model_of_a_newer_version_says_so(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(SAVED / "Eager-0.1.0" / "model", tmp_path / "model"))
    manifest: dict[str, Any] = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    manifest["version"] = "99.0"
    (folder / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    with pytest.raises(
        ArtifactError, match=r"is of version 99\.0; this prepbench reads .* the prepbench that wrote it"
    ):
        pb.load_compiled(folder)


def test_documents_of_a_newer_version_say_so(tmp_path: Path) -> None:
    collection = json.loads((SAVED / "collection-0.1.0.graph.json").read_text(encoding="utf-8"))
    with pytest.raises(DocumentError, match=r"has version 99\.0; this prepbench reads"):
        from_json(json.dumps({**collection, "version": "99.0"}))
    bench = json.loads((SAVED / "bench-0.1.0.bench.json").read_text(encoding="utf-8"))
    (tmp_path / "new.bench.json").write_text(json.dumps({**bench, "version": "99.0"}), encoding="utf-8")
    with pytest.raises(DocumentError, match=r"has version 99\.0; this prepbench reads"):
        pb.Bench.load(tmp_path / "new.bench.json", model=worker._small_model(), tracing_inputs=worker._small_samples())
