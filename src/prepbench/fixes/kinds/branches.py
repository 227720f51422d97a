"""``if`` on a tensor: both sides are computed, and ``torch.where`` selects."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import libcst as cst
import torch

from prepbench.fixes.kinds.conditions import choice, condition_of, depends_on_data
from prepbench.fixes.kinds.effects import is_effect
from prepbench.fixes.kinds.sides import Side, side_of
from prepbench.fixes.site import Kind, Proposal, Site
from prepbench.fixes.syntax import (
    CannotFix,
    Expression,
    Statement,
    assignment,
    atom,
    block_of,
    body_of,
    ends_in_return,
    expression,
    has_exit,
    orelse_of,
    read_first,
    read_names,
    replaced,
    small_of,
    stored_names,
    walk_here,
)

_MOST_STATEMENTS = 400
_EYE = "{torch}.eye({x}.shape[-1], dtype={x}.dtype, device={x}.device)"
_HARMLESS = ("1", "{torch}.arange(1, {x}.numel() + 1, device={x}.device).view_as({x})", _EYE)
"""Values that a side which is not taken computes with: for logarithms, for distances, and for matrices."""


def propose(site: Site) -> Iterator[Proposal]:
    """Propose to rewrite every data-dependent branch of the function; only the failing one where that is impossible.

    Where a derivative of the side that is not taken is undefined, its operands get harmless values there.
    """
    chosen = [node for node in site.expressions(cst.If | cst.IfExp) if depends_on_data(site, node.test)]
    here = [node for node in chosen if site.is_at_line(node.test)]
    if not chosen:
        return
    try:
        yield _proposal(site, chosen)
    except CannotFix:
        if not here or len(here) == len(chosen):
            raise
        chosen = here
        yield _proposal(site, chosen)
    for harmless in _HARMLESS:
        yield _proposal(site, chosen, harmless)


def _proposal(site: Site, chosen: Sequence[cst.If | cst.IfExp], harmless: str = "") -> Proposal:
    branches = Branches(site, chosen, harmless)
    if isinstance(site.function, cst.Lambda):
        function: cst.CSTNode = site.function.with_changes(body=branches.expressions(site.function.body))
    else:
        body = branches.block(body_of(site.function.body))
        function = with_body(site.function, body)
    conditions = tuple(site.place(node.test) for node in chosen)
    return Proposal(function, conditions, is_compiling=branches.skips_in_trace)


def with_body(function: cst.FunctionDef, body: Sequence[Statement]) -> cst.FunctionDef:
    """Return the function with other statements; its header stays."""
    if isinstance(function.body, cst.IndentedBlock):
        return function.with_changes(body=function.body.with_changes(body=list(body)))
    return function.with_changes(body=block_of(body))


class Branches:
    """Rewrites branches in blocks of statements."""

    def __init__(self, site: Site, chosen: Collection[cst.CSTNode], harmless: str = "") -> None:
        self.site = site
        self.harmless = harmless
        self._chosen = set(chosen)
        self._taken: set[str] = set()
        self.skips_in_trace = False

    def fresh(self, base: str) -> str:
        """Return an unused name."""
        name = self.site.fresh(base, *self._taken)
        self._taken.add(name)
        return name

    def is_chosen(self, node: cst.CSTNode) -> bool:
        """Return whether a node is a branch to be rewritten."""
        return node in self._chosen

    def block(self, statements: Sequence[Statement]) -> list[Statement]:
        """Return the statements without the chosen branches."""
        if len(statements) > _MOST_STATEMENTS:
            raise CannotFix("the function becomes too long")
        made: list[Statement] = []
        for index, each in enumerate(statements):
            rest = statements[index + 1 :]
            if isinstance(each, cst.If) and self._holds_return(each):
                return [*made, *self._returning(each, rest)]
            if isinstance(each, cst.If) and self.is_chosen(each):
                made += self._assigning(each, rest)
            else:
                made.append(self._inside(each))
        return made

    def _holds_return(self, node: cst.If) -> bool:
        """Return whether a chosen branch in or at this ``if`` returns, so that what follows belongs to its sides."""
        if self.is_chosen(node):
            return has_exit(node.body, cst.Return) or (node.orelse is not None and has_exit(node.orelse, cst.Return))
        inner = [part for part in walk_here(node) if isinstance(part, cst.If) and self.is_chosen(part)]
        return any(self._holds_return(part) for part in inner)

    def _inside(self, each: Statement) -> Statement:
        """Return a statement that stays, with its inner branches rewritten."""
        if isinstance(each, cst.If):
            orelse: Any = each.orelse
            if isinstance(orelse, cst.If):
                parts = self.block([orelse])
                alone = len(parts) == 1 and isinstance(parts[0], cst.If)
                orelse = parts[0] if alone else cst.Else(block_of(parts))
            elif orelse is not None:
                orelse = orelse.with_changes(body=self._suite(orelse.body))
            return each.with_changes(test=self.expressions(each.test), body=self._suite(each.body), orelse=orelse)
        if isinstance(each, cst.For | cst.While | cst.With):
            inner = [node for node in walk_here(each.body) if isinstance(node, cst.If) and self.is_chosen(node)]
            if any(has_exit(node, cst.Return, cst.Break, cst.Continue) for node in inner):
                raise CannotFix("the branch leaves a loop")
            return each.with_changes(body=self._suite(each.body))
        if isinstance(each, cst.Try) and any(self.is_chosen(node) for node in walk_here(each)):
            raise CannotFix("the branch is inside of try")
        changed: Statement = self.expressions(each)
        return changed

    def _suite(self, suite: cst.BaseSuite) -> cst.BaseSuite:
        if not any(self.is_chosen(node) for node in walk_here(suite)):
            return suite
        made = self.block(body_of(suite))
        return suite.with_changes(body=made) if isinstance(suite, cst.IndentedBlock) else block_of(made)

    def expressions(self, node: cst.CSTNode) -> Any:
        """Return a node with its chosen ``a if c else b`` as selections."""
        found: dict[cst.CSTNode, Any] = {
            part: atom(self._conditional(part))
            for part in walk_here(node)
            if isinstance(part, cst.IfExp) and self.is_chosen(part)
        }
        return replaced(node, found)

    def _conditional(self, node: cst.IfExp) -> Expression:
        condition = condition_of(self.site, node.test)
        values = []
        for value in (node.body, node.orelse):
            suffix = "if_true" if value is node.body else "if_false"
            if isinstance(value, cst.IfExp) and self.is_chosen(value):
                values.append(self._conditional(value))
            else:
                values.append(self._guarded(value, condition, suffix))
        return choice(self.site, condition, *values)

    # -- a branch that assigns

    def _assigning(self, node: cst.If, rest: Sequence[Statement]) -> list[Statement]:
        used = self._used_after(node, rest)
        condition, made = self._condition(node)
        whole = node
        node, told = self._told(node, condition)
        made += told
        yes, no = self._sides(node, condition)
        names = [name for name in dict.fromkeys([*yes.values, *no.values]) if name in used]
        pairs = []
        for name in names:
            self._check_has_value(name, whole, yes, no)
            one, other = yes.value(self.site, name), no.value(self.site, name)
            pairs.append((name, choice(self.site, condition, one, other)))
        made += [*yes.statements, *no.statements]
        made += yes.effects(self.site, condition, no)
        made += [assignment(name, value) for name, value in pairs]
        return _with_comments(whole, made)

    def _told(self, node: cst.If, condition: Expression) -> tuple[cst.If, list[Statement]]:
        """Split a branch into its computation, and its prints, logs or counts as branches for Python only."""
        told: list[Statement] = []
        sides = []
        for statements, template in ((body_of(node.body), "{c}"), (orelse_of(node), "not {c}")):
            effects = [each for each in statements if not isinstance(each, cst.If) and is_effect(self.site, each)]
            effects = [each for each in effects if not isinstance(small_of(each), cst.Pass)]
            if read_names(effects) & set(stored_names(statements)):
                raise CannotFix("a side prints or logs what it computes")
            if effects:
                test = expression(template, c=atom(condition))
                test = expression("not {torch}.compiler.is_compiling() and {t}", torch=self.site.torch, t=test)
                told.append(cst.If(test, block_of(effects)))
                self.skips_in_trace = True
            sides.append([each for each in statements if each not in effects])
        if not told:
            return node, []
        orelse = cst.Else(block_of(sides[1])) if sides[1] else None
        return node.with_changes(body=block_of(sides[0]), orelse=orelse), told

    def _condition(self, node: cst.If) -> tuple[Expression, list[Statement]]:
        """Return the condition's name, and the statements that compute it; names that a side assigns may be in it."""
        condition = condition_of(self.site, node.test)
        if isinstance(condition, cst.Name) and condition.value not in stored_names(node):
            return condition, []
        first = small_of(body_of(node.body)[0])
        plain = isinstance(first, cst.Assign | cst.AugAssign) and not node.orelse and len(body_of(node.body)) == 1
        # a condition that stands in several places would be asked again after the first assignment
        if plain and len(stored_names(first)) <= 1 and not self.harmless and not isinstance(condition, cst.IfExp):
            return condition, []
        name = self.fresh("condition")
        return cst.Name(name), [assignment(name, condition)]

    def _sides(self, node: cst.If, condition: Expression) -> tuple[Side, Side]:
        sides = []
        for statements, suffix in ((body_of(node.body), "if_true"), (orelse_of(node), "if_false")):
            guards = self._guards(statements, condition, suffix)
            sides.append(side_of(self, self.block(statements), suffix, single=len(statements) <= 1, guards=guards))
        return sides[0], sides[1]

    def _guarded(self, value: Expression, condition: Expression, suffix: str) -> Expression:
        """Return a side of ``a if c else b`` that computes with harmless values where it is not taken."""
        if not self.harmless or isinstance(value, cst.Name):
            return value
        guards = self._guards([cst.SimpleStatementLine([cst.Expr(value)])], condition, suffix)
        names: dict[cst.CSTNode, Any] = {
            node: guards[node.value] for node in walk_here(value) if isinstance(node, cst.Name) and node.value in guards
        }
        guarded: Expression = self.site.same_fact(replaced(value, names), value)
        return guarded

    def _guards(self, statements: Sequence[Statement], condition: Expression, suffix: str) -> dict[str, Expression]:
        """Return the operands of a side: the tensors themselves, or harmless values where the side is not taken."""
        template = "{torch}.where({c}, {x}, {h})" if suffix == "if_true" else "{torch}.where({c}, {h}, {x})"
        found = {}
        before = read_first(statements) if self.harmless else set()
        for node in walk_here(statements) if self.harmless else ():
            if not isinstance(node, cst.Name) or node.value not in before:
                continue
            fact = self.site.fact(node)
            if not fact.is_tensor or any(not _is_number(dtype) for dtype in fact.dtypes):
                continue
            harmless = self.harmless
            if not all(_is_float(dtype) for dtype in fact.dtypes):
                harmless = "0"
            elif harmless == _EYE and not fact.is_square:
                harmless = "1"
            parts = {"torch": self.site.torch, "x": node}
            value = expression(harmless, **parts) if "{" in harmless else expression(harmless)
            found[node.value] = expression(template, c=condition, h=value, **parts)
        return found

    def _used_after(self, node: cst.If, rest: Sequence[Statement]) -> set[str]:
        """Return the names that may be read after the branch."""
        used = read_names(rest)
        loops = [each for each in self.site.expressions(cst.For | cst.While) if any(p is node for p in walk_here(each))]
        outer = [each for each in self.site.expressions(cst.If | cst.With) if any(p is node for p in walk_here(each))]
        if loops or len(outer) > 1 or outer[:1] != [node]:
            # the statements after a continue are in the branch and, as before, behind it
            own = [node, *body_of(node.body), *orelse_of(node)]
            outside = replaced(self.site.function.body, dict.fromkeys(own, cst.SimpleStatementLine([cst.Pass()])))
            used |= read_names(outside) | read_names(node.test)
            used |= read_first(body_of(node.body)) | read_first(orelse_of(node))
        return used

    def _check_has_value(self, name: str, node: cst.If, yes: Side, no: Side) -> None:
        """Raise unless a name that only one side assigns has a value before the branch."""
        if name in yes.values and name in no.values:
            return
        line = self.site.place(node.test)[0]
        stored = [
            part for part in self.site.expressions(cst.BaseSmallStatement | cst.For | cst.AsName)
            if self.site.has_place(part) and self.site.place(part)[0] < line and name in stored_names(_head(part))
        ]  # fmt: skip
        if not stored and name not in self.site.parameters:
            raise CannotFix(f"{name!r} has a value only where the condition on line {line} takes one side")

    # -- a branch that returns

    def _returning(self, node: cst.If, rest: Sequence[Statement]) -> list[Statement]:
        sides = []
        for statements in (body_of(node.body), orelse_of(node)):
            whole = statements if ends_in_return(statements) else [*statements, *rest]
            sides.append(self.block(whole))
        if not self.is_chosen(node):
            made = node.with_changes(body=block_of(sides[0]), orelse=cst.Else(block_of(sides[1])))
            return [made]
        if not all(ends_in_return(side) for side in sides):
            raise CannotFix("one side of the branch returns a value and the other one nothing")
        condition = condition_of(self.site, node.test)
        made_lines: list[Statement] = []
        if self.harmless or any(len(side) > 1 or _is_nested(side) for side in sides):
            name = self.fresh("condition")
            made_lines.append(assignment(name, condition))
            condition = cst.Name(name)
        yes, no = (
            side_of(self, side, suffix, returns=True, guards=self._guards(side, condition, suffix))
            for side, suffix in zip(sides, ("if_true", "if_false"), strict=True)
        )
        made_lines += [*yes.statements, *no.statements, *yes.effects(self.site, condition, no)]
        assert yes.returned is not None
        assert no.returned is not None
        value = choice(self.site, condition, yes.returned, no.returned)
        made_lines.append(cst.SimpleStatementLine([cst.Return(value)]))
        return _with_comments(node, made_lines)


def _is_nested(side: Sequence[Statement]) -> bool:
    value = getattr(small_of(side[-1]), "value", None)
    return isinstance(value, cst.Tuple | cst.List | cst.Dict)


def _is_float(dtype: Any) -> bool:
    return isinstance(dtype, torch.dtype) and dtype.is_floating_point


def _is_number(dtype: Any) -> bool:
    return isinstance(dtype, torch.dtype) and dtype != torch.bool and not dtype.is_complex


def _head(part: cst.CSTNode) -> cst.CSTNode:
    """Return a loop without its body, for the names that its target assigns."""
    return part.with_changes(body=block_of([]), orelse=None) if isinstance(part, cst.For) else part


def _with_comments(node: cst.If, made: list[Statement]) -> list[Statement]:
    """Move the comments above the branch to its replacement."""
    if made and isinstance(made[0], cst.SimpleStatementLine):
        made[0] = made[0].with_changes(leading_lines=[*node.leading_lines, *made[0].leading_lines])
    return made


BRANCHES = Kind(
    "a branch on a tensor becomes torch.where",
    "both sides only compute values, and those of the side that is not taken do no harm",
    propose,
)
