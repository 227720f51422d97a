"""Prove from the code the most iterations that a loop can have, whatever the data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import libcst as cst

from prepbench.fixes.kinds.conditions import depends_on_data
from prepbench.fixes.kinds.numbers import Numbers
from prepbench.fixes.site import Site
from prepbench.fixes.syntax import Expression, Statement, body_of, has_exit, small_of, stored_names, text_of, walk_here

_MOST_UNROLLED = 64
"""A graph with more copies of a loop's body is of no use, so that the most iterations of the samples are taken."""
_SWAPPED = {
    cst.LessThan: cst.GreaterThan,
    cst.LessThanEqual: cst.GreaterThanEqual,
    cst.GreaterThan: cst.LessThan,
    cst.GreaterThanEqual: cst.LessThanEqual,
}
_TURNED: dict[type[cst.CSTNode], type[Any]] = {
    cst.GreaterThanEqual: cst.LessThan,
    cst.GreaterThan: cst.LessThanEqual,
    cst.LessThanEqual: cst.GreaterThan,
    cst.LessThan: cst.GreaterThanEqual,
}
_ENDS = {cst.LessThan: 0, cst.LessThanEqual: 1, cst.GreaterThan: 0, cst.GreaterThanEqual: -1}
"""How far the end of a range is behind the limit, by the comparison that holds while the loop goes on."""


@dataclass(frozen=True)
class Bound:
    """The most iterations of a loop: its sequence as code, and how many steps it has at most on the samples."""

    steps: str
    most: int


def bound_of_while(site: Site, node: cst.While) -> Bound | None:
    """Return the bound of ``while ... and count < limit`` and of ``if count >= limit: break``; None if there is
    none.

    The count has a number before the loop and changes by a fixed one in each iteration, and the limit stays.
    """
    found = [_counted(site, node, part, more=0) for part in _all_of(node.test)]
    if isinstance(node.test, cst.Name) and node.test.value == "True":
        found += [_counted(site, node, part, more=1) for part in _ways_out(node)]
    found += [_counted(site, node, part, more=1) for part in _flag(node)]
    bounds = [bound for bound in found if bound is not None]
    return min(bounds, key=lambda bound: bound.most, default=None)


def bound_of_count(site: Site, count: cst.CSTNode) -> Bound | None:
    """Return the bound of a number of iterations such as ``min(n, 4)`` or ``n.clamp(max=4)``; None if there is none."""
    tops = [top for top in _tops(site, count) if top is not None and 0 <= top <= _MOST_UNROLLED]
    return Bound(f"range({min(tops)})", min(tops)) if tops else None


def count_of(site: Site, node: cst.For) -> Expression | None:
    """Return the number of iterations of ``for i in range(number)`` as a tensor, if it comes from one."""
    call = node.iter
    if not (isinstance(call, cst.Call) and text_of(call.func) == "range" and len(call.args) == 1):
        return None
    numbers, count = Numbers(site), call.args[0].value
    is_named = any(isinstance(part, cst.Name) and numbers.is_number(part) for part in walk_here(count))
    if is_named or not (site.fact(count).is_tensor or numbers.is_number(count)):
        return None  # a name is made a tensor where it gets its value
    return numbers.tensor(count) if not site.fact(count).is_tensor else count


def _all_of(test: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """Yield the conditions that a true condition implies, which may have been rewritten for tensors before."""
    if isinstance(test, cst.IfExp):
        if text_of(test.orelse).endswith("tensor(False)"):
            yield from (*_all_of(test.test), *_all_of(test.body))
    elif isinstance(test, cst.BooleanOperation) and isinstance(test.operator, cst.And):
        yield from (*_all_of(test.left), *_all_of(test.right))
    elif not isinstance(test, cst.BooleanOperation):
        yield test


def _flag(node: cst.While) -> Iterator[cst.CSTNode]:
    """Yield what holds while the loop continues by ``done = ... or count >= limit``, in ``while not done``."""
    test, is_turned = node.test, False
    if isinstance(test, cst.UnaryOperation) and isinstance(test.operator, cst.Not):
        test, is_turned = test.expression, True
    if not isinstance(test, cst.Name):
        return
    stores = [each for each in walk_here(node.body) if test.value in _stored_by(each)]
    own = [small_of(each) for each in body_of(node.body) if small_of(each) in stores]
    if len(stores) != 1 or len(own) != 1 or not isinstance(own[0], cst.Assign) or len(own[0].targets) != 1:
        return
    if isinstance(own[0].targets[0].target, cst.Name):
        yield from _none_of(own[0].value) if is_turned else _all_of(own[0].value)


def _none_of(test: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """Yield the conditions that a false condition implies."""
    if isinstance(test, cst.IfExp):
        if text_of(test.body).endswith("tensor(True)"):
            yield from (*_none_of(test.test), *_none_of(test.orelse))
    elif isinstance(test, cst.BooleanOperation):
        if isinstance(test.operator, cst.Or):
            yield from (*_none_of(test.left), *_none_of(test.right))
    elif isinstance(test, cst.Comparison) and len(test.comparisons) == 1:
        sign = _TURNED.get(type(test.comparisons[0].operator))
        if sign is not None:
            yield test.with_changes(comparisons=[test.comparisons[0].with_changes(operator=sign())])


def _ways_out(node: cst.While) -> Iterator[cst.CSTNode]:
    """Yield the conditions that hold while ``if ...: break`` in the body does not end the loop."""
    for each in body_of(node.body):
        if isinstance(each, cst.If) and isinstance(small_of(body_of(each.body)[-1]), cst.Break):
            yield from _none_of(each.test)


def _counted(site: Site, node: cst.While, test: cst.CSTNode, more: int) -> Bound | None:
    if not isinstance(test, cst.Comparison) or len(test.comparisons) != 1:
        return None
    sign, right = type(test.comparisons[0].operator), test.comparisons[0].comparator
    for name, limit, kind in ((test.left, right, sign), (right, test.left, _SWAPPED.get(sign, sign))):
        if not isinstance(name, cst.Name) or kind not in _ENDS:
            continue
        start, step = _start(site, node, name.value), _step(node, name.value)
        end = _fixed_number(site, limit, stored_names(node.body))
        goes_up = kind in (cst.LessThan, cst.LessThanEqual)
        if start is None or step is None or end is None or (step > 0) is not goes_up:
            continue
        further = _ENDS[kind] + more * step
        most = len(range(start, end + further, step))
        if most > _MOST_UNROLLED:
            continue
        if isinstance(limit, cst.Integer):
            return Bound(f"range({most})", most)
        stop = text_of(limit) + (f" {'+' if further > 0 else '-'} {abs(further)}" if further else "")
        return Bound(f"range({stop})" if (start, step) == (0, 1) else f"range({start}, {stop}, {step})", most)
    return None


def _start(site: Site, node: cst.While, name: str) -> int | None:
    """Return the number that a name has before a loop, in the block of the loop."""
    for block in _blocks(site):
        if node not in block:
            continue
        for each in reversed(block[: block.index(node)]):
            if name not in stored_names(each):
                continue
            small = small_of(each)
            is_plain = isinstance(small, cst.Assign) and len(small.targets) == 1
            value = _assigned_to(name, small.targets[0].target, small.value) if is_plain else None
            return None if value is None else _integer(value)
    return None


def _assigned_to(name: str, target: Any, value: Any) -> cst.CSTNode | None:
    """Return the value of a name in ``name = value`` and ``other, name = something, value``."""
    if isinstance(target, cst.Name):
        return value if target.value == name else None
    if not (isinstance(target, cst.Tuple) and isinstance(value, cst.Tuple)):
        return None
    if len(target.elements) != len(value.elements):
        return None
    pairs = zip(target.elements, value.elements, strict=True)
    return next((v.value for t, v in pairs if isinstance(t.value, cst.Name) and t.value.value == name), None)


def _blocks(site: Site) -> Iterator[Sequence[Statement]]:
    """Yield the statements of each block of the function."""
    for part in (site.function.body, *walk_here(site.function.body)):
        if isinstance(part, cst.BaseSuite):
            yield body_of(part)


def _step(node: cst.While, name: str) -> int | None:
    """Return the change of a name in each iteration; None where that is uncertain."""
    if has_exit(node.body, cst.Continue):
        return None
    changes = [each for each in walk_here(node.body) if name in _stored_by(each)]
    if len(changes) != 1 or not any(small_of(each) is changes[0] for each in body_of(node.body)):
        return None
    return step_of(changes[0], name)


def step_of(change: Any, name: str) -> int | None:
    """Return the change of a name in ``name += 1`` or ``name = name + 1``; None for other statements."""
    if isinstance(change, cst.AugAssign) and isinstance(change.target, cst.Name) and change.target.value == name:
        number = _integer(change.value)
        sign = {cst.AddAssign: 1, cst.SubtractAssign: -1}.get(type(change.operator))
    elif isinstance(change, cst.Assign) and isinstance(change.value, cst.BinaryOperation):
        is_own = isinstance(change.value.left, cst.Name) and change.value.left.value == name
        number = _integer(change.value.right) if is_own else None
        sign = {cst.Add: 1, cst.Subtract: -1}.get(type(change.value.operator))
    else:
        return None
    return number * sign if number and sign else None


def _stored_by(node: cst.CSTNode) -> dict[str, None]:
    """Return the names that one simple statement assigns to."""
    return stored_names(node) if isinstance(node, cst.BaseSmallStatement | cst.NamedExpr | cst.For) else {}


def _integer(node: cst.CSTNode) -> int | None:
    if isinstance(node, cst.UnaryOperation) and isinstance(node.operator, cst.Minus):
        number = _integer(node.expression)
        return None if number is None else -number
    return int(node.evaluated_value) if isinstance(node, cst.Integer) else None


def _fixed_number(site: Site, node: cst.CSTNode, stored: dict[str, None]) -> int | None:
    """Return a number in the code, the module or the file that is the same in each iteration."""
    number = _integer(node)
    if number is not None:
        return number
    if isinstance(node, cst.Attribute):  # self.steps, which nothing in the function sets
        is_own = isinstance(node.value, cst.Name) and node.value.value == "self"
        written = {text_of(target.target) for target in site.expressions(cst.AssignTarget)}
        written |= {text_of(each.target) for each in site.expressions(cst.AugAssign)}
        is_fixed = is_own and text_of(node) not in written
    else:
        is_fixed = isinstance(node, cst.Name) and node.value not in stored and node.value in site.names
    values = site.fact(node).values if is_fixed and not depends_on_data(site, node) else []
    return values[0] if values and all(type(one) is int and one == values[0] for one in values) else None


def _tops(site: Site, count: cst.CSTNode) -> Iterator[int | None]:
    """Yield the upper bounds of an expression that its code implies."""
    if isinstance(count, cst.Name):
        stores = [each for each in site.expressions(cst.Assign) if count.value in stored_names(each)]
        others = [each for each in walk_here(site.function.body) if count.value in _stored_by(each)]
        target: Any = stores[0].targets[0].target if len(stores) == len(others) == 1 else None
        if isinstance(target, cst.Name) and count.value not in site.parameters:
            yield from _tops(site, stores[0].value)
    elif isinstance(count, cst.BinaryOperation) and isinstance(count.operator, cst.Modulo):
        number = _integer(count.right)
        yield number - 1 if number is not None and number > 0 else None
    elif isinstance(count, cst.Call):
        yield from _tops_of_call(site, count)


def _tops_of_call(site: Site, call: cst.Call) -> Iterator[int | None]:
    name = call.func.attr.value if isinstance(call.func, cst.Attribute) else text_of(call.func)
    owner: Expression | None = call.func.value if isinstance(call.func, cst.Attribute) else None
    values = [arg.value for arg in call.args if arg.keyword is None]
    is_function = owner is None or text_of(owner) == "torch"
    if name == "min" and owner is None and len(values) > 1:
        for value in values:
            yield _fixed_number(site, value, {})
            yield from _tops(site, value)
    elif name in ("clamp", "clip", "clamp_max"):
        named = [arg.value for arg in call.args if arg.keyword is not None and arg.keyword.value == "max"]
        place = (0 if name == "clamp_max" else 1) + is_function
        yield from (_fixed_number(site, top, {}) for top in [*named, *values[place : place + 1]])
    elif name == "int" and owner is None and len(values) == 1:
        yield from _tops(site, values[0])
    elif name in ("item", "long", "int", "max", "min", "round", "trunc", "floor") and owner is not None and not values:
        yield from _tops(site, owner)
