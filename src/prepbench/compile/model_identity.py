"""Which weights and which adapters a model had when it was compiled, for calls that run in the model itself later."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

_TENSORS, _VALUES = 16, 8
_OTHER = 0.5
"""How far values may be from those of then, of their own size: rounding and training move them less, chance more."""


@dataclass(frozen=True)
class ModelIdentity:
    """A few values of a model's weights, and its adapters of PEFT that were in use, as plain data.

    Attributes:
        weights: a few values of some matrices, by their names.
        adapters: the adapters in use, each set once; None for a model that has no place for adapters.
    """

    weights: Mapping[str, list[float]] = field(default_factory=dict)
    adapters: tuple[str, ...] | None = None

    @classmethod
    def of(cls, model: Any) -> ModelIdentity:
        """What a model is now; nothing is known of what has no method ``generate``."""
        if not isinstance(model, nn.Module) or not callable(getattr(model, "generate", None)):
            return cls()
        # what is set to a constant at first, such as the weights of a normalization, tells nothing
        matrices = [(name, tensor) for name, tensor in model.named_parameters() if _is_telling(tensor)]
        some = matrices[:: -(-len(matrices) // _TENSORS) or 1]
        return cls({name: _some_values(tensor) for name, tensor in some}, adapters_in_use(adapter_layers(model)))

    def has_other_weights(self, model: nn.Module) -> bool:
        """Whether a model of the same names has entirely other values, as one that was never loaded has."""
        now = {name: tensor for name, tensor in model.named_parameters() if name in self.weights}
        if any(tensor.is_meta for tensor in now.values()):
            return True
        pairs = [(self.weights[name], _some_values(tensor)) for name, tensor in now.items() if _is_telling(tensor)]
        size = sum(abs(one) for then, _ in pairs for one in then)
        moved = sum(abs(one - two) for then, found in pairs for one, two in zip(then, found, strict=False))
        return moved > _OTHER * size

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready data."""
        return {"weights": dict(self.weights), "adapters": None if self.adapters is None else list(self.adapters)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ModelIdentity:
        """Read what :meth:`to_dict` wrote.

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
    """The layers of a model that hold adapters of PEFT."""
    tuners = sys.modules.get("peft.tuners.tuners_utils")  # who has such layers has imported it
    kind = getattr(tuners, "BaseTunerLayer", None)
    return [] if kind is None else [layer for layer in model.modules() if isinstance(layer, kind)]


def adapters_in_use(layers: list[Any]) -> tuple[str, ...] | None:
    """The sets of adapters that layers compute with, each once; None where there are no such layers."""
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
    """A few values along the tensor, looked up one by one, because to flatten a transposed tensor copies it."""
    found, count = [], min(_VALUES, tensor.numel())
    for number in range(count):
        place = torch.unravel_index(torch.tensor(number * tensor.numel() // count), tensor.shape)
        found.append(float(tensor[tuple(int(one) for one in place)]))
    return found
