"""Live variables after a statement of a function: the classic backward analysis, on syntax trees."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

Names = frozenset[str]
Function = ast.FunctionDef

_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_NONE: Names = frozenset()


def walk_here(node: ast.AST | Iterable[ast.AST]) -> Iterator[ast.AST]:
    """Yield nodes and their descendants, without the bodies of functions and classes."""
    for each in [node] if isinstance(node, ast.AST) else node:
        yield each
        if not isinstance(each, _SCOPES):
            yield from walk_here(ast.iter_child_nodes(each))


def read_names(node: ast.AST | Iterable[ast.AST | None] | None) -> Names:
    """Return the names that are read, also by nested functions; not comprehensions' own variables."""
    found: set[str] = set()
    for each in [node] if isinstance(node, ast.AST) or node is None else node:
        if isinstance(each, ast.Name):
            found |= {each.id} if isinstance(each.ctx, ast.Load) else set()
        elif isinstance(each, _COMPREHENSIONS):
            own = set().union(*(stored_names(part.target) for part in each.generators))
            found |= read_names(ast.iter_child_nodes(each)) - own
            found |= read_names(each.generators[0].iter)
        elif isinstance(each, ast.AugAssign):
            found |= stored_names(each.target) | read_names([each.target, each.value])
        elif isinstance(each, ast.Delete):
            found |= {name.id for name in ast.walk(each) if isinstance(name, ast.Name)}
        elif isinstance(each, ast.AST):
            found |= read_names(ast.iter_child_nodes(each))
    return frozenset(found)


def stored_names(node: ast.AST | Iterable[ast.AST]) -> Names:
    """Return the names that are assigned in any way."""
    found: set[str] = set()
    for each in walk_here(node):
        if isinstance(each, ast.Name) and not isinstance(each.ctx, ast.Load):
            found.add(each.id)
        elif isinstance(each, ast.FunctionDef | ast.ClassDef):
            found.add(each.name)
        elif isinstance(each, ast.ExceptHandler | ast.MatchAs | ast.MatchStar):
            found |= {each.name} if each.name else set()
        elif isinstance(each, ast.MatchMapping) and each.rest:
            found.add(each.rest)
        elif isinstance(each, ast.alias):
            found.add((each.asname or each.name).partition(".")[0])
    return frozenset(found)


def surely_stored(statements: Sequence[ast.stmt]) -> Names:
    """Return the names that are assigned on every path through the statements."""
    found: set[str] = set()
    for each in statements:
        if isinstance(each, ast.If):
            found |= surely_stored(each.body) & surely_stored(each.orelse)
        elif isinstance(each, ast.With):
            found |= surely_stored(each.body)
        elif isinstance(each, ast.Assign | ast.AnnAssign | ast.AugAssign | ast.FunctionDef | ast.Import):
            found |= stored_names(each)
    return frozenset(found)


@dataclass(frozen=True)
class _Loop:
    after: Names = _NONE
    again: Names = _NONE


@dataclass
class _Analysis:
    """Walks a function backwards and records the live names after each statement."""

    always: Names = _NONE
    after: dict[ast.stmt, Names] = field(default_factory=dict)

    def block(self, statements: Sequence[ast.stmt], out: Names, loop: _Loop) -> Names:
        for each in reversed(statements):
            self.after[each] = self.after.get(each, _NONE) | out | self.always
            out = self.statement(each, out, loop)
        return out

    def statement(self, node: ast.stmt, out: Names, loop: _Loop) -> Names:
        """Return the live names before a statement, given those after it."""
        if isinstance(node, ast.Return | ast.Raise):
            return read_names(node)
        if isinstance(node, ast.Break):
            return loop.after
        if isinstance(node, ast.Continue):
            return loop.again
        if isinstance(node, ast.If):
            sides = self.block(node.body, out, loop) | self.block(node.orelse, out, loop)
            return read_names(node.test) | sides
        if isinstance(node, ast.For):
            own = stored_names(node.target)
            return read_names([node.iter, node.target]) | self._repeated(node, out, loop, _NONE, own)
        if isinstance(node, ast.While):
            return self._repeated(node, out, loop, read_names(node.test), _NONE)
        if isinstance(node, ast.With):
            own = stored_names(node.items)
            return read_names(node.items) | (self.block(node.body, out, loop) - own)
        blocks = list(_blocks(node))
        if blocks:  # try and match: nothing is sure to be assigned
            out |= loop.after | loop.again
            for block in blocks:
                out |= self.block(block, out, loop)
            return out | read_names(node)
        own = _NONE if isinstance(node, ast.AugAssign) else stored_names(node)
        return (out - own) | read_names(node)

    def _repeated(self, node: ast.For | ast.While, out: Names, loop: _Loop, test: Names, own: Names) -> Names:
        ended = self.block(node.orelse, out, loop)
        before = test | ended
        while True:
            found = before | test | ended | (self.block(node.body, before, _Loop(out, before)) - own)
            if found == before:
                return found
            before = found


def _blocks(node: ast.AST) -> Iterator[list[ast.stmt]]:
    """Yield the lists of statements in a ``try`` or ``match``, last first."""
    parts = [getattr(node, name, []) for name in ("body", "handlers", "orelse", "finalbody", "cases")]
    for part in reversed(parts):
        if part and isinstance(part[0], ast.stmt):
            yield part
        for inner in reversed(part):
            if isinstance(inner, ast.ExceptHandler | ast.match_case):
                yield inner.body


def live_after(function: Function) -> dict[ast.stmt, Names]:
    """Return, for each statement of a function, the names that may be read after it before they are reassigned.

    What functions inside of it read is read at any time.
    """
    inner = [node for node in walk_here(function.body) if isinstance(node, _SCOPES)]
    analysis = _Analysis(read_names(inner))
    analysis.block(function.body, _NONE, _Loop())
    return analysis.after


def live_before(statements: Sequence[ast.stmt], after: Names) -> Names:
    """Return the names that some statements read before assigning them, or leave unchanged for the code after them."""
    return _Analysis().block(statements, after, _Loop())
