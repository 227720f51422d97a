"""Outline ranges of a function's statements: each becomes a function of its own and a call of it.

Where lines 14 to 16 are cut, the function becomes

.. code-block:: python

    def forward(self, x):
        h = self.first(x)
        def lines_14_16(self, h): ...; return locals()
        y, z = <call>(locals())
        return self.second(y, z)

The syntax tree is changed, not the text, so that every statement keeps its line.
"""

from __future__ import annotations

import ast
import copy
import hashlib
import itertools
import types
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from prepbench.capture.statements.ranges import (
    Block,
    Function,
    SourceFile,
    StatementRange,
    block_of,
    live_after,
    live_before,
    read_names,
    stored_names,
    surely_stored,
    walk_here,
)
from prepbench.running.source_lines import CodePath, cell_flags, file_codes

UNBOUND = ...
"""Stands for a variable without a value."""


@dataclass(frozen=True)
class Outlined:
    """A range as a function.

    Attributes:
        call: the global name that its function calls in its place.
        path: the path of the cut-out function's code.
        owner: the first parameter of the function around it, if it is never assigned to; else "".
        inputs: the variables that it takes; the owner first, if it is one.
        outputs: the variables that it gives back; None where it returns what the function around it returns.
        lines: its first and last line.
    """

    call: str
    path: CodePath
    owner: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...] | None
    lines: tuple[int, int]


def outlined(
    file: SourceFile, cuts: Mapping[CodePath, Sequence[StatementRange]]
) -> tuple[dict[CodePath, types.CodeType], dict[StatementRange, Outlined]]:
    """Compile a file with ranges cut out.

    Args:
        cuts: by the place of their function; those of one function do not overlap.

    Returns:
        The code objects by place, and what became of each range.
    """
    tree = copy.deepcopy(file.tree)
    changed = SourceFile(file.name, tree, file.codes)
    made: dict[StatementRange, Outlined] = {}
    for path, ranges in cuts.items():
        before, after = file.function(file.codes[path]), changed.function(file.codes[path])
        assert before is not None
        assert after is not None
        live = live_after(before)
        for found in sorted(ranges, key=lambda each: each.lines, reverse=True):
            made[found] = _outlined(file.codes[path], path, before, found, live[found.statements[-1]])
            _cut_out(after, found, made[found])
    return file_codes(ast.fix_missing_locations(tree), file.name, cell_flags(file.name)), made


def _outlined(
    code: types.CodeType, path: CodePath, function: Function, found: StatementRange, live: frozenset[str]
) -> Outlined:
    stored, reads = stored_names(found.statements), read_names(found.statements)
    own = {*code.co_varnames, *code.co_cellvars, *(name for name in reads if name.startswith(PREFIX))}
    own -= _global_names(function)
    outputs = () if found.returns else tuple(sorted(stored & live & own))
    inputs = live_before(found.statements, frozenset(outputs)) & own
    first = code.co_varnames[0] if code.co_argcount else ""
    if first and {"super", "__class__"} & reads:
        inputs |= {first}
    owner = "" if first in stored_names(function.body) else first
    name = "lines_{}_{}".format(*found.lines)
    call = f"__prepbench_{name}_{zlib.crc32(repr((code.co_filename, path)).encode()):08x}__"
    return Outlined(
        call,
        (*path, (f"__prepbench_{name}__", 0)),
        owner,
        tuple(sorted(inputs, key=lambda name: (name != owner, name))),
        None if found.returns else outputs,
        found.lines,
    )


def _global_names(function: Function) -> set[str]:
    return {name for node in walk_here(function.body) if isinstance(node, ast.Global) for name in node.names}


def _cut_out(function: Function, found: StatementRange, made: Outlined) -> None:
    """Replace a range by a call. ``function`` is a copy of the function that contains the range."""
    block = _block_in(function, found.statements[0])
    index = next(i for i, statement in enumerate(block) if _place(statement) == _place(found.statements[0]))
    end = index + len(found.statements)
    inner = _inner_function(made, block[index:end], sorted(_global_names(function)))
    call = ast.Call(ast.Name(made.call, ast.Load()), [_locals()], [])
    new: list[ast.stmt] = [inner]
    if made.outputs is None:
        new.append(ast.Return(call))
    elif made.outputs:
        targets: list[ast.expr] = [ast.Name(name, ast.Store()) for name in made.outputs]
        new.append(ast.Assign([ast.Tuple(targets, ast.Store())], call))
        new += [_unbound(name) for name in made.outputs if name not in surely_stored(found.statements)]
    else:
        new.append(ast.Expr(call))
    for statement in new:
        for node in [statement] if statement is inner else ast.walk(statement):
            ast.copy_location(node, found.statements[0])
    block[index:end] = new


def _inner_function(made: Outlined, statements: Sequence[ast.stmt], global_names: Sequence[str]) -> ast.FunctionDef:
    start: list[ast.stmt] = [ast.Global(list(global_names))] if global_names else []
    start += [_unbound(name) for name in made.inputs if name != made.owner]
    end: list[ast.stmt] = [] if made.outputs is None else [ast.Return(_locals())]
    arguments = ast.arguments([], [ast.arg(name) for name in made.inputs], None, [], [], None, [])
    inner = ast.FunctionDef(made.path[-1][0], arguments, [*start, *statements, *end], [], None, None)
    for node in (*start, *end):
        for part in ast.walk(node):
            ast.copy_location(part, statements[0])
    return inner


def _locals() -> ast.Call:
    return ast.Call(ast.Name("locals", ast.Load()), [], [])


def _unbound(name: str) -> ast.stmt:
    """Return ``if name is ...: del name``."""
    test = ast.Compare(ast.Name(name, ast.Load()), [ast.Is()], [ast.Constant(UNBOUND)])
    return ast.If(test, [ast.Delete([ast.Name(name, ast.Del())])], [])


def _place(node: ast.stmt) -> tuple[int, int]:
    return node.lineno, node.col_offset


def _block_in(function: ast.AST, statement: ast.stmt) -> list[ast.stmt]:
    """Return the counterpart of a block: the list of statements at the same place."""
    for node in ast.walk(function):
        for name in ("body", "orelse", "finalbody"):
            block = getattr(node, name, None)
            if isinstance(block, list) and any(
                type(each) is type(statement) and _place(each) == _place(statement) for each in block
            ):
                return block
    raise LookupError(f"line {statement.lineno} is not in the function")


# Hoist the expressions of a failing statement that do not fail in front of it, so that the graph holds them.
#
# ``if x.mean() > 0: y = self.layer(x)`` becomes a comparison, a layer, and a choice between two computed values.
# Operations of one branch are then always computed; so only elementwise operations and reductions of tensors, and
# torch's own layers in evaluation are hoisted: they have no side effects and raise for no values.


PREFIX = "__prepbench_value_"
"""The prefix of the names of hoisted expressions."""

_METHODS = frozenset({
    "abs", "add", "all", "any", "ceil", "clamp", "clip", "cos", "cumsum", "detach", "div", "eq", "erf", "exp",
    "expm1", "flatten", "float", "floor", "ge", "gelu", "gt", "isfinite", "isinf", "isnan", "le", "leaky_relu",
    "log", "log1p", "log2", "logical_and", "logical_not", "logical_or", "logsumexp", "lt", "maximum", "mean",
    "minimum", "mish", "mul", "ne", "neg", "norm", "ones_like", "reciprocal", "relu", "relu6", "round", "rsqrt",
    "sigmoid", "sign", "silu", "sin", "softmax", "softplus", "sqrt", "square", "std", "sub", "sum", "tanh", "t",
    "transpose", "trunc", "unsqueeze", "var", "zeros_like",
})  # fmt: skip
_NOT_OF_NOTHING = frozenset({"amax", "amin", "argmax", "argmin", "max", "min", "median"})
"""Operations that raise for empty tensors, so they are hoisted only from unconditional code."""


_HARMLESS = frozenset({"bool", "float", "int", "isinstance", "item", "len", "numel", "size", "dim", "tolist"})
"""Calls that are not hoisted, and have no side effects."""


@dataclass(frozen=True)
class Surroundings:
    """The known facts about the names of a function.

    Attributes:
        variables: its own names.
        is_torch: whether a global name is a module of torch.
        is_layer: whether an expression such as ``"self.head"`` is a layer that may run in any case.
    """

    variables: frozenset[str]
    is_torch: Callable[[str], bool]
    is_layer: Callable[[str], bool]


class _Mover:
    """Hoists expressions out of one statement; ``around`` has the known facts about names."""

    def __init__(self, around: Surroundings, numbers: Iterator[int]) -> None:
        self.moved: list[ast.stmt] = []
        self._blocked: frozenset[str] = frozenset()
        self._always = True
        self._around = around
        self._numbers = numbers

    def statement(self, node: ast.stmt) -> bool:
        """Hoist all possible expressions; return False if everything after the statement must stay there."""
        if isinstance(node, ast.If):
            if not self._has_no_effects(node.test):
                return False
            node.test = self.expression(node.test)
            before, self._always = self._blocked, False
            for side in (node.body, node.orelse):
                self._blocked = before
                all(self.statement(inner) for inner in side)
            return False
        if not isinstance(node, ast.Assign | ast.Return) or node.value is None or not self._has_no_effects(node.value):
            return False
        node.value = self.expression(node.value)
        self._blocked |= stored_names(node)
        return isinstance(node, ast.Assign) and all(isinstance(target, ast.Name) for target in node.targets)

    def _has_no_effects(self, node: ast.expr) -> bool:
        """Return whether no part of an expression has side effects on the rest."""
        calls = [part for part in ast.walk(node) if isinstance(part, ast.Call)]
        names = [ast.unparse(call.func).rpartition(".")[2] for call in calls]
        known = all(
            name in _METHODS | _HARMLESS | _NOT_OF_NOTHING or self._around.is_layer(ast.unparse(call.func))
            for name, call in zip(names, calls, strict=True)
        )
        return known and not any(isinstance(part, ast.NamedExpr | ast.Await | ast.Yield) for part in ast.walk(node))

    def expression(self, node: ast.expr) -> ast.expr:
        if any(isinstance(part, ast.Call) for part in ast.walk(node)) and self._is_pure(node):
            name = f"{PREFIX}{next(self._numbers)}__"
            made = ast.Assign([ast.Name(name, ast.Store())], node)
            self.moved.append(ast.copy_location(made, node))
            return ast.copy_location(ast.Name(name, ast.Load()), node)
        if isinstance(node, ast.Lambda | ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp | ast.NamedExpr):
            return node
        for name, value in self._fields(node):
            if isinstance(value, ast.expr) and name != "func":
                setattr(node, name, self.expression(value))
            elif isinstance(value, ast.Attribute):  # what a method is called on
                value.value = self.expression(value.value)
            elif isinstance(value, list):
                self._all_of(value)
        return node

    def _fields(self, node: ast.expr) -> Iterator[tuple[str, Any]]:
        """Yield the parts of an expression, unconditionally evaluated ones first."""
        always = self._always
        if isinstance(node, ast.BoolOp):
            node.values[0] = self.expression(node.values[0])
        for name, value in sorted(ast.iter_fields(node), key=lambda part: part[0] != "test"):
            self._always = always and (name == "test" or not isinstance(node, ast.BoolOp | ast.IfExp))
            yield name, value
        self._always = always

    def _all_of(self, parts: list[ast.AST]) -> None:
        for index, part in enumerate(parts):
            if isinstance(part, ast.expr) and not isinstance(part, ast.Starred):
                parts[index] = self.expression(part)
            elif isinstance(part, ast.keyword):
                part.value = self.expression(part.value)

    def _is_pure(self, node: ast.expr) -> bool:
        if isinstance(node, ast.Constant):
            return True
        if isinstance(node, ast.Name):
            return node.id not in self._blocked
        if isinstance(node, ast.Attribute):
            return self._is_pure(node.value)
        if isinstance(node, ast.BinOp):
            raises = isinstance(node.op, ast.FloorDiv | ast.Mod | ast.Pow) and not isinstance(node.right, ast.Constant)
            return not raises and self._is_pure(node.left) and self._is_pure(node.right)
        if isinstance(node, ast.UnaryOp):
            return not isinstance(node.op, ast.Not) and self._is_pure(node.operand)
        if isinstance(node, ast.Compare):
            plain = not any(isinstance(op, ast.Is | ast.IsNot | ast.In | ast.NotIn) for op in node.ops)
            return plain and len(node.ops) == 1 and all(map(self._is_pure, [node.left, *node.comparators]))
        return isinstance(node, ast.Call) and self._is_pure_call(node)

    def _is_pure_call(self, node: ast.Call) -> bool:
        if not isinstance(node.func, ast.Attribute):
            return False
        values = [*node.args, *(keyword.value for keyword in node.keywords)]
        if not all(map(self._is_pure, values)):
            return False
        if self._around.is_layer(ast.unparse(node.func)):
            return True
        known = _METHODS | _NOT_OF_NOTHING if self._always else _METHODS
        if node.func.attr not in known or not self._is_pure(node.func):
            return False
        first: ast.expr = node.func
        while isinstance(first, ast.Attribute):
            first = first.value
        if not isinstance(first, ast.Name):
            return True
        if first.id in self._around.variables:  # attributes of these may be of any class
            return first is node.func.value
        return self._around.is_torch(first.id)


def move_out(statement: ast.stmt, around: Surroundings, numbers: Iterator[int]) -> list[ast.stmt]:
    """Hoist expressions out of an ``if``, or a statement without inner ones, in place; return what to put before."""
    mover = _Mover(around, numbers)
    mover.statement(statement)
    for made in mover.moved:
        ast.fix_missing_locations(made)
    return mover.moved


# Functions with cut-out ranges of statements as plain data, enough to make the same cuts in another process.
#
# The text of a function is not part of it, only digests of its lines: the function itself is found there.


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
