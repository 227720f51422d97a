"""One module of several, chosen by data: all are called, and the result is chosen."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst
from torch import nn

from prepbench.fixes.kinds.kind import Kind
from prepbench.fixes.kinds.numbers import Numbers
from prepbench.fixes.site import Proposal, Site
from prepbench.fixes.syntax import atom, expression, replaced


def propose(site: Site) -> Iterator[Proposal]:
    """Every call ``self.experts[index](x)`` whose index comes from data."""
    numbers = Numbers(site)
    found: dict[cst.CSTNode, cst.CSTNode] = {}
    for call in site.expressions(cst.Call):
        owner = call.func
        if not isinstance(owner, cst.Subscript) or len(owner.slice) != 1:
            continue
        index = owner.slice[0].slice
        if not isinstance(index, cst.Index) or not _are_modules(site, owner.value):
            continue
        if site.fact(index.value).is_tensor or numbers.is_number(index.value):
            each = site.fresh("each")
            one = cst.Call(cst.Name(each), call.args)
            new = numbers.tensor(index.value)
            found[call] = expression(
                f"{{torch}}.stack([{{one}} for {each} in {{all}}]).index_select(0, {{index}}.reshape(1)).squeeze(0)",
                torch=site.torch, one=one, all=owner.value, index=atom(new),
            )  # fmt: skip
    if found:
        function = replaced(site.function, found)
        yield Proposal(function)


def _are_modules(site: Site, node: cst.CSTNode) -> bool:
    values = site.fact(node).values
    return bool(values) and all(
        isinstance(value, nn.ModuleList | nn.Sequential | list | tuple) and all(map(callable, value))
        for value in values
    )


CHOSEN_MODULES = Kind(
    "all modules are called, and the result of one is chosen",
    "the modules only compute values, of one shape and dtype",
    propose,
)
