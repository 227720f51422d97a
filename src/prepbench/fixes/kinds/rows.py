"""Loops over the rows of a tensor whose number changes: ``torch.vmap`` of what is done to one row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import libcst as cst

from prepbench.fixes.cannot_fix import CannotFix
from prepbench.fixes.kinds.branches import with_body
from prepbench.fixes.kinds.kind import Kind
from prepbench.fixes.site import Proposal, Site
from prepbench.fixes.syntax import (
    Expression,
    Statement,
    bare,
    block_of,
    body_of,
    expression,
    has_exit,
    read_names,
    replaced,
    same,
    small_of,
    statement,
    stored_names,
    target_names,
    text_of,
    walk_here,
)


def propose(site: Site) -> Iterator[Proposal]:
    """The loops of the function whose results are stacked: comprehensions, and lists that are appended to.

    Right if no step reads what another one leaves behind, and no step has effects.
    """
    stacks = [call for call in site.expressions(cst.Call) if _is_stack(site, call)]
    found: dict[cst.CSTNode, Any] = {}
    for call in stacks:
        parts = call.args[0].value
        if isinstance(parts, cst.ListComp | cst.GeneratorExp):
            rows = _rows_of_comprehension(site, parts)
            if rows is not None:
                found[call] = _mapped(site, rows, bare(parts.elt))
    if found:
        yield Proposal(replaced(site.function, found))
        return
    if isinstance(site.function, cst.FunctionDef):
        yield from _appending(site, site.function, stacks)


def _is_stack(site: Site, call: cst.Call) -> bool:
    """Whether parts become the rows of a tensor."""
    rest = [text_of(arg.value) for arg in call.args[1:]]
    return text_of(call.func) == f"{text_of(site.torch)}.stack" and bool(call.args) and rest in ([], ["0"])


@dataclass(frozen=True)
class _Rows:
    """What a loop goes over.

    Attributes:
        names: of one row of each tensor, in order.
        tensors: the tensors.
        index: the name of the step's number; "" where none is used.
    """

    names: tuple[str, ...]
    tensors: tuple[Expression, ...]
    index: str = ""


def _rows_of_comprehension(site: Site, parts: Any) -> _Rows | None:
    if parts.for_in.ifs or parts.for_in.inner_for_in is not None:
        return None
    return _rows(site, parts.for_in.target, parts.for_in.iter)


def _rows(site: Site, target: Any, over: Expression) -> _Rows | None:
    """The rows of ``x``, ``zip(x, y)``, ``x.unbind(0)`` or ``range(x.shape[0])``; None for other loops."""
    if isinstance(over, cst.Call) and text_of(over.func) == "zip" and isinstance(target, cst.Tuple):
        names = tuple(target_names(target))
        values = [arg.value for arg in over.args if arg.keyword is None]  # strict= is what vmap does
        is_plain = len(names) == len(values) == len(target.elements)
        return _Rows(names, tuple(values)) if is_plain and all(_has_rows(site, each) for each in values) else None
    if not isinstance(target, cst.Name):
        return None
    if isinstance(over, cst.Call) and text_of(over).endswith((".unbind()", ".unbind(0)")):
        over = cst.ensure_type(over.func, cst.Attribute).value
    if _has_rows(site, over):
        return _Rows((target.value,), (over,))
    if isinstance(over, cst.Call) and text_of(over.func) == "range" and len(over.args) == 1:
        counted = _counted(over.args[0].value)
        return _Rows((), (), target.value) if counted is not None and _has_rows(site, counted) else None
    return None


def _has_rows(site: Site, node: Expression) -> bool:
    fact = site.fact(node)
    return fact.is_tensor and 0 not in fact.dims


def _counted(count: Expression) -> Expression | None:
    """The tensor of ``x.shape[0]``, ``x.size(0)`` or ``len(x)``."""
    text = text_of(count)
    if isinstance(count, cst.Call) and text_of(count.func) == "len" and len(count.args) == 1:
        return count.args[0].value
    if isinstance(count, cst.Call) and text.endswith(".size(0)"):
        return cst.ensure_type(count.func, cst.Attribute).value
    if isinstance(count, cst.Subscript) and text.endswith(".shape[0]"):
        return cst.ensure_type(count.value, cst.Attribute).value
    return None


def _with_rows(site: Site, rows: _Rows, nodes: Sequence[Any]) -> tuple[_Rows, list[Any]]:
    """The same with a name for each tensor of which a step reads the row of its number."""
    if not rows.index:
        return rows, list(nodes)
    taken: dict[str, tuple[str, Expression]] = {}
    found: dict[cst.CSTNode, Any] = {}
    for node in walk_here(nodes):
        first = node.slice[0].slice if isinstance(node, cst.Subscript) else None
        if not isinstance(first, cst.Index) or text_of(first.value) != rows.index:
            continue
        assert isinstance(node, cst.Subscript)
        name, _ = taken.setdefault(
            text_of(node.value), (site.fresh("row", *(n for n, _ in taken.values())), node.value)
        )
        rest = node.slice[1:]
        found[node] = node.with_changes(value=cst.Name(name), slice=rest) if rest else cst.Name(name)
    changed = [replaced(node, found) for node in nodes]
    if rows.index in read_names(changed) or not all(_has_rows(site, tensor) for _, tensor in taken.values()):
        raise CannotFix("a step of the loop needs its number")
    return _Rows(tuple(name for name, _ in taken.values()), tuple(tensor for _, tensor in taken.values())), changed


def _mapped(site: Site, rows: _Rows, value: Expression) -> Expression:
    rows, (value,) = _with_rows(site, rows, [value])
    template = "{torch}.vmap(lambda " + ", ".join(rows.names) + ": {value})()"
    call = expression(template, torch=site.torch, value=value)
    return call.with_changes(args=[cst.Arg(bare(tensor)) for tensor in rows.tensors])


def _appending(site: Site, function: cst.FunctionDef, stacks: Sequence[cst.Call]) -> Iterator[Proposal]:
    """``for row in x: ...; parts.append(y)`` and ``torch.stack(parts)``."""
    body = body_of(function.body)
    for at, loop in enumerate(body):
        if not isinstance(loop, cst.For) or loop.orelse is not None:
            continue
        rows = _rows(site, loop.target, loop.iter)
        *steps, last = body_of(loop.body)
        name, value = _appended(last)
        start = [each for each in body[:at] if _is_empty_list(each, name)]
        if rows is None or not name or len(start) != 1:
            continue
        used = [call for call in stacks if text_of(call.args[0].value) == name]
        reads = [node for node in site.expressions(cst.Name) if node.value == name]
        if len(used) != 1 or len(reads) != 3:  # its list, the call that appends, and the stack
            raise CannotFix(f"{name!r} is more than the rows of a tensor")
        _check_steps(site, steps, body[at + 1 :], loop)
        rows, [*steps, value] = _with_rows(site, rows, [*steps, value])
        inner = site.fresh("each_row")
        made: Any = statement(f"def {inner}({', '.join(rows.names)}):\n    return {{v}}", v=bare(value))
        made = made.with_changes(body=block_of([*steps, *body_of(made.body)]), leading_lines=loop.leading_lines)
        call = expression(f"{{torch}}.vmap({inner})()", torch=site.torch)
        mapped = call.with_changes(args=[cst.Arg(bare(tensor)) for tensor in rows.tensors])
        rest = [replaced(each, {used[0]: mapped}) for each in body[at + 1 :]]
        before = [each for each in body[:at] if each is not start[0]]
        yield Proposal(with_body(function, [*before, made, *rest]))
        return


def _appended(last: Statement) -> tuple[str, Any]:
    """The list and the value of ``parts.append(value)``."""
    small = small_of(last)
    call = small.value if isinstance(small, cst.Expr) else None
    if not isinstance(call, cst.Call) or not isinstance(call.func, cst.Attribute) or len(call.args) != 1:
        return "", None
    is_append = call.func.attr.value == "append" and isinstance(call.func.value, cst.Name)
    return (text_of(call.func.value), call.args[0].value) if is_append else ("", None)


def _is_empty_list(each: Statement, name: str) -> bool:
    small = small_of(each)
    return bool(name) and isinstance(small, cst.Assign) and same(small, cst.parse_statement(f"{name} = []"))


def _check_steps(site: Site, steps: Sequence[Statement], after: Sequence[Statement], loop: cst.For) -> None:
    """Refuse steps that are not independent of each other."""
    if has_exit(loop.body, cst.Break, cst.Continue, cst.Return):
        raise CannotFix("the loop over rows is left early")
    own = set(stored_names(steps))
    if own & read_names(after) or own & site.parameters:
        raise CannotFix(f"{', '.join(sorted(own & (read_names(after) | site.parameters)))!r} outlives its row")
    known: set[str] = set()
    for each in steps:
        small = small_of(each)
        targets = small.targets if isinstance(small, cst.Assign) else []
        if not targets or any(isinstance(t.target, cst.Attribute | cst.Subscript) for t in targets):
            raise CannotFix("a step of the loop does more than compute values")
        if (read_names(small.value) & own) - known:
            raise CannotFix("a step of the loop reads what another step leaves behind")
        known |= set(stored_names(each))


ROWS = Kind(
    "a loop over rows becomes torch.vmap",
    "no row's result depends on another row's",
    propose,
)
