"""The quantized graph can be looked at, beside the one in float."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch import nn

import prepbench as pb
from prepbench.errors import DocumentError
from prepbench.views.display import combined
from prepbench.views.scene import scene
from tests.compile.compile.models import images, int8


def test_what_quantization_put_in_belongs_to_its_layers_and_is_marked(net: nn.Module, tmp_path: Path) -> None:
    captured = pb.capture(net, [images(1), images(2)])
    compiled = int8(net)
    pair = combined(captured, compiled, compare=True, titles=("float", "int8"))
    added = {mark.id for mark in pair.marks if mark.change == "added"}
    nodes = {node.id: node for graph in pair.documents[1].graphs for node in graph.nodes}
    assert added
    assert {nodes[name].label.split("_")[0] for name in added} == {"quantize", "dequantize"}
    assert {"stem.0", "body.0", "body.2", "head"} <= {nodes[name].fqn for name in added}
    # each right before what it is for, so that layers stay whole
    for name in added:
        group = [node.id for node in nodes.values() if node.group == nodes[name].group]
        positions = [list(nodes).index(each) for each in group]
        assert name in group
        if nodes[name].fqn == "head":
            assert max(positions) - min(positions) + 1 == len(positions)
    marks = {mark.id: str(mark.change) for mark in pair.marks if mark.document == 1}
    view = scene(pair.documents[1], expanded=set(), marks=marks)
    changed = {box.fqn: box.change for box in view.root.members if hasattr(box, "change")}
    assert changed["stem"] == changed["body"] == changed["head"] == "changed"

    compiled.save(tmp_path / "model")
    with pytest.raises(DocumentError, match="was loaded has no graph"):
        pb.load_compiled(tmp_path / "model").document()
