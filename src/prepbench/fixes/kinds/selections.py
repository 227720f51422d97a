"""Selections whose size data decides: tests for an empty one, and the number of selected elements."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import libcst as cst
import torch

from prepbench.fixes import syntax
from prepbench.fixes.site import Kind, Proposal, Site
from prepbench.fixes.syntax import Expression, Statement

_COUNT = r"(len\(.+\)|.+\.(numel\(\)|sum\(\)|count_nonzero\(\)|shape\[0\]|size\(0\)))"
_SOME = re.compile(rf"^{_COUNT}(>0|!=0|>=1)?$|^.+\.any\(\)$|^\w+\.any\(.+\)$")
_NONE = re.compile(rf"^{_COUNT}(==0|<1|<=0)$")


def propose_empty_selections(site: Site) -> Iterator[Proposal]:
    """Propose to drop the function's tests for an empty selection."""
    if isinstance(site.function, cst.Lambda):
        return
    names = _counts(site)
    found: dict[cst.If, bool] = {}
    # the statements after an elif depend on the condition before it
    elifs = {node.orelse for node in site.expressions(cst.If)}
    for node in (each for each in site.expressions(cst.If) if each not in elifs):
        answer = _asks_for_rows(node.test, names)
        body = syntax.body_of(node.body)
        if answer and not syntax.has_exit(node.body, cst.Break, cst.Continue, cst.Raise, cst.Return):
            found[node] = True
        elif (
            answer is False and node.orelse is None and isinstance(syntax.small_of(body[-1]), cst.Continue | cst.Return)
        ):
            found[node] = False
    if found:
        function: Any = site.function.visit(_Opened(found))
        yield Proposal(function, tuple(site.place(node.test) for node in found))


def _counts(site: Site) -> dict[str, str]:
    """Return the values of the names that have only one."""
    texts: dict[str, list[str]] = {}
    for node in site.expressions(cst.Assign):
        for target in node.targets:
            texts.setdefault(syntax.text_of(target.target), []).append(_plain(node.value))
    return {name: values[0] for name, values in texts.items() if len(values) == 1 and name.isidentifier()}


def _plain(node: cst.CSTNode) -> str:
    text = syntax.text_of(node).replace(" ", "").replace(".item()", "")
    return re.sub(r"^(int|bool)\((.+)\)$", r"\2", text)


def _asks_for_rows(test: cst.BaseExpression, names: Mapping[str, str]) -> bool | None:
    """Return True if a test asks for rows, False if it asks for their absence, else None."""
    if isinstance(test, cst.UnaryOperation) and isinstance(test.operator, cst.Not):
        answer = _asks_for_rows(test.expression, names)
        return None if answer is None else not answer
    text = _plain(test)
    first = re.match(r"^[A-Za-z_]\w*", text)
    if first and first.group() in names and re.match(r"^[A-Za-z_]\w*([<>=!]=?\d)?$", text):
        text = names[first.group()] + text[first.end() :]
    if _NONE.match(text):
        return False
    return True if _SOME.match(text) else None


class _Opened(cst.CSTTransformer):
    """Inlines the statements of some branches, or drops those for an empty selection."""

    def __init__(self, chosen: Mapping[cst.If, bool]) -> None:
        super().__init__()
        self._chosen = chosen

    def leave_If(
        self, original_node: cst.If, updated_node: cst.If
    ) -> cst.BaseStatement | cst.FlattenSentinel[cst.BaseStatement] | cst.RemovalSentinel:
        if original_node not in self._chosen:
            return updated_node
        if not self._chosen[original_node]:
            return cst.RemoveFromParent()
        first, *rest = syntax.body_of(updated_node.body)
        lines = [*updated_node.leading_lines, *getattr(first, "leading_lines", ())]
        opened: list[Statement] = [first.with_changes(leading_lines=lines), *rest]
        return cst.FlattenSentinel(opened)


EMPTY_SELECTIONS = Kind(
    "work on a selection is done also where nothing is selected",
    "with no rows it changes nothing",
    propose_empty_selections,
)


_COUNTS = (".numel()", ".shape[0]", ".size(0)")


def propose_counts(site: Site) -> Iterator[Proposal]:
    """Propose to rewrite every count of selected elements."""
    assigned = site.expressions(cst.Assign)
    masks = {}
    for node in assigned:
        mask = _mask_of(site, node.value)
        name = syntax.text_of(node.targets[0].target)
        if mask is not None and sum(syntax.text_of(other.targets[0].target) == name for other in assigned) == 1:
            masks[name] = mask
    found: dict[cst.CSTNode, cst.CSTNode] = {}
    for node in site.expressions(cst.Call | cst.Subscript):
        counted = _counted(node)
        if counted is None:
            continue
        mask = masks.get(syntax.text_of(counted)) or _mask_of(site, counted)
        if mask is not None:
            found[node] = syntax.expression("{m}.sum()", m=syntax.atom(mask))
    if found:
        yield Proposal(syntax.replaced(site.function, found))


def _counted(node: cst.CSTNode) -> Expression | None:
    """Return the counted expression; None for other nodes."""
    text = syntax.text_of(node)
    if isinstance(node, cst.Call) and syntax.text_of(node.func) == "len" and len(node.args) == 1:
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
        return syntax.bare(mask) if fact.is_tensor and fact.dtypes == {torch.bool} and is_whole else None
    is_call = isinstance(node, cst.Call) and syntax.text_of(node.func).endswith(("nonzero", "masked_select"))
    if not is_call or not isinstance(node, cst.Call):
        return None
    values = [arg.value for arg in node.args] or ([node.func.value] if isinstance(node.func, cst.Attribute) else [])
    masks = [value for value in values if site.fact(value).dtypes == {torch.bool}]
    return syntax.bare(masks[-1]) if masks else None


SELECTION_COUNTS = Kind(
    "how much a mask selects becomes a sum of the mask",
    "the count is used as a number only",
    propose_counts,
)
