"""The calls that each variant of a compiled model takes, and the choice of the variant for a call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from prepbench.calls.tensor_specs import TensorChecks, TensorSpecs
from prepbench.capture.aten.verification import conditions_text
from prepbench.capture.sizes.conditions import SizeCondition
from prepbench.capture.sizes.size_formulas import check_function
from prepbench.errors import ConditionError


@dataclass(frozen=True)
class VariantCall:
    """The inputs and outputs of one variant as plain data.

    Attributes:
        conditions: on sizes, which a call must meet.
        tensors: dtype and sizes of each input leaf that is a tensor.
        constants: computed output leaves of the model that this variant gives as plain values, by index among those
            that the model computes.
        assertions: on values, for which this variant has further outputs.
    """

    conditions: tuple[SizeCondition, ...]
    tensors: TensorSpecs
    constants: Mapping[int, Any] = field(default_factory=dict)
    assertions: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready data."""
        return {
            "conditions": [condition.to_dict() for condition in self.conditions],
            "tensors": list(self.tensors),
            "constants": {str(index): value for index, value in self.constants.items()},
            "assertions": self.assertions,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> VariantCall:
        """Read the data that :meth:`to_dict` wrote."""
        return cls(
            tuple(map(SizeCondition.from_dict, data["conditions"])),
            tuple(data["tensors"]),
            {int(index): value for index, value in data["constants"].items()},
            data["assertions"],
        )


class VariantChoice:
    """Chooses the variant for a call: the first, in order, whose conditions the sizes meet."""

    def __init__(self, variants: Sequence[VariantCall], paths: Sequence[str]) -> None:
        self._variants = variants
        self._hold = [_function(variant.conditions) for variant in variants]
        self._checks = [TensorChecks(variant.tensors, paths) for variant in variants]

    def find(self, leaves: Sequence[Any]) -> int | None:
        """Return the index of the variant; None if a call meets no variant's conditions."""
        for index, holds in enumerate(self._hold):
            if holds(leaves):
                return index
        return None

    def check(self, leaves: Sequence[Any]) -> None:
        """Raise ``ConditionError`` if no variant takes the call, with the conditions of each."""
        if self.find(leaves) is not None:
            return
        asked = "; ".join(
            f"variant {index} asks that {conditions_text(variant.conditions)}"
            for index, variant in enumerate(self._variants)
        )
        every = [one.conditions for one in self._variants]
        places = sorted(
            {pair for conditions in every for c in conditions for pair in zip(c.sizes, c.places, strict=True)}
        )
        given = ", ".join(f"{name} = {leaves[leaf].shape[dim]}" for name, (leaf, dim) in places)
        allowed = [f"{name} may be {text}" for name, place in places if (text := nearest_sizes(every, place, leaves))]
        others = "With the other sizes of this call, " if len(places) > 1 else ""
        near = f" {others}{', or '.join(allowed)}." if allowed else ""
        raise ConditionError(
            f"No variant of the compiled model takes a call of these sizes ({given}).{near} Call it with such sizes, "
            "compile with tracing inputs of these sizes, or set compiled.allow_unproven = True, which may give wrong "
            f"results. {asked[0].upper()}{asked[1:]}."
        )

    def taken(self, leaves: Sequence[Any]) -> int:
        """Return the index of the variant for a call; for an unproven call, the one with the fewest broken conditions.

        Raises:
            InputError: that variant cannot take a leaf.
        """
        index = self.find(leaves)
        if index is None:
            broken = [sum(_breaks(leaves, one) for one in variant.conditions) for variant in self._variants]
            index = broken.index(min(broken))
        self._checks[index].checked(leaves)
        return index


# how far from a size the nearest one that is allowed is looked for
_NEAR = 4096


def nearest_sizes(
    alternatives: Sequence[Sequence[SizeCondition]], place: tuple[int, int], leaves: Sequence[Any]
) -> str:
    """Return the nearest sizes of one dim, below and above, that meet all conditions of one of the alternatives.

    Args:
        alternatives: the conditions of each graph.
        place: the number of a leaf, and the dim of it.
        leaves: of the call, whose other sizes stay.
    """
    now = int(leaves[place[0]].shape[place[1]])

    def fits(size: int) -> bool:
        return any(
            all(one.holds(sizes_of(one, leaves, {place: size})) is not False for one in conditions if one.formula)
            for conditions in alternatives
        )

    below = next((size for size in range(now - 1, max(-1, now - _NEAR), -1) if fits(size)), None)
    above = next((size for size in range(now + 1, now + _NEAR) if fits(size)), None)
    return " or ".join(str(size) for size in (below, above) if size is not None)


def sizes_of(
    condition: SizeCondition, leaves: Sequence[Any], changed: Mapping[tuple[int, int], int] | None = None
) -> list[int]:
    """Return the sizes that a condition is about, some of them ``changed``."""
    return [
        changed[leaf, dim] if changed and (leaf, dim) in changed else int(leaves[leaf].shape[dim])
        for leaf, dim in condition.places
    ]


def _function(conditions: Sequence[SizeCondition]) -> Callable[[Sequence[Any]], bool]:
    known = [condition for condition in conditions if condition.formula]
    check = check_function((condition.formula, condition.places) for condition in known)

    def holds(leaves: Sequence[Any]) -> bool:
        try:
            return check(leaves)
        except ArithmeticError:  # a condition divides by a size of 0
            return not any(_breaks(leaves, condition) for condition in known)

    return holds


def _breaks(leaves: Sequence[Any], condition: SizeCondition) -> bool:
    if not condition.formula:
        return False
    return condition.holds(sizes_of(condition, leaves)) is False
