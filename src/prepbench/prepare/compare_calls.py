"""Compare one call of a prepared model with one of the original, in results and in state."""

from __future__ import annotations

from dataclasses import replace

import torch

from prepbench.running.equal_tensors import Difference
from prepbench.running.equality import REWRITTEN, difference
from prepbench.running.first_calls import built_buffers
from prepbench.running.outcomes import Outcome


def prepared_difference(model: torch.nn.Module, expected: Outcome, got: Outcome) -> Difference:
    """Return the first difference of a call of the prepared model from one of the original.

    A prepared model may lack buffers, but none that a call changes. Buffers that a call builds, it builds at each call.

    Args:
        model: the original, as it is before a call.
        expected: a call of the original.
        got: the same call of the prepared model.
    """
    before = dict(model.named_buffers())
    kept = {
        name: value for name, value in expected.buffers.items() if name not in built_buffers(before, expected.buffers)
    }
    changed = {name for name, value in kept.items() if not difference(before[name], value).equal}
    names = [name for name in kept if name in got.buffers or name in changed]
    return difference(
        replace(expected, buffers={name: expected.buffers[name] for name in names}),
        replace(got, buffers={name: got.buffers[name] for name in names if name in got.buffers}),
        REWRITTEN,
    )
