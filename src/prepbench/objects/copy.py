"""A structural twin of a model: its own modules and tables around the same parameters; with other functions, too.

Tracing replaces parameters, switches flags, fills caches and runs forwards that change state. All of that happens on a
twin, so that other threads may run the user's model meanwhile, and nothing has to be restored on it.
"""

from __future__ import annotations

import argparse
import collections
import copy
import functools
import operator
import sys
import types
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from prepbench.errors import PrepbenchError
from prepbench.objects.parts import (
    OPAQUE,
    PLAIN,
    attributes,
    functions_in,
    is_user_file,
    names_in,
    parts,
    reads_differently,
    set_part,
    slots_of,
    stored,
)
from prepbench.objects.restore import is_written, own_copy_of

_SPARE = 4
"""A buffer that is a view of more memory than this many times its own is copied alone."""


class Twin:
    """The twin of a module, or of anything that leads to modules: a function, a bound method, a tuple of models.

    Parameters are shared, except those that runs write to (``objects/restore.py``). Buffers and other tensors of
    modules are copied, because a forward may write into them. References to modules of the tree lead to their twins,
    from all that :func:`parts` finds: lists, hooks, bound methods, closures, defaults, helper objects. Scripted
    modules, and objects outside of Python, are shared.

    Args:
        model: the original.
        images: what functions and classes are replaced by.
        shares: whether tensors that are no parameters are shared, too.

    Attributes:
        model: the twin.

    Example:
        >>> layer = nn.Linear(4, 2)
        >>> twin = Twin(layer)
        >>> twin.model is layer, twin.model.weight is layer.weight, twin.original(twin.model) is layer
        (False, True, True)
    """

    def __init__(self, model: Any, images: _Images | None = None, *, shares: bool = False) -> None:
        self._images = images
        self._shares = shares
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
        """Put the user's own tensors into a program that was exported from the twin, but for parameters into which its
        runs would write.
        """
        for table in (program.state_dict, program.constants):
            for name, value in table.items():
                original = self.original(value)
                if not (isinstance(original, nn.Parameter) and is_written(original)):
                    table[name] = original

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
        if self._shares or not value.is_leaf or isinstance(value, nn.Parameter) or value.is_meta or vars(value):
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

    def _object(self, value: Any) -> Any:
        kind: Any = type(value) if self._images is None else self._images.type(type(value))
        try:
            twin: Any = object.__new__(kind)
            own = object.__getattribute__(twin, "__dict__") if kind.__dictoffset__ else {}
        except (TypeError, AttributeError):  # a class that is made in C++, or without attributes
            return value
        self._note(value, twin)
        ways = self._ways
        for name, part in getattr(value, "__dict__", {}).items():
            kind = type(part)
            if ways.get(kind, kind) is None:
                own[name] = part
            elif kind in _BUILT_IN and not part and name in _HOOKS:  # most of what a module has
                own[name] = part.copy()
            else:
                own[name] = self._twin(part)
        for name in self._slots(type(value)):
            if hasattr(value, name):
                object.__setattr__(twin, name, self._twin(getattr(value, name)))
        return twin

    def _container(self, value: Any) -> Any:
        twin = self._note(value, value.copy() if type(value) in _BUILT_IN else _copy_of(value))
        if type(value) is dict:  # as the tables of modules are, which are most containers
            twin.update({key: self._twin(part) for key, part in list(value.items())})
            return twin
        for step, part in parts(value):
            made = self._twin(part)
            if made is not part:
                set_part(twin, step, made)
        return twin

    def _tuple(self, value: Any) -> Any:
        made = list(map(self._twin, value))
        if all(map(operator.is_, made, value)):
            return value
        make = frozenset if isinstance(value, frozenset) else getattr(value, "_make", tuple)
        return self._note(value, make(made))

    def _set(self, value: Any) -> Any:
        return self._note(value, type(value)(map(self._twin, value)))

    def _method(self, value: types.MethodType) -> Any:
        owner, function = self._twin(value.__self__), value.__func__
        # a method of the class has no twin of its own, because all other calls of it go through the class
        is_plain = isinstance(function, types.FunctionType)
        is_of_class = is_plain and getattr(type(value.__self__), function.__name__, None) is function
        made = self._image(function) if is_of_class else self._twin(function)
        return value if owner is value.__self__ and made is function else types.MethodType(made, owner)

    def _image(self, function: Any) -> Any:
        return function if self._images is None else self._images.function(function)

    def _partial(self, value: functools.partial[Any]) -> Any:
        function, args = self._twin(value.func), map(self._twin, value.args)
        keywords = {name: self._twin(part) for name, part in value.keywords.items()}
        twin = functools.partial(function, *args, **keywords)
        vars(twin).update({name: self._twin(part) for name, part in vars(value).items()})
        return self._note(value, twin)

    def _function(self, value: types.FunctionType) -> Any:
        made, held = value, (value.__closure__, value.__defaults__, value.__kwdefaults__)
        names = self._names_of(value)
        if any(held) or names is not value.__globals__ or any(map(_is_function, vars(value).values())):
            cells = tuple(types.CellType() for _ in value.__closure__ or ())
            twin = function_like(value, value.__code__, names, cells)
            made = twin if names is not value.__globals__ else value
            self._made[id(value)] = twin
            for (kind, key), part in parts(value):
                own = self._twin(part)
                if key == "__kwdefaults__" and part and all(map(operator.is_, own.values(), part.values())):
                    own = part  # a dict always has a copy, and that alone makes no other function
                if kind == "cell":
                    cells[key].cell_contents = own
                else:
                    setattr(twin, key, own)
                made = made if own is part else twin
        return self._note(value, self._image(made))

    def _names_of(self, value: types.FunctionType) -> dict[str, Any]:
        """Return the globals of a function with the copies of modules that belong to the model, as its layers do where
        the model is a function; the same dict where there are none.
        """
        names = value.__globals__
        used = {name: names[name] for name in value.__code__.co_names if isinstance(names.get(name), nn.Module)}
        own = {name: self._made[id(module)] for name, module in used.items() if id(module) in self._made}
        return {**names, **own} if any(own[name] is not used[name] for name in own) else names

    def _reference(self, value: weakref.ref[Any]) -> Any:
        target = value()
        twin = self._made.get(id(target))
        return value if twin is None or twin is target else weakref.ref(twin)


def _is_function(value: Any) -> bool:
    return isinstance(value, types.FunctionType)


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


def _copy_of(value: Any) -> Any:
    """Return a shallow copy of a container; ``copy`` would read each item of a dict in the way of its class."""
    if not isinstance(value, dict) or not reads_differently(value) or isinstance(value, collections.defaultdict):
        return copy.copy(value)
    kind = collections.OrderedDict if isinstance(value, collections.OrderedDict) else dict
    twin = kind.__new__(type(value))  # its own may want arguments
    for name, part in attributes(value).items():
        object.__setattr__(twin, name, part)
    for key, part in stored(value).items():
        kind.__setitem__(twin, key, part)
    return twin


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
    return Twin._object if kind.__dictoffset__ or slots_of(kind) else None


_COPIES: tuple[tuple[Any, Copy], ...] = (
    (torch.Tensor, Twin._tensor),
    (nn.Module, Twin._object),
    (types.MethodType, Twin._method),
    (types.FunctionType, Twin._function),
    (functools.partial, Twin._partial),
    (weakref.ref, Twin._reference),
    ((dict, list, collections.deque, np.ndarray, types.SimpleNamespace, argparse.Namespace), Twin._container),
    ((tuple, frozenset), Twin._tuple),
    (set, Twin._set),
)


def clones(leaves: Iterable[Any]) -> list[Any]:
    """Return the values, with clones of tensors."""
    return [leaf.clone() if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]


# A twin of a model in which some functions run other code; the user's model, classes and modules do not change.


Changes = Mapping[types.CodeType, types.CodeType]


class CannotSwap(PrepbenchError, ValueError):
    """Raised if a function cannot run other code; the message gives the reason."""


def swapped_twin(
    model: torch.nn.Module, changes: Changes, scope: Mapping[str, Any] | None = None, *, shares: bool = False
) -> tuple[Twin, dict[types.CodeType, list[types.FunctionType]]]:
    """Return a twin of ``model`` in which each function whose code is a key of ``changes`` runs the code it maps to.

    Methods of classes are replaced in subclasses of the same name, functions that others call by a global name in
    copies of these globals.

    Args:
        scope: more global names for the changed functions.
        shares: whether buffers are the user's own; otherwise they are copies.

    Returns:
        The twin, and the functions that were changed, by their code before.

    Raises:
        CannotSwap: a class does not allow subclasses.
    """
    images = _Images(changes, dict(scope or {}))
    return Twin(model, images if changes else None, shares=shares), images.changed


class _Images:
    """The images of functions, classes and globals: their counterparts with changed code, or themselves."""

    def __init__(self, changes: Changes, scope: dict[str, Any]) -> None:
        self._changes = changes
        self._scope = scope
        self._made: dict[int, Any] = {}
        # an id is valid only as long as its object lives, so the keys of _made are kept alive
        self._kept: list[Any] = []
        self._reach = _Reach(changes)
        self.changed: dict[types.CodeType, list[types.FunctionType]] = {}

    def _note(self, value: Any, image: Any) -> Any:
        self._made[id(value)] = image
        self._kept.append(value)
        return image

    def function(self, value: types.FunctionType) -> types.FunctionType:
        """Return the function with changed code, changed cells or changed globals; itself if nothing changes."""
        known: types.FunctionType | None = self._made.get(id(value))
        if known is not None:
            return known
        # Recursion through cells ends here: a function that holds itself calls its original code there.
        self._note(value, value)
        code = self._changes.get(value.__code__, value.__code__)
        names = self.globals(value.__globals__) if is_user_file(value.__code__.co_filename) else value.__globals__
        # a function that names no changed global keeps its dict: the copy would not see what is assigned to globals
        # later
        if names is not value.__globals__ and not self._reach.calls(code, value.__globals__):
            names = value.__globals__
        if code is not value.__code__:
            self.changed.setdefault(value.__code__, []).append(value)
            # the changed text imports torch where the file does not
            needed = {} if "torch" in names or "torch" not in names_in(code)[0] else {"torch": torch}
            names = {**names, **self._scope, **needed} if self._scope or needed else names
        old = dict(zip(value.__code__.co_freevars, value.__closure__ or (), strict=True))
        # cells are matched by name, since the other code may list its free variables in another order
        missing = set(code.co_freevars) - set(old)
        if missing:
            raise CannotSwap(f"the change uses {', '.join(sorted(missing))} of the function around it")
        cells = {name: self._cell(old[name]) for name in code.co_freevars}
        wrapped = getattr(value, "__wrapped__", None)
        inner = self.function(wrapped) if isinstance(wrapped, types.FunctionType) else wrapped
        same_cells = all(cells[name] is old[name] for name in cells)
        if code is value.__code__ and names is value.__globals__ and same_cells and inner is wrapped:
            return value
        made = function_like(value, code, names, tuple(cells.values()))
        vars(made).update(vars(value))
        if inner is not None:
            vars(made)["__wrapped__"] = inner
        self._note(value, made)
        return made

    def _cell(self, cell: types.CellType) -> types.CellType:
        try:
            content = cell.cell_contents
        except ValueError:  # an empty cell
            return cell
        image = self.function(content) if isinstance(content, types.FunctionType) else content
        return cell if image is content else types.CellType(image)

    def member(self, value: Any) -> Any:
        """Return the image of a function, or of a class member that wraps one."""
        if isinstance(value, types.FunctionType):
            return self.function(value)
        if isinstance(value, staticmethod | classmethod):
            image = self.member(value.__func__)
            return value if image is value.__func__ else type(value)(image)
        if isinstance(value, property):
            parts = [self.member(part) for part in (value.fget, value.fset, value.fdel)]
            same = parts == [value.fget, value.fset, value.fdel]
            return value if same else property(parts[0], parts[1], parts[2], value.__doc__)
        return value

    def type(self, kind: type) -> type:
        """Return the class with changed methods; its subclasses are made anew, too, in the order of ``super()``."""
        known: type | None = self._made.get(id(kind))
        if known is not None:
            return known
        # as in function(): a method may lead back to its class
        self._note(kind, kind)
        members = {name: self.member(value) for name, value in vars(kind).items()}
        own = {name: image for name, image in members.items() if image is not vars(kind)[name]}
        # ``kind`` stays the first base of its image, so isinstance() holds, unchanged methods are inherited, and the
        # ``__class__`` cell of zero-argument super() finds its class in the MRO. Images of the bases come after it:
        # C3 puts each image behind ``kind`` and before the class that it stands for.
        bases = [image for base in kind.__bases__ if (image := self.type(base)) is not base]
        if not own and not bases:
            return kind
        names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "__doc__": kind.__doc__}
        try:
            image = types.new_class(kind.__name__, (kind, *bases), {}, lambda scope: scope.update(names | own))
        except TypeError as error:
            raise CannotSwap(f"the class {kind.__name__} allows no subclass: {error}") from error
        self._note(kind, image)
        return image

    def globals(self, names: dict[str, Any]) -> dict[str, Any]:
        """Return the globals of a file, with the images of its changed functions and autograd functions."""
        if id(names) in self._made:
            made: dict[str, Any] = self._made[id(names)]
            return made
        self._note(names, names)
        if not self._reach.has(names):
            return names
        # Noted before it is filled, because its functions ask for their common globals and get this dict. Which of them
        # need it is known beforehand, whatever the order in which the file defines them.
        images = dict(names)
        self._note(names, images)
        for name, value in names.items():
            if isinstance(value, types.FunctionType) and is_user_file(value.__code__.co_filename):
                images[name] = self.function(value)
            elif isinstance(value, type) and issubclass(value, torch.autograd.Function):
                images[name] = self.type(value)
        return images


class _Reach:
    """The functions that run changed code: their own, or that of a global which they name, also in another file."""

    def __init__(self, changes: Changes) -> None:
        self._changes = changes
        self._files: dict[int, Mapping[str, Any]] = {}
        self._found: set[int] = set()

    def has(self, names: Mapping[str, Any]) -> bool:
        """Return whether a file's globals hold such a function."""
        self._read(names)
        return any(id(value) in self._found for value in names.values())

    def calls(self, code: types.CodeType, names: Mapping[str, Any]) -> bool:
        """Return whether code with these globals names such a function."""
        self._read(names)
        return any(id(names[name]) in self._found for name in names_in(code)[0] if name in names)

    def _read(self, names: Mapping[str, Any]) -> None:
        if id(names) in self._files:
            return
        self._files[id(names)] = names
        open_ones, functions = [names], []
        for file in open_ones:
            for value in list(file.values()):
                if not self._changes.keys().isdisjoint(_codes_of(value)):
                    self._found.add(id(value))
                if isinstance(value, types.FunctionType) and is_user_file(value.__code__.co_filename):
                    functions.append(value)
                    if id(value.__globals__) not in self._files:
                        self._files[id(value.__globals__)] = value.__globals__
                        open_ones.append(value.__globals__)
        calls = [(id(one), one.__globals__, names_in(one.__code__)[0]) for one in functions]
        size = -1
        while size != len(self._found):
            size = len(self._found)
            self._found |= {
                number
                for number, file, called in calls
                if number not in self._found and any(id(file[name]) in self._found for name in called if name in file)
            }


def _codes_of(value: Any) -> set[types.CodeType]:
    """Return the code of the functions in a function or an autograd function."""
    if isinstance(value, types.FunctionType):
        members: Any = [value]
    else:
        members = vars(value).values() if isinstance(value, type) and issubclass(value, torch.autograd.Function) else ()
    return {function.__code__ for member in members for function in functions_in(member)}
