"""Tests for an empty selection: the work does nothing without rows, so it is always done."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import libcst as cst

from prepbench.fixes.kinds.kind import Kind
from prepbench.fixes.site import Proposal, Site
from prepbench.fixes.syntax import Statement, body_of, has_exit, small_of, text_of

_COUNT = r"(len\(.+\)|.+\.(numel\(\)|sum\(\)|count_nonzero\(\)|shape\[0\]|size\(0\)))"
_SOME = re.compile(rf"^{_COUNT}(>0|!=0|>=1)?$|^.+\.any\(\)$|^\w+\.any\(.+\)$")
_NONE = re.compile(rf"^{_COUNT}(==0|<1|<=0)$")


def propose(site: Site) -> Iterator[Proposal]:
    """Propose to drop the function's tests for an empty selection."""
    if isinstance(site.function, cst.Lambda):
        return
    names = _counts(site)
    found: dict[cst.If, bool] = {}
    # the statements after an elif depend on the condition before it
    elifs = {node.orelse for node in site.expressions(cst.If)}
    for node in (each for each in site.expressions(cst.If) if each not in elifs):
        answer = _asks_for_rows(node.test, names)
        body = body_of(node.body)
        if answer and not has_exit(node.body, cst.Break, cst.Continue, cst.Raise, cst.Return):
            found[node] = True
        elif answer is False and node.orelse is None and isinstance(small_of(body[-1]), cst.Continue | cst.Return):
            found[node] = False
    if found:
        function: Any = site.function.visit(_Opened(found))
        yield Proposal(function, tuple(site.place(node.test) for node in found))


def _counts(site: Site) -> dict[str, str]:
    """Return the values of the names that have only one."""
    texts: dict[str, list[str]] = {}
    for node in site.expressions(cst.Assign):
        for target in node.targets:
            texts.setdefault(text_of(target.target), []).append(_plain(node.value))
    return {name: values[0] for name, values in texts.items() if len(values) == 1 and name.isidentifier()}


def _plain(node: cst.CSTNode) -> str:
    text = text_of(node).replace(" ", "").replace(".item()", "")
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
        first, *rest = body_of(updated_node.body)
        lines = [*updated_node.leading_lines, *getattr(first, "leading_lines", ())]
        opened: list[Statement] = [first.with_changes(leading_lines=lines), *rest]
        return cst.FlattenSentinel(opened)


EMPTY_SELECTIONS = Kind(
    "work on a selection is done also where nothing is selected",
    "with no rows it changes nothing",
    propose,
)
