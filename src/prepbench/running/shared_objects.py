"""Objects that several samples share and that a call fills: after it, an empty cache is empty in none of them."""

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


def filled_for_all(model: torch.nn.Module, samples: Sequence[Sample]) -> str:
    """A sentence on an argument that is one object in several samples and that a call changes; "" if there is none.

    Runs the model once where samples share an object, on copies.

    Args:
        model: what is called with them.
        samples: as they were given.
    """
    first: dict[tuple[str, int], int] = {}
    for sample in samples:
        for name, value in arguments_by_name(model, sample.args, sample.kwargs).items():
            earlier = first.setdefault((name, id(value)), sample.index)
            if earlier != sample.index and is_registered(type(value)) and _changes(model, sample, name):
                return (
                    f"inputs[{earlier}] and inputs[{sample.index}] share one {type(value).__name__} as {name}, and "
                    "each call writes into it: both hold what the last call has left there."
                )
    return ""


REMEDY = "Make one for each sample, and give copy.deepcopy(...) of it to calls that you make yourself."


def _changes(model: torch.nn.Module, sample: Sample, name: str) -> bool:
    """Whether a call puts other tensors into an argument, or writes into those that it holds."""
    own = own_copy(sample)
    value = arguments_by_name(model, own.args, own.kwargs)[name]
    before = [(leaf, _version(leaf)) for leaf in pytree.tree_leaves(value)]
    twin = Twin(model).model
    try:
        with unchanged(twin), without_output(), torch.no_grad():
            own.call(twin)
    except Exception:  # whoever runs the model next says what is wrong with it
        return False
    after = pytree.tree_leaves(value)
    return len(after) != len(before) or any(
        now is not leaf or _version(now) != version for now, (leaf, version) in zip(after, before, strict=True)
    )


def _version(leaf: Any) -> int:
    return version_of(leaf) if isinstance(leaf, torch.Tensor) else 0
