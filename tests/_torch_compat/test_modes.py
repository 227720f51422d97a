"""Modes that a thread may be in."""

from __future__ import annotations

import pytest
import torch
from torch._functorch import apis

from prepbench._torch_compat import modes
from prepbench.errors import TorchVersionError


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

    class Seen(modes.TorchDispatchMode):
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
