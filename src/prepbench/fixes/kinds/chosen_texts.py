"""Texts and functions that data selects: the looked-up results are selected instead."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import libcst as cst

from prepbench.fixes.kinds.conditions import depends_on_data
from prepbench.fixes.kinds.kind import Kind
from prepbench.fixes.kinds.row_sources import assigned_once
from prepbench.fixes.site import Proposal, Site
from prepbench.fixes.syntax import (
    Expression,
    assignment,
    atom,
    body_of,
    expression,
    orelse_of,
    replaced,
    same,
    small_of,
    text_of,
    walk_here,
)


def propose(site: Site) -> Iterator[Proposal]:
    """Propose to rewrite ``table["a" if c else "b"]``, and names of such texts that are compared or looked up."""
    yield from _looked_up(site)
    if isinstance(site.function, cst.FunctionDef):
        yield from _named(site)


def _is_text(node: cst.CSTNode) -> bool:
    return isinstance(node, cst.SimpleString)


def _chosen(site: Site, node: cst.CSTNode) -> cst.IfExp | None:
    """Return a selection between two texts by data."""
    is_choice = isinstance(node, cst.IfExp) and _is_text(node.body) and _is_text(node.orelse)
    return node if isinstance(node, cst.IfExp) and is_choice and depends_on_data(site, node.test) else None


def _looked_up(site: Site) -> Iterator[Proposal]:
    found: dict[cst.CSTNode, Any] = {}
    for node in site.expressions(cst.Subscript | cst.Call):
        key = _key(node)
        choice = None if key is None else _chosen(site, key)
        if choice is not None and key is not None:
            sides = [replaced(node, {key: side}) for side in (choice.body, choice.orelse)]
            found[node] = _if(choice.test, *sides)
    if found:
        yield Proposal(replaced(site.function, found))


def _key(node: cst.CSTNode) -> Expression | None:
    """Return the key of ``table[key]`` or ``getattr(owner, key)``."""
    if isinstance(node, cst.Subscript) and len(node.slice) == 1 and isinstance(node.slice[0].slice, cst.Index):
        key: Expression = node.slice[0].slice.value
        return key
    is_getattr = isinstance(node, cst.Call) and text_of(node.func) == "getattr" and len(node.args) == 2
    return node.args[1].value if isinstance(node, cst.Call) and is_getattr else None


def _if(test: Expression, yes: Expression, no: Expression) -> Expression:
    return expression("({yes} if {c} else {no})", c=atom(test), yes=atom(yes), no=atom(no))


def _named(site: Site) -> Iterator[Proposal]:
    """Propose to name the condition instead of the text in ``mode = "a" if c else "b"``, or in the same as a
    statement.
    """
    for line in site.expressions(cst.SimpleStatementLine | cst.If):
        name, choice = _assigned(site, line)
        if choice is None:
            continue
        flag = site.fresh(f"is_{name}")
        uses = _uses(site, name, choice, cst.Name(flag))
        reads = [n for n in site.expressions(cst.Name) if n.value == name and not any(n is t for t in _targets(line))]
        inside = {n for node in uses for n in walk_here(node)}
        if not uses or any(read not in inside for read in reads):
            continue
        made = assignment(flag, choice.test).with_changes(leading_lines=line.leading_lines)
        yield Proposal(replaced(site.function, {line: made, **uses}))
        return


def _assigned(site: Site, line: cst.CSTNode) -> tuple[str, cst.IfExp | None]:
    """Return the name and the selection of a statement that assigns one of two texts."""
    if isinstance(line, cst.SimpleStatementLine):
        small = small_of(line)
        name = text_of(small.targets[0].target) if isinstance(small, cst.Assign) else ""
        choice = _chosen(site, small.value) if name.isidentifier() else None
        return (name, choice) if choice is not None and assigned_once(site, name) is small.value else ("", None)
    assert isinstance(line, cst.If)
    sides = [body_of(line.body), orelse_of(line)]
    smalls = [small_of(side[0]) if len(side) == 1 else None for side in sides]
    if not all(isinstance(small, cst.Assign) and _is_text(small.value) for small in smalls):
        return "", None
    targets: list[Any] = [small.targets[0].target for small in smalls if small is not None]
    is_name = isinstance(targets[0], cst.Name) and same(*targets)
    if not is_name or not depends_on_data(site, line.test):
        return "", None
    return text_of(targets[0]), cst.IfExp(line.test, *(small.value for small in smalls if small is not None))


def _targets(line: cst.CSTNode) -> list[cst.CSTNode]:
    return [t.target for node in walk_here(line) if isinstance(node, cst.Assign) for t in node.targets]


def _uses(site: Site, name: str, choice: cst.IfExp, flag: cst.Name) -> dict[cst.CSTNode, Any]:
    """Return replacements for comparisons with the name, and for lookups by it."""
    found: dict[cst.CSTNode, Any] = {}
    for node in site.expressions(cst.Comparison | cst.Subscript | cst.Call):
        key = _key(node)
        if key is not None and text_of(key) == name:
            found[node] = _if(flag, *(replaced(node, {key: side}) for side in (choice.body, choice.orelse)))
        elif isinstance(node, cst.Comparison) and text_of(node.left) == name and len(node.comparisons) == 1:
            target = node.comparisons[0]
            sides = [
                _is_text(target.comparator) and _same_text(target.comparator, s) for s in (choice.body, choice.orelse)
            ]
            if sum(sides) == 1 and isinstance(target.operator, cst.Equal | cst.NotEqual):
                holds = sides[0] is isinstance(target.operator, cst.Equal)
                found[node] = flag if holds else expression("(not {f})", f=flag)
    return found


def _same_text(one: Any, other: Any) -> bool:
    return bool(one.evaluated_value == other.evaluated_value)


CHOSEN_TEXTS = Kind(
    "what a text chooses is chosen by the condition",
    "the text is only compared, or looked up",
    propose,
)
