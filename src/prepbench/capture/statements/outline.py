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
import types
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from prepbench.capture.statements.hoisted import PREFIX
from prepbench.capture.statements.live_names import (
    Function,
    live_after,
    live_before,
    read_names,
    stored_names,
    surely_stored,
    walk_here,
)
from prepbench.capture.statements.ranges import SourceFile, StatementRange
from prepbench.running.code_objects import CodePath, file_codes
from prepbench.running.source_lines import cell_flags

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
        (*path, (_inner_name(name), 0)),
        owner,
        tuple(sorted(inputs, key=lambda name: (name != owner, name))),
        None if found.returns else outputs,
        found.lines,
    )


def _inner_name(name: str) -> str:
    return f"__prepbench_{name}__"


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
