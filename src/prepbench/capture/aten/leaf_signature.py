"""The signature of a leaf's operator: which flat arguments it takes, and which are constants of the graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from prepbench._torch_compat import pytree
from prepbench.capture.sizes.learned_outputs import UnknownOutputsError
from prepbench.running.compare_samples import is_same

SCHEMA_TYPES = ((torch.Tensor, "Tensor"), (torch.SymInt, "SymInt"), (torch.SymFloat, "float"))
"""The argument types of an operator, with their names in a schema."""


class UnknownInputError(UnknownOutputsError):
    """Raised if a leaf is called with a value that an operator cannot take."""


@dataclass(frozen=True)
class Signature:
    """The mapping from the operator's flat arguments to a call: argument positions, and the values of the rest.

    ``repeats`` has the positions of tensors that were given before, and where.
    """

    spec: pytree.TreeSpec
    kinds: tuple[str, ...]
    fixed: tuple[Any, ...]
    repeats: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, leaves: Sequence[Any], spec: pytree.TreeSpec) -> Signature:
        kinds = [_kind(leaf) for leaf in leaves]
        first: dict[int, int] = {}
        repeats = []
        for index, leaf in enumerate(leaves):
            if isinstance(leaf, torch.Tensor) and first.setdefault(id(leaf), index) != index:
                repeats.append((index, first[id(leaf)]))
                kinds[index] = ""
        fixed = tuple(
            None if kind or isinstance(leaf, torch.Tensor) else leaf for leaf, kind in zip(leaves, kinds, strict=True)
        )
        return cls(spec, tuple(kinds), fixed, tuple(repeats))

    def leaves(self, arguments: Sequence[Any]) -> list[Any]:
        given = iter(arguments)
        leaves = [next(given) if kind else value for kind, value in zip(self.kinds, self.fixed, strict=True)]
        return self.with_repeats(leaves)

    def with_repeats(self, leaves: list[Any]) -> list[Any]:
        for index, first in self.repeats:
            leaves[index] = leaves[first]
        return leaves

    def first_of(self, places: Sequence[int]) -> list[int]:
        """Return the places without duplicates of an earlier one."""
        repeats = dict(self.repeats)
        return sorted({repeats.get(place, place) for place in places})

    def matches(self, other: Signature) -> bool:
        # fixed values may be modules or tensors' owners: compare what cannot be compared by identity
        return (
            self.spec == other.spec
            and self.kinds == other.kinds
            and self.repeats == other.repeats
            and all(type(a) is type(b) and is_same(a, b) for a, b in zip(self.fixed, other.fixed, strict=True))
        )


def _kind(leaf: Any) -> str:
    for kind, name in SCHEMA_TYPES:
        if isinstance(leaf, kind):
            return name
    if isinstance(leaf, torch.SymBool):
        raise UnknownInputError("A leaf cannot take a truth value that depends on sizes or data.")
    return ""
