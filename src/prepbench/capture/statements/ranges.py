"""Ranges of statements: the range of a failing line, grown until it has one entry and one exit."""

from __future__ import annotations

import ast
import functools
import linecache
import types
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from prepbench.running.source_lines import CodePath, cell_flags, file_codes

_ENDS_LOOP = (ast.Break, ast.Continue)
_LOOPS = (ast.For, ast.While)
_WITHOUT_EFFECT = frozenset({"no_grad", "enable_grad", "inference_mode", "set_grad_enabled", "record_function"})
"""Contexts that a ``with`` around a leaf may use, because an operator runs without gradients in any case."""

_READS_FRAME = frozenset({"locals", "vars", "dir", "eval", "exec"})


@dataclass(frozen=True, eq=False)
class Block:
    """A list of statements inside a function.

    Attributes:
        owner: the function or compound statement that it belongs to.
        statements: its statements.
        around: the block that ``owner`` is a statement of; None for the function's own.
    """

    owner: ast.AST
    statements: list[ast.stmt]
    around: Block | None = None


@dataclass(frozen=True, eq=False)
class StatementRange:
    """Consecutive statements of one block, from the first to the last."""

    block: Block
    start: ast.stmt
    end: ast.stmt

    @classmethod
    def of(cls, block: Block, first: int, last: int) -> StatementRange:
        """Return the statements of a block at these indices."""
        return cls(block, block.statements[first], block.statements[last])

    @property
    def first(self) -> int:
        return self.block.statements.index(self.start)

    @property
    def last(self) -> int:
        return self.block.statements.index(self.end)

    @property
    def statements(self) -> Sequence[ast.stmt]:
        return self.block.statements[self.first : self.last + 1]

    @property
    def lines(self) -> tuple[int, int]:
        """The first and the last line, numbered as in the file."""
        last = self.statements[-1]
        return self.statements[0].lineno, last.end_lineno or last.lineno

    @property
    def returns(self) -> bool:
        """Whether it ends the function, because it contains a ``return``."""
        return any(isinstance(node, ast.Return) for node in walk_here(self.statements))

    @property
    def is_everything(self) -> bool:
        """Whether it is the whole body of the function, apart from a docstring."""
        body = self.block.statements
        documented = isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant)
        return self.block.around is None and self.first <= int(documented) and self.last == len(body) - 1

    def contains(self, other: StatementRange) -> bool:
        """Return whether the statements of another range are among these, or inside of them."""
        inside = {id(node) for node in walk_here(self.statements)}
        return all(id(statement) in inside for statement in other.statements)

    def has_line(self, line: int) -> bool:
        first, last = self.lines
        return first <= line <= last

    def closed(self) -> StatementRange | None:
        """Return the smallest enclosing range with one entry and one exit; None if that is the whole function."""
        return _closed(self)

    # -- growing -------------------------------------------------------------------------------------------------------

    def with_next(self) -> StatementRange | None:
        """Return the range with the next statement, or else with the enclosing one."""
        if self.last + 1 < len(self.block.statements):
            return StatementRange.of(self.block, self.first, self.last + 1).closed()
        return self.around()

    def with_previous(self) -> StatementRange | None:
        """Return the range with the previous statement, or else with the enclosing one."""
        if self.first > 0:
            return StatementRange.of(self.block, self.first - 1, self.last).closed()
        return self.around()

    def around(self) -> StatementRange | None:
        """Return the enclosing statement of the range; None if that is the function."""
        parent = _parent(self)
        return None if parent is None else parent.closed()


def statement_at(function: Function, line: int) -> StatementRange | None:
    """Return the innermost statement with a line of a function."""
    found: StatementRange | None = None
    for block in _blocks(function, None):
        for index, statement in enumerate(block.statements):
            if statement.lineno <= line <= (statement.end_lineno or statement.lineno):
                found = StatementRange.of(block, index, index)  # inner blocks come later
    return found


def block_of(function: Function, statement: ast.stmt) -> Block:
    """Return the block of a function that contains a statement.

    Raises:
        LookupError: it stands in none.
    """
    for block in _blocks(function, None):
        if any(each is statement for each in block.statements):
            return block
    raise LookupError(f"line {statement.lineno} is not in {function.name}")


def _closed(found: StatementRange) -> StatementRange | None:
    while True:
        if _leaves_by(found, *_ENDS_LOOP):
            larger = _parent(found)
        elif found.returns and found.last < len(found.block.statements) - 1:
            larger = StatementRange.of(found.block, found.first, len(found.block.statements) - 1)
        elif (found.returns and found.block.around is not None) or _matters(found.block.owner):
            larger = _parent(found)
        else:
            break
        if larger is None:
            return None
        found = larger
    return None if found.is_everything or not _can_be_cut(found) else found


def _parent(found: StatementRange) -> StatementRange | None:
    around = found.block.around
    if around is None:
        return None
    index = next(i for i, statement in enumerate(around.statements) if _holds(statement, found.block.owner))
    return StatementRange.of(around, index, index)


def _holds(statement: ast.stmt, owner: ast.AST) -> bool:
    return statement is owner or owner in ast.iter_child_nodes(statement)


def _blocks(node: ast.AST, around: Block | None) -> Iterator[Block]:
    """Yield all blocks of a function, outer ones first; not those of functions and classes inside."""
    for name in ("body", "orelse", "finalbody"):
        statements = getattr(node, name, None)
        if isinstance(statements, list) and statements:
            block = Block(node, statements, around)
            yield block
            for statement in statements:
                if not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                    yield from _blocks(statement, block)
    for inner in [*getattr(node, "handlers", []), *getattr(node, "cases", [])]:
        assert around is not None
        yield from _blocks(inner, around)


def _leaves_by(found: StatementRange, *kinds: type[ast.AST]) -> bool:
    """Return whether a ``break`` or ``continue`` in the range belongs to a loop outside of it."""

    def any_in(nodes: Sequence[ast.AST]) -> bool:
        for node in nodes:
            if isinstance(node, kinds):
                return True
            if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Lambda):
                continue
            inner = node.orelse if isinstance(node, _LOOPS) else list(ast.iter_child_nodes(node))
            if any_in(inner):
                return True
        return False

    return any_in(found.statements)


def _matters(owner: ast.AST) -> bool:
    """Return whether statements have effects outside of their block."""
    if isinstance(owner, ast.Try | ast.ExceptHandler):
        return True
    if not isinstance(owner, ast.With | ast.AsyncWith):
        return False
    calls = [item.context_expr for item in owner.items]
    names = [ast.unparse(call.func).rpartition(".")[2] for call in calls if isinstance(call, ast.Call)]
    return len(names) < len(calls) or not _WITHOUT_EFFECT.issuperset(names)


def _can_be_cut(found: StatementRange) -> bool:
    for node in walk_here(found.statements):
        if isinstance(node, ast.Yield | ast.YieldFrom | ast.Await | ast.Nonlocal):
            return False
        if isinstance(node, ast.Name) and node.id in _READS_FRAME and isinstance(node.ctx, ast.Load):
            return False
    return True


# -- functions in files ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SourceFile:
    """A user's file or notebook cell: the name that Python knows it by, its text, syntax, and code objects by path."""

    name: str
    tree: ast.Module
    codes: dict[CodePath, types.CodeType]
    text: str = ""

    def function(self, code: types.CodeType) -> Function | None:
        """Return the function that code was compiled from; None if there is none, or the file has changed since."""
        if code not in self.codes.values():
            return None
        place = code.co_name, code.co_firstlineno
        functions = (node for node in ast.walk(self.tree) if isinstance(node, ast.FunctionDef))
        return next((node for node in functions if (node.name, _first_line(node)) == place), None)


def _first_line(node: ast.FunctionDef) -> int:
    return min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])


def source_file(name: str) -> SourceFile | None:
    """Return the file with a name that Python knows; None if there is no text, or it is not Python."""
    linecache.checkcache(name)
    return _source_file(name, "".join(linecache.getlines(name)), cell_flags(name))


@functools.lru_cache(maxsize=64)
def _source_file(name: str, text: str, flags: int | None) -> SourceFile | None:
    try:
        tree = ast.parse(text, name)
    except (SyntaxError, ValueError):
        return None
    return SourceFile(name, tree, file_codes(tree, name, flags), text)


# Live variables after a statement of a function: the classic backward analysis, on syntax trees.


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
        blocks = list(_statement_lists(node))
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


def _statement_lists(node: ast.AST) -> Iterator[list[ast.stmt]]:
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
