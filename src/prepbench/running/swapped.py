"""A twin of a model in which some functions run other code; the user's model, classes and modules do not change."""

from __future__ import annotations

import functools
import types
from collections.abc import Mapping
from typing import Any

import torch

from prepbench.errors import PrepbenchError
from prepbench.objects.parts import cell_contents, is_user_file, names_in
from prepbench.running.twin import Twin, function_like

Changes = Mapping[types.CodeType, types.CodeType]


class CannotSwap(PrepbenchError, ValueError):
    """Raised if a function cannot run other code; the message gives the reason."""


def swapped_model(
    model: torch.nn.Module, changes: Changes, scope: Mapping[str, Any] | None = None, *, shares: bool = False
) -> torch.nn.Module:
    """Return the model of :func:`swapped_twin`.

    Args:
        shares: whether buffers are the user's own; otherwise they are copies.
    """
    twin, _ = swapped_twin(model, changes, scope)
    # code is changed on a full twin, and the copies of buffers are then replaced by the user's tensors, because a twin
    # has no mode without copies
    for module in twin.model.modules() if shares else ():
        if isinstance(module, torch.jit.ScriptModule):
            continue  # has no twin, so its buffers are the user's own
        for table in (module._buffers, vars(module)):
            table.update({name: twin.original(value) for name, value in table.items() if _is_tensor(value)})
    swapped: torch.nn.Module = twin.model
    return swapped


def swapped_twin(
    model: torch.nn.Module, changes: Changes, scope: Mapping[str, Any] | None = None
) -> tuple[Twin, dict[types.CodeType, list[types.FunctionType]]]:
    """Return a twin of ``model`` in which each function whose code is a key of ``changes`` runs the code it maps to.

    Methods of classes are replaced in subclasses of the same name, functions that others call by a global name in
    copies of these globals.

    Args:
        scope: more global names for the changed functions.

    Returns:
        The twin, and the functions that were changed, by their code before.

    Raises:
        CannotSwap: a class does not allow subclasses.
    """
    twin = Twin(model)
    images = _Images(changes, dict(scope or {}))
    # the twin comes first: only its own objects may be changed in place, which _Visit asks of it
    if changes:
        _Visit(images, twin).value(twin.model)
    return twin, images.changed


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


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
        """Return the class with changed methods; its subclasses are made anew as well, in the order that ``super()``
        follows.
        """
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
                if not self._changes.keys().isdisjoint(_codes_of({"": value})):
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


def _codes_of(names: Mapping[str, Any]) -> set[types.CodeType]:
    """Return the code of the functions and autograd functions among global names."""
    found = set()
    for value in names.values():
        if isinstance(value, types.FunctionType):
            found.add(value.__code__)
            held = cell_contents(value).values()
            found.update(part.__code__ for part in held if isinstance(part, types.FunctionType))
        elif isinstance(value, type) and issubclass(value, torch.autograd.Function):
            parts = (getattr(part, "__func__", part) for part in vars(value).values())
            found.update(part.__code__ for part in parts if isinstance(part, types.FunctionType))
    return found


class _Visit:
    """Walks the objects that belong to a twin and replaces functions and classes by their images."""

    def __init__(self, images: _Images, twin: Twin) -> None:
        self._images = images
        self._twin = twin
        self._seen: set[int] = set()

    def value(self, value: Any) -> Any:
        """Return the image of a value; lists, dicts and objects that belong to the twin are changed in place."""
        if isinstance(value, types.FunctionType):
            return self._images.function(value)
        if isinstance(value, types.MethodType):
            function, owner = self.value(value.__func__), self.value(value.__self__)
            return value if function is value.__func__ else types.MethodType(function, owner)
        if isinstance(value, functools.partial):
            function = self.value(value.func)
            return value if function is value.func else functools.partial(function, *value.args, **value.keywords)
        if type(value) is tuple:
            parts = tuple(self.value(part) for part in value)
            return value if all(a is b for a, b in zip(parts, value, strict=True)) else parts
        # an object that is its own original is no copy of the twin but the user's, and is not changed
        if id(value) in self._seen or self._twin.original(value) is value:
            return value
        self._seen.add(id(value))
        self._inside(value)
        return value

    def _inside(self, value: Any) -> None:
        if isinstance(value, dict):
            self._replace(value, value.items())
        elif isinstance(value, list):
            self._replace(value, enumerate(value))
        elif hasattr(value, "__dict__") and not isinstance(value, torch.Tensor | type):
            self._replace(vars(value), vars(value).items())
            kind = self._images.type(type(value))
            if kind is not type(value):
                object.__setattr__(value, "__class__", kind)  # works for frozen dataclasses, too

    def _replace(self, table: Any, items: Any) -> None:
        for key, part in list(items):
            image = self.value(part)
            if image is not part:
                table[key] = image
