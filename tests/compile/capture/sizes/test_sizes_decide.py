"""What is decided by sizes on which the samples disagree is found at its line, and becomes a leaf."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from prepbench.capture.aten.capture import FullGraphError, capture
from prepbench.capture.modules.collection import recursive_trace


class Halves(nn.Module):
    """Another computation for wide inputs than for narrow ones, with a result of another size."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[1] > 6:
            return x[:, ::2].repeat_interleave(2, 1)[:, : x.shape[1]]
        return x * 2


class Loop(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state = torch.zeros_like(x[:, 0])
        for step in range(x.shape[1]):
            state = torch.tanh(self.cell(x[:, step]) + state)
        return state


class Inside(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.before, self.inner = nn.Linear(4, 4), inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(self.before(x)) + 1


CASES: dict[str, tuple[Any, list[tuple[int, ...]], tuple[int, ...], str]] = {
    "branch": (Halves, [(2, 4, 4), (2, 8, 4), (3, 5, 4)], (4, 10, 4), "decide the way here"),
    "loop": (Loop, [(2, 4, 4), (2, 8, 4), (3, 5, 4)], (4, 10, 4), "turned into a Python number"),
}


@pytest.mark.parametrize("name", CASES)
def test_the_module_is_a_leaf_and_the_rest_one_graph(name: str) -> None:
    make, shapes, unseen, text = CASES[name]
    model = Inside(make())
    samples = [torch.randn(shape) for shape in shapes]
    collection = recursive_trace(model, inputs=samples)
    (failure,) = [failure for failure in collection.failures if failure.fqn == "inner"]
    assert text in failure.message
    assert failure.kind == "shape specialisation"
    assert failure.source is not None
    assert failure.source.code.startswith(("if x.shape[1] > 6", "for step in range(x.shape[1])"))
    graph = collection.graph_module()
    for sample in (*samples, torch.randn(unseen)):
        torch.testing.assert_close(graph(sample), model(sample))


def test_capture_keeps_a_branch_as_a_leaf() -> None:
    model = Inside(Halves())
    samples = [torch.randn(shape) for shape in ((2, 4, 4), (2, 8, 4), (3, 5, 4))]
    captured = capture(model, samples, fullgraph=False)
    assert [(leaf.fqn, leaf.kind) for leaf in captured.leaves] == [("inner", "shape specialisation")]
    module = captured.program.module()
    for sample in (*samples, torch.randn(4, 10, 4)):
        torch.testing.assert_close(module(sample), model(sample))
    with pytest.raises(FullGraphError, match="inner"):
        capture(model, samples)


def test_capture_makes_a_loop_one_operator() -> None:
    model = Inside(Loop())
    samples = [torch.randn(shape) for shape in ((2, 4, 4), (2, 8, 4), (3, 5, 4))]
    captured = capture(model, samples)
    assert captured.leaves == ()
    module = captured.program.module()
    for sample in (*samples, torch.randn(4, 10, 4)):
        torch.testing.assert_close(module(sample), model(sample))


def test_samples_that_agree_keep_one_graph() -> None:
    model = Inside(Halves())
    captured = capture(model, [torch.randn(2, 8, 4), torch.randn(3, 9, 4)])
    assert captured.leaves == ()
    assert not recursive_trace(model, inputs=[torch.randn(2, 8, 4), torch.randn(3, 9, 4)]).failures


class Exportable(nn.Module):
    """Knows a way of its own for export, as libraries do."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if torch.compiler.is_compiling():
            return x.clamp(min=0)
        return torch.from_numpy(x.detach().numpy().clip(0))


def test_a_way_for_export_is_taken_where_the_other_fails() -> None:
    model = nn.Sequential(nn.Linear(4, 4), Exportable())
    samples = [torch.randn(2, 4), torch.randn(3, 4)]
    collection = recursive_trace(model, inputs=samples)
    assert collection.failures == ()
    assert not torch.compiler.is_compiling()
    torch.testing.assert_close(collection.graph_module()(samples[1]), model(samples[1]))


class Moves(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.linear = self.linear.to(x.dtype)
        return self.linear(x.to(torch.float32))


def test_a_conversion_that_changes_nothing_is_no_failure() -> None:
    model, samples = Moves(), [torch.randn(2, 4), torch.randn(3, 4)]
    assert capture(model, samples, fullgraph=False).leaves == ()
    assert recursive_trace(model, inputs=samples).failures == ()


class Flag(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Scaled()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x, positive=(x > 0).any().item())


class Scaled(nn.Module):
    def forward(self, x: torch.Tensor, positive: bool = False) -> torch.Tensor:
        return x * 2 if positive else x


def test_a_flag_read_from_data_is_an_argument_of_the_leaf() -> None:
    model, samples = Flag(), [torch.ones(2, 4), -torch.ones(3, 4)]
    collection = recursive_trace(model, inputs=samples)
    assert [failure.fqn for failure in collection.failures] == ["inner"]
    for sample in samples:
        torch.testing.assert_close(collection.graph_module()(sample), model(sample))


def test_like_layers_give_the_same_as_traced_one_by_one() -> None:
    torch.manual_seed(0)
    layers = [nn.Linear(4, 4), nn.Linear(4, 4), nn.ReLU(inplace=True), nn.ReLU(inplace=True), nn.LayerNorm(4)]
    model = nn.Sequential(*layers, nn.LayerNorm(4, elementwise_affine=False), nn.Linear(4, 4, bias=False), nn.Dropout())
    samples = [torch.randn(2, 4), torch.randn(3, 4)]
    collection = recursive_trace(model.eval(), inputs=samples)
    x = torch.randn(5, 4)
    torch.testing.assert_close(collection.graph_module()(x), model(x))
    shapes = {node.label: node.shapes for node in collection.document().graphs[0].nodes if node.op == "call_module"}
    assert set(shapes.values()) == {("B×4",)}


class DoublesOne(nn.Module):
    """Another way for a single sample, which torch traces as if no size were 1."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] == 1:
            return x * 2
        return x


@pytest.mark.parametrize("sizes", [(1, 3), (3, 1)])
def test_a_question_about_a_size_of_one_is_found_at_its_line(sizes: tuple[int, int]) -> None:
    model = Inside(DoublesOne())
    samples = [torch.randn(size, 4) for size in sizes]
    with pytest.raises(FullGraphError, match=r"x\.shape\[0\] == 1 holds for inputs\[\d\] but not for") as raised:
        capture(model, samples)
    (failure,) = raised.value.failures
    assert (failure.fqn, failure.kind) == ("inner", "shape specialisation")
    assert failure.source is not None
    assert failure.source.code == "if x.shape[0] == 1:"
    captured = capture(model, samples, fullgraph=False)
    assert [leaf.fqn for leaf in captured.leaves] == ["inner"]
    assert captured.verify().passed


def test_verifying_names_the_size_that_differs_and_the_line_that_asks() -> None:
    captured = capture(Inside(DoublesOne()), [torch.randn(2, 4), torch.randn(3, 4)])
    with pytest.raises(AssertionError, match=r"Guard failed: x.size\(\)\[0\] != 1"):
        captured.program.module()(torch.randn(1, 4))
    report = captured.verify()
    (axis,) = report.axes
    assert (axis.status, axis.refused) == ("bounded", (1,))
    (condition,) = axis.conditions
    assert condition.text == "x.shape[0] is not 1"
    assert condition.source is not None
    assert condition.source.code == "if x.shape[0] == 1:"
    assert "not 1, which the model takes" in repr(report)
    assert "if x.shape[0] == 1:" in repr(report)


def test_a_program_that_differs_for_an_unknown_reason_gets_a_remedy_that_fits() -> None:
    from prepbench.capture.failures.describe import WrongProgram, describe_failure

    error = WrongProgram("The captured graph fails on sample 1, on which the model runs: Guard failed: x.size()[0] > 0")
    failure = describe_failure(error, fqn="", module_type="Inside", module=Inside(DoublesOne()))
    assert failure.kind == "graph differs from the model"
    assert "raises this error" not in failure.remedy
    assert "Capture the two samples apart" in failure.remedy
