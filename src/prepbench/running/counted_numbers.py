"""Numbers that objects among the arguments count, such as the tokens in a cache, as sums of sizes.

A number in an object is a constant of a graph. But where it follows from the sizes of tensors of the same call, it can
be computed from them, and the graph holds for other numbers too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from prepbench.objects.parts import Steps, expression, part_at

Named = Mapping[str, Any]
"""The arguments of a call by name."""


@dataclass(frozen=True)
class CountedNumber:
    """A number in an object that is a sum or difference of sizes in all samples.

    Attributes:
        steps: from the arguments by name to the number.
        terms: for each size the steps to the tensor, the dim, and 1 or -1.
    """

    steps: Steps
    terms: tuple[tuple[Steps, int, int], ...]

    @property
    def path(self) -> str:
        """The path of the number as shown to users, e.g. ``"past.seen"``."""
        return path_text(self.steps)

    @property
    def formula(self) -> str:
        """The formula of the number, e.g. ``"mask.shape[1] - ids.shape[1]"``."""
        (first, dim, _), *rest = self.terms
        parts = [f" {'+' if sign > 0 else '-'} {path_text(steps)}.shape[{dim}]" for steps, dim, sign in rest]
        return "".join([f"{path_text(first)}.shape[{dim}]", *parts])

    def value(self, named: Named) -> Any:
        """Return the value of the number for the sizes of these arguments, which may be symbols.

        Raises:
            LookupError: an argument lacks one of the tensors.
        """
        total: Any = 0
        for steps, dim, sign in self.terms:
            size = part_at(named, steps).shape[dim]
            total = total + size if sign > 0 else total - size
        return total

    def to_list(self) -> list[Any]:
        """Return JSON-ready data."""
        return [_listed(self.steps), [[_listed(steps), dim, sign] for steps, dim, sign in self.terms]]

    @classmethod
    def from_list(cls, data: Sequence[Any]) -> CountedNumber:
        """Read the data that :meth:`to_list` wrote."""
        steps, terms = data
        return cls(_steps(steps), tuple((_steps(of), int(dim), int(sign)) for of, dim, sign in terms))


def count_from_sizes(numbers: Sequence[CountedNumber], named: Named) -> None:
    """Set the numbers in the objects among these arguments to the values that follow from their sizes."""
    for number in numbers:
        object.__setattr__(part_at(named, number.steps[:-1]), number.steps[-1][1], number.value(named))


def path_text(steps: Steps) -> str:
    """Return steps as shown to users, e.g. ``"past.layers[0].keys"``."""
    return expression(str(steps[0][1]), steps[1:])


def _listed(steps: Steps) -> list[Any]:
    return [list(step) for step in steps]


def _steps(data: Any) -> Steps:
    return tuple((str(kind), key) for kind, key in data)
