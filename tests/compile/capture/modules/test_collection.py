"""Collections: which graphs there are, what they say, and the documents made from them."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

from prepbench.capture.aten.captured import document_of_program
from prepbench.capture.modules.collection import GraphCollection, recursive_trace
from prepbench.errors import CaptureError
from tests.turns import in_turns
from tests.zoo import ZOO


def collection_of(name: str, with_inputs: bool = True) -> GraphCollection:
    torch.manual_seed(0)
    case = ZOO[name]
    return recursive_trace(case.make(), inputs=case.samples if with_inputs else None)


def test_submodules_of_failures_have_their_own_graphs() -> None:
    collection = collection_of("branch_on_shape", with_inputs=False)
    assert [failure.fqn for failure in collection.failures] == ["1", "1.more"]
    assert set(collection.graphs) == {"", "1.first", "1.second", "1.more", "1.more.first", "1.more.second"}
    assert len(collection.graphs[""].nodes) == 5
    assert len(collection.graphs["1.more"].nodes) == 0


def test_containers_inside_failures_are_looked_into() -> None:
    collection = collection_of("two_gates", with_inputs=False)
    assert all(failure.module_type == "Gate" for failure in collection.failures)
    assert {"gates.0.a", "gates.1.b"} <= set(collection.graphs)


def test_root_failure_with_inputs_covers_the_children() -> None:
    collection = collection_of("branch_on_values")
    assert len(collection.graphs[""].nodes) == 0
    assert "linear" in collection.graphs
    with pytest.raises(CaptureError, match=r"(?s)no graph.*linear"):
        collection.graph_module()
    with pytest.raises(KeyError, match="linear"):
        collection.graph_module("lienar")


def test_graphs_are_found_by_module_and_by_name() -> None:
    collection = collection_of("two_gates")
    model: Any = collection.model
    assert collection[model] is collection[""] is collection.graphs[""]
    assert model in list(collection)
    assert collection.is_failed(model.gates[0])
    assert not collection.is_failed(model.head)
    assert collection.failure_msg(model.head) is None


def test_unvisited_modules() -> None:
    for with_inputs in (True, False):
        collection = collection_of("never_called", with_inputs)
        model: Any = collection.model
        assert collection.is_unvisited(model.unused)
        assert collection.is_unvisited(model.unused[0])
        assert not collection.is_unvisited(model.used[0])
        status = {module.fqn: module.status for module in collection.document().modules}
        assert status["unused"] == status["unused.0"] == "unvisited"
        assert status["used"] == "traced"
        assert status["used.0"] == "traced"  # torch's own modules are operations, not leaves


def test_repr_names_line_and_remedy() -> None:
    text = repr(collection_of("two_gates"))
    assert "2 failed" in text
    assert "failures.py:" in text
    assert "torch.where" in text


@pytest.mark.parametrize("name", in_turns(ZOO, 0, 4))
def test_documents_are_stable_and_consistent(name: str) -> None:
    first, second = (collection_of(name).document() for _ in range(2))
    assert first == second
    for graph in first.graphs:
        ids = [node.id for node in graph.nodes]
        assert len(set(ids)) == len(ids)
        assert all(source in ids[: ids.index(node.id)] for node in graph.nodes for source in node.inputs)
    assert "0x" not in repr(first)


def test_shapes_have_readable_names() -> None:
    nodes = {node.label: node for node in collection_of("mask_built_by_vmap").document().graphs[0].nodes}
    assert nodes["x"].shapes == ("B×seq",)
    assert nodes["lengths"].shapes == ("B",)
    assert nodes["masked_fill"].dtypes == ("float32",)


def test_shared_modules_count_their_calls() -> None:
    modules = {module.fqn: module for module in collection_of("reused_in_training").document().modules}
    assert modules["net"].calls == 2
    assert modules["net.0"].calls == 2


def test_program_document_follows_the_hierarchy() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.ReLU()))
    document = document_of_program(torch.export.export(model, (torch.ones(2, 4),)), model, (), "Net")
    assert document.model_type == "Net"
    assert document.level == "aten"
    owners = {node.label: node.fqn for node in document.graphs[0].nodes}
    assert owners["linear"] == "0"
    assert owners["relu"] == "1.0"
    assert sum(node.op == "placeholder" for node in document.graphs[0].nodes) == 1


def test_repeated_programs_calls_keep_their_names() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList([nn.ReLU()])

        def forward(self, x: torch.Tensor) -> Any:
            return self.layers[0](self.layers[0](x) + 1)

    model = Twice()
    document = document_of_program(torch.export.export(model, (torch.ones(2, 4),)), model)
    assert {node.fqn for node in document.graphs[0].nodes if node.label == "relu"} == {"layers.0"}


class Steps(torch.nn.Module):
    """A state that goes through a sequence in Python, as the slow way of Mamba does."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = torch.nn.Linear(4, 4)

    def forward(self, x):
        state, states = x.new_zeros(x.shape[0], 4), []
        for step in range(x.shape[1]):
            state = torch.tanh(self.cell(x[:, step]) + 0.5 * state)
            states.append(state)
        return torch.stack(states, 1)


def test_a_model_that_needs_a_graph_for_each_sample_fails():
    short, long = torch.ones(2, 6, 4), torch.ones(3, 9, 4)
    collection = recursive_trace(Steps(), inputs=[short, long])
    (failure,) = collection.failures
    assert (failure.fqn, failure.kind) == ("", "shape specialisation")
    assert "x.size(1) == 6 holds for inputs[0] but not for inputs[1]" in failure.message
    assert failure.source is not None
    assert failure.source.code == "for step in range(x.shape[1]):"
    assert collection.graph_module()(short).shape == short.shape  # the graph of the first sample stays
    assert not recursive_trace(Steps(), inputs=[short, short[:1]]).failures


class GrowingMask(nn.Module):
    """Pads a mask that is shorter than a cache and what is new, as models do that read text."""

    def __init__(self, more: int = 0) -> None:
        super().__init__()
        self.layer, self.more = nn.Linear(4, 4), more

    def forward(self, x: torch.Tensor, past: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        length = past.shape[1] + x.shape[1] + self.more
        if (missing := length - mask.shape[1]) > 0:
            mask = nn.functional.pad(mask, (0, missing))
        return torch.cat([past, self.layer(x)], 1).sum(1) + mask.sum(1, keepdim=True)


@pytest.mark.parametrize("more", [0, 1, 3])
def test_an_empty_cache_and_a_single_token_keep_what_holds_between_sizes(more: int) -> None:
    samples = [
        {"x": torch.randn(2, new, 4), "past": torch.randn(2, past, 4), "mask": torch.ones(2, past + new + more)}
        for new, past in ((9, 0), (1, 9), (1, 14))
    ]
    model = GrowingMask(more)
    collection = recursive_trace(model, inputs=samples)
    assert not collection.failures
    unseen = {"x": torch.randn(2, 3, 4), "past": torch.randn(2, 6, 4), "mask": torch.ones(2, 9 + more)}
    assert torch.equal(collection.graph_module()(**unseen), model(**unseen))


class Pair(NamedTuple):
    left: torch.Tensor
    right: torch.Tensor


class Halves(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> Pair:
        return Pair(self.layer(x), x)


class Structures(nn.Module):
    """Takes dicts, and selects from what layers return."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(4, 8, batch_first=True)
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.halves, self.head = Halves(), nn.Linear(8, 3)

    def forward(self, batch: dict[str, Any]) -> torch.Tensor:
        x = batch["x"] * batch["inner"]["mask"][..., None]
        out, _ = self.gru(x)
        halves = self.halves(x)
        attended, _ = self.attention(halves.left, halves.right, halves.left)
        result: torch.Tensor = self.head(out.mean(1)) / x.size(1) + attended.max(1)[0].sum() + x.split(2, 2)[0].sum()
        return result


def test_what_is_drawn_hangs_together() -> None:
    samples = [({"x": torch.randn(n, n + 3, 4), "inner": {"mask": torch.ones(n, n + 3)}},) for n in (2, 3)]
    document = recursive_trace(Structures().eval(), inputs=samples).document()
    assert {size.meaning for size in document.sizes} == {"batch['x'].shape[0]", "batch['x'].shape[1]"}
    nodes = {node.id: node for graph in document.graphs for node in graph.nodes if node.group is not None}
    reached = {node.id for node in nodes.values() if node.op == "placeholder"}
    for node in nodes.values():  # in execution order
        if reached.intersection(node.inputs):
            reached.add(node.id)
    assert set(nodes) == reached
    used = {source for node in nodes.values() for source in node.inputs}
    assert [node.op for node in nodes.values() if node.id not in used] == ["output"]
