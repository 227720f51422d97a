"""The names that a cell uses: imports, names of its own, and where a file's changed functions are put."""

from __future__ import annotations

import builtins
import sys
import types
from collections.abc import Iterable, Mapping
from typing import Any

import libcst as cst
import torch

from prepbench.fixes.cell_code import quoted_annotations
from prepbench.fixes.cell_places import functions_in, places_of
from prepbench.fixes.syntax import read_names, renamed, stored_names, walk
from prepbench.running.source_lines import is_user_file

Names = dict[str, Any]
_OWN = ("model", "module", "fixed", "like", "changed")


def files_of(model: torch.nn.Module, files: Iterable[str]) -> dict[str, Names]:
    """The global names of files, as the functions of a model see them."""
    wanted = set(files)
    found: dict[str, Names] = {}
    queue: list[Any] = []
    for place in places_of(model):
        queue += [place.value, *(member for kind in type(place.value).__mro__ for member in vars(kind).values())]
    seen: set[int] = set()
    while queue and wanted - set(found):
        for function in functions_in(queue.pop()):
            names = function.__globals__
            if is_user_file(function.__code__.co_filename):
                if function.__code__.co_filename in wanted:
                    found.setdefault(function.__code__.co_filename, names)
                if id(names) not in seen:
                    seen.add(id(names))
                    queue += [value for value in names.values() if isinstance(value, types.FunctionType)]
                    queue += [
                        each for value in names.values() if isinstance(value, type) for each in vars(value).values()
                    ]
    return found


class CellNames:
    """Gives every value that a cell reads one name, and every name one value."""

    def __init__(self, files: Mapping[str, Names]) -> None:
        self._files = files
        self._used: dict[str, Any] = dict.fromkeys(_OWN)
        self._imports: dict[str, str] = {}
        self._classes: dict[type, str] = {}

    def imports(self) -> list[str]:
        """The lines that import what is used."""
        lines = list(self._imports.values())
        plain = [line for line in lines if line.startswith("import ")]
        return [*sorted(set(plain)), *dict.fromkeys(line for line in lines if line not in plain)]

    def fresh(self, base: str) -> str:
        """A name that nothing in the cell uses."""
        names = [base, *(f"{base}_{number}" for number in range(2, 1000))]
        is_taken = [name in self._used or any(name in names for names in self._files.values()) for name in names[:50]]
        chosen = next((name for name, taken in zip(names, is_taken, strict=False) if not taken), names[-1])
        self._used[chosen] = object()
        return chosen

    def library(self, name: str) -> str:
        """The name of a library that the cell imports."""
        self._imports[name] = f"import {name}"
        self._used.setdefault(name, sys.modules.get(name))
        return name

    def taken(self, name: str, value: Any) -> str:
        """A name for a function that the cell defines: its own, unless another file's has it."""
        if self._used.get(name, value) is not value:
            name = self.fresh(name)
        self._used[name] = value
        return name

    # -- what files have -----------------------------------------------------------------------------------------------

    def read(self, name: str, value: Any, names: Names) -> str:
        """The name by which the cell reads a global of a file, imported where the cell does not have it."""
        if _is_main(names):
            return name
        if self._used.get(name, value) is value:
            own = name
        else:
            own = next(
                n for n in (f"{name}_{number}" for number in range(2, 1000)) if self._used.get(n, value) is value
            )
        if own not in self._used:
            self._used[own] = value
            self._imports[own] = _import_line(name, own, value, names)
        return own

    def where(self, name: str, names: Names) -> str:
        """The expression for what a file has by a name now."""
        if _is_main(names):
            return name
        self.library("sys")
        return f"sys.modules[{names['__name__']!r}].{name}"

    def applied(self, node: Any, function: types.FunctionType) -> Any:
        """A definition with the names that the cell has for what it reads."""
        names = function.__globals__
        node = quoted_annotations(node, names, set(dir(builtins)) | set(function.__code__.co_freevars))
        used = sorted(read_names(node) - set(_local_names(node)))
        found = {name: self.read(name, names[name], names) for name in used if name in names}
        if "torch" in used and "torch" not in names:
            self.library("torch")
        return renamed(node, {name: own for name, own in found.items() if own != name})

    def of_class(self, kind: type) -> str:
        """The expression for a class that :meth:`class_name` was asked about."""
        return self._classes[kind]

    def class_name(self, kind: type, where: str) -> tuple[str, str]:
        """The expression for a class, and the line that is needed for it.

        Args:
            kind: the class.
            where: an expression for it where it has no name.
        """
        names = self._globals_of(kind)
        first, *rest = kind.__qualname__.split(".")
        value = names.get(first) if names is not None else None
        found = value
        for part in rest:
            found = getattr(found, part, None)
        if names is not None and found is kind:
            self._classes[kind] = ".".join([self.read(first, value, names), *rest])
            return self._classes[kind], ""
        name = self._classes[kind] = self.fresh(f"Original{kind.__name__.lstrip('_')}")
        return name, f"{name} = {where}\n\n"

    def _globals_of(self, kind: type) -> Names | None:
        own = [names for names in self._files.values() if names.get("__name__") == kind.__module__]
        module = sys.modules.get(kind.__module__)
        return own[0] if own else vars(module) if module is not None else None

    def assigned(self, value: Any, image: str) -> list[str]:
        """The lines that let files use something else in the place of a value."""
        lines = []
        for names in _tables(self._files.values()):
            for name in [name for name, held in list(names.items()) if held is value]:
                where = self.where(name, names)
                lines += [f"{where} = {image}\n"] if where != image else []
        return lines


def _tables(files: Iterable[Names]) -> list[Names]:
    """The global names of all modules of the user's."""
    found = {id(names): names for names in files}
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if isinstance(module, types.ModuleType) and isinstance(file, str) and is_user_file(file):
            found[id(vars(module))] = vars(module)
    return list(found.values())


def _is_main(names: Names) -> bool:
    """Whether a cell has these names already; what cannot be imported must be there, too."""
    name = names.get("__name__", "")
    return name == "__main__" or vars(sys.modules.get(name, builtins)) is not names


def _import_line(name: str, own: str, value: Any, names: Names) -> str:
    alias = "" if own == name else f" as {own}"
    if isinstance(value, types.ModuleType):
        full = value.__name__
        if full == own:
            return f"import {full}"
        parent, _, last = full.rpartition(".")
        if parent and last == own:
            return f"from {parent} import {last}"
        return f"import {full} as {own}"
    return f"from {names['__name__']} import {name}{alias}"


def _local_names(node: Any) -> set[str]:
    """The parameters of a function, and what it assigns."""
    if not isinstance(node, cst.FunctionDef | cst.Lambda):
        return set()
    stored = set(stored_names(node.body)) if isinstance(node, cst.FunctionDef) else set()
    return stored | {part.name.value for part in walk(node.params) if isinstance(part, cst.Param)}
