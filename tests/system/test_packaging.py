"""What ships: one wheel with the front ends built, installable where there is no Node."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import prepbench as pb

ROOT = Path(__file__).parents[2]
EXTENSION = ROOT / "extension"
BUILT = ROOT / "src" / "prepbench" / "labextension"
STATIC = ROOT / "src" / "prepbench" / "static"
NAME = "prepbench-lab"
PLACE = f"data/share/jupyter/labextensions/{NAME}/"
MEGABYTE = 1_000_000


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    # with hatchling at hand nothing has to be fetched
    isolation = ["--no-build-isolation"] if importlib.util.find_spec("hatchling") else []
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", *isolation, "--wheel-dir", folder, ROOT]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (made,) = folder.glob("prepbench-*.whl")
    return made


def test_the_wheel_is_small(wheel: Path) -> None:
    assert wheel.stat().st_size < 4 * MEGABYTE


def test_the_wheel_holds_the_lab_extension_once(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    shipped = [name.partition(PLACE)[2] for name in names if PLACE in name]
    assert sorted(shipped) == sorted([*_files(BUILT), "install.json"])
    assert not [name for name in names if name.startswith("prepbench/labextension")]
    entry = Path(json.loads((BUILT / "package.json").read_text())["jupyterlab"]["_build"]["load"]).name
    assert sum(name.endswith(entry) for name in names) == 1


def test_the_wheel_tells_voila_to_leave_the_lab_extension_out(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    (name,) = (name for name in archive.namelist() if name.endswith("etc/jupyter/voila.json"))
    assert json.loads(archive.read(name)) == {"VoilaConfiguration": {"extension_denylist": [NAME]}}


def test_the_wheel_holds_the_front_ends_of_the_widgets(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    static = _files(STATIC)
    assert static
    assert {f"prepbench/static/{name}" for name in static} <= names


def test_the_wheel_has_no_pages_about_the_code(wheel: Path) -> None:
    assert not [name for name in zipfile.ZipFile(wheel).namelist() if name.endswith(".md")]


def test_the_built_extension_is_for_release() -> None:
    assert not [name for name in _files(BUILT) if name.endswith(".map") or name == "build_log.json"]
    meta = json.loads((BUILT / "package.json").read_text())
    assert (meta["name"], meta["version"]) == (NAME, pb.__version__)
    schema = Path("schemas", NAME, "plugin.json")
    assert (BUILT / schema).read_text() == (EXTENSION / "schema" / "plugin.json").read_text()
    for name in _files(BUILT):
        text = (BUILT / name).read_text(encoding="utf-8", errors="replace")
        assert str(ROOT) not in text, name
        assert not re.search(r"https?://registry\.", text), name


@pytest.mark.parametrize(
    ("built", "script"),
    [
        ("layout.*.js", "layout.js"),
        ("page.*.js", "page.js"),
        ("page.*.html", "page.html"),
        ("style.*.txt", "diagram.css"),
    ],
)
def test_the_built_extension_has_the_scripts_of_now(built: str, script: str) -> None:
    (file,) = (BUILT / "static").glob(built)
    assert file.read_text() == (STATIC / script).read_text(), "The built extension is stale: make frontend"


def test_jupyterlab_has_the_extension_enabled() -> None:
    done = subprocess.run([sys.executable, "-m", "jupyterlab.labextensions", "list"], capture_output=True, text=True)
    plain = re.sub(r"\x1b\[\d+m", "", done.stdout + done.stderr)
    (line,) = [line for line in plain.splitlines() if NAME in line]
    assert re.search(rf"{NAME} v{re.escape(pb.__version__)} enabled OK \(python, prepbench\)", line), plain


def test_the_installed_extension_is_the_one_that_is_built() -> None:
    installed = Path(sys.prefix, "share", "jupyter", "labextensions", NAME)
    remedy = "The installed copy is old: run pip install --no-deps --editable ."
    assert (installed / "package.json").read_text() == (BUILT / "package.json").read_text(), remedy
    assert set(_files(BUILT)) <= set(_files(installed)), remedy


def _files(folder: Path) -> list[str]:
    return [path.relative_to(folder).as_posix() for path in sorted(folder.rglob("*")) if path.is_file()]
