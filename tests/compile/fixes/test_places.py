"""After a fix, operations still name the lines that the user wrote."""

from pathlib import Path

import torch
from torch import nn

import prepbench as pb


class Gate(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.inner(x)
        if y.sum() > 0:
            y = y * 2
        return y.relu()


def test_sources_are_lines_of_the_users_file() -> None:
    samples = [torch.randn(rows, 8) for rows in (2, 3)]
    fixed = pb.fix(Gate().eval(), samples)
    lines = Path(__file__).read_text().splitlines()
    for result in (pb.recursive_trace(fixed.model, inputs=samples), pb.capture(fixed.model, samples)):
        documents = [result.document()]
        nodes = [node for document in documents for graph in document.graphs for node in graph.nodes]
        found = {node.label: node.source for node in nodes if node.source is not None}
        assert {source.file for source in found.values()} == {__file__}
        assert all(lines[source.line - 1].strip() == source.code for source in found.values())
        assert found["relu"].code == "return y.relu()"
        assert found["where"].code in ("if y.sum() > 0:", "y = y * 2")
    place = pb.inspect_layer(fixed.model, samples, "inner").source
    assert place is not None
    assert place.code == "y = self.inner(x)"
