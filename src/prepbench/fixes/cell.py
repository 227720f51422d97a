"""A cell with the changed classes and functions of a model, and the lines that let it use them."""

from __future__ import annotations

import builtins
import sys
import types
from collections.abc import Iterable, Iterator
from typing import Any

import libcst as cst
import torch

from prepbench.fixes.site import Function, Part
from prepbench.fixes.source_text import SourceText, does_the_same
from prepbench.fixes.syntax import Expression, expression, read_names, text_of
from prepbench.running.code_objects import CodePath


def cell_of(model: torch.nn.Module, sources: Iterable[SourceText]) -> str:
    """Python source that changes a model called ``model``; running it needs nothing else."""
    changed = [source for source in sources if source.changes()]
    if not changed:
        return "# nothing was changed\n"
    parts = [_FileCell(model, source).text() for source in changed]
    return "\n".join(parts)


class _FileCell:
    """The changes of one file."""

    def __init__(self, model: torch.nn.Module, source: SourceText) -> None:
        self._model, self._source = model, source
        old = source.original_codes()
        self._nodes: dict[CodePath, Any] = {}
        for path, code in source.codes().items():
            if not does_the_same(code, old.get(path)) and (node := _node_of(source, code)) is not None:
                self._nodes[path] = node
        self._codes = {old[path]: path for path in self._nodes if path in old}
        self._home = next((m for m in list(sys.modules.values()) if getattr(m, "__file__", None) == source.file), None)
        self._used: set[str] = set()
        self._defined: set[str] = set()

    def text(self) -> str:
        """Imports, definitions, and the lines that swap them in."""
        body = [*self._classes(), *self._functions(), *self._held()]
        return "\n".join([*self._imports(), "", *body]) + "\n"

    def _imports(self) -> list[str]:
        names = vars(self._home) if self._home is not None else {}
        in_notebook = self._home is None or self._home.__name__ == "__main__"
        wanted = sorted(name for name in self._used - self._defined if name in names and not hasattr(builtins, name))
        lines = ["import torch"] if "torch" in self._used and ("torch" not in names or in_notebook) else []
        if wanted and not in_notebook:
            assert self._home is not None
            lines.append(f"from {self._home.__name__} import {', '.join(wanted)}")
        return lines

    # -- methods -------------------------------------------------------------------------------------------------------

    def _methods(self, kind: type) -> dict[str, Any]:
        """The changed methods of a class as syntax."""
        found = {}
        for name, member in vars(kind).items():
            plain = getattr(member, "__func__", member)
            plain = getattr(plain, "__wrapped__", plain)
            path = self._codes.get(plain.__code__) if isinstance(plain, types.FunctionType) else None
            if path is not None:
                found[name] = self._nodes[path]
        return found

    def _classes(self) -> Iterator[str]:
        """A subclass for each class of the model with changed methods, and the lines that make modules its own."""
        made: dict[type, str] = {}
        kinds = {type(module): None for module in self._model.modules()}
        for kind in kinds:
            yield from self._subclass(kind, made)
        swapped = [kind for kind in kinds if kind in made]
        for kind in self._autograd_functions():
            yield from self._subclass(kind, made)
            yield from self._assigned(kind.__name__, made[kind])
        if swapped:
            table = ", ".join(f"{kind.__name__}: {made[kind]}" for kind in swapped)
            yield f"fixed = {{{table}}}"
            yield "for module in model.modules():\n    module.__class__ = fixed.get(type(module), type(module))\n"

    def _subclass(self, kind: type, made: dict[type, str]) -> Iterator[str]:
        if kind in made or kind.__module__ == "builtins":
            return
        for base in kind.__bases__:
            yield from self._subclass(base, made)
        methods = self._methods(kind)
        bases = [made[base] for base in kind.__bases__ if base in made]
        if not methods and not bases:
            return
        made[kind] = f"Fixed{kind.__name__.lstrip('_')}"
        self._used.add(kind.__name__)
        self._defined.add(made[kind])
        body = [self._method(kind, node) for node in methods.values()] or ["pass"]
        lines = "\n\n".join(_indented(part) for part in body)
        yield f"class {made[kind]}({', '.join([kind.__name__, *bases])}):\n{lines}\n\n"

    def _method(self, kind: type, node: cst.FunctionDef) -> str:
        changed: Any = node.visit(_OutOfClass(kind.__name__, _first_parameter(node)))
        self._used |= read_names(changed)
        return _code(changed)

    def _autograd_functions(self) -> list[type]:
        values = vars(self._home).values() if self._home is not None else ()
        kinds = [value for value in values if isinstance(value, type) and issubclass(value, torch.autograd.Function)]
        return [kind for kind in kinds if self._methods(kind)]

    # -- functions -----------------------------------------------------------------------------------------------------

    def _functions(self) -> Iterator[str]:
        """Functions of the file itself."""
        for path, node in self._nodes.items():
            name = path[0][0]
            if len(path) == 1 and isinstance(node, cst.FunctionDef):
                self._used |= read_names(node) - {name}
                self._defined.add(name)
                yield _code(node) + "\n"
                yield from self._assigned(name, name)

    def _assigned(self, name: str, value: str) -> Iterator[str]:
        """The line that lets the file of the user's use a changed function."""
        if self._home is not None and self._home.__name__ != "__main__":
            yield f"import sys\n\nsys.modules[{self._home.__name__!r}].{name} = {value}\n"

    def _held(self) -> Iterator[str]:
        """Functions that modules hold: lambdas, and those with variables of a function around them."""
        for where, function in _held_functions(self._model):
            path = self._codes.get(function.__code__)
            if path is None or (len(path) == 1 and isinstance(self._nodes[path], cst.FunctionDef)):
                continue
            node, free = self._nodes[path], function.__code__.co_freevars
            self._used |= read_names(node) - set(free)
            inner = (
                f"return {_code(node)}" if isinstance(node, cst.Lambda) else f"{_code(node)}\n\nreturn {path[-1][0]}"
            )
            yield f"def changed({', '.join(free)}):\n{_indented(inner)}\n\n"
            yield f"{where} = changed(*[cell.cell_contents for cell in {where}.__closure__ or ()])\n"


def _held_functions(model: torch.nn.Module) -> list[tuple[str, types.FunctionType]]:
    """The functions that modules have as attributes, with the expression that reads them."""
    found = []
    for fqn, module in model.named_modules():
        owner = f"model.get_submodule({fqn!r})" if fqn else "model"
        for name, value in vars(module).items():
            if isinstance(value, types.FunctionType):
                found.append((f"{owner}.{name}", value))
    return found


def _node_of(source: SourceText, code: types.CodeType) -> Function | None:
    """The syntax of a function's code; None for a class's."""
    part = Part.at(source, code.co_firstlineno)
    for node in part.functions(code.co_firstlineno):
        name = "<lambda>" if isinstance(node, cst.Lambda) else node.name.value
        first = min([part.place(node)[0], *(part.place(each)[0] for each in getattr(node, "decorators", ()))])
        if (code.co_name, code.co_firstlineno) == (name, first):
            return node
    return None


class _OutOfClass(cst.CSTTransformer):
    """Writes a method so that it means the same in a subclass: ``super()`` and private names say their class."""

    def __init__(self, kind: str, first: str) -> None:
        super().__init__()
        self._kind, self._first = kind, first

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> Expression:
        if text_of(updated_node.func) == "super" and not updated_node.args:
            return expression(f"super({self._kind}, {self._first})")
        return updated_node

    def leave_Name(self, original_node: cst.Name, updated_node: cst.Name) -> cst.Name:
        name = updated_node.value
        if name.startswith("__") and not name.endswith("__"):
            return updated_node.with_changes(value=f"_{self._kind.lstrip('_')}{name}")
        return updated_node


def _first_parameter(node: cst.FunctionDef) -> str:
    return node.params.params[0].name.value if node.params.params else "self"


def _code(node: cst.CSTNode) -> str:
    """A definition at the left margin."""
    if isinstance(node, cst.FunctionDef):
        node = node.with_changes(leading_lines=())
    return cst.Module([]).code_for_node(node).rstrip()


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" if line.strip() else line for line in text.splitlines())
