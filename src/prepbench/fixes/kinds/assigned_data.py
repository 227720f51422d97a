"""``layer.weight.data = value`` in forward: the layer is called with the value, and the graph skips the assignment."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import libcst as cst
from torch import nn

from prepbench.fixes import syntax
from prepbench.fixes.kinds.branches import with_body
from prepbench.fixes.site import Kind, Proposal, Site
from prepbench.fixes.syntax import CannotFix, Expression, Statement


def propose_assigned_data(site: Site) -> Iterator[Proposal]:
    """Propose to rewrite assignments to ``.data`` of parameters, and reads of ``.data``."""
    if isinstance(site.function, cst.Lambda):
        return
    written: dict[str, str] = {}
    try:
        body = _block(site, syntax.body_of(site.function.body), written)
    except CannotFix:
        yield from _copied(site)
        raise
    reads = [node for node in site.expressions(cst.Attribute) if node.attr.value == "data" and _is_tensor(site, node)]
    if not written:
        yield from _copied(site)
    if not written and not reads:
        return
    yield Proposal(with_body(site.function, _with_values(site, body, written)), is_compiling=bool(written))


def _copied(site: Site) -> Iterator[Proposal]:
    """Propose every ``tensor.data = value`` as an in-place copy, which the graph can express."""
    found: dict[cst.CSTNode, cst.CSTNode] = {}
    for line in site.expressions(cst.SimpleStatementLine):
        small = syntax.small_of(line)
        target = small.targets[0].target if isinstance(small, cst.Assign) and len(small.targets) == 1 else None
        if (
            not isinstance(target, cst.Attribute)
            or target.attr.value != "data"
            or not site.fact(target.value).is_tensor
        ):
            continue
        copied = syntax.expression(
            "{x}.detach().copy_({v})", x=syntax.atom(target.value), v=syntax.bare(_without_data(site, small.value))
        )
        found[line] = cst.SimpleStatementLine([cst.Expr(copied)], leading_lines=line.leading_lines)
    if found:
        yield Proposal(_without_data(site, syntax.replaced(site.function, found)))


def _without_data(site: Site, node: cst.CSTNode) -> Any:
    """Replace every ``x.data`` that is read by ``x.detach()``."""
    reads = [each for each in syntax.walk_here(node) if isinstance(each, cst.Attribute) and each.attr.value == "data"]
    known = [each for each in reads if site.has_place(each) and _is_tensor(site, each)]
    return syntax.replaced(node, {each: syntax.expression("{x}.detach()", x=syntax.atom(each.value)) for each in known})


def _is_tensor(site: Site, node: cst.Attribute) -> bool:
    return site.fact(node.value).is_tensor and site.has_place(node)


def _block(site: Site, statements: list[Statement], written: dict[str, str]) -> list[Statement]:
    """Name each new value; the assignment itself runs only in Python."""
    made: list[Statement] = []
    for each in statements:
        target = _assigned(site, each)
        if target is not None:
            made += _named(site, each, target, written)
        elif isinstance(each, cst.With):
            made.append(each.with_changes(body=syntax.block_of(_block(site, syntax.body_of(each.body), written))))
        elif any(_assigned(site, part) is not None for part in syntax.walk_here(each) if isinstance(part, Statement)):
            raise CannotFix("a parameter is assigned in a part of the function that does not always run")
        else:
            made.append(each)
    return made


def _assigned(site: Site, each: cst.CSTNode) -> cst.Attribute | None:
    """Return the parameter of ``parameter.data = value``."""
    small = syntax.small_of(each) if isinstance(each, cst.SimpleStatementLine) else None
    if not isinstance(small, cst.Assign) or len(small.targets) != 1:
        return None
    target = small.targets[0].target
    if (
        not isinstance(target, cst.Attribute)
        or target.attr.value != "data"
        or not isinstance(target.value, cst.Attribute)
    ):
        return None
    values = site.fact(target.value).values
    return target.value if values and all(isinstance(value, nn.Parameter) for value in values) else None


def _named(site: Site, each: Statement, target: cst.Attribute, written: dict[str, str]) -> list[Statement]:
    key = syntax.text_of(target)
    if key in written:
        raise CannotFix(f"{key} is assigned more than once")
    name = site.fresh(target.attr.value, *written.values())
    written[key] = name
    lines = getattr(each, "leading_lines", ())
    first = syntax.assignment(name, syntax.small_of(each).value).with_changes(leading_lines=lines)
    kept: Statement = syntax.statement(
        f"if not {{torch}}.compiler.is_compiling():\n    {{p}}.data = {name}.detach()", torch=site.torch, p=target
    )
    return [first, kept]


def _with_values(site: Site, body: list[Statement], written: dict[str, str]) -> list[Statement]:
    """Call layers with the new values, and replace other reads by them."""
    made = []
    known: dict[str, str] = {}
    for each in body:
        made.append(_with_reads(site, each, known))
        names = {syntax.text_of(node) for node in syntax.walk_here(each) if isinstance(node, cst.Name)}
        known |= {key: name for key, name in written.items() if name in names}
    return made


def _with_reads(site: Site, each: Statement, known: dict[str, str]) -> Statement:
    found: dict[cst.CSTNode, cst.CSTNode] = {}
    for node in syntax.walk_traced(each):
        if isinstance(node, cst.Attribute) and node.attr.value == "data" and _is_tensor(site, node):
            found[node] = syntax.expression("{x}.detach()", x=syntax.atom(node.value))
        elif isinstance(node, cst.Attribute) and syntax.text_of(node) in known:
            found[node] = syntax.atom(_value(node, known[syntax.text_of(node)]))
        elif isinstance(node, cst.Call):
            prefix = f"{syntax.text_of(node.func)}."
            values = {key.removeprefix(prefix): name for key, name in known.items() if key.startswith(prefix)}
            if values and not any("." in key for key in values):
                found[node] = _called_with(site, node, values)
    changed: Statement = syntax.replaced(each, found)
    return changed


def _called_with(site: Site, call: cst.Call, values: dict[str, str]) -> cst.BaseExpression:
    if any(arg.keyword is not None or arg.star for arg in call.args):
        raise CannotFix("the layer is called with keywords")
    pairs = [(key, _value(cst.Attribute(call.func, cst.Name(key)), name)) for key, name in values.items()]
    table = ", ".join(f'"{key}": {syntax.text_of(value)}' for key, value in pairs)
    elements = [cst.Element(arg.value) for arg in call.args]
    return syntax.expression(
        "{torch}.func.functional_call({m}, {table}, {args})",
        torch=site.torch, m=call.func, table="{" + table + "}", args=cst.Tuple(elements),
    )  # fmt: skip


def _value(parameter: cst.Attribute, name: str) -> cst.BaseExpression:
    """Return the new value, with a gradient that goes to the parameter, as for its new data."""
    return syntax.expression(f"{{p}} + ({name} - {{p}}).detach()", p=parameter)


ASSIGNED_DATA = Kind(
    "a parameter that forward assigns becomes a functional call",
    "the graph computes with the new value and leaves the parameter as it is",
    propose_assigned_data,
)


def propose_copies(site: Site) -> Iterator[Proposal]:
    """Propose to rewrite every ``copy.deepcopy`` of the function."""
    found: dict[cst.CSTNode, cst.CSTNode] = {}
    for call in site.expressions(cst.Call):
        if syntax.text_of(call.func) in ("copy.deepcopy", "deepcopy", "copy.copy") and len(call.args) == 1:
            new = _copied_call(site, call.args[0].value)
            if new is not None:
                found[call] = new
    if found:
        yield Proposal(syntax.replaced(site.function, found))


def _copied_call(site: Site, value: Expression) -> Expression | None:
    fact = site.fact(value)
    if fact.is_tensor:
        return syntax.expression("{x}.detach().clone()", x=syntax.atom(value))
    if fact.values and all(isinstance(each, nn.Module) for each in fact.values):
        name = site.fresh("name")
        return syntax.expression(
            f"lambda *args: {{torch}}.func.functional_call({{m}}, {{{name}: value.detach() for {name}, value in "
            f"{{m}}.named_parameters()}}, args)",
            torch=site.torch, m=value,
        )  # fmt: skip
    return None


COPIES = Kind(
    "a copy of a module becomes a functional call",
    "the copy is only called, and what is written into it is not read",
    propose_copies,
)
