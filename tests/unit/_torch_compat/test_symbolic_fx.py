"""Symbolic tracing: tuples of arguments, and functions given to ``torch.fx.wrap``."""

from __future__ import annotations

import pytest
import torch
import torch.fx._symbolic_trace as torch_tracing

from prepbench._torch_compat import symbolic_fx
from prepbench.errors import TorchVersionError


def total(first: int, *rest: int, scale: int = 1) -> int:
    return (first + sum(rest)) * scale


@torch.fx.wrap
def wrapped_here(x: int) -> int:
    return x


def test_a_tuple_stands_for_further_arguments() -> None:
    call = symbolic_fx.taking_tuple(total, (1,), {"scale": 2}, (3, 4))
    assert call(1, 2, (3, 4)) == 16


def test_a_function_without_further_arguments() -> None:
    with pytest.raises(TypeError, match="nothing says how many"):
        symbolic_fx.taking_tuple(len, (), {}, ())


def test_wrapped_functions_are_listed_with_their_namespace() -> None:
    found = [(namespace, function) for namespace, name, function in symbolic_fx.wrapped_functions()]
    assert any(space is globals() and function is wrapped_here for space, function in found)


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("_patch_function", lambda: symbolic_fx.taking_tuple(total, (1,), {}, ())),
        ("_wrapped_fns_to_patch", symbolic_fx.wrapped_functions),
    ],
)
def test_a_torch_without_it(monkeypatch: pytest.MonkeyPatch, name: str, call: object) -> None:
    monkeypatch.delattr(torch_tracing, name)
    with pytest.raises(TorchVersionError, match=name):
        call()  # type: ignore[operator]
