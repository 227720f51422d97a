"""What verifying an axis found, in a few words: "equal at 1, 2, 7", "height at least 3"."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from prepbench.capture.aten.verification import AxisResult
from prepbench.capture.sizes.conditions import SizeCondition

_ROLES = {"sequence": "length", "past": "length", "total": "length"}
_FORMULA = set("*/%+(")
_SHORTER = (" is at ", " at "), (" must be at ", " at "), (" always equals ", " equals "), (" == ", " only ")


def verified_words(results: Sequence[AxisResult]) -> tuple[str, str]:
    """Return what was found of an axis in words, and where a limit comes from; "" for none.

    Args:
        results: of all dims that the axis stands for; the worst one is told.

    Example:
        >>> verified_words([AxisResult("x", 2, "height", "holds", held=(1, 5))])
        ('✓ equal at 1, 5', '')
        >>> verified_words([AxisResult("x", 2, "height", "bounded", held=(5,), refused=(1, 2))])
        ('height at least 3', '')
    """
    failed = [result for result in results if result.status not in ("holds", "untried")]
    result = next(iter([*failed, *results]), None)
    if result is None:
        return "", ""
    if result.status == "holds":
        return (f"✓ equal at {_listed(result.held)}" if result.held else "✓"), ""
    if result.status == "untried":
        return "not tried: the model itself takes no other size", ""
    if result.status == "wrong":
        return f"differs from the model at {_listed(result.wrong)}", result.reason
    condition = next((one for one in result.conditions if _readable(one, result)), None)
    reason = next((str(one) for one in result.conditions), result.reason)
    return _limit(result) if condition is None else _shorter(condition, result), reason


def _readable(condition: SizeCondition, result: AxisResult) -> bool:
    """Return whether a condition is about the axis in words, and not a formula."""
    rest = functools.reduce(lambda left, name: left.replace(name, ""), condition.sizes, condition.text)
    return condition.text != rest and _FORMULA.isdisjoint(rest)


def _shorter(condition: SizeCondition, result: AxisResult) -> str:
    text = condition.text
    for name in condition.sizes:
        role = _role(result) if name == f"{result.path}.shape[{result.dim}]" else name
        text = text.replace(name, role)
    return functools.reduce(lambda said, pair: said.replace(*pair), _SHORTER, text)


def _limit(result: AxisResult) -> str:
    """Return the limit as the sizes tell it that were tried."""
    role, (least, most) = _role(result), result.range or (0, None)
    if result.status == "specialised" or least == most:
        return f"{role} only {least}" if least == most else f"{role} takes one size only"
    refused = result.refused
    if refused and max(refused) < min(result.held, default=max(refused) + 1):
        return f"{role} at least {max(refused) + 1}"
    return f"{role} not {_listed(refused)}" if refused else f"{role} is limited"


def _role(result: AxisResult) -> str:
    role = result.symbol.partition("_")[0]
    return _ROLES.get(role, role) or f"dim {result.dim}"


def _listed(sizes: Sequence[int]) -> str:
    return ", ".join(map(str, sizes))
