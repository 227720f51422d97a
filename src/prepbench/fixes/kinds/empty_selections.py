"""``if selected.numel() > 0`` around work on a selection: without rows the work does nothing, so it is always done."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import libcst as cst

from prepbench.fixes.cannot_fix import CannotFix
from prepbench.fixes.kinds.kind import Kind
from prepbench.fixes.site import Proposal, Site
from prepbench.fixes.syntax import body_of, has_exit, text_of


def propose(site: Site) -> Iterator[Proposal]:
    """The guards of the function that ask whether something was selected."""
    if isinstance(site.function, cst.Lambda):
        return
    found = [node for node in site.expressions(cst.If) if _asks_for_rows(site, node)]
    if not found:
        return
    if any(has_exit(node.body, cst.Return, cst.Break, cst.Continue, cst.Raise) for node in found):
        raise CannotFix("what is done with the selection leaves the block")
    function: Any = site.function.visit(_Opened(found))
    yield Proposal(function, tuple(site.place(node.test) for node in found))


def _asks_for_rows(site: Site, node: cst.If) -> bool:
    if node.orelse is not None:
        return False
    test = text_of(node.test).replace(" ", "")
    asks = test.endswith((".numel()>0", ".numel()", ".any()", ".sum()>0", ".shape[0]>0", ".size(0)>0", ".numel()!=0"))
    return asks or (test.startswith("len(") and test.endswith((")", ")>0", ")!=0")))


class _Opened(cst.CSTTransformer):
    """Puts the statements of some branches in their place."""

    def __init__(self, chosen: list[cst.If]) -> None:
        super().__init__()
        self._chosen = set(chosen)

    def leave_If(self, original_node: cst.If, updated_node: cst.If) -> cst.BaseStatement | cst.FlattenSentinel:  # type: ignore[type-arg]
        if original_node not in self._chosen:
            return updated_node
        body = body_of(updated_node.body)
        body[0] = body[0].with_changes(leading_lines=[*updated_node.leading_lines, *body[0].leading_lines])  # type: ignore[attr-defined]
        return cst.FlattenSentinel(body)


EMPTY_SELECTIONS = Kind(
    "work on a selection is done also where nothing is selected",
    "with no rows it changes nothing",
    propose,
)
