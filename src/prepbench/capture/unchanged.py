"""Running a model without leaving a trace: state, random numbers and the caller's tensors stay as they were."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from prepbench.capture.module_state import restored
from prepbench.errors import InputError
from prepbench.inputs import Sample


@contextmanager
def unchanged(model: torch.nn.Module) -> Iterator[None]:
    """Put back attributes, buffer values, the training flags and every random number generator after the block."""
    _check_materialised(model)
    devices = sorted({tensor.device.index for tensor in model.parameters() if tensor.device.type == "cuda"})
    python_state, numpy_state = random.getstate(), np.random.get_state()
    with restored(model) as buffers, torch.random.fork_rng(devices=devices):
        tensors = [*buffers.values(), *_plain_tensors(model)]
        values = [(tensor, tensor.detach().clone()) for tensor in tensors]
        try:
            yield
        finally:
            random.setstate(python_state)
            np.random.set_state(numpy_state)
            with torch.no_grad():
                for tensor, value in values:
                    # batch norm writes its statistics without raising their version
                    tensor.copy_(value)


def _check_materialised(model: torch.nn.Module) -> None:
    for fqn, parameter in (*model.named_parameters(), *model.named_buffers()):
        if torch.nn.parameter.is_lazy(parameter):
            raise InputError(
                f"{fqn} has no size yet, because its lazy module has never run, and running it would change the model. "
                "Call the model once on a sample input first."
            )


def own_copy(sample: Sample) -> Sample:
    """The sample with cloned tensors, so that operations in place do not reach the caller's."""
    return sample.map(_clone)


def _clone(leaf: Any) -> Any:
    if not isinstance(leaf, torch.Tensor):
        return leaf
    with torch.no_grad():
        # clone() keeps strides; an integer tensor cannot require gradients
        return leaf.detach().clone().requires_grad_(leaf.requires_grad)


def _plain_tensors(model: torch.nn.Module) -> list[torch.Tensor]:
    return [value for module in model.modules() for value in vars(module).values() if isinstance(value, torch.Tensor)]
