"""Regions of a forward without gradients, as two calls in a graph."""

from __future__ import annotations

import torch


def enter_grad_mode(enabled: bool) -> bool:
    """Switch recording of gradients on or off from here on; return the previous mode."""
    before = torch.is_grad_enabled()
    # gradients that the caller has switched off stay off
    torch.set_grad_enabled(enabled and before)
    return before


def exit_grad_mode(before: bool) -> None:
    """Leave the region that :func:`enter_grad_mode` opened."""
    torch.set_grad_enabled(before)
