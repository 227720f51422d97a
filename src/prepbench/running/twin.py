"""A structural twin of a model: its own modules and tables around the same parameters.

Tracing replaces parameters, switches flags, fills caches and runs forwards that change state. All of that happens on a
twin, so that other threads may run the user's model meanwhile, and nothing has to be restored on it.
"""

from __future__ import annotations

import argparse
import collections
import copy
import functools
import sys
import types
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

from prepbench.objects.parts import OPAQUE, PLAIN, slots_of
from prepbench.running.written_parameters import is_written, own_copy_of

_SPARE = 4
"""A buffer that is a view of more memory than this many times its own is copied alone."""


class Twin:
    """The twin of a module, or of anything that leads to modules: a function, a bound method, a tuple of models.

    Parameters are shared, except those that runs write to (``running/written_parameters``). Buffers and other tensors
    of modules are copied, because a forward may write into them. References to modules of the tree (lists, hooks, bound
    methods, closures, helper objects) lead to their twins. Scripted modules, and objects outside of Python, are shared.

    Attributes:
        model: the twin.

    Example:
        >>> layer = nn.Linear(4, 2)
        >>> twin = Twin(layer)
        >>> twin.model is layer, twin.model.weight is layer.weight, twin.original(twin.model) is layer
        (False, True, True)
    """

    def __init__(self, model: Any) -> None:
        self._made: dict[int, Any] = {}
        self._originals: dict[int, Any] = {}
        self._ways: dict[type, Copy | None] = {}
        self._slots: Callable[[Any], list[str]] = functools.cache(slots_of)
        self._memory: dict[int, torch.UntypedStorage] = {}
        modules = [part for part in (model if isinstance(model, tuple) else (model,)) if isinstance(part, nn.Module)]
        self._parameters = {
            parameter.untyped_storage().data_ptr()
            for module in modules
            for parameter in module.parameters()
            if type(parameter) is nn.Parameter and not is_written(parameter)
        }
        self.model: Any = self._twin(model)

    def original(self, part: Any) -> Any:
        """Return the user's module or tensor behind this part of the twin; the part itself if it is no copy."""
        return self._originals.get(id(part), part)

    def of(self, part: Any) -> Any:
        """Return the twin of a user's module or tensor; the part itself if it has none."""
        return self._made.get(id(part), part)

    def give_back(self, program: torch.export.ExportedProgram) -> None:
        """Put the user's own tensors into a program that was exported from the twin."""
        for table in (program.state_dict, program.constants):
            for name, value in table.items():
                table[name] = self.original(value)

    def _twin(self, value: Any) -> Any:
        kind = type(value)
        if kind not in self._ways:
            self._ways[kind] = _way_to_copy(kind)
        copied = self._ways[kind]
        if copied is None:
            return value
        made = self._made.get(id(value))
        return made if made is not None else copied(self, value)

    def _note(self, value: Any, twin: Any) -> Any:
        # both tables keep their objects alive, because an id is valid only as long as its object
        self._made[id(value)] = twin
        self._originals[id(twin)] = value
        return twin

    def _tensor(self, value: torch.Tensor) -> torch.Tensor:
        if type(value) is nn.Parameter:
            return self._note(value, own_copy_of(value)) if is_written(value) else value
        if not value.is_leaf or isinstance(value, nn.Parameter) or value.device.type == "meta" or vars(value):
            # tensors computed from parameters, as by weight normalisation, are recomputed by each call
            return value
        own = self._with_memory(value.detach())
        return self._note(value, own.requires_grad_(value.requires_grad)) if type(own) is type(value) else value

    def _with_memory(self, value: torch.Tensor) -> torch.Tensor:
        """Return a copy with the same strides; copies of tensors that share memory share memory."""
        if value.layout is not torch.strided or value.is_quantized or type(value) is not torch.Tensor:
            return value.clone()
        storage = value.untyped_storage()
        if storage.data_ptr() in self._parameters:
            return value
        if storage.nbytes() > _SPARE * max(value.numel(), 1) * value.element_size():
            return value.clone()
        if storage.data_ptr() not in self._memory:
            self._memory[storage.data_ptr()] = storage.clone()
        empty = torch.empty(0, dtype=value.dtype, device=value.device)
        return empty.set_(self._memory[storage.data_ptr()], value.storage_offset(), value.size(), value.stride())

    def _with_attributes(self, value: Any) -> Any:
        try:
            twin = object.__new__(type(value))
            own = object.__getattribute__(twin, "__dict__")
        except (TypeError, AttributeError):  # a class that is made in C++, or without attributes
            return value
        self._note(value, twin)
        for name, part in vars(value).items():
            kind = type(part)
            if self._ways.get(kind, kind) is None:
                own[name] = part
            elif kind in _BUILT_IN and not part and name in _HOOKS:  # most of what a module has
                own[name] = part.copy()
            else:
                own[name] = self._twin(part)
        self._copy_slots(value, twin)
        return twin

    def _with_slots(self, value: Any) -> Any:
        try:
            twin = object.__new__(type(value))
        except TypeError:  # a class that is made in C++
            return value
        self._note(value, twin)
        self._copy_slots(value, twin)
        return twin

    def _copy_slots(self, value: Any, twin: Any) -> None:
        for name in self._slots(type(value)):
            if hasattr(value, name):
                object.__setattr__(twin, name, self._twin(getattr(value, name)))

    def _plain(self, value: Any) -> Any:
        twin = self._note(value, type(value)())
        vars(twin).update({name: self._twin(part) for name, part in vars(value).items()})
        return twin

    def _array(self, value: np.ndarray[Any, Any]) -> Any:
        return self._note(value, value.copy())

    def _mapping(self, value: Any) -> Any:
        twin = self._note(value, value.copy() if type(value) in _BUILT_IN else copy.copy(value))
        for key, part in list(value.items()):
            made = self._twin(part)
            if made is not part:
                twin[key] = made
        return twin

    def _list(self, value: Any) -> Any:
        twin = self._note(value, value.copy() if type(value) in _BUILT_IN else copy.copy(value))
        for index, part in enumerate(value):
            made = self._twin(part)
            if made is not part:
                twin[index] = made
        return twin

    def _tuple(self, value: Any) -> Any:
        made = [self._twin(part) for part in value]
        if all(a is b for a, b in zip(made, value, strict=True)):
            return value
        return self._note(value, value._make(made) if hasattr(value, "_make") else tuple(made))

    def _set(self, value: Any) -> Any:
        return self._note(value, type(value)(self._twin(part) for part in value))

    def _method(self, value: types.MethodType) -> Any:
        owner = self._twin(value.__self__)
        return value if owner is value.__self__ else types.MethodType(value.__func__, owner)

    def _partial(self, value: functools.partial[Any]) -> Any:
        function, args = self._twin(value.func), [self._twin(part) for part in value.args]
        keywords = {name: self._twin(part) for name, part in value.keywords.items()}
        twin = functools.partial(function, *args, **keywords)
        vars(twin).update({name: self._twin(part) for name, part in vars(value).items()})
        return self._note(value, twin)

    def _function(self, value: types.FunctionType) -> Any:
        cells = value.__closure__ or ()
        if not cells and not any(isinstance(part, types.FunctionType) for part in vars(value).values()):
            return value
        own = tuple(types.CellType() for _ in cells)
        twin = function_like(value, value.__code__, value.__globals__, own)
        self._note(value, twin)
        changed = False
        for cell, mine in zip(cells, own, strict=True):
            try:
                mine.cell_contents = self._twin(cell.cell_contents)
            except ValueError:  # an empty cell
                continue
            changed |= mine.cell_contents is not cell.cell_contents
        for name, part in vars(value).items():
            vars(twin)[name] = self._twin(part)
            changed |= vars(twin)[name] is not part
        if not changed:
            self._made[id(value)] = value
            return value
        return twin

    def _reference(self, value: weakref.ref[Any]) -> Any:
        target = value()
        twin = self._made.get(id(target))
        return value if twin is None or twin is target else weakref.ref(twin)


def function_like(
    value: types.FunctionType, code: types.CodeType, names: dict[str, Any], cells: tuple[types.CellType, ...]
) -> types.FunctionType:
    """Return a function with the defaults and names of ``value``, and with other code, globals and cells."""
    made = types.FunctionType(code, names, value.__name__, value.__defaults__, cells)
    made.__kwdefaults__, made.__annotations__ = value.__kwdefaults__, value.__annotations__
    made.__qualname__, made.__doc__, made.__module__ = value.__qualname__, value.__doc__, value.__module__
    return made


_BUILT_IN = (dict, collections.OrderedDict, collections.defaultdict, list)
_HOOKS = frozenset(name for name in vars(nn.Module()) if "hooks" in name)

Copy = Callable[[Twin, Any], Any]


def _way_to_copy(kind: type) -> Copy | None:
    """Return how values of a type are copied; None if they are shared."""
    if issubclass(kind, (*PLAIN, *OPAQUE, type)):
        return None
    for known, copied in _COPIES:
        if issubclass(kind, known):
            return copied
    home = kind.__module__.partition(".")[0]
    # its attributes define such an object, so copying them copies it. Enums and singletons are compared by identity,
    # and an object that releases a resource in __del__ must not have a copy.
    plain = kind.__reduce_ex__ is object.__reduce_ex__ and kind.__new__ is object.__new__
    if not plain or hasattr(kind, "__del__") or home == "torch" or home in sys.stdlib_module_names:
        return None
    if kind.__dictoffset__:
        return Twin._with_attributes
    return Twin._with_slots if slots_of(kind) else None


_COPIES: tuple[tuple[type, Copy], ...] = (
    (torch.Tensor, Twin._tensor),
    (nn.Module, Twin._with_attributes),
    (types.MethodType, Twin._method),
    (types.FunctionType, Twin._function),
    (functools.partial, Twin._partial),
    (weakref.ref, Twin._reference),
    (np.ndarray, Twin._array),
    (types.SimpleNamespace, Twin._plain),
    (argparse.Namespace, Twin._plain),
    (dict, Twin._mapping),
    (list, Twin._list),
    (collections.deque, Twin._list),
    (tuple, Twin._tuple),
    (set, Twin._set),
)
