"""Named conditions: ``done = bool(error < tolerance) or steps >= 30`` stays a tensor."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from prepbench.fixes.kinds.conditions import condition_of, depends_on_data
from prepbench.fixes.kinds.kind import Kind
from prepbench.fixes.site import Proposal, Site
from prepbench.fixes.syntax import replaced, text_of


def propose(site: Site) -> Iterator[Proposal]:
    """Propose to rewrite every data-dependent condition of the function that is assigned to a name."""
    if isinstance(site.function, cst.Lambda):
        return
    found: dict[cst.CSTNode, cst.CSTNode] = {}
    for node in site.expressions(cst.Assign):
        value = node.value
        is_answer = isinstance(value, cst.BooleanOperation | cst.UnaryOperation) or (
            isinstance(value, cst.Call) and text_of(value.func) in ("bool", "any", "all")
        )
        if (
            is_answer
            and site.fact(value).kinds & {"bool", "Tensor"}
            and _is_not(value)
            and depends_on_data(site, value)
        ):
            found[value] = condition_of(site, value)
    if found:
        yield Proposal(replaced(site.function, found))


def _is_not(value: cst.BaseExpression) -> bool:
    """Return whether a unary operation is ``not``."""
    return not isinstance(value, cst.UnaryOperation) or isinstance(value.operator, cst.Not)


FLAGS = Kind(
    "an answer with a name stays a tensor",
    "nothing needs it as a Python bool",
    propose,
)
