"""Copies of modules and tensors in forward: a functional call with parameters that carry no gradient, and a clone."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst
from torch import nn

from prepbench.fixes.kinds.kind import Kind
from prepbench.fixes.site import Proposal, Site
from prepbench.fixes.syntax import Expression, atom, expression, replaced, text_of


def propose(site: Site) -> Iterator[Proposal]:
    """Propose to rewrite every ``copy.deepcopy`` of the function."""
    found: dict[cst.CSTNode, cst.CSTNode] = {}
    for call in site.expressions(cst.Call):
        if text_of(call.func) in ("copy.deepcopy", "deepcopy", "copy.copy") and len(call.args) == 1:
            new = _copied(site, call.args[0].value)
            if new is not None:
                found[call] = new
    if found:
        yield Proposal(replaced(site.function, found))


def _copied(site: Site, value: Expression) -> Expression | None:
    fact = site.fact(value)
    if fact.is_tensor:
        return expression("{x}.detach().clone()", x=atom(value))
    if fact.values and all(isinstance(each, nn.Module) for each in fact.values):
        name = site.fresh("name")
        return expression(
            f"lambda *args: {{torch}}.func.functional_call({{m}}, {{{name}: value.detach() for {name}, value in "
            f"{{m}}.named_parameters()}}, args)",
            torch=site.torch, m=value,
        )  # fmt: skip
    return None


COPIES = Kind(
    "a copy of a module becomes a functional call",
    "the copy is only called, and what is written into it is not read",
    propose,
)
