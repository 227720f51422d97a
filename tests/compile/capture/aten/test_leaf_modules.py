from __future__ import annotations

import copy
import gc
from typing import Any

import pytest
import torch
from torch import nn

from prepbench.capture.aten.capture import FullGraphError, capture
from prepbench.capture.aten.captured import Captured
from prepbench.capture.aten.leaf_operators import is_leaf_operator
from prepbench.errors import CaptureError, SettingsError


class Gate(nn.Module):
    """Takes keywords, branches on data, returns nested outputs with numbers and None."""

    def __init__(self, channels: int = 8) -> None:
        super().__init__()
        self.mix = nn.Conv2d(channels, channels, 1)

    def forward(self, x: torch.Tensor, *, scale: float = 1.0, bias: torch.Tensor | None = None) -> Any:
        y = self.mix(x) * scale if x.sum() > 0 else x * scale
        return (y if bias is None else y + bias), {"mean": x.mean((2, 3)), "none": None, "size": tuple(x.shape[2:])}


class Net(nn.Module):
    """A data-dependent block in the middle of a CNN, called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8)
        self.gate, self.head = Gate(), nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> Any:
        x = torch.relu(self.norm(self.stem(x)))
        y, info = self.gate(x, scale=2.0)
        z, _ = self.gate(y, bias=info["mean"][:, :, None, None])
        return self.head((y + z).mean((2, 3)) + info["mean"]), info["size"]


SAMPLES = [torch.randn(1, 3, 16, 16), torch.randn(2, 3, 20, 24)]


def leaf_nodes(captured: Captured) -> list[torch.fx.Node]:
    return [node for node in captured.program.graph.nodes if is_leaf_operator(node.target)]


def assert_equal(captured: Captured, model: nn.Module, *inputs: torch.Tensor) -> None:
    with torch.no_grad():
        torch.testing.assert_close(captured.program.module()(*inputs), model(*inputs))


def test_only_the_failing_module_becomes_an_operator() -> None:
    model = Net().eval()
    captured = capture(model, SAMPLES, fullgraph=False)
    (leaf,) = captured.leaves
    assert (leaf.fqn, leaf.module_type, leaf.kind) == ("gate", "Gate", "data-dependent branch")
    assert leaf.source is not None
    assert "x.sum() > 0" in leaf.source.code
    assert len(leaf_nodes(captured)) == 2
    targets = [str(node.target) for node in captured.program.graph.nodes]
    assert any("conv2d" in target for target in targets)
    assert not any(".item." in target or "assert" in target for target in targets)
    assert sum("conv2d" in target for target in targets) == 3  # the stem, and that of the gate in each call


@pytest.mark.parametrize("shape", [(1, 3, 16, 16), (2, 3, 20, 24), (5, 3, 31, 18), (7, 3, 64, 64)])
def test_the_graph_equals_the_model_at_any_size(shape: tuple[int, ...]) -> None:
    model = Net().eval()
    captured = capture(model, SAMPLES, fullgraph=False)
    assert_equal(captured, model, torch.randn(shape))
    assert_equal(captured, model, -torch.randn(shape).abs())


def test_weights_of_leaves_are_those_of_the_model() -> None:
    model = Net().eval()
    captured = capture(model, SAMPLES, fullgraph=False)
    with torch.no_grad():
        model.gate.mix.weight.mul_(3)
    assert_equal(captured, model, SAMPLES[1].abs())


def test_the_batch_is_learned_from_one_sample() -> None:
    model = Net().eval()
    axes = capture(model, SAMPLES[:1], fullgraph=False).axes.set("x", 0)
    captured = capture(model, SAMPLES[:1], dynamic_axes=axes, fullgraph=False)
    assert_equal(captured, model, torch.randn(6, 3, 16, 16))


@pytest.mark.stress
def test_inductor_compiles_a_graph_with_leaves() -> None:
    model = Net().eval()
    captured = capture(model, SAMPLES, fullgraph=False)
    compiled = torch.compile(captured.program.module())
    with torch.no_grad():
        torch.testing.assert_close(compiled(SAMPLES[1]), model(SAMPLES[1]))


def test_fullgraph_lists_every_failure_with_its_line_and_remedy() -> None:
    class Loop(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.stack([x[i] for i in range(x.shape[0])])

    class Item(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * float(x.sum()) if x.max().item() > 3 else x

    model = nn.Sequential(nn.Linear(4, 4), Loop(), nn.Sequential(Item(), nn.ReLU()), nn.Linear(4, 2))
    with pytest.raises(FullGraphError) as caught:
        capture(model, [torch.randn(2, 4), torch.randn(3, 4)])
    assert [failure.fqn for failure in caught.value.failures] == ["1", "2.0"]
    text = str(caught.value)
    assert "range(x.shape[0])" in text
    assert "x.max().item() > 3" in text
    assert "fullgraph=False" in text
    assert __file__ in text
    captured = capture(model, [torch.randn(2, 4), torch.randn(3, 4)], fullgraph=False)
    assert [leaf.fqn for leaf in captured.leaves] == ["1", "2.0"]
    assert_equal(captured, model, torch.randn(9, 4))


def test_the_root_itself_becomes_one_operator() -> None:
    class Root(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(10, 10)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.linear(x) if x.sum() > 0 else torch.zeros_like(x)

    model = Root()
    captured = capture(model, [torch.randn(1, 10), torch.randn(2, 10)], fullgraph=False)
    assert [leaf.fqn for leaf in captured.leaves] == [""]
    assert "the whole model is one operator" in repr(captured)
    assert_equal(captured, model, torch.randn(5, 10))


@pytest.mark.parametrize("wanted", ["gate", "Gate", Gate])
def test_leaves_are_chosen_by_name_type_name_or_class(wanted: Any) -> None:
    captured = capture(Net().eval(), SAMPLES, leaf_modules=[wanted])
    assert [leaf.fqn for leaf in captured.leaves] == ["gate"]


def test_a_chosen_leaf_wins_over_what_is_inside_it() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.ReLU()))
    captured = capture(model, [torch.randn(2, 4), torch.randn(3, 4)], leaf_modules=["1", "1.0", model[1]])
    assert [leaf.fqn for leaf in captured.leaves] == ["1"]
    assert len(leaf_nodes(captured)) == 1
    assert_equal(captured, model, torch.randn(9, 4))


def test_a_leaf_that_matches_nothing_is_an_error() -> None:
    with pytest.raises(SettingsError, match="Nearest: gate"):
        capture(Net(), SAMPLES, leaf_modules=["gates"])


def test_chosen_leaves_do_not_hide_other_failures() -> None:
    with pytest.raises(FullGraphError, match="gate"):
        capture(Net().eval(), SAMPLES, leaf_modules=["stem"])


def test_leaves_that_write_into_their_inputs() -> None:
    class InPlace(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x.add_(1)
            return x * 2

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = InPlace()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = x * 3
            return self.inner(y) + y

    model = Outer()
    captured = capture(model, [torch.randn(2, 4), torch.randn(3, 4)], leaf_modules=["inner"])
    assert_equal(captured, model, torch.randn(5, 4))


def test_leaves_that_return_their_input_or_one_tensor_twice() -> None:
    class Twice(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            y = x * 2
            return x, y, y

    model = nn.Sequential(nn.Linear(4, 4), Twice())
    captured = capture(model, [torch.randn(2, 4), torch.randn(3, 4)], leaf_modules=["1"])
    assert_equal(captured, model, torch.randn(5, 4))


class Same(nn.Module):
    """Returns a view of its argument for positive inputs, something new for others."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[:, :2] if x.sum() > 0 else x[:, 2:] * 2


class WritesLater(nn.Module):
    def __init__(self, where: str) -> None:
        super().__init__()
        self.same, self.where = Same(), where

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x * 1
        y = self.same(x)
        if self.where:
            (x if self.where == "input" else y)[:, 0].add_(1)
        return x.sum(-1) + y.sum(-1)


@pytest.mark.parametrize("where", ["input", "output"])
def test_a_leaf_refuses_to_share_memory_that_is_written_into_later(where: str) -> None:
    model, below = WritesLater(where), -torch.rand(5, 4)
    captured = capture(model, [-torch.rand(2, 4), -torch.rand(3, 4)], fullgraph=False)
    assert [leaf.fqn for leaf in captured.leaves] == ["same"]
    assert_equal(captured, model, below)
    with pytest.raises(CaptureError, match=r"Line \d+ of same: .*memory of its argument.*clone"):
        captured.program.module()(-below)
    captured = capture(model, [torch.rand(2, 4), torch.rand(3, 4)], fullgraph=False)
    assert [(leaf.fqn, leaf.kind) for leaf in captured.leaves] == [("", "mutation")]
    assert "same cannot be exported and returns a view of its argument" in captured.leaves[0].message
    assert_equal(captured, model, -below)


def test_a_leaf_may_share_memory_that_nobody_writes_into() -> None:
    model, below = WritesLater(""), -torch.rand(5, 4)
    captured = capture(model, [-torch.rand(2, 4), -torch.rand(3, 4)], fullgraph=False)
    assert_equal(captured, model, below)
    assert_equal(captured, model, -below)


def test_statistics_of_leaves_are_updated_and_calls_follow_each_other() -> None:
    class Norm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.norm(x) if x.sum() > 0 else x

    model = nn.Sequential(nn.Linear(4, 4), Norm()).train()
    other = copy.deepcopy(model)
    captured = capture(model, [torch.randn(2, 4), torch.randn(3, 4)], fullgraph=False)
    graph = captured.program.module()
    for _ in range(3):
        x = torch.randn(6, 4)
        with torch.no_grad():
            torch.testing.assert_close(graph(x), other(x))
    torch.testing.assert_close(model.state_dict(), other.state_dict())


def test_numbers_that_depend_on_data_flow_on() -> None:
    class Count(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return (int((x > 0).sum()), float(x.max())) if x.sum() > -1e9 else None

    class Uses(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.count = Count()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            count, largest = self.count(x)
            return x / (count + 1) + largest

    model = Uses()
    captured = capture(model, [torch.randn(6, 4), torch.randn(7, 4)], fullgraph=False)
    assert [leaf.fqn for leaf in captured.leaves] == ["count"]
    assert_equal(captured, model, torch.randn(9, 4))


def test_sizes_that_depend_on_data_stay_unknown() -> None:
    class Positive(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x[x > 0]

    model = nn.Sequential(Positive(), nn.ReLU())
    captured = capture(model, [torch.randn(20, 4), torch.randn(30, 4)], leaf_modules=["0"])
    assert_equal(captured, model, torch.randn(50, 4))


def test_scripted_modules_beside_recurrence_over_a_dynamic_sequence() -> None:
    class Tagger(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm, self.head = nn.LSTM(4, 8, batch_first=True), nn.Linear(8, 3)
            self.script = torch.jit.script(nn.Sequential(nn.Linear(3, 3), nn.ReLU()))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.script(self.head(self.lstm(x)[0]))

    model = Tagger().eval()
    captured = capture(model, [torch.randn(1, 5, 4), torch.randn(2, 9, 4)], fullgraph=False)
    assert [leaf.fqn for leaf in captured.leaves] == ["script"]
    assert_equal(captured, model, torch.randn(3, 12, 4))
    assert isinstance(model.script, torch.jit.ScriptModule)


def test_operators_are_freed_and_forwards_restored() -> None:
    model = Net().eval()
    captured = capture(model, SAMPLES, fullgraph=False)
    name = str(leaf_nodes(captured)[0].target).removesuffix(".default").replace(".", "::")
    assert torch._C._dispatch_has_kernel(name)
    assert all("forward" not in vars(module) for module in model.modules())
    graph = captured.program.module()
    del captured, model
    gc.collect()
    assert graph(SAMPLES[1])[0].shape == (2, 5)
    del graph
    gc.collect()
    assert not torch._C._dispatch_has_kernel(name)
