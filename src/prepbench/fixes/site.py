"""``Site``: the function that a failure stands in, its syntax, and the facts about it."""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import libcst as cst
import torch
from libcst.metadata import MetadataWrapper, PositionProvider

from prepbench.fixes.cannot_fix import CannotFix
from prepbench.fixes.facts import Fact, Facts, Place
from prepbench.fixes.source_text import SourceText
from prepbench.fixes.syntax import Expression, walk, walk_traced

Function = cst.FunctionDef | cst.Lambda


@dataclass(frozen=True)
class Proposal:
    """A changed function.

    Attributes:
        function: the function with the change.
        conditions: where the conditions stand that the change is about; both sides of each must be tried.
        assumption: what was taken from the samples and is checked at run time.
        is_compiling: whether something else runs while the model is traced.
    """

    function: cst.CSTNode
    conditions: tuple[Place, ...] = ()
    assumption: str = ""
    is_compiling: bool = False


@dataclass
class Site:
    """Where a failure stands.

    Attributes:
        source: the file's text.
        module: its syntax.
        function: the innermost function around the line.
        line: the failing line.
        facts: what each expression was on samples.
        names: the global names of the function.
        bounds: the most iterations of loops, as the user gave them.
        known: the facts of nodes that were made from others.
    """

    source: SourceText
    module: cst.Module
    function: Function
    line: int
    facts: Facts
    names: Mapping[str, Any]
    positions: Mapping[cst.CSTNode, Any]
    bounds: Mapping[str, int] | int | None = None
    known: dict[cst.CSTNode, Fact] = field(default_factory=dict)

    def place(self, node: cst.CSTNode) -> Place:
        """Where a node of the syntax stands."""
        where = self.positions[node]
        return where.start.line, where.start.column, where.end.line, where.end.column

    def fact(self, node: cst.CSTNode) -> Fact:
        """What an expression was; empty if it never ran."""
        if node in self.known:
            return self.known[node]
        return self.facts.found.get(self.place(node), Fact()) if node in self.positions else Fact()

    def same_fact(self, new: Any, old: cst.CSTNode) -> Any:
        """A new node of which is known what is known of an old one."""
        self.known[new] = self.fact(old)
        return new

    def is_at_line(self, node: cst.CSTNode) -> bool:
        """Whether a node stands on the failing line."""
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
        """How the function's file calls torch."""
        return cst.parse_expression(self.library(torch, "torch"))

    def library(self, module: types.ModuleType, name: str) -> str:
        """The global name of an imported library."""
        known = [key for key, value in self.names.items() if value is module and key.isidentifier()]
        return name if name in known or not known else known[0]

    def fresh(self, base: str, *taken: str) -> str:
        """A name that the function does not use."""
        used = {node.value for node in walk(self.function) if isinstance(node, cst.Name)} | set(taken)
        candidates = [base, *(f"{base}_{number}" for number in range(2, 1000))]
        return next(name for name in candidates if name not in used)

    def expressions(self, kind: Any) -> list[Any]:
        """All nodes of a kind in the function, without those in functions inside of it and those for Python only."""
        return [node for part in self.function.children for node in walk_traced(part) if isinstance(node, kind)]


def parsed(source: SourceText) -> tuple[cst.Module, Mapping[cst.CSTNode, Any]]:
    """A file's syntax, and where each node stands."""
    wrapper = MetadataWrapper(cst.parse_module(source.text), unsafe_skip_copy=True)
    return wrapper.module, wrapper.resolve(PositionProvider)


def functions_at(module: cst.Module, positions: Mapping[cst.CSTNode, Any], line: int) -> list[Function]:
    """The functions around a line, innermost first."""
    found = []
    for node in walk(module):
        if isinstance(node, cst.FunctionDef | cst.Lambda):
            where = positions[node]
            if where.start.line <= line <= where.end.line:
                found.append(node)
    if not found:
        raise CannotFix("no function was found around the line")
    return found[::-1]
