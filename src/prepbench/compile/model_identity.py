"""The identity of a model's weights and adapters at the compile, for later calls that run in the model itself."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

_TENSORS, _VALUES = 16, 8
_OTHER = 0.5
"""The relative tolerance for sampled values: rounding and training move them less, another initialisation more."""


@dataclass(frozen=True)
class ModelIdentity:
    """Sampled values of a model's weights, and its active PEFT adapters, as plain data.

    Attributes:
        weights: a few values of some matrices, by their names.
        adapters: the adapters in use, each set once; None for a model that has no place for adapters.
    """

    weights: Mapping[str, list[float]] = field(default_factory=dict)
    adapters: tuple[str, ...] | None = None

    @classmethod
    def of(cls, model: Any) -> ModelIdentity:
        """Return a model's current identity; unknown for models without a method ``generate``."""
        if not isinstance(model, nn.Module) or not callable(getattr(model, "generate", None)):
            return cls()
        # constant initial values, such as normalization weights, are inconclusive
        matrices = [(name, tensor) for name, tensor in model.named_parameters() if _is_telling(tensor)]
        some = matrices[:: -(-len(matrices) // _TENSORS) or 1]
        return cls({name: _some_values(tensor) for name, tensor in some}, adapters_in_use(adapter_layers(model)))

    def has_other_weights(self, model: nn.Module) -> bool:
        """Return whether a model of the same names has entirely other values, such as one whose checkpoint was not
        loaded.
        """
        now = {name: tensor for name, tensor in model.named_parameters() if name in self.weights}
        if any(tensor.is_meta for tensor in now.values()):
            return True
        pairs = [(self.weights[name], _some_values(tensor)) for name, tensor in now.items() if _is_telling(tensor)]
        size = sum(abs(one) for then, _ in pairs for one in then)
        moved = sum(abs(one - two) for then, found in pairs for one, two in zip(then, found, strict=False))
        return moved > _OTHER * size

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready data."""
        return {"weights": dict(self.weights), "adapters": None if self.adapters is None else list(self.adapters)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ModelIdentity:
        """Read the data that :meth:`to_dict` wrote.

        Raises:
            ValueError: it is something else.
        """
        weights, adapters = data.get("weights", {}), data.get("adapters")
        rows = list(weights.values()) if isinstance(weights, dict) else [None]
        if not all(isinstance(row, list) and all(isinstance(one, float) for one in row) for row in rows):
            raise ValueError("calls.identity.weights must hold a list of numbers for each tensor")
        if adapters is not None and not (isinstance(adapters, list) and all(isinstance(one, str) for one in adapters)):
            raise ValueError("calls.identity.adapters must be a list of names")
        return cls(weights, None if adapters is None else tuple(adapters))


NO_IDENTITY = ModelIdentity()
"""Of what nothing is known."""


def adapter_layers(model: nn.Module) -> list[Any]:
    """Return the layers of a model with PEFT adapters."""
    tuners = sys.modules.get("peft.tuners.tuners_utils")  # such layers can exist only if PEFT is imported
    kind = getattr(tuners, "BaseTunerLayer", None)
    return [] if kind is None else [layer for layer in model.modules() if isinstance(layer, kind)]


def adapters_in_use(layers: list[Any]) -> tuple[str, ...] | None:
    """Return the distinct sets of active adapters of the layers; None without such layers."""
    if not layers:
        return None
    return tuple(sorted({" and ".join(_in_use(layer)) or "none" for layer in layers}))


def _in_use(layer: Any) -> Iterator[str]:
    merged = tuple(layer.merged_adapters)
    yield from map(str, merged or (() if layer.disable_adapters else layer.active_adapters))


def _is_telling(tensor: torch.Tensor) -> bool:
    is_plain = tensor.is_floating_point() and tensor.layout == torch.strided and not nn.parameter.is_lazy(tensor)
    return is_plain and not tensor.is_meta and tensor.ndim > 1 and tensor.numel() > 0


@torch.no_grad()
def _some_values(tensor: torch.Tensor) -> list[float]:
    """Return a few values along the tensor by indexing, because flattening a transposed tensor copies it."""
    found, count = [], min(_VALUES, tensor.numel())
    for number in range(count):
        place = torch.unravel_index(torch.tensor(number * tensor.numel() // count), tensor.shape)
        found.append(float(tensor[tuple(int(one) for one in place)]))
    return found
