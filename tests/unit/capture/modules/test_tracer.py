"""The tracer's own interface, without and with inputs."""

from __future__ import annotations

import itertools
import threading
from typing import Any

import pytest
import torch
from torch import nn

from prepbench.capture.modules.collection import recursive_trace
from prepbench.capture.modules.tracer import RobustTracer
from prepbench.errors import CaptureError


class Raises(nn.Module):
    def __init__(self, error: type[BaseException]) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.error = error

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.linear(x)
        if isinstance(y, torch.fx.Proxy) or torch.compiler.is_compiling():
            raise self.error("from forward")
        return y


ERRORS = [ValueError, AttributeError, RuntimeError, IndexError, AssertionError, NotImplementedError, KeyError]


@pytest.mark.parametrize("error", ERRORS)
def test_any_exception_makes_only_its_module_a_leaf(error: type[Exception]) -> None:
    model = nn.Sequential(nn.Linear(4, 4), Raises(error), nn.ReLU())
    tracer = RobustTracer()
    graph = tracer.trace(model)
    assert len(graph.nodes) == 5
    assert tracer.is_failed(model[1])
    assert not tracer.is_failed(model)
    assert (tracer.failure_msg(model[1]) or "").startswith(error.__name__)


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_interrupts_are_not_failures(error: type[BaseException]) -> None:
    model = nn.Sequential(Raises(error))
    call = nn.Module.__call__
    with pytest.raises(error):
        RobustTracer().trace(model)
    assert nn.Module.__call__ is call


def test_what_a_module_raises_itself_is_told_before_tracing() -> None:
    class Broken(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise KeyError("missing")

    with pytest.raises(CaptureError, match=r"itself raises on inputs\[0\]") as caught:
        recursive_trace(nn.Sequential(Broken()), inputs=[torch.ones(2, 4)])
    assert isinstance(caught.value.__cause__, KeyError)


def test_registered_leaves() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> Any:
            return self.linear(x) + 1

    model = nn.Sequential(Block(), Block())
    RobustTracer.register_leaf(Block)
    try:
        assert RobustTracer.is_registered_leaf(Block)
        assert RobustTracer.is_registered_leaf(model[0])
        for inputs in (None, [torch.ones(2, 4), torch.ones(3, 4)]):
            graph = RobustTracer().trace(model, inputs=inputs)
            assert [node.op for node in graph.nodes] == ["placeholder", "call_module", "call_module", "output"]
            root = RobustTracer().trace(model[0], inputs=inputs)
            assert [node.op for node in root.nodes] == ["placeholder", "call_module", "output"]
    finally:
        RobustTracer.unregister_leaf(Block)
    assert not RobustTracer.is_registered_leaf(Block)
    with pytest.raises(KeyError):
        RobustTracer.unregister_leaf(Block)


class Scaled(nn.Module):
    def forward(
        self, x: torch.Tensor, scale: float = 2.0, bias: torch.Tensor | None = None, *, flip: bool = False
    ) -> Any:
        y = x * scale
        if flip:
            y = -y
        return y if bias is None else y + bias


@pytest.mark.parametrize(
    ("concrete", "placeholders", "operations"),
    [
        (None, ["x"], 1),
        ({"flip": True}, ["x"], 2),
        ({"bias": torch.ones(4)}, ["x", "bias"], 2),
        ({"scale": 3.0}, ["x"], 1),
    ],
)
def test_only_tensors_become_proxies(concrete: Any, placeholders: list[str], operations: int) -> None:
    graph = RobustTracer().trace(Scaled(), concrete)
    assert [node.target for node in graph.nodes if node.op == "placeholder"] == placeholders
    assert len(graph.nodes) == len(placeholders) + operations + 1


def test_functions_can_be_traced() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.relu(x) + y.sum()

    for inputs in (None, [(torch.ones(2), torch.ones(3))]):
        collection = recursive_trace(function, inputs=inputs)
        result = collection.graph_module()(torch.ones(2), torch.ones(3))
        assert torch.equal(result, function(torch.ones(2), torch.ones(3)))


def test_unknown_concrete_argument_is_named() -> None:
    with pytest.warns(UserWarning, match=r"'sclae', which forward\(x, scale, bias, flip\).*Nearest: 'scale'"):
        RobustTracer().trace(Scaled(), {"sclae": 2})


def test_forward_runs_once_per_trace_however_much_fails() -> None:
    calls = itertools.count()  # lists would be put back

    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gates = nn.ModuleList(Raises(ValueError) for _ in range(8))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            next(calls)
            for gate in self.gates:
                x = gate(x)
            return x

    RobustTracer().trace(Counts())
    assert next(calls) == 1


def test_a_trace_does_not_disturb_other_threads() -> None:
    other = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    stop, results = threading.Event(), []

    def run() -> None:
        while not stop.is_set():
            results.append(other(torch.ones(1, 4)).shape)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        graph = RobustTracer().trace(nn.Sequential(nn.Linear(4, 4)), inputs=[torch.ones(2, 4), torch.ones(3, 4)])
    finally:
        stop.set()
        thread.join()
    assert len(graph.nodes) == 3
    assert set(results) == {torch.Size([1, 4])}


def test_nodes_know_their_module_line_and_value() -> None:
    class Block(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.relu() + 1

    graph = RobustTracer().trace(nn.Sequential(Block()), inputs=[torch.ones(2, 4), torch.ones(3, 4)])
    relu = next(node for node in graph.nodes if node.target == "relu")
    assert relu.meta["fqn"] == "0"
    assert list(relu.meta["nn_module_stack"]) == ["", "0"]
    assert relu.meta["source"].code == "return x.relu() + 1"
    assert relu.meta["val"].shape[1] == 4


@pytest.mark.parametrize("sizes", [(1, 4), (4, 1)])
def test_a_batch_of_one_in_any_order_stays_dynamic(sizes: tuple[int, int]) -> None:
    class Flat(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.view(x.shape[0] * 2, -1)

    collection = recursive_trace(Flat(), inputs=[torch.ones(size, 4) for size in sizes])
    assert collection.graph_module()(torch.ones(7, 4)).shape == (14, 2)
    assert collection.graph_module()(torch.ones(1, 4)).shape == (2, 2)


def test_names_that_forward_does_not_take_are_warned_about_and_left_out() -> None:
    linear = nn.Linear(2, 2)
    for trace in (RobustTracer().trace, recursive_trace):
        with pytest.warns(UserWarning, match=r"concrete_args names 'inputs', which forward\(input\).*Nearest: 'input'"):
            trace(linear, concrete_args={"inputs": None})
    assert not recursive_trace(linear).failures


def test_an_analyser_of_the_peer_reads_what_failed() -> None:
    class Fails(nn.Module):
        def forward(self, x):
            return x if x.sum() > 0 else -x

    inner = Fails()
    tracer = RobustTracer()
    tracer.trace(nn.Sequential(nn.Linear(2, 2), inner))
