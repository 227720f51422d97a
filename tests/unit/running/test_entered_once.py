"""Methods that stand in the place of a forward, and may call it themselves."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import pytest
import torch

from prepbench.running.callable_module import as_forward


class Generates(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    def plainly(self, x: torch.Tensor) -> torch.Tensor:
        return self(x)

    def in_a_sum(self, x: torch.Tensor) -> torch.Tensor:
        return x + self(x)

    def in_a_closure(self, x: torch.Tensor) -> torch.Tensor:
        steps: list[Callable[[], torch.Tensor]] = [lambda: self(x)]
        return steps[0]()

    def by_another(self, x: torch.Tensor) -> torch.Tensor:
        return self.plainly(x)

    def not_at_all(self, x: torch.Tensor) -> torch.Tensor:
        return x + id(self) * 0


@pytest.mark.parametrize("name", ["plainly", "in_a_sum", "in_a_closure", "by_another"])
def test_a_method_that_calls_its_owner_means_the_forward(name: str) -> None:
    model: Any = Generates()
    expected = getattr(model, name)(torch.ones(2))
    model.forward = as_forward(getattr(model, name))
    torch.testing.assert_close(model(torch.ones(2)), expected)


def test_a_method_that_does_not_call_its_owner_stays_as_it_is() -> None:
    method = Generates().not_at_all
    assert as_forward(method) is method


def test_code_without_source_may_call_its_owner() -> None:
    scope: dict[str, Any] = {}
    exec(compile("def lost(self, x):\n    return x + self(x)", "lost_file.py", "exec"), scope)
    model: Any = Generates()
    model.forward = as_forward(types.MethodType(scope["lost"], model))
    torch.testing.assert_close(model(torch.ones(2)), torch.ones(2) * 3)
