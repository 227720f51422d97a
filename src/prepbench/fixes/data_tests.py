"""The conditions of a function that depend on the values of tensors."""

from __future__ import annotations

import ast

from prepbench.fixes.facts import Facts, Place, outermost_function, place_of
from prepbench.fixes.source_text import SourceText

_OF_SIZES = frozenset(("shape", "ndim", "dtype", "device", "is_cuda", "requires_grad", "training"))
_CALLS_OF_SIZES = frozenset(("size", "dim", "ndimension", "isinstance", "hasattr", "type", "is_floating_point"))


def tests_on_data(source: SourceText, line: int, facts: Facts) -> set[Place]:
    """Where the conditions stand that tensors decide, in the outermost function around a line.

    Numbers made of tensors are followed through the names that they get.
    """
    function = outermost_function(ast.parse(source.text), line)
    if function is None:
        return set()
    lines = source.text.splitlines()
    found = _Data(facts, lines)
    assignments = [node for node in ast.walk(function) if isinstance(node, ast.Assign | ast.AugAssign)]
    before = -1
    while before != len(found.names):
        before = len(found.names)
        for node in assignments:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if found.is_data(node.value):
                found.names.update(ast.unparse(each) for target in targets for each in _parts(target))
    tests = [node.test for node in ast.walk(function) if isinstance(node, ast.If | ast.While | ast.IfExp | ast.Assert)]
    return {place_of(test, lines) for test in tests if found.is_data(test)}


def _parts(target: ast.expr) -> list[ast.expr]:
    return list(target.elts) if isinstance(target, ast.Tuple | ast.List) else [target]


class _Data:
    """Says which expressions hold values of tensors."""

    def __init__(self, facts: Facts, lines: list[str]) -> None:
        self._facts, self._lines = facts, lines
        self.names: set[str] = set()

    def is_data(self, node: ast.AST) -> bool:
        """Whether an expression depends on tensors' values, not on their sizes or on whether there is one."""
        if isinstance(node, ast.Compare) and all(isinstance(sign, ast.Is | ast.IsNot) for sign in node.ops):
            return False
        if isinstance(node, ast.Attribute) and node.attr in _OF_SIZES:
            return False
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name in _CALLS_OF_SIZES:
                return False
        if isinstance(node, ast.Name | ast.Attribute) and ast.unparse(node) in self.names:
            return True
        if isinstance(node, ast.expr) and node.end_lineno is not None:
            fact = self._facts.found.get(place_of(node, self._lines))
            if fact is not None and fact.is_tensor:
                return True
        return any(self.is_data(part) for part in ast.iter_child_nodes(node))
