"""``one_hot`` with a data-dependent number of classes becomes a comparison with the numbers of all classes."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from prepbench.fixes.kinds.kind import Kind
from prepbench.fixes.kinds.numbers import Numbers
from prepbench.fixes.site import Proposal, Site
from prepbench.fixes.syntax import Expression, atom, expression, replaced, text_of


def propose(site: Site) -> Iterator[Proposal]:
    """Propose to rewrite every call of ``one_hot`` whose number of classes comes from data."""
    numbers = Numbers(site)
    found: dict[cst.CSTNode, cst.CSTNode] = {}
    for call in site.expressions(cst.Call):
        if text_of(call.func).rpartition(".")[2] == "one_hot" and call.args:
            labels, count = _arguments(call)
            if site.fact(labels).is_tensor and (count is None or _is_data(site, numbers, count)):
                found[call] = _compared(site, labels, count)
    if found:
        yield Proposal(replaced(site.function, found))


def _arguments(call: cst.Call) -> tuple[Expression, Expression | None]:
    """Return the labels, and the number of classes; None for the number in the data."""
    named = {arg.keyword.value: arg.value for arg in call.args if arg.keyword is not None}
    plain = [arg.value for arg in call.args if arg.keyword is None]
    labels = plain[0] if plain else named["tensor"] if "tensor" in named else call.args[0].value
    count = plain[1] if len(plain) > 1 else named.get("num_classes")
    return labels, None if count is not None and text_of(count) == "-1" else count


def _is_data(site: Site, numbers: Numbers, count: Expression) -> bool:
    return site.fact(count).is_tensor or numbers.is_number(count)


def _compared(site: Site, labels: Expression, count: Expression | None) -> Expression:
    size = count if count is not None else expression("int({x}.max()) + 1", x=atom(labels))
    return expression(
        "({x}.unsqueeze(-1) == {torch}.arange({n}, device={x}.device)).long()",
        torch=site.torch, x=atom(labels), n=size,
    )  # fmt: skip


ONE_HOT = Kind(
    "one_hot with a size from data becomes a comparison",
    "no label is negative or beyond the number of classes",
    propose,
)
