"""``if`` on data of which all samples take one side: that side stays, and calls that need the other are refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import libcst as cst

from prepbench.fixes import syntax
from prepbench.fixes.kinds.conditions import condition_of, depends_on_data
from prepbench.fixes.proof import ASSUMED
from prepbench.fixes.site import Kind, Proposal, Site
from prepbench.fixes.syntax import Expression, Statement


def propose(site: Site) -> Iterator[Proposal]:
    """Propose to keep the side of the failing branch that every sample takes."""
    if isinstance(site.function, cst.Lambda):
        return
    elifs = {node.orelse for node in site.expressions(cst.If)}
    for node in site.expressions(cst.If | cst.IfExp):
        if not site.is_at_line(node.test) or any(
            isinstance(part, cst.NamedExpr) for part in syntax.walk_here(node.test)
        ):
            continue
        fact = site.fact(node.test)
        if len(fact.given_truths) != 1:
            continue
        (side,) = fact.given_truths
        check = _check(site, node.test, side=side)
        line = site.source.original_line(site.place(node.test)[0])
        assumption = (
            f"{syntax.text_of(node.test)!r} on line {line} is {str(side).lower()}, as on every sample; other calls are "
            "refused at run time. With a sample of the other side, pb.fix looks for a change that keeps both"
        )
        change = _value(site, node, check, side) if isinstance(node, cst.IfExp) else _side(node, check, side)
        if node in elifs:
            change = {node: cst.Else(syntax.block_of(list(change[node].nodes)))}
        if change:
            yield Proposal(syntax.replaced(site.function, change), assumption=assumption)


def _side(node: cst.If, check: Statement, side: bool) -> dict[cst.CSTNode, Any]:
    """Replace a branch by the check and the statements of one side."""
    kept = syntax.body_of(node.body) if side else syntax.orelse_of(node)
    return {node: cst.FlattenSentinel([check.with_changes(leading_lines=node.leading_lines), *kept])}


def _value(site: Site, node: cst.IfExp, check: Statement, side: bool) -> dict[cst.CSTNode, Any]:
    """Replace ``a if c else b`` by one of its values, with the check before the statement; empty in a comprehension."""
    for line in site.expressions(cst.SimpleStatementLine):
        if any(part is node for part in syntax.walk_here(line)):
            kept = syntax.replaced(line, {node: node.body if side else node.orelse})
            check = check.with_changes(leading_lines=line.leading_lines)
            return {line: cst.FlattenSentinel([check, kept.with_changes(leading_lines=())])}
    return {}


def _check(site: Site, test: Expression, *, side: bool) -> Statement:
    """Return the assertion that a call takes a side; it raises in Python and is part of the graph."""
    text = syntax.quoted(f"{syntax.text_of(test)!r} is {str(not side).lower()}, not {str(side).lower()}, {ASSUMED}")
    while isinstance(test, cst.UnaryOperation) and isinstance(test.operator, cst.Not):
        test, side = test.expression, not side
    if depends_on_data(site, test):
        truth = condition_of(site, test)
        truth = truth if side else syntax.expression("~{v}", v=syntax.atom(truth))
        template = "{torch}._assert_async({v}, {text})"
    else:
        # a number that was read from a tensor before: Python's `not` would ask for its value
        truth = test if side else syntax.expression("{torch}.sym_not({v})", torch=site.torch, v=syntax.bare(test))
        template = "{torch}._check({v}, lambda: {text})"
    made: Statement = syntax.statement(template, torch=site.torch, v=truth, text=text)
    return made


ASSUMED_SIDES = Kind(
    "the side of a branch that every sample takes becomes the only one",
    "no call needs the other side; such a call is refused",
    propose,
)
