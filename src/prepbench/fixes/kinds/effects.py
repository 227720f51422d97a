"""Side effects such as printing and logging are skipped during tracing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import libcst as cst
import torch

from prepbench.fixes import syntax
from prepbench.fixes.site import Kind, Proposal, Site
from prepbench.fixes.syntax import Statement

_LOGGING = {"debug", "info", "warning", "warn", "error", "critical", "exception", "log"}
_KEEPING = {"append", "add", "update", "extend", "add_scalar", "write", "flush"}


def propose(site: Site) -> Iterator[Proposal]:
    """Propose to skip the outermost statements around the failing line that only print or record something."""
    if isinstance(site.function, cst.Lambda):
        return
    found: dict[cst.CSTNode, cst.CSTNode] = {}
    for node in site.expressions(cst.If | cst.SimpleStatementLine):
        inside = any(_is_inside(site, node, other) for other in found)
        if not inside and site.is_at_line(node) and is_effect(site, node):
            found[node] = _guarded(site, node)
    if found:
        yield Proposal(syntax.replaced(site.function, found), is_compiling=True)


def _is_inside(site: Site, node: cst.CSTNode, other: cst.CSTNode) -> bool:
    first, _, last, _ = site.place(other)
    return first <= site.place(node)[0] and site.place(node)[2] <= last


def is_effect(site: Site, node: cst.CSTNode) -> bool:
    """Return whether a statement computes nothing that the function needs."""
    if isinstance(node, cst.If):
        return _are_effects(site, syntax.body_of(node.body)) and _are_effects(site, syntax.orelse_of(node))
    small = syntax.small_of(node) if isinstance(node, cst.SimpleStatementLine) else None
    if isinstance(small, cst.Pass):
        return True
    if isinstance(small, cst.Expr):
        return isinstance(small.value, cst.Call) and _tells(site, small.value)
    return isinstance(small, cst.Assign | cst.AugAssign) and _notes(site, small)


def _are_effects(site: Site, statements: Sequence[Statement]) -> bool:
    return all(is_effect(site, each) for each in statements)


def _tells(site: Site, call: cst.Call) -> bool:
    name = syntax.text_of(call.func)
    if name == "print" or name.endswith("warnings.warn"):
        return True
    if not isinstance(call.func, cst.Attribute):
        return False
    method, owner = call.func.attr.value, call.func.value
    fact = site.fact(owner)
    if method in _LOGGING:
        return not fact.is_tensor
    return method in _KEEPING and not fact.is_tensor and _is_own(owner)


def _notes(site: Site, small: Any) -> bool:
    """Return whether a statement stores a number on the module that the rest of the function does not read."""
    targets = [target.target for target in small.targets] if isinstance(small, cst.Assign) else [small.target]
    reads = [syntax.text_of(node) for node in site.expressions(cst.Attribute | cst.Subscript)]
    for target in targets:
        if not _is_own(target) or site.fact(small.value).is_tensor or _holds_tensor(site, target):
            return False
        if reads.count(syntax.text_of(target)) > 1:
            return False
    return True


def _holds_tensor(site: Site, target: cst.CSTNode) -> bool:
    """Return whether an attribute is a tensor, such as a buffer, which is part of the result."""
    if not isinstance(target, cst.Attribute):
        return False
    owners = site.fact(target.value).values
    return any(isinstance(getattr(owner, target.attr.value, None), torch.Tensor) for owner in owners)


def _is_own(node: cst.CSTNode) -> bool:
    """Return whether something belongs to the module: ``self.history``, ``self.stats["loss"]``."""
    while isinstance(node, cst.Attribute | cst.Subscript):
        node = node.value
    return isinstance(node, cst.Name) and node.value == "self"


def _guarded(site: Site, node: Any) -> cst.If:
    if isinstance(node, cst.If) and node.orelse is None:
        test = syntax.expression(
            "not {torch}.compiler.is_compiling() and {test}", torch=site.torch, test=syntax.atom(node.test)
        )
        return node.with_changes(test=test)
    made: cst.If = syntax.statement("if not {torch}.compiler.is_compiling():\n    pass", torch=site.torch)
    body = cst.IndentedBlock([node.with_changes(leading_lines=())])
    return made.with_changes(body=body, leading_lines=node.leading_lines)


EFFECTS = Kind(
    "what is printed, logged or counted is left out of the graph",
    "it is for people, and no result depends on it",
    propose,
)
