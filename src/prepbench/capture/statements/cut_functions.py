"""Functions with cut-out ranges of statements as plain data, enough to make the same cuts in another process.

The text of a function is not part of it, only digests of its lines: the function itself is found there.
"""

from __future__ import annotations

import ast
import hashlib
import itertools
import types
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from prepbench.capture.statements.hoisted import PREFIX, Surroundings, move_out
from prepbench.capture.statements.live_names import Function
from prepbench.capture.statements.ranges import Block, SourceFile, StatementRange, block_of
from prepbench.running.code_objects import CodePath

Address = tuple[tuple[str, int], ...]
"""The path of a statement in a function: fields of the syntax tree with indices, from outside in."""

_DIGITS = 16


@dataclass(frozen=True)
class Move:
    """Expressions that are moved in front of a statement.

    Attributes:
        line: the statement's line, counted from the first of the function.
        column: its first column.
        number: that of the first name made for them.
    """

    line: int
    column: int
    number: int


@dataclass(frozen=True)
class CutRange:
    """A range that is cut out.

    Attributes:
        start: the first statement, in the function with its moves.
        end: the last one.
        lines: its first and last line, counted from the first of the function.
        fqn: the module that failed there.
    """

    start: Address
    end: Address
    lines: tuple[int, int]
    fqn: str


@dataclass(frozen=True)
class CutFunction:
    """A function and its cuts.

    Attributes:
        path: the path of its code in its file.
        module: the module that the file is.
        source: a digest of each of its lines.
        syntax: a digest of the function with its moves.
        moves: in the order in which they were made.
        ranges: the ranges that are cut out.
        file: the name of the file in this process.
        line: its first line in this process.
    """

    path: CodePath
    module: str
    source: tuple[str, ...]
    syntax: str
    moves: tuple[Move, ...]
    ranges: tuple[CutRange, ...]
    file: str = field(default="", compare=False)
    line: int = field(default=0, compare=False)

    @property
    def name(self) -> str:
        """The name as shown to users, such as ``"Net.forward"``."""
        return ".".join(name for name, _ in self.path)


def described(
    file: SourceFile,
    code: types.CodeType,
    path: CodePath,
    module: str,
    moves: Sequence[tuple[Move, Sequence[ast.stmt]]],
    cuts: Sequence[tuple[StatementRange, str]],
) -> CutFunction:
    """Return the cuts of a function of a file as plain data.

    Args:
        moves: with the statements that they made; those that were undone are left out.
        cuts: the ranges, and the modules that failed there.

    Raises:
        LookupError: a range is not in the function.
    """
    function = file.function(code)
    if function is None:
        raise LookupError(f"{path} is not in {file.name}")
    inside = {id(node) for node in ast.walk(function)}
    first = code.co_firstlineno
    return CutFunction(
        path,
        module,
        line_digests(file, code),
        _syntax(function),
        tuple(
            Move(move.line - first, move.column, move.number)
            for move, made in moves
            if any(id(s) in inside for s in made)
        ),
        tuple(
            CutRange(
                _address(function, found.start),
                _address(function, found.end),
                (found.lines[0] - first, found.lines[1] - first),
                fqn,
            )
            for found, fqn in cuts
        ),
        file.name,
        first,
    )


def line_digests(file: SourceFile, code: types.CodeType) -> tuple[str, ...]:
    """Return a digest of each line of a function, without trailing white space.

    Raises:
        LookupError: the function is not in the file.
    """
    return tuple(hashlib.sha256(line.rstrip().encode()).hexdigest()[:_DIGITS] for line in lines_of(file, code))


def lines_of(file: SourceFile, code: types.CodeType) -> list[str]:
    """Return the lines of a function.

    Raises:
        LookupError: the function is not in the file.
    """
    function = file.function(code)
    if function is None:
        raise LookupError(f"{code.co_name} is not in {file.name}")
    return file.text.splitlines()[code.co_firstlineno - 1 : function.end_lineno]


def moved_again(function: Function, first_line: int, moves: Sequence[Move], around: Surroundings) -> None:
    """Repeat the moves in a function, in place.

    Raises:
        LookupError: there is no statement at one of the places.
    """
    for move in moves:
        found = _statement(function, first_line + move.line, move.column)
        block = block_of(function, found)
        index = block.statements.index(found)
        block.statements[index:index] = move_out(found, around, itertools.count(move.number))


def ranges_again(function: Function, cut: CutFunction) -> list[StatementRange]:
    """Return the ranges of a function to which :func:`moved_again` was applied.

    Raises:
        LookupError: the function is another one, or a range is not closed.
    """
    if _syntax(function) != cut.syntax:
        raise LookupError(f"{cut.name} compiles to something else, as in another version of Python or of a layer")
    return [_range_again(function, each) for each in cut.ranges]


def _range_again(function: Function, cut: CutRange) -> StatementRange:
    start, end = (_at(function, address) for address in (cut.start, cut.end))
    found = StatementRange(_block_with(function, start, end), start, end)
    closed = found.closed() if found.first <= found.last else None
    if closed is None or (closed.start, closed.end) != (start, end):
        raise LookupError(f"lines {cut.lines} of {function.name} are no range that can be cut out")
    return found


def _block_with(function: Function, start: ast.stmt, end: ast.stmt) -> Block:
    block = block_of(function, start)
    if not any(each is end for each in block.statements):
        raise LookupError("a range that ends in another block")
    return block


def _syntax(function: Function) -> str:
    return hashlib.sha256(ast.unparse(function).encode()).hexdigest()


def _address(function: ast.AST, statement: ast.stmt) -> Address:
    found = next((address for address, node in _statements(function, ()) if node is statement), None)
    if found is None:
        raise LookupError(f"line {statement.lineno} is no longer in the function")
    return found


def _at(function: ast.AST, address: Address) -> ast.stmt:
    found = next((node for known, node in _statements(function, ()) if known == address), None)
    if found is None:
        raise LookupError(f"there is no statement at {address}")
    return found


def _statement(function: ast.AST, line: int, column: int) -> ast.stmt:
    for _, node in _statements(function, ()):
        if (node.lineno, node.col_offset) == (line, column) and not _is_made(node):
            return node
    raise LookupError(f"there is no statement at line {line}")


def _is_made(node: ast.stmt) -> bool:
    target = node.targets[0] if isinstance(node, ast.Assign) else None
    return isinstance(target, ast.Name) and target.id.startswith(PREFIX)


def _statements(node: ast.AST, address: Address) -> Iterator[tuple[Address, ast.stmt]]:
    for name, value in ast.iter_fields(node):
        for index, part in enumerate(value if isinstance(value, list) else ()):
            if isinstance(part, ast.stmt | ast.ExceptHandler | ast.match_case):
                here = (*address, (name, index))
                if isinstance(part, ast.stmt):
                    yield here, part
                yield from _statements(part, here)
