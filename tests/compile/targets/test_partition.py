"""Graphs cut into partitions: which nodes fall back to PyTorch, what is passed on, and how the result is saved."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import prepbench as pb
from prepbench.targets import Lowering, Runtime
from prepbench.targets.eager import EagerTarget
from prepbench.targets.partition import is_partitioned, load_partitioned, lower_partitioned

SETTINGS = pb.EagerDeployment()


class Recording(EagerTarget):
    """PyTorch in the place of a target, which remembers the operators of each partition it was given."""

    def __init__(self) -> None:
        self.lowered: list[list[str]] = []

    def lower(self, lowering: Lowering, settings: pb.DeploymentSettings) -> Runtime:
        self.lowered.append([str(n.target) for n in lowering.program.graph.nodes if n.op == "call_function"])
        return super().lower(lowering, settings)


class Flattened(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 6), nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        batch = x.shape[0]
        left, right = torch.sin(self.first(x)).chunk(2, dim=1)
        return self.last(torch.relu(left) + right).reshape(batch * 2), right


class Rounded(nn.Module):
    """Two products with one weight, which is kept in integers."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("codes", torch.randint(-127, 128, (4, 4), dtype=torch.int8))
        self.register_buffer("scale", torch.full((4, 1), 0.01))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        weight = self.codes * self.scale
        first = nn.functional.linear(x, weight)
        return nn.functional.linear(torch.sin(first), weight), first


def _lowering(model: nn.Module) -> Lowering:
    x = torch.randn(3, 4)
    program = torch.export.export(model, (x,), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},))
    return Lowering(program, ("x",), ("logits", "right"), {})


def _cut_at(model: nn.Module, operators: Sequence[str]) -> tuple[Recording, Runtime]:
    torch.manual_seed(0)
    lowering, target = _lowering(model), Recording()
    fallback = [node for node in lowering.program.graph.nodes if str(node.target) in operators]
    return target, lower_partitioned(target, lowering, SETTINGS, fallback)


def _same(one: Sequence[Any], other: Sequence[Any]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize(
    ("fallback", "on_target"),
    [
        (["aten.sin.default"], 2),
        (["aten.sin.default", "aten.relu.default"], 3),
        (["aten.linear.default"], 2),
        ([], 1),
    ],
)
def test_only_other_nodes_reach_the_target(fallback: list[str], on_target: int) -> None:
    model = Flattened().eval()
    target, runtime = _cut_at(model, fallback)
    assert len(target.lowered) == on_target
    assert not {name for names in target.lowered for name in names} & set(fallback)
    for batch in (1, 3, 5):
        x = torch.randn(batch, 4)
        assert _same(runtime.run([x]), model(x))


def test_sizes_are_computed_where_they_are_needed() -> None:
    target, _ = _cut_at(Flattened().eval(), ["aten.sin.default"])
    assert "aten.sym_size.int" in target.lowered[-1]


def test_integer_weights_are_beside_the_layer_behind_a_fallback() -> None:
    model = Rounded().eval()
    target, runtime = _cut_at(model, ["aten.sin.default"])
    assert target.lowered == [["aten.mul.Tensor", "aten.linear.default"]] * 2
    x = torch.randn(5, 4)
    assert _same(runtime.run([x]), model(x))
    target, _ = _cut_at(model, ["aten.sin.default", "aten.mul.Tensor"])  # the target cannot compute it
    assert [names for names in target.lowered if "aten.mul.Tensor" in names] == []


def test_saved_models_keep_their_layout(tmp_path: Path) -> None:
    model = Flattened().eval()
    _, runtime = _cut_at(model, ["aten.sin.default"])
    assert not is_partitioned(tmp_path)
    runtime.save(tmp_path)
    assert is_partitioned(tmp_path)
    assert [row["on_target"] for row in json.loads((tmp_path / "parts.json").read_text())["parts"]] == [
        True,
        False,
        True,
    ]
    assert all((tmp_path / f"part_{i}").is_dir() for i in range(3))
    x = torch.randn(2, 4)
    assert _same(load_partitioned(EagerTarget(), tmp_path, SETTINGS).run([x]), model(x))
