"""Reads of ``x[:, i]`` in a loop that may count beyond the tensor's size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import libcst as cst

from prepbench.fixes.site import Site
from prepbench.fixes.syntax import Statement, expression, text_of, walk_here


def counted_reads(site: Site, node: cst.For) -> dict[cst.Subscript, int]:
    """The reads of ``x[:, i]`` in a loop that counts ``i``, with the dim that it counts along."""
    name, found = text_of(node.target), {}
    for part in walk_here(node.body):
        if isinstance(part, cst.Subscript) and site.fact(part).is_tensor and site.fact(part.value).is_tensor:
            slices = [element.slice for element in part.slice]
            at = [i for i, each in enumerate(slices) if isinstance(each, cst.Index) and text_of(each.value) == name]
            if at and all(_is_full(each) for each in slices[: at[0]]):
                found[part] = at[0]
    return found


def _is_full(each: cst.BaseSlice) -> bool:
    return isinstance(each, cst.Slice) and each.lower is None and each.upper is None


class Clamped(cst.CSTTransformer):
    """Reads ``x[:, i]`` at the last row where there is none of that number."""

    def __init__(self, site: Site, name: str, reads: Mapping[cst.Subscript, int]) -> None:
        super().__init__()
        self._site, self._name = site, name
        self._reads = {text_of(part): at for part, at in reads.items()}

    def block(self, statements: Sequence[Statement]) -> list[Statement]:
        """Statements with such reads."""
        made: Any = [each.visit(self) for each in statements]
        return list(made)

    def leave_Subscript(self, original_node: cst.Subscript, updated_node: cst.Subscript) -> cst.Subscript:
        at = self._reads.get(text_of(original_node))
        if at is None:
            return updated_node
        last = expression(
            f"{{torch}}.sym_min({self._name}, {{x}}.shape[{at}] - 1)", torch=self._site.torch, x=updated_node.value
        )
        elements = list(updated_node.slice)
        elements[at] = elements[at].with_changes(slice=cst.Index(last))
        return updated_node.with_changes(slice=elements)
