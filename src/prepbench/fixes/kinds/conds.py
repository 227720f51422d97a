"""``if`` on a tensor whose side must not run when it is not taken: ``torch.cond`` in the graph, Python as before."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import libcst as cst

from prepbench.fixes import syntax
from prepbench.fixes.kinds.conditions import condition_of, depends_on_data
from prepbench.fixes.site import Kind, Proposal, Site
from prepbench.fixes.syntax import CannotFix, Expression, Statement

_COMPUTED = (cst.BinaryOperation, cst.UnaryOperation, cst.Comparison)
"""Operators whose results never share memory with an operand, as ``torch.cond`` requires."""


def propose(site: Site) -> Iterator[Proposal]:
    """Propose to rewrite the failing ``if``, where its sides assign names or where both return."""
    if isinstance(site.function, cst.Lambda):
        return
    found = [n for n in site.expressions(cst.If) if site.is_at_line(n.test) and depends_on_data(site, n.test)]
    if not found:
        return
    node = found[0]
    top = syntax.body_of(site.function.body)
    rest = top[top.index(node) + 1 :] if node in top else []
    sides = [syntax.body_of(node.body), syntax.orelse_of(node)]
    if any(isinstance(syntax.small_of(each), cst.Return) for side in sides for each in side):
        sides = [side if syntax.ends_in_return(side) else [*side, *rest] for side in sides]
        made: Any = _returning(site, node, sides)
    else:
        made = _assigning(site, node, sides)
    yield Proposal(syntax.replaced(site.function, {node: made}), (site.place(node.test),), is_compiling=True)


def _returning(site: Site, node: cst.If, sides: Sequence[Sequence[Statement]]) -> Any:
    values: list[Any] = [next(reversed(_checked(side)), None) for side in sides]
    if not all(isinstance(value, cst.Return) and value.value is not None for value in values):
        raise CannotFix("both ways must return a value")
    bodies = [[*side[:-1], _return(_own(value.value))] for side, value in zip(sides, values, strict=True)]
    *lines, call = _call(site, node, sides, bodies)
    block = syntax.block_of([*lines, _return(call)])
    guard = cst.If(_is_compiling(site), block, leading_lines=node.leading_lines)
    if any(other.orelse is node for other in site.expressions(cst.If)):
        return guard.with_changes(orelse=node.with_changes(leading_lines=()))
    return cst.FlattenSentinel([guard, node.with_changes(leading_lines=())])


def _assigning(site: Site, node: cst.If, sides: Sequence[Sequence[Statement]]) -> Any:
    for side in sides:
        _checked(side)
    outside = syntax.read_names(syntax.replaced(site.function.body, {node: cst.SimpleStatementLine([cst.Pass()])}))
    names = [name for name in syntax.stored_names([*sides[0], *sides[1]]) if name in outside]
    if not names:
        raise CannotFix("no value of the branch is used afterwards")
    known = _known_before(site, node)
    if any(name not in known and not all(name in syntax.stored_names(side) for side in sides) for name in names):
        raise CannotFix("a side does not assign what is used afterwards")
    bodies = []
    for side in sides:
        values = ", ".join(f"{name}.clone()" for name in names)
        bodies.append([*side, _return(cst.parse_expression(values if len(names) == 1 else f"({values})"))])
    *lines, call = _call(site, node, sides, bodies, names)
    target: Any = cst.Name(names[0])
    if len(names) > 1:
        target = cst.Tuple([cst.Element(cst.Name(name)) for name in names], lpar=[], rpar=[])
    chosen = cst.SimpleStatementLine([cst.Assign([cst.AssignTarget(target)], call)])
    return cst.If(
        _is_compiling(site), syntax.block_of([*lines, chosen]), node.with_changes(leading_lines=()), node.leading_lines
    )


def _checked(side: Sequence[Statement]) -> list[Any]:
    """Return the small statements of a side: assignments of names, and a ``return`` at its end."""
    found = [syntax.small_of(each) for each in side]
    for index, small in enumerate(found):
        if isinstance(small, cst.Return) and index == len(found) - 1:
            continue
        targets = [t.target for t in small.targets] if isinstance(small, cst.Assign) else [getattr(small, "target", 0)]
        plain = isinstance(small, cst.Assign | cst.AugAssign | cst.AnnAssign)
        if not plain or not all(_is_of_names(target) for target in targets):
            raise CannotFix("a side of the branch does more than compute values, which torch.cond does not take")
    return found


def _is_of_names(target: Any) -> bool:
    """Return whether an assignment's target is a name, or names in tuples and lists."""
    if isinstance(target, cst.Tuple | cst.List):
        return all(_is_of_names(each.value) for each in target.elements)
    return isinstance(target, cst.Name)


def _call(
    site: Site,
    node: cst.If,
    sides: Sequence[Sequence[Statement]],
    bodies: Sequence[Sequence[Statement]],
    wanted: Sequence[str] = (),
) -> list[Any]:
    """Return the two functions, and the call of ``torch.cond`` with the tensors that they read."""
    before = {name for side in sides for name in syntax.read_first(side)}
    before |= {name for name in wanted if not all(name in syntax.stored_names(side) for side in sides)}
    known, lines = _known_before(site, node), []
    stored = syntax.stored_names([*sides[0], *sides[1]])
    for name in sorted(before & known & set(stored)):
        if not _is_tensor(site, sides, name):
            raise CannotFix(f"a side assigns {name!r}, which is no tensor before")
    operands = sorted(name for name in before & known if _is_tensor(site, sides, name))
    functions: list[str] = []
    for base, body in zip(("if_true", "if_false"), bodies, strict=True):
        name = site.fresh(base, *functions)
        functions.append(name)
        parameters = cst.Parameters([cst.Param(cst.Name(operand)) for operand in operands])
        plain = [each.with_changes(leading_lines=()) for each in body]
        lines.append(cst.FunctionDef(cst.Name(name), parameters, syntax.block_of(plain)))
    condition = condition_of(site, node.test)
    given = f"({', '.join(operands)}{',' if len(operands) == 1 else ''})"
    call = syntax.expression(
        f"{{torch}}.cond({{c}}, {functions[0]}, {functions[1]}, {given})", torch=site.torch, c=condition
    )  # fmt: skip
    return [*lines, call]


def _known_before(site: Site, node: cst.If) -> set[str]:
    """Return the local names that have a value before a statement."""
    line = site.place(node.test)[0]
    kinds = (cst.Assign, cst.AugAssign, cst.AnnAssign, cst.For)
    stored = [
        each for each in site.expressions(kinds) if site.has_place(each) and site.place(each)[0] < line
    ]  # fmt: skip
    return site.parameters | {name for each in stored for name in syntax.stored_names(each)}


def _is_tensor(site: Site, sides: Sequence[Sequence[Statement]], name: str) -> bool:
    if name in site.facts.parameters and name not in syntax.stored_names(site.function.body):
        return site.facts.parameters[name].is_tensor
    reads = [n for side in sides for n in syntax.walk_here(side) if isinstance(n, cst.Name) and n.value == name]
    facts = [fact for fact in map(site.fact, reads) if fact.kinds]
    return bool(facts) and all(fact.is_tensor for fact in facts)


def _own(value: Expression) -> Expression:
    """Return a result that shares no memory with an operand."""
    if isinstance(value, cst.Tuple | cst.List):
        return value.with_changes(elements=[each.with_changes(value=_own(each.value)) for each in value.elements])
    if syntax.text_of(value) == "None":
        raise CannotFix("a side returns None, which torch.cond does not take")
    return value if isinstance(value, _COMPUTED) else syntax.expression("{v}.clone()", v=syntax.atom(value))


def _return(value: Expression) -> Statement:
    return cst.SimpleStatementLine([cst.Return(value)])


def _is_compiling(site: Site) -> Expression:
    return syntax.expression("{torch}.compiler.is_compiling()", torch=site.torch)


CONDS = Kind(
    "a branch whose sides must not both run becomes torch.cond",
    "both sides give tensors of the same form; in Python the branch stays as it is",
    propose,
)
