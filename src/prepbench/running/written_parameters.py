"""Parameters that a model's forward writes to, as ``nn.Embedding(max_norm=...)`` does, found by one watched run.

A twin shares the parameters of the user's model, because copies would cost the memory of another model. Those that a
run writes to are the exception: a twin has copies of them, and each run of a twin starts with their values.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils.weak import WeakIdKeyDictionary

from prepbench._torch_compat import pytree
from prepbench._torch_compat.modes import OperatorMode
from prepbench._torch_compat.operators import schema_of
from prepbench.patching import undoing

# parameter -> whether a watched run wrote to it
_seen: WeakIdKeyDictionary = WeakIdKeyDictionary()


def is_written(parameter: torch.nn.Parameter) -> bool:
    """Return whether a watched run wrote to this parameter."""
    return bool(_seen.get(parameter, False))


def own_copy_of(parameter: torch.nn.Parameter) -> torch.nn.Parameter:
    """Return a copy of a parameter that is written to, for a twin."""
    copied = torch.nn.Parameter(parameter.detach().clone(), parameter.requires_grad)
    _seen[copied] = True
    return copied


def is_known(model: torch.nn.Module) -> bool:
    """Return whether a run of a model with these parameters was watched."""
    return all(parameter in _seen for parameter in model.parameters() if _can_be_watched(parameter))


@contextmanager
def writes_watched(model: torch.nn.Module) -> Iterator[None]:
    """Restore parameters that the block writes to, and record which ones; does nothing if that is known.

    For one run of a twin that shares the parameters of the user's model.

    Args:
        model: whose forward runs in the block.
    """
    if is_known(model):
        yield
        return
    parameters = [parameter for parameter in model.parameters() if _can_be_watched(parameter)]
    before = [(parameter, parameter.data) for parameter in parameters]
    with undoing() as undo, _Writes(parameters) as writes:
        undo.add(writes.put_back)
        yield
        for parameter, data in before:
            _seen[parameter] = is_written(parameter) or writes.reached(data) or not parameter.is_set_to(data)


def _can_be_watched(parameter: torch.nn.Parameter) -> bool:
    plain = parameter.layout is torch.strided and parameter.device.type != "meta"
    return plain and type(parameter) is torch.nn.Parameter


class _Writes(OperatorMode):
    """Saves the values of parameters before the first operation that writes to their memory."""

    def __init__(self, parameters: list[torch.nn.Parameter]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._owners: dict[int, list[torch.Tensor]] = {}
        for parameter in parameters:
            self._owners.setdefault(_memory(parameter), []).append(parameter.data)
        self._values: dict[int, list[tuple[torch.Tensor, torch.Tensor]]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        schema = schema_of(func)
        if schema is None or schema.is_mutable:  # what functions do that an operator runs is not seen here
            for leaf in pytree.tree_leaves((args, kwargs)):
                if type(leaf) in (torch.Tensor, torch.nn.Parameter) and leaf.layout is torch.strided:
                    self._note(_memory(leaf))
        return func(*args, **kwargs)

    def reached(self, data: torch.Tensor) -> bool:
        """Return whether this memory may have been written to."""
        return any(not torch.equal(now, value) for now, value in self._values.get(_memory(data), ()))

    def put_back(self) -> None:
        """Restore the saved values."""
        for kept in self._values.values():
            for now, value in kept:
                now.copy_(value)

    def _note(self, memory: int) -> None:
        if memory in self._owners and memory not in self._values:
            self._values[memory] = [(data, data.clone()) for data in self._owners[memory]]


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
