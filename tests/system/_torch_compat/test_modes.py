"""Modes that a thread may be in."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounter
from torch._functorch import apis

import prepbench as pb
from prepbench._torch_compat import modes
from prepbench._torch_compat.generators import Draws
from prepbench.errors import TorchVersionError
from prepbench.objects.restore import writes_watched


def test_function_transforms_are_noticed() -> None:
    seen = []

    def function(x: torch.Tensor) -> torch.Tensor:
        seen.append(modes.in_functorch())
        return x

    torch.vmap(function)(torch.ones(2))
    function(torch.ones(2))
    assert seen == [True, False]


def test_every_vmap_runs_through_the_module(monkeypatch: pytest.MonkeyPatch) -> None:
    calls, original = [], modes.transforms()[0][0].vmap_impl
    monkeypatch.setattr(*modes.transforms()[0], lambda *args, **kw: calls.append(1) or original(*args, **kw))
    torch.vmap(torch.sin)(torch.ones(2))
    assert calls == [1]


def test_autocast_is_entered_and_left() -> None:
    enter, leave = modes.autocast_functions()
    before = modes.autocast_state()
    state = enter("cpu", torch.bfloat16, True, None)
    assert ("cpu", True, torch.bfloat16) in modes.autocast_state()
    leave(state)
    assert modes.autocast_state() == before


def test_operators_are_seen() -> None:
    seen = []

    class Seen(modes.OperatorMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    with Seen():
        torch.relu(torch.ones(1))
    assert "aten.relu.default" in seen


def test_a_torch_with_another_vmap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(apis, "vmap_impl")
    with pytest.raises(TorchVersionError, match=r"torch\.vmap.*vmap_impl"):
        modes.transforms()


def test_a_torch_with_another_autocast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.amp.autocast_mode, "_exit_autocast")
    with pytest.raises(TorchVersionError, match=r"recording autocast.*_exit_autocast"):
        modes.autocast_functions()


class Branches(nn.Module):
    """Both sides of a condition have parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        return torch.cond(x.sum() > 0, lambda x: self.first(x), lambda x: self.second(x) * 2, (x,))


class Passing(modes.OperatorMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("mode", [Passing, Draws, lambda: writes_watched(Branches())])
def test_a_condition_runs_under_a_mode_and_after_it(mode) -> None:
    torch._dynamo.reset()
    model, x = Branches().eval(), torch.ones(2, 4)
    with torch.no_grad():
        with mode():
            first = model(x)
        torch.testing.assert_close(model(x), first)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_model_whose_condition_chooses_between_layers_compiles(dtype) -> None:
    model = Branches().eval().to(dtype)
    samples = [torch.ones(2, 4, dtype=dtype), -torch.ones(3, 4, dtype=dtype)]
    compiled = pb.compile_model(model, tracing_inputs=samples)
    for sample in (*samples, torch.ones(5, 4, dtype=dtype)):
        torch.testing.assert_close(compiled(sample), model(sample), rtol=1e-3, atol=1e-3)


def test_functions_that_somebody_compiled_stay_compiled() -> None:
    counter = CompileCounter()

    @torch.compile(backend=counter)
    def function(x):
        return x.sin() + 1

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 3)

        def forward(self, x):
            return function(self.layer(x))

    model = Model().eval()
    with writes_watched(model):
        model(torch.ones(2, 3))
    model(torch.ones(2, 3))
    assert counter.frame_count > 0


def test_a_condition_runs_after_its_first_call_was_traced() -> None:
    """In a process of its own, because dynamo is loaded only once."""
    text = "import torch, prepbench as pb; from tests.system._torch_compat.test_modes import Branches\n"
    text += "model = Branches()\n"
    text += "pb.recursive_trace(model.eval(), inputs=[torch.ones(2, 4)]); print(model(torch.ones(2, 4)).shape)"
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "torch.Size([2, 4])", done.stderr
