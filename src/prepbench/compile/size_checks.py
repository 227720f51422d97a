"""The conditions on sizes of a compiled graph, checked in each call by one function."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from prepbench.capture.sizes.conditions import SizeCondition
from prepbench.capture.sizes.size_formulas import UNDEFINED, check_function
from prepbench.errors import ConditionError

_NEAR = 4096


class SizeChecks:
    """Refuses calls of sizes for which the graph is not known to equal the model.

    Args:
        conditions: what they must fulfil.
    """

    def __init__(self, conditions: Sequence[SizeCondition]) -> None:
        self._conditions = [condition for condition in conditions if condition.formula]
        self._hold = check_function((condition.formula, condition.places) for condition in self._conditions)

    def __call__(self, leaves: Sequence[Any]) -> None:
        """Look at the leaves of one call.

        Raises:
            ConditionError: a condition is broken.
        """
        try:
            if self._hold(leaves):
                return
        except UNDEFINED:  # a condition divides by a size of 0
            pass
        for condition in self._conditions:
            sizes = _sizes(condition, leaves)
            if condition.holds(sizes) is False:
                raise ConditionError(self._text(condition, sizes, leaves))

    def _text(self, condition: SizeCondition, sizes: Sequence[int], leaves: Sequence[Any]) -> str:
        source = condition.source
        line = f", because of {source.file}:{source.line} ({source.code})" if source else ""
        given = ", ".join(f"{name} = {size}" for name, size in zip(condition.sizes, sizes, strict=True))
        found = [
            f"{name} may be {text}"
            for name, place in zip(condition.sizes, condition.places, strict=True)
            if (text := self._allowed(place, leaves))
        ]
        others = "With the other sizes of this call, " if len(self._conditions) > 1 or len(sizes) > 1 else ""
        near = f" {others}{', or '.join(found)}." if found else ""
        return (
            f"This call breaks a condition of the compiled graph: {condition.text}{line}. Given: {given}.{near} "
            "Call it with such sizes, compile with tracing inputs of these sizes, or set compiled.allow_unproven = "
            "True, which may give wrong results."
        )

    def _allowed(self, place: tuple[int, int], leaves: Sequence[Any]) -> str:
        """The nearest sizes of one dim that fulfil all conditions on it, the others being as they are."""
        about = [condition for condition in self._conditions if place in condition.places]
        now = int(leaves[place[0]].shape[place[1]])

        def fits(size: int) -> bool:
            return all(condition.holds(_sizes(condition, leaves, {place: size})) is not False for condition in about)

        below = next((size for size in range(now - 1, max(-1, now - _NEAR), -1) if fits(size)), None)
        above = next((size for size in range(now + 1, now + _NEAR) if fits(size)), None)
        return " or ".join(str(size) for size in (below, above) if size is not None)


def _sizes(
    condition: SizeCondition, leaves: Sequence[Any], changed: dict[tuple[int, int], int] | None = None
) -> list[int]:
    return [
        changed[leaf, dim] if changed and (leaf, dim) in changed else int(leaves[leaf].shape[dim])
        for leaf, dim in condition.places
    ]
