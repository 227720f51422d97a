"""Tables as a notebook shows them."""

from __future__ import annotations

from prepbench.package import CompileReport
from prepbench.quantize import LayerReport


def test_html_says_once_what_holds_for_all_layers() -> None:
    rows = tuple(
        LayerReport(
            f"layers.{i}.up", "Linear", 64, 4, 32, block_size=32, scale_range=(0.25, 0.5), sqnr=20.04 + i, note=note
        )
        for i, note in enumerate(("", "blocks of 16 < 32"))
    )
    html = CompileReport("onnxruntime", {"capture": 1.0}, rows, remarks=("a bit is unused",))._repr_html_()
    assert "a bit is unused" in html
    assert (
        "all layers: type Linear, parameters 64, rule global, block_size 32, scale_range 0.25 to 0.5, summary" in html
    )
    assert [part.partition("</th>")[0] for part in html.split("<th>")[1:]] == ["fqn", "sqnr dB", "note"]
    assert "blocks of 16 &lt; 32" in html
    assert "<td>21.0</td>" in html
    one = CompileReport("onnxruntime", {}, rows[:1])._repr_html_()
    assert "block_size" in one
    assert "<table" not in CompileReport("onnxruntime", {})._repr_html_()
