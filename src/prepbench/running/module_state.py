"""What a forward leaves behind on its modules while it is traced, and how to put everything back."""

from __future__ import annotations

import collections
import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from prepbench.patching import undoing


@contextmanager
def restored(root: torch.nn.Module) -> Iterator[dict[str, torch.Tensor]]:
    """Undo what the block does to ``root`` and its submodules: attributes, tensors, ``requires_grad``, ``.data``.

    Plain lists, dicts and sets held by a module are restored too, for models that keep a cache between calls, and the
    values of tensors that are counted up in place. What has not changed is not written to, because another thread may
    be running the model. Yields the buffers as they were, by name.
    """
    modules = list(root.modules())
    buffers = dict(root.named_buffers())
    with undoing() as undo:
        tensors = {id(buffer): buffer for buffer in buffers.values()}
        for module in modules:
            tensors.update((id(value), value) for value in vars(module).values() if isinstance(value, torch.Tensor))
        for tensor in tensors.values():
            undo.add(_value_kept(tensor))
        for parameter in root.parameters():
            undo.add(_parameter_kept(parameter))
        for module in modules:
            undo.add(_module_kept(module))
        yield buffers


def _module_kept(module: torch.nn.Module) -> Callable[[], None]:
    """How to put back the attributes of a module, and what the containers among them hold."""
    live = vars(module)
    before = dict(live)
    # most are empty tables of hooks, of which there is nothing to copy
    containers = [(value, value.copy() if value else None) for value in before.values() if type(value) in _CONTAINERS]
    containers += [(value, value.copy()) for value in before.values() if _is_other_container(value)]

    def put_back() -> None:
        # never empty in between: another thread may be reading, and an interrupt would leave it so
        if not (list(live) == list(before) and all(map(operator.is_, live.values(), before.values()))):
            _refill(live, before)
        for container, content in containers:
            if content is None:
                if container:
                    container.clear()
            else:
                _put_content_back(container, content)

    return put_back


_CONTAINERS = frozenset({dict, collections.OrderedDict, list, set})


def _is_other_container(value: object) -> bool:
    return isinstance(value, dict | list | set) and type(value) not in _CONTAINERS


def _reorder(live: dict[Any, Any], wanted: list[Any]) -> None:
    """Bring keys into an order; those that stand right already are not touched."""
    right = 0
    for name, other in zip(list(live), wanted, strict=True):
        if name is not other and name != other:
            break
        right += 1
    for name in wanted[right:]:
        live[name] = live.pop(name)


def _put_content_back(container: Any, before: Any) -> None:
    if isinstance(container, list):
        if not _same_items(container, before):
            container[:] = before
    elif isinstance(container, dict):
        if list(container) != list(before) or not _same_items(container.values(), before.values()):
            _refill(container, before)
    elif container != before:
        container.clear()
        container.update(before)


def _same_items(one: Any, other: Any) -> bool:
    return len(one) == len(other) and all(map(operator.is_, one, other))


def _refill(live: dict[Any, Any], before: dict[Any, Any]) -> None:
    live.update({name: value for name, value in before.items() if live.get(name, live) is not value})
    for name in [name for name in live if name not in before]:
        del live[name]
    _reorder(live, list(before))


def _parameter_kept(parameter: torch.nn.Parameter) -> Callable[[], None]:
    flag, data = parameter.requires_grad, parameter.data

    def put_back() -> None:
        if not _is_same_memory(parameter.data, data):
            parameter.data = data
        if parameter.requires_grad != flag:
            parameter.requires_grad_(flag)

    return put_back


def _is_same_memory(now: torch.Tensor, before: torch.Tensor) -> bool:
    if (now.device, now.dtype, now.layout) != (before.device, before.dtype, before.layout):
        return False
    plain = type(before) is torch.Tensor and before.layout is torch.strided and before.device.type != "meta"
    return now.is_set_to(before) if plain else now.shape == before.shape


def _value_kept(tensor: torch.Tensor) -> Callable[[], None]:
    value = tensor.detach().clone()

    def put_back() -> None:
        # batch norm writes its statistics without raising their version
        if not same_bits(tensor, value):
            with torch.no_grad():
                tensor.copy_(value)

    return put_back


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors of one shape and dtype hold the same numbers, NaN at the same places included."""
    if one.device.type == "meta":
        return True
    try:
        return torch.equal(one, other) or bool(((one == other) | ((one != one) & (other != other))).all())
    except RuntimeError:  # dtypes that torch stores but cannot compare
        return False


def replaced_buffers(root: torch.nn.Module, before: dict[str, torch.Tensor]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Buffers that a forward assigned anew, as (old, new), such as ``self.steps = self.steps + 1``."""
    now = dict(root.named_buffers())
    return [
        (old, now[name])
        for name, old in before.items()
        if name in now and now[name] is not old and now[name].shape == old.shape and now[name].dtype == old.dtype
    ]


def state_bytes(module: torch.nn.Module) -> int:
    """Bytes of the parameters and buffers of a module; shared ones count once."""
    return sum(tensor.numel() * tensor.element_size() for tensor in (*module.parameters(), *module.buffers()))
