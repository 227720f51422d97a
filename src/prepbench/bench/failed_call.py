"""A bench on what a failed call was given."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import nn

from prepbench.errors import InputError

B = TypeVar("B")

_MODELS = ("model", "module_or_func")
_INPUTS = {"inputs": "tracing_inputs", "tracing_inputs": "tracing_inputs", "calibration_inputs": "calibration_inputs"}
_GIVEN = {**_INPUTS, "data": "data", "metric": "metric", "tokenizer": "tokenizer"}
_GIVEN |= {"data_transform_fn": "transform", "transform": "transform"}


def bench_of_error(kind: Callable[..., B], error: BaseException | None) -> B:
    """Open a bench on the model and the samples of the call that raised an error; see :meth:`Bench.of_error`."""
    error = getattr(sys, "last_value", None) if error is None else error
    if not isinstance(error, BaseException):
        raise InputError("No call has failed: give the error that a call of prepbench raised, as error=.")
    for frame, _ in traceback.walk_tb(error.__traceback__):
        # the arguments of the public function that was called, which stand in its frame
        if str(frame.f_globals.get("__name__", "")).partition(".")[0] == "prepbench":
            given = frame.f_locals
            models = [given[name] for name in _MODELS if isinstance(given.get(name), nn.Module)]
            found = {name: given[key] for key, name in _GIVEN.items() if given.get(key) is not None}
            if models and not found.keys().isdisjoint(_INPUTS.values()):
                return kind(models[0], **{name: _listed(value) for name, value in found.items()})
    raise InputError(
        f"{type(error).__name__} was raised by no call with a model and its samples. Make the bench with both: "
        "pb.Bench(model, tracing_inputs=samples)."
    )


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, torch.Tensor) else value  # one sample, as pb.capture takes it
