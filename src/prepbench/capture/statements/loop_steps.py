"""``LoopSteps``: a model in whose functions the bodies of ``for`` loops are functions of their own.

.. code-block:: python

    for x_t in x.unbind(1):
        h = self.cell(x_t, h)
        ys.append(h)

becomes

.. code-block:: python

    def step(item, h, ys):
        x_t = item
        h = self.cell(x_t, h)
        ys.append(h)
        return (h,), ()
    h, ys = <run_loop>(x.unbind(1), step, (h,), 0, (ys,))

which does the same, and can be one operator where the length is dynamic (``capture/sizes/step_loops``).
"""

from __future__ import annotations

import ast
import copy
import types
from collections.abc import Iterator
from typing import Any

import torch

from prepbench.capture.sizes.step_loops import IN_HEADS, run_loop
from prepbench.capture.statements import ranges
from prepbench.objects.copy import CannotSwap, Twin, swapped_twin
from prepbench.objects.parts import is_user_file
from prepbench.running.source_lines import CodePath, cell_flags, file_codes

_RUN = "__prepbench_run_loop__"
_HEAD = "__prepbench_{}__"
_STEP, _ITEM = "__prepbench_step_{}__", "__prepbench_item__"
_READS_FRAME = frozenset({"locals", "vars", "dir", "eval", "exec", "super", "__class__"})
_ENDS = (ast.Return, ast.Yield, ast.YieldFrom, ast.Await, ast.Nonlocal, ast.Global, ast.Delete)
_LOOPS = (ast.For, ast.AsyncFor, ast.While)


class LoopSteps:
    """Rewrites functions of a model whose loops fail; ``model`` is the model itself as long as there are none."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.model = self._given = model
        self._twin: Twin | None = None
        self._codes: dict[types.CodeType, types.CodeType] = {}
        self._tried: set[types.CodeType] = set()

    def original(self, part: Any) -> Any:
        """Return the part of the given model that a part of this one stands for."""
        return part if self._twin is None else self._twin.original(part)

    def give_back(self, program: torch.export.ExportedProgram) -> None:
        """Put the given model's tensors into a program that was exported from this one."""
        if self._twin is not None:
            self._twin.give_back(program)

    def add(self, error: BaseException) -> bool:
        """Rewrite the loops of the innermost function that raised an error and has some; return False if none has."""
        for code, line in reversed(list(_frames(error))):
            if code in self._tried or code in self._codes.values() or not is_user_file(code.co_filename):
                continue
            self._tried.add(code)
            changed = _rewritten(code, line)
            if changed is not None and self._use({**self._codes, code: changed}):
                return True
        return False

    def _use(self, codes: dict[types.CodeType, types.CodeType]) -> bool:
        scope = {_RUN: run_loop, **{_HEAD.format(name): made for name, made in IN_HEADS.items()}}
        try:
            twin, changed = swapped_twin(self._given, codes, scope)
        except CannotSwap:
            return False
        if codes.keys() - changed.keys():
            return False
        self._twin, self._codes, self.model = twin, codes, twin.model
        return True


def _frames(error: BaseException) -> Iterator[tuple[types.CodeType, int]]:
    traceback = error.__traceback__
    while traceback is not None:
        yield traceback.tb_frame.f_code, traceback.tb_lineno
        traceback = traceback.tb_next


def _rewritten(code: types.CodeType, line: int) -> types.CodeType | None:
    """Return the code of a function whose loops are functions; None if that is impossible, or the source is missing."""
    file = ranges.source_file(code.co_filename)
    if file is None or file.function(code) is None:
        return None
    path: CodePath = next(path for path, known in file.codes.items() if known == code)
    changed = ranges.SourceFile(file.name, copy.deepcopy(file.tree), file.codes)
    function = changed.function(code)
    assert function is not None
    loops = [node for node in ranges.walk_here(function.body) if isinstance(node, ast.For)]
    here = [loop for loop in loops if loop.lineno <= line <= (loop.iter.end_lineno or line)]
    # another loop of the function may have a static length, and runs in Python then
    innermost = [loop for loop in loops if not any(isinstance(node, _LOOPS) for node in ranges.walk_here(loop.body))]
    chosen = [*here, *(loop for loop in innermost if not any(_overlap(loop, other) for other in here))]
    live, own = ranges.live_after(function), {*code.co_varnames, *code.co_cellvars, *code.co_freevars}
    done = False
    for number, loop in enumerate(chosen):
        done = _rewrite(function, loop, live[loop], frozenset(own), number) or done
    if not done:
        return None
    return file_codes(ast.fix_missing_locations(changed.tree), file.name, cell_flags(file.name)).get(path)


def _overlap(one: ast.For, other: ast.For) -> bool:
    return any(node is other for node in ast.walk(one)) or any(node is one for node in ast.walk(other))


def _rewrite(function: ranges.Function, loop: ast.For, after: ranges.Names, own: ranges.Names, number: int) -> bool:
    """Turn the body of a loop into a function, in place; return False if that is impossible."""
    if loop.orelse or not _can_be_function(loop):
        return False
    lists = _appended(loop)
    changed = _changed(loop, own) - ranges.stored_names(loop.body)
    target, stored = ranges.stored_names(loop.target), ranges.stored_names(loop.body) | changed
    ends = (stored | target) & after
    if ends & target or lists & stored:
        return False
    carried: ranges.Names = frozenset()
    while True:
        found = ranges.live_before(loop.body, ends | carried) & stored - target
        if found <= carried:
            break
        carried |= found
    lasts = ends - carried
    if not lasts <= ranges.surely_stored(loop.body):
        return False
    states, values, taken = sorted(carried, key=lambda name: (name not in changed, name)), sorted(lasts), sorted(lists)
    block = next(found for found in _blocks(function) if any(each is loop for each in found))
    item: list[ast.stmt] = [ast.Assign([loop.target], ast.Name(_ITEM, ast.Load()))]
    end = ast.Return(ast.Tuple([_names(states), _names(values)], ast.Load()))
    arguments = ast.arguments([], [ast.arg(name) for name in (_ITEM, *states, *taken)], None, [], [], None, [])
    step = ast.FunctionDef(_STEP.format(number), arguments, [*item, *loop.body, end], [], None, None)
    call = ast.Call(
        ast.Name(_RUN, ast.Load()),
        [
            _head(loop.iter, own),
            ast.Name(step.name, ast.Load()),
            _names(states),
            ast.Constant(len(values)),
            _names(taken),
            ast.Constant(len(carried & changed)),
        ],
        [],
    )
    names = [*states, *values, *taken]
    result = ast.Assign([_names(names, ast.Store())], call) if names else ast.Expr(call)
    for new in (step, item[0], end, result):
        for node in [step, *ast.walk(step.args)] if new is step else ast.walk(new):
            if not hasattr(node, "lineno"):
                ast.copy_location(node, loop)
    place = next(index for index, each in enumerate(block) if each is loop)
    block[place : place + 1] = [step, result]
    return True


def _can_be_function(loop: ast.For) -> bool:
    for node in ranges.walk_here(loop.body):
        if isinstance(node, (*_ENDS, ast.FunctionDef, ast.ClassDef, ast.Lambda)):
            return False
        if isinstance(node, ast.Name) and node.id in _READS_FRAME:
            return False
    return not _leaves_loop(loop.body)


def _leaves_loop(nodes: list[Any]) -> bool:
    for node in nodes:
        if isinstance(node, ast.Break | ast.Continue):
            return True
        if not isinstance(node, _LOOPS) and _leaves_loop(list(ast.iter_child_nodes(node))):
            return True
    return False


def _appended(loop: ast.For) -> ranges.Names:
    """Return the lists that the body appends to and does not use otherwise."""
    calls = [
        node.value.func.value
        for node in ranges.walk_here(loop.body)
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Call)
        and isinstance(node.value.func, ast.Attribute)
        and _adds_one(node.value)
        and isinstance(node.value.func.value, ast.Name)
    ]
    names = [node.id for node in ranges.walk_here([*loop.body, loop.iter]) if isinstance(node, ast.Name)]
    found = {call.id for call in calls if isinstance(call, ast.Name)}
    return frozenset(name for name in found if names.count(name) == sum(call.id == name for call in calls))


def _adds_one(call: ast.Call) -> bool:
    """Return whether a method call is ``append(value)`` or ``insert(0, value)``."""
    assert isinstance(call.func, ast.Attribute)
    name, first = call.func.attr, call.args[:1]
    at_front = [isinstance(each, ast.Constant) and each.value == 0 for each in first] == [True]
    return (name == "append" and len(call.args) == 1) or (name == "insert" and at_front and len(call.args) == 2)


def _changed(loop: ast.For, own: ranges.Names) -> ranges.Names:
    """Return variables whose items the body assigns: possibly lists of states."""
    found = set()
    for node in ranges.walk_here(loop.body):
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store) and isinstance(node.value, ast.Name):
            found.add(node.value.id)
    return frozenset(found) & own


def _head(expression: ast.expr, own: ranges.Names) -> ast.expr:
    """Return the iterable of a loop, with replacements for Python's functions."""
    for node in ast.walk(expression):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            name = node.func.id
            if name in IN_HEADS and name not in own and name not in ranges.read_names(node.args):
                node.func = ast.copy_location(ast.Name(_HEAD.format(name), ast.Load()), node.func)
    return expression


def _names(names: list[str], context: ast.expr_context | None = None) -> ast.Tuple:
    context = context or ast.Load()
    return ast.Tuple([ast.Name(name, context) for name in names], context)


def _blocks(function: ranges.Function) -> Iterator[list[ast.stmt]]:
    for node in ast.walk(function):
        for name in ("body", "orelse", "finalbody"):
            block = getattr(node, name, None)
            if isinstance(block, list):
                yield block
