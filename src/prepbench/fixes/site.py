"""``Site``: the function of a failure, its syntax, and the facts about it."""

from __future__ import annotations

import ast
import types
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import libcst as cst
import torch
from libcst.metadata import MetadataWrapper, PositionProvider

from prepbench.fixes.facts import Fact, Facts, Place
from prepbench.fixes.syntax import CannotFix, Expression, SourceText, replaced, walk, walk_traced

Function = cst.FunctionDef | cst.Lambda


@dataclass(frozen=True)
class Limit:
    """An assumed limit of a loop's iterations.

    Attributes:
        line: of the loop, in the file as the user wrote it.
        most: the number.
        is_given: whether the user gave it; otherwise it is the most that the samples need.
    """

    line: int
    most: int
    is_given: bool


@dataclass(frozen=True)
class Proposal:
    """A changed function.

    Attributes:
        function: the function with the change.
        conditions: where the conditions stand that the change is about; both sides of each must be tried.
        assumption: the assumption from the samples, which is checked at run time.
        is_compiling: whether something else runs while the model is traced.
        limit: the assumption as data.
    """

    function: cst.CSTNode
    conditions: tuple[Place, ...] = ()
    assumption: str = ""
    is_compiling: bool = False
    limit: Limit | None = None


@dataclass
class Site:
    """The place of a failure.

    Attributes:
        source: the file's text.
        part: the syntax of the outermost function around the line.
        function: the innermost function around the line.
        line: the failing line.
        facts: the values of expressions on samples.
        names: the global names of the function.
        bounds: the user's limits of loop iterations.
        known: the facts of nodes that were made from others.
    """

    source: SourceText
    part: Part
    function: Function
    line: int
    facts: Facts
    names: Mapping[str, Any]
    bounds: Mapping[str, int] | int | None = None
    known: dict[cst.CSTNode, Fact] = field(default_factory=dict)

    def read_again(self) -> Site:
        """Return the same place with its syntax as it stands in the file: rewriting a loop changes nodes in place."""
        part = Part.at(self.source, self.line)
        functions = part.functions(self.line)
        same = functions[self.part.functions(self.line).index(self.function)]
        return replace(self, part=part, function=same, known={})

    def place(self, node: cst.CSTNode) -> Place:
        """Return the position of a node in the file."""
        return self.part.place(node)

    def has_place(self, node: cst.CSTNode) -> bool:
        """Return whether a node is from the file, not a new one."""
        return node in self.part.positions

    def fact(self, node: cst.CSTNode) -> Fact:
        """Return the recorded values of an expression; empty if it never ran."""
        if node in self.known:
            return self.known[node]
        found = self.facts.found.get(self.place(node)) if self.has_place(node) else None
        if found is None and isinstance(node, cst.Name):
            # values inside of a format are not observed, but the parameters are
            found = self.facts.parameters.get(node.value)
        return found or Fact()

    def same_fact(self, new: Any, old: cst.CSTNode) -> Any:
        """Copy the fact of an old node to a new one."""
        self.known[new] = self.fact(old)
        return new

    def is_at_line(self, node: cst.CSTNode) -> bool:
        """Return whether a node is on the failing line."""
        first, _, last, _ = self.place(node)
        return first <= self.line <= last

    @property
    def body(self) -> list[cst.CSTNode]:
        """The statements of the function, or the expression of a lambda."""
        return [self.function.body]

    @property
    def parameters(self) -> set[str]:
        """The names of the function's parameters."""
        return {node.name.value for node in walk(self.function.params) if isinstance(node, cst.Param)}

    @property
    def torch(self) -> Expression:
        """The name of torch in the function's file."""
        return cst.parse_expression(self.library(torch, "torch"))

    def library(self, module: types.ModuleType, name: str) -> str:
        """Return the global name of an imported library."""
        known = [key for key, value in self.names.items() if value is module and key.isidentifier()]
        return name if name in known or not known else known[0]

    def fresh(self, base: str, *taken: str) -> str:
        """Return a name that the function does not use."""
        used = {node.value for node in walk(self.function) if isinstance(node, cst.Name)} | set(taken)
        candidates = [base, *(f"{base}_{number}" for number in range(2, 1000))]
        return next(name for name in candidates if name not in used)

    def expressions(self, kind: Any) -> list[Any]:
        """Return all nodes of a kind in the function, except those in inner functions and those for Python only."""
        return [node for part in self.function.children for node in walk_traced(part) if isinstance(node, kind)]


@dataclass(frozen=True)
class Part:
    """The syntax of a part of a file; parsing a whole file is slow.

    Attributes:
        module: the syntax.
        positions: where each node stands in it.
        first: the line of the file that it begins on.
        last: the line that it ends on.
        head: the text before it, so that indented lines can be parsed.
    """

    module: cst.Module
    positions: Mapping[cst.CSTNode, Any]
    first: int
    last: int
    head: str

    @classmethod
    def at(cls, source: SourceText, line: int) -> Part:
        """Return the outermost function around a line, or the statement there.

        Raises:
            CannotFix: there is none.
        """
        first, last = _lines_around(ast.parse(source.text), line)
        text = "\n".join(source.text.split("\n")[first - 1 : last])
        head = "if True:\n" if text[:1].isspace() else ""
        try:
            wrapper = MetadataWrapper(cst.parse_module(head + text), unsafe_skip_copy=True)
        except cst.ParserSyntaxError as error:
            raise CannotFix(f"line {line} shares a line with another statement") from error
        return cls(wrapper.module, wrapper.resolve(PositionProvider), first, last, head)

    def place(self, node: cst.CSTNode) -> Place:
        """Return the position of a node in the file."""
        where, shift = self.positions[node], self.first - 1 - len(self.head.splitlines())
        return where.start.line + shift, where.start.column, where.end.line + shift, where.end.column

    def functions(self, line: int) -> list[Function]:
        """Return the functions around a line of the file, innermost first."""
        kinds = (cst.FunctionDef, cst.Lambda)
        found = [node for node in walk(self.module) if isinstance(node, kinds) and node in self.positions]
        return [node for node in found if self.place(node)[0] <= line <= self.place(node)[2]][::-1]

    def replaced(self, source: SourceText, old: cst.CSTNode, new: cst.CSTNode) -> str:
        """Return the text of the file with a node replaced by another."""
        made: cst.Module = replaced(self.module, {old: new})
        lines = source.text.split("\n")
        return "\n".join([*lines[: self.first - 1], made.code.removeprefix(self.head), *lines[self.last :]])


def _lines_around(tree: ast.Module, line: int) -> tuple[int, int]:
    """Return the lines of the outermost function around a line, or of the innermost statement."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.stmt):
            first = min([node.lineno, *(each.lineno for each in getattr(node, "decorator_list", ()))])
            last = node.end_lineno or node.lineno
            if first <= line <= last:
                found.append((not isinstance(node, ast.FunctionDef), last - first, first, last))
    if not found:
        raise CannotFix("no function was found around the line")
    functions = [each for each in found if not each[0]]
    _, _, first, last = max(functions) if functions else min(found)
    return first, last


@dataclass(frozen=True)
class Kind:
    """One kind of change to the source of a function.

    Attributes:
        name: the rewrite in words, from what to what.
        right_if: the condition under which the change is correct.
        propose: changed functions for a site, the best one first; none where the kind has nothing to do there. It
            raises ``CannotFix`` where the kind fits and no right change is known.
    """

    name: str
    right_if: str
    propose: Callable[[Site], Iterable[Proposal]]
