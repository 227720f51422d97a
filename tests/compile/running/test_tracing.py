"""``tracing()``: one thread at a time, which others neither notice nor wait for in vain."""

from __future__ import annotations

import builtins
import math
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx, nn
from torch.fx import traceback

from prepbench.jobs import Cancelled, Job, Progress, ProgressCallback
from prepbench.running.tracing import WAITING, tracing


def identities() -> dict[str, Any]:
    """What tracing replaces for a time, here or in torch."""
    return {
        "builtins": {name: getattr(builtins, name) for name in ("len", "max", "min", "print")},
        "math": dict(vars(math)),
        "module": {name: vars(nn.Module).get(name) for name in ("__call__", "__getattr__", "__setattr__", "to")},
        "flags": (torch.compiler.is_compiling(), torch.compiler.is_exporting(), fx._symbolic_trace.is_fx_tracing()),
        "code": [torch.compiler.is_exporting.__code__, fx._symbolic_trace.is_fx_tracing.__code__],
        "patcher": dict(vars(fx._symbolic_trace._Patcher)),
    }


def test_one_thread_at_a_time_and_the_other_says_that_it_waits() -> None:
    inside, seen = threading.Event(), []
    release = threading.Event()

    def first(step: ProgressCallback) -> None:
        with tracing(step), tracing(step):
            inside.set()
            assert release.wait(30)
            seen.append("first")

    def second(step: ProgressCallback) -> None:
        with tracing(step):
            seen.append("second")

    one = Job(first)
    assert inside.wait(30)
    waits: list[Progress] = []

    def note(progress: Progress) -> None:
        waits.append(progress)
        release.set()

    two = Job(second, note)
    one.result(30), two.result(30)
    assert seen == ["first", "second"]
    assert [progress.stage for progress in waits] == [WAITING]


def test_who_waits_can_be_cancelled() -> None:
    heard = threading.Event()
    with tracing():

        def wait(step: ProgressCallback) -> None:
            with tracing(step):
                raise AssertionError("entered")

        job = Job(wait, lambda progress: heard.set())
        assert heard.wait(30)
        job.cancel()
        with pytest.raises(Cancelled, match=WAITING):
            job.result(10)


class _Asks(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        states.append(torch.compiler.is_exporting())
        other.append(_elsewhere(torch.compiler.is_exporting))
        other.append(_elsewhere(lambda: fx._symbolic_trace.is_fx_tracing()))
        other.append(_elsewhere(lambda: builtins.max([1, 2])) != 2)
        other.append(not torch.equal(_elsewhere(lambda: _layer(_input)), _expected))
        return x + max(x.shape[0], 1)


states: list[bool] = []
other: list[bool] = []
_layer, _input = nn.Sequential(nn.Linear(4, 2), nn.ReLU()), torch.ones(3, 4)
_expected = _layer(_input)


def _elsewhere(function: Callable[[], Any]) -> Any:
    found = []

    def run() -> None:
        with torch.no_grad():
            found.append(function())

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return found[0] if found else None


def test_other_threads_notice_nothing_of_an_export() -> None:
    before = identities()
    states.clear(), other.clear()
    with tracing():
        torch.export.export(_Asks(), (torch.ones(3),))
    assert states[0] is True
    assert not any(other), other
    assert identities() == before


def test_other_threads_print_tensors_while_one_exports() -> None:
    """Printing takes off all modes meanwhile, and torch has one place for those of an export."""
    stop, printed, x = threading.Event(), [], torch.ones(3)

    def look() -> None:
        while not stop.is_set():
            printed.append(repr(x))

    model = torch.nn.Sequential(*(torch.nn.Linear(3, 3) for _ in range(20)))
    thread = threading.Thread(target=look)
    thread.start()
    try:
        for _ in range(3):
            with tracing():
                program = torch.export.export(model, (x,))
            assert torch.equal(program.module()(x), model(x))
    finally:
        stop.set()
        thread.join()
    assert set(printed) == {repr(x)}
    assert torch._ops._len_torch_dispatch_stack_pre_dispatch() == 0


def test_other_threads_call_modules_while_fx_traces() -> None:
    before = identities()

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            found.append(_elsewhere(lambda: _layer(_input)))
            return self.layer(x).relu()

    found: list[Any] = []
    with tracing(with_dynamo=False):
        graph = fx.symbolic_trace(Model())
    assert torch.equal(found[0], _expected)
    assert [node.op for node in graph.graph.nodes] == ["placeholder", "call_module", "call_method", "output"]
    assert identities() == before


def test_annotations_of_a_trace_outlast_an_interpreter_elsewhere() -> None:
    inside, may_go = threading.Event(), threading.Event()

    def held(x: torch.Tensor) -> torch.Tensor:
        inside.set()
        assert may_go.wait(30)
        return x + 1

    graph = fx.Graph()
    node = graph.call_function(held, (graph.placeholder("x"),))
    node.meta["of"] = "the other thread"
    graph.output(node)
    interpreter = fx.Interpreter(fx.GraphModule(nn.Module(), graph))
    before = traceback.set_current_meta
    with tracing(), traceback.preserve_node_meta():
        with traceback.annotate({"of": "this thread"}):
            job = Job(lambda progress: interpreter.run(torch.ones(2)))
            assert inside.wait(30)
            assert traceback.get_current_meta()["custom"] == {"of": "this thread"}
            may_go.set()
            assert torch.equal(job.result(30), torch.full((2,), 2.0))
        assert not traceback.get_current_meta()
    assert traceback.set_current_meta is before


class _Held(nn.Module):
    """Tells when its forward runs, and goes on when it may."""

    def __init__(self) -> None:
        super().__init__()
        self.inside, self.may_go = threading.Event(), threading.Event()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.inside.set()
        assert self.may_go.wait(30)
        return x + torch.compiler.is_exporting()


TRACED: dict[str, Callable[[nn.Module], Any]] = {
    "export": lambda model: torch.export.export(model, (torch.ones(3),)).graph,
    "fx": lambda model: fx.symbolic_trace(model).graph,
}


@pytest.mark.parametrize("how", TRACED)
def test_tracing_waits_for_what_another_thread_has_begun_to_trace(how: str) -> None:
    before, model = identities(), _Held()
    theirs = Job(lambda progress: TRACED[how](model))
    assert model.inside.wait(30)
    waits: list[Progress] = []

    def note(progress: Progress) -> None:
        waits.append(progress)
        model.may_go.set()

    with tracing(note):
        theirs.result(30)
        ours = torch.export.export(_Asks(), (torch.ones(3),))
    assert [progress.stage for progress in waits] == [WAITING]
    assert len(list(theirs.result(30).nodes)) == 3
    assert len(list(ours.graph.nodes)) == 3
    assert identities() == before


@pytest.mark.parametrize("how", TRACED)
def test_another_thread_waits_with_its_own_tracing(how: str) -> None:
    before, model = identities(), _Held()
    model.may_go.set()
    with tracing():
        theirs = Job(lambda progress: TRACED[how](model))
        assert not model.inside.wait(0.3)
        torch.export.export(_Asks(), (torch.ones(3),))
        assert not model.inside.is_set()
    assert len(list(theirs.result(30).nodes)) == 3
    assert identities() == before


def test_a_trace_that_comes_back_to_us_is_not_waited_for() -> None:
    class Nested(_Held):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            result = super().forward(x)
            with tracing(with_dynamo=False):
                return result

    model = Nested()
    theirs = Job(lambda progress: TRACED["fx"](model))
    assert model.inside.wait(30)
    with tracing(lambda progress: model.may_go.set()):
        assert not theirs.done
    assert theirs.result(30) is not None
