"""Record regions under autocast or without gradients in the graph of a forward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from prepbench._torch_compat.modes import autocast_functions, autocast_state


def _state() -> tuple[Any, bool]:
    return autocast_state(), torch.is_grad_enabled()


class Regions:
    """Opens and closes autocast and ``no_grad`` in a graph where the model does.

    Autocast decides the dtypes of later operations, and operations under ``no_grad`` have no gradients.

    Args:
        add: appends a call of a function to the graph.

    Attributes:
        opened: the state that the graph is in, and what closes each open region; assign an earlier value when the
            nodes since then are removed.
    """

    def __init__(self, add: Callable[[Any, tuple[Any, ...]], fx.Node]) -> None:
        self._add = add
        self._outside = _state()
        self.opened: tuple[Any, list[tuple[Any, fx.Node]]] = (self._outside, [])

    def follow(self) -> None:
        """Bring the graph into the model's current autocast and gradient modes."""
        state, entered = self.opened
        now = _state()
        if now == state:
            return
        for leave, node in reversed(entered):
            self._add(leave, (node,))
        self.opened = now, self._opened_now(*now)

    def _opened_now(self, autocast: Any, grad: bool) -> list[tuple[Any, fx.Node]]:
        enter, leave = autocast_functions()
        opened = [
            (leave, self._add(enter, (device, dtype, enabled, True)))
            for device, enabled, dtype in autocast
            if (device, enabled, dtype) not in self._outside[0]
        ]
        if grad != self._outside[1]:
            opened.append((exit_grad_mode, self._add(enter_grad_mode, (grad,))))
        return opened


# Regions of a forward without gradients, as two calls in a graph.


def enter_grad_mode(enabled: bool) -> bool:
    """Switch recording of gradients on or off from here on; return the previous mode."""
    before = torch.is_grad_enabled()
    # gradients that the caller has switched off stay off
    torch.set_grad_enabled(enabled and before)
    return before


def exit_grad_mode(before: bool) -> None:
    """Leave the region that :func:`enter_grad_mode` opened."""
    torch.set_grad_enabled(before)
