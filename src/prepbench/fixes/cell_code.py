"""The syntax of changed functions, in a form for a cell."""

from __future__ import annotations

import ast
import types
from dataclasses import dataclass
from typing import Any

import libcst as cst

from prepbench.fixes.site import Function, Part
from prepbench.fixes.syntax import (
    Expression,
    SourceText,
    equal_but_for_lines,
    expression,
    read_names,
    replaced,
    text_of,
    walk,
)
from prepbench.running.source_lines import CodePath


@dataclass(frozen=True)
class ChangedCode:
    """A function whose text changed.

    Attributes:
        source: its file.
        path: where it stands there.
        function: its changed syntax.
        is_own: whether more than functions inside of it changed.
    """

    source: SourceText
    path: CodePath
    function: Any
    is_own: bool

    @property
    def is_function(self) -> bool:
        """Return whether it is a ``def``."""
        return isinstance(self.function, cst.FunctionDef)

    def is_plain(self, file: str, name: str) -> bool:
        """Return whether it is a function that a file has by this name."""
        return self.is_function and self.source.file == file and self.path == ((name, 0),)

    def is_inside(self, other: ChangedCode) -> bool:
        """Return whether it is defined inside another function."""
        own, outer = self.path, other.path
        return self.source is other.source and len(own) > len(outer) and own[: len(outer)] == outer

    @property
    def makes_defaults(self) -> bool:
        """Return whether its defaults are evaluated at the definition, so that calls may have changed them."""
        makes = (cst.List, cst.Dict, cst.Set, cst.Call, cst.ListComp, cst.DictComp, cst.SetComp)
        defaults = [part.default for part in walk(self.function.params) if isinstance(part, cst.Param)]
        return any(isinstance(node, makes) for each in defaults if each is not None for node in walk(each))

    def without_defaults(self) -> Any:
        """Return the syntax with ``None`` for defaults that can be evaluated only at the original definition."""
        found: dict[cst.CSTNode, Any] = {
            part: part.with_changes(default=cst.Name("None"), annotation=None)
            for part in walk(self.function.params)
            if isinstance(part, cst.Param) and part.default is not None and not _is_literal(part.default)
        }
        return replaced(self.function, found)


def key_of(code: types.CodeType) -> tuple[str, types.CodeType]:
    """Return the identity of a code object: two files may hold codes that compare equal."""
    return code.co_filename, code


def changed_codes(source: SourceText) -> dict[tuple[str, types.CodeType], ChangedCode]:
    """Return the changed functions of a file, by the code of the user's functions."""
    old, found = source.original_codes(), {}
    for path, code in source.codes().items():
        before = old.get(path)
        if before is None or equal_but_for_lines(code, before):
            continue
        node = _node_of(source, code)
        if node is not None:
            found[key_of(before)] = ChangedCode(source, path, node, not equal_but_for_lines(_bare(code), _bare(before)))
    return found


def _bare(code: types.CodeType) -> types.CodeType:
    """Return the code without its inner functions."""
    return code.replace(co_consts=tuple(None if isinstance(c, types.CodeType) else c for c in code.co_consts))


def _node_of(source: SourceText, code: types.CodeType) -> Function | None:
    """Return the syntax of a function's code; None for a class's."""
    part = Part.at(source, code.co_firstlineno)
    for node in walk(part.module):
        if not isinstance(node, cst.FunctionDef | cst.Lambda) or node not in part.positions:
            continue
        name = "<lambda>" if isinstance(node, cst.Lambda) else node.name.value
        first = min([part.place(node)[0], *(part.place(each)[0] for each in getattr(node, "decorators", ()))])
        if (code.co_name, code.co_firstlineno) == (name, first) and _is_lambda_at(code, node, part, source):
            return node
    return None


def _is_lambda_at(code: types.CodeType, node: Function, part: Part, source: SourceText) -> bool:
    """Return whether a lambda's body is the one that the code returns: one line may hold several."""
    if isinstance(node, cst.FunctionDef):
        return True
    places = [(line, first) for line, _, first, last in code.co_positions() if line and first is not None and last]
    if not places:
        return True
    line, column = places[-1]
    text = source.text.split("\n")[line - 1]
    own = len(text.encode()[:column].decode(errors="ignore"))
    return part.place(node)[:2] <= (line, own) < part.place(node)[2:]


def variables_of(node: cst.FunctionDef, function: types.FunctionType) -> list[str]:
    """Return the variables of an enclosing function that a method reads."""
    return [name for name in function.__code__.co_freevars if name != "__class__" and name in read_names(node)]


def method(
    node: cst.FunctionDef, kind: type, name: str, member: str, value: Any, function: types.FunctionType
) -> cst.FunctionDef:
    """Return a method with the same meaning in a subclass.

    ``super()`` and private names name their class, names of the class in the header are qualified by it, and parts
    of properties keep the other parts.

    Args:
        node: the method.
        kind: its class.
        name: the expression for the class.
        member: the name that the class has it by.
        value: the class's current value.
        function: the function of the method.
    """
    first = node.params.params[0].name.value if node.params.params else "self"
    changed: Any = node.visit(_OutOfClass(kind, name, first))
    header = _Header(kind, name, function.__globals__)
    parts: dict[str, Any] = {
        "decorators": [header.read(each) for each in changed.decorators],
        "params": header.read(changed.params),
        "returns": header.read(changed.returns) if changed.returns is not None else None,
    }
    if isinstance(value, property):
        accessor = {id(value.fset): "setter", id(value.fdel): "deleter"}.get(id(function), "getter")
        parts["decorators"] = [cst.Decorator(expression(f"{name}.{member}.{accessor}"))]
    made: cst.FunctionDef = changed.with_changes(**parts)
    return made


class _OutOfClass(cst.CSTTransformer):
    """Qualifies ``super()`` and private names by their class."""

    def __init__(self, kind: type, name: str, first: str) -> None:
        super().__init__()
        self._kind, self._name, self._first = kind, name, first

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> Expression:
        if text_of(updated_node.func) == "super" and not updated_node.args:
            return expression(f"super({self._name}, {self._first})")
        return updated_node

    def leave_Name(self, original_node: cst.Name, updated_node: cst.Name) -> Any:
        name = updated_node.value
        if name == "__class__":
            return cst.parse_expression(self._name)
        if name.startswith("__") and not name.endswith("__"):
            return updated_node.with_changes(value=f"_{self._kind.__name__.lstrip('_')}{name}")
        return updated_node

    def visit_Attribute_attr(self, node: cst.Attribute) -> None:
        self._held = self._name
        self._name = "__class__"  # an attribute of this name stays

    def leave_Attribute_attr(self, node: cst.Attribute) -> None:
        self._name = self._held


class _Header(cst.CSTTransformer):
    """Rewrites decorators, defaults and annotations for outside of the class: its names are qualified, unknown ones
    quoted.
    """

    def __init__(self, kind: type, name: str, names: dict[str, Any]) -> None:
        super().__init__()
        self._kind, self._name, self._globals = kind, name, names

    def read(self, node: Any) -> Any:
        return node.visit(self)

    def visit_Param_name(self, node: cst.Param) -> None:
        self._held, self._kind = self._kind, object

    def leave_Param_name(self, node: cst.Param) -> None:
        self._kind = self._held

    def visit_Attribute_attr(self, node: cst.Attribute) -> None:
        self._held, self._kind = self._kind, object

    def leave_Attribute_attr(self, node: cst.Attribute) -> None:
        self._kind = self._held

    def leave_Name(self, original_node: cst.Name, updated_node: cst.Name) -> Any:
        name = updated_node.value
        if name in vars(self._kind) and name not in self._globals and not name.startswith("__"):
            return expression(f"{self._name}.{name}")
        return updated_node

    def visit_Lambda(self, node: cst.Lambda) -> bool:
        return False


def defined(node: Any) -> str:
    """Return a definition at the left margin."""
    if isinstance(node, cst.FunctionDef):
        node = node.with_changes(leading_lines=())
    return cst.Module([]).code_for_node(node).rstrip()


def indented(text: str) -> str:
    """Return indented statements; lines inside of a string literal keep their indentation."""
    inside = _lines_in_texts(text)
    return "\n".join(
        f"    {line}" if line.strip() and number not in inside else line
        for number, line in enumerate(text.split("\n"), 1)
    )


def _lines_in_texts(text: str) -> set[int]:
    """Return the lines, from 1, that begin inside of a string literal."""
    found: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant | ast.JoinedStr) and node.end_lineno is not None:
            found.update(range(node.lineno + 1, node.end_lineno + 1))
    return found


def quoted_annotations(node: Any, names: dict[str, Any], known: set[str]) -> Any:
    """Return a definition whose annotations are quoted where they use names that only a type checker knows."""
    found: dict[cst.CSTNode, Any] = {}
    for part in walk(node.params) if hasattr(node, "params") else ():
        if isinstance(part, cst.Annotation):
            found[part] = _quoted(part, names, known)
    if getattr(node, "returns", None) is not None:
        found[node.returns] = _quoted(node.returns, names, known)
    return replaced(node, found)


def _quoted(part: cst.Annotation, names: dict[str, Any], known: set[str]) -> cst.Annotation:
    unknown = {name for name in read_names(part.annotation) if name not in names and name not in known}
    text = text_of(part.annotation)
    return part if not unknown else part.with_changes(annotation=cst.SimpleString(repr(text)))


def _is_literal(node: Expression) -> bool:
    if isinstance(node, cst.UnaryOperation):
        return _is_literal(node.expression)
    return isinstance(node, cst.Integer | cst.Float | cst.SimpleString) or text_of(node) in ("None", "True", "False")
