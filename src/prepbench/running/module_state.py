"""What a forward leaves behind on its modules while it is traced, and how to put everything back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


@contextmanager
def restored(root: torch.nn.Module) -> Iterator[dict[str, torch.Tensor]]:
    """Undo what the block does to ``root`` and its submodules: attributes, buffers, ``requires_grad``.

    Plain lists, dicts and sets held by a module are restored too, for models that keep a cache between calls, and the
    values of buffers that are counted up in place. Yields the buffers as they were, by name.
    """
    saved = [(module.__dict__, dict(module.__dict__)) for module in root.modules()]
    containers = [
        (value, value.copy())
        for _, attributes in saved
        for value in attributes.values()
        if isinstance(value, dict | list | set)
    ]
    flags = [(tensor, tensor.requires_grad) for tensor in root.parameters()]
    buffers = dict(root.named_buffers())
    values = [(buffer, buffer.detach().clone()) for buffer in buffers.values()]
    try:
        yield buffers
    finally:
        for live, attributes in saved:
            live.clear()
            live.update(attributes)
        for container, content in containers:
            _refill(container, content)
        for parameter, flag in flags:
            if parameter.requires_grad != flag:
                parameter.requires_grad_(flag)
        with torch.no_grad():
            for buffer, value in values:
                # batch norm writes its statistics without raising their version
                buffer.copy_(value)


def _refill(container: Any, content: Any) -> None:
    if isinstance(container, list):
        container[:] = content
        return
    container.clear()
    container.update(content)


def replaced_buffers(root: torch.nn.Module, before: dict[str, torch.Tensor]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Buffers that a forward assigned anew, as (old, new), such as ``self.steps = self.steps + 1``."""
    now = dict(root.named_buffers())
    return [
        (old, now[name])
        for name, old in before.items()
        if name in now and now[name] is not old and now[name].shape == old.shape and now[name].dtype == old.dtype
    ]
