"""Checks of values that dynamo would leave out of the graph without a word."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from types import CodeType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from prepbench.capture.failures.findings import own_codes
from prepbench.inputs import Sample
from prepbench.objects.copy import Twin
from prepbench.running.unchanged import own_copy, unchanged, without_output

CHECK_FUNCTIONS = frozenset(
    {"_check", "_check_with", "_check_index", "_check_value", "_check_type", "_check_not_implemented"}
)
"""Functions of torch that raise where a condition is false."""


def checks_truth_of_tensors(model: torch.nn.Module, sample: Sample) -> bool:
    """Return whether the user's code reads truth values from tensors and calls ``torch._check`` or one of its kin.

    ``torch.export(strict=True)`` of torch 2.11 to 2.13 takes such a value for true in all that follows, and with that
    removes the check: the graph answers where the model raises. Checks of numbers stay, and so do ``assert``
    statements. Runs the model once if its code names a check.
    """
    codes = [code for code in own_codes(model) if not CHECK_FUNCTIONS.isdisjoint(code.co_names)]
    if not codes:
        return False
    reads = _ReadsTruth(own_codes(model))
    twin = Twin(model).model
    try:
        with unchanged(twin), without_output(), torch.no_grad(), reads:
            own_copy(sample).call(twin)
    except Exception:  # of the model, which the other way to export tells; nothing is known of its checks
        return True
    return reads.found


class _ReadsTruth(TorchFunctionMode):
    """Notes whether some code asks a tensor whether it is true."""

    def __init__(self, codes: Sequence[CodeType]) -> None:
        super().__init__()
        self.found = False
        self._codes = set(codes)

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        is_bool = bool(args) and isinstance(args[0], torch.Tensor) and args[0].dtype is torch.bool
        if func is torch.Tensor.__bool__ or (func is torch.Tensor.item and is_bool):
            self.found = self.found or sys._getframe(1).f_code in self._codes
        return func(*args, **(kwargs or {}))
