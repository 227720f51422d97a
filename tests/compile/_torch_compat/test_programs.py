"""Exported programs with other calls, graphs, outputs or weights."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from prepbench._torch_compat import programs
from prepbench.errors import TorchVersionError


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, both: dict[str, torch.Tensor]) -> dict[str, object]:
        return {"sum": self.layer(both["a"]) + both["b"], "one": 1, "b": both["b"] * 2}


@pytest.fixture
def model() -> nn.Module:
    return Pair()


@pytest.fixture
def program(model: nn.Module) -> torch.export.ExportedProgram:
    return torch.export.export(model, ({"a": torch.randn(3, 2), "b": torch.randn(3, 2)},))


def test_a_flat_program_takes_and_returns_leaves(model: nn.Module, program: torch.export.ExportedProgram) -> None:
    flat = programs.flat_program(program, ["a", "b"])
    a, b = torch.randn(3, 2), torch.randn(3, 2)
    one, *rest = flat.module()(a, b)
    assert len(rest) == 2
    assert torch.equal(one, model({"a": a, "b": b})["sum"])
    assert len(flat.example_inputs[0]) == 2
    assert set(program.module()({"a": a, "b": b})) == {"sum", "one", "b"}  # the one given is unchanged


def test_without_guards_other_sizes_are_not_refused(program: torch.export.ExportedProgram) -> None:
    assert programs.without_guards(program)._guards_code == []


def test_outputs_are_chosen_by_position(program: torch.export.ExportedProgram) -> None:
    flat = programs.flat_program(program, ["a", "b"])
    a, b = torch.randn(3, 2), torch.randn(3, 2)
    (only,) = programs.with_outputs(flat, [2]).module()(a, b)
    assert torch.equal(only, b * 2)
    assert programs.constant_outputs(flat) == {1: 1}


def test_own_weights_are_copies_and_tied_ones_stay_tied() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[1].weight = model[0].weight
    program = torch.export.export(model, (torch.randn(1, 2),))
    own = programs.with_own_weights(program).state_dict
    assert own["0.weight"] is own["1.weight"]
    assert own["0.weight"].data_ptr() != model[0].weight.data_ptr()
    assert torch.equal(own["0.weight"], model[0].weight)


def test_a_graph_is_put_in_place_of_another(program: torch.export.ExportedProgram) -> None:
    flat = programs.flat_program(program, ["a", "b"])
    graph = torch.fx.Graph()
    graph.output(graph.graph_copy(flat.graph, {}))
    for node in graph.find_nodes(op="call_function", target=torch.ops.aten.mul.Tensor):
        node.args = (node.args[0], 5)
    changed = programs.with_graph(flat, torch.fx.GraphModule(flat.graph_module, graph))
    a, b = torch.randn(3, 2), torch.randn(3, 2)
    assert torch.equal(changed.module()(a, b)[2], b * 5)


def test_example_inputs_are_left_out(program: torch.export.ExportedProgram, tmp_path: Path) -> None:
    assert programs.without_example_inputs(program).example_inputs is None
    assert program.example_inputs is not None


def test_a_torch_with_other_programs(program: torch.export.ExportedProgram) -> None:
    del program._guards_code
    with pytest.raises(TorchVersionError, match=r"changing exported programs.*_guards_code"):
        programs.without_guards(program)


def test_a_copied_graph_keeps_its_names() -> None:
    program = torch.export.export(torch.nn.Sequential(torch.nn.Linear(2, 2)), (torch.ones(1, 2),))
    copied = programs.copied_graph(program.graph)
    assert [node.name for node in copied.nodes] == [node.name for node in program.graph.nodes]
    assert "input" in [node.name for node in copied.nodes]
