"""Find objects that several samples share and that a call fills: afterwards an empty cache is empty in none of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from prepbench._torch_compat import pytree
from prepbench._torch_compat.tensors import version_of
from prepbench.inputs import Sample, arguments_by_name
from prepbench.running.object_nodes import is_registered
from prepbench.running.outcomes import without_output
from prepbench.running.twin import Twin
from prepbench.running.unchanged import own_copy, unchanged

REMEDY = "Make one for each sample, and give copy.deepcopy(...) of it to calls that you make yourself."


def filled_for_all(model: torch.nn.Module, samples: Sequence[Sample]) -> str:
    """Return a sentence on an argument that several samples share and a call changes; "" if there is none.

    Runs the model once for each object that samples share, on copies.

    Args:
        model: the callee.
        samples: as they were given.
    """
    holders: dict[tuple[str, int], list[Sample]] = {}
    for sample in samples:
        for name, value in arguments_by_name(model, sample.args, sample.kwargs).items():
            if is_registered(type(value)):
                holders.setdefault((name, id(value)), []).append(sample)
    for (name, _), (first, *others) in holders.items():
        if others and _changes(model, first, name):
            kind = type(arguments_by_name(model, first.args, first.kwargs)[name]).__name__
            return (
                f"inputs[{first.index}] and inputs[{others[0].index}] share one {kind} as {name}, and each call writes "
                "into it: both hold what the last call has left there."
            )
    return ""


def _changes(model: torch.nn.Module, sample: Sample, name: str) -> bool:
    """Return whether a call replaces tensors inside of an argument, or writes into them."""
    own = own_copy(sample)
    value = arguments_by_name(model, own.args, own.kwargs)[name]
    before = [(leaf, _version(leaf)) for leaf in pytree.tree_leaves(value)]
    twin = Twin(model).model
    try:
        with unchanged(twin), without_output(), torch.no_grad():
            own.call(twin)
    except Exception:  # the next run of the model reports its error
        return False
    after = pytree.tree_leaves(value)
    return len(after) != len(before) or any(
        now is not leaf or _version(now) != version for now, (leaf, version) in zip(after, before, strict=True)
    )


def _version(leaf: Any) -> int:
    return version_of(leaf) if isinstance(leaf, torch.Tensor) else 0
