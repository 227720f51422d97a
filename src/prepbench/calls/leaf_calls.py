"""Calls of a compiled model for callers that hold the leaves of a call, and want those of the result."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch

from prepbench.calls.call_spec import CallSpec
from prepbench.targets import Runtime


class Lowered(Protocol):
    """A compiled model, as far as its calls go: :class:`prepbench.CompiledModel`, which is made of what is here."""

    allow_unproven: bool
    _runtime: Runtime
    _call_spec: CallSpec

    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...


def outputs_of(compiled: Lowered, leaves: Sequence[Any]) -> Sequence[Any]:
    """Return the output leaves for the input leaves of a call, which must meet the conditions unless the model allows
    others.

    Raises:
        InputError: the compiled graph cannot take a leaf.
        ConditionError: a condition is broken.
    """
    runtime, spec, allow_unproven = compiled._runtime, compiled._call_spec, compiled.allow_unproven
    tensors = spec.checked(leaves, allow_unproven=allow_unproven)
    with torch.no_grad():
        return spec.checked_outputs(runtime.run(tensors), allow_unproven=allow_unproven)


def runtime_and_calls(compiled: Lowered) -> tuple[Runtime, CallSpec]:
    """Return the runtime of a compiled model, and its call specification."""
    return compiled._runtime, compiled._call_spec
