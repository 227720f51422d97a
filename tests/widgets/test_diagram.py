"""The diagram widget: what the page asks for, what it gets, and that its script is built from its source."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from prepbench.widgets.diagram import DiagramWidget, diagram
from tests.views.documents import failing, language_model

ROOT = Path(__file__).parents[2]
STATIC = ROOT / "src" / "prepbench" / "widgets" / "static"


def _send(widget: DiagramWidget, **content: Any) -> None:
    widget._handle_custom_msg(content, [])


def test_selecting_shows_details() -> None:
    widget = diagram(failing())
    _send(widget, action="select", id=":gate")
    assert widget.selected == ":gate"
    assert widget.details["remedy"] == "Use torch.where."
    _send(widget, action="select", id="")
    assert widget.details == {}


def test_opening_a_module_draws_again() -> None:
    widget = diagram(language_model(3))
    before = widget.svg
    _send(widget, action="toggle", id="module:layers")
    assert "layers" in widget.expanded or widget.svg != before
    _send(widget, action="open_level")
    _send(widget, action="reset")
    assert widget.svg == before
    assert widget.legend


def test_scripts_are_small_and_self_contained() -> None:
    for name in ("diagram.js", "bench.js"):
        script = (STATIC / name).read_text()
        assert len(script) < 60_000
        assert "import " not in script.split("export default")[0].replace("important", "")
        assert "http://" not in script.replace("http://www.w3.org", "")
        assert "innerHTML" not in script


@pytest.mark.skipif(
    not (ROOT / "extension/node_modules/.bin/tsc").exists(), reason="front end tools are not installed (make frontend)"
)
def test_committed_scripts_are_fresh(tmp_path: Path) -> None:
    node = shutil.which("node")
    assert node
    command = [node, "node_modules/typescript/bin/tsc", "--outDir", str(tmp_path)]
    subprocess.run(command, cwd=ROOT / "extension", check=True)
    for name in ("diagram.js", "bench.js"):
        assert (tmp_path / name).read_text() == (STATIC / name).read_text(), f"{name} is stale: make frontend"
