"""The number of selected elements as a sum of the mask: ``x[mask].numel()``, ``len(torch.nonzero(mask))``."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst
import torch

from prepbench.fixes.kinds.kind import Kind
from prepbench.fixes.site import Proposal, Site
from prepbench.fixes.syntax import Expression, atom, bare, expression, replaced, text_of

_COUNTS = (".numel()", ".shape[0]", ".size(0)")


def propose(site: Site) -> Iterator[Proposal]:
    """Propose to rewrite every count of selected elements."""
    assigned = site.expressions(cst.Assign)
    masks = {}
    for node in assigned:
        mask = _mask_of(site, node.value)
        name = text_of(node.targets[0].target)
        if mask is not None and sum(text_of(other.targets[0].target) == name for other in assigned) == 1:
            masks[name] = mask
    found: dict[cst.CSTNode, cst.CSTNode] = {}
    for node in site.expressions(cst.Call | cst.Subscript):
        counted = _counted(node)
        if counted is None:
            continue
        mask = masks.get(text_of(counted)) or _mask_of(site, counted)
        if mask is not None:
            found[node] = expression("{m}.sum()", m=atom(mask))
    if found:
        yield Proposal(replaced(site.function, found))


def _counted(node: cst.CSTNode) -> Expression | None:
    """Return the counted expression; None for other nodes."""
    text = text_of(node)
    if isinstance(node, cst.Call) and text_of(node.func) == "len" and len(node.args) == 1:
        return node.args[0].value
    if isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute) and text.endswith(_COUNTS):
        return node.func.value
    if isinstance(node, cst.Subscript) and text.endswith(_COUNTS) and isinstance(node.value, cst.Attribute):
        return node.value.value
    return None


def _mask_of(site: Site, node: cst.CSTNode) -> Expression | None:
    """Return the mask that selected a value."""
    if isinstance(node, cst.Subscript) and len(node.slice) == 1 and isinstance(node.slice[0].slice, cst.Index):
        mask, fact = node.slice[0].slice.value, site.fact(node.slice[0].slice.value)
        is_whole = fact.dims == site.fact(node.value).dims or fact.dims == {1}
        return bare(mask) if fact.is_tensor and fact.dtypes == {torch.bool} and is_whole else None
    is_call = isinstance(node, cst.Call) and text_of(node.func).endswith(("nonzero", "masked_select"))
    if not is_call or not isinstance(node, cst.Call):
        return None
    values = [arg.value for arg in node.args] or ([node.func.value] if isinstance(node.func, cst.Attribute) else [])
    masks = [value for value in values if site.fact(value).dtypes == {torch.bool}]
    return bare(masks[-1]) if masks else None


SELECTION_COUNTS = Kind(
    "how much a mask selects becomes a sum of the mask",
    "the count is used as a number only",
    propose,
)
