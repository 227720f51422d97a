"""The size that a model is expected to have with the current choices, from its weights and their settings."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import nn

from prepbench.bench.summary import ExpectedSize
from prepbench.compile.simulation import stored_bytes
from prepbench.objects.restore import state_bytes
from prepbench.quantize.input_hessians import fitted
from prepbench.quantize.weights import WeightScheme
from prepbench.settings import DeploymentSettings, ExplainedLayer, QuantizationSettings
from prepbench.targets import target_for
from prepbench.targets.base import unsupported

_MEGA = 10**6
_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
"""Convolutions whose weights count output channels in their second dim."""


class Sizes:
    """The bytes of a model's weights in any precision.

    Args:
        model: whose shapes are read; shared tensors count once.
        layers: FQNs of the quantizable layers.

    Example:
        >>> from prepbench.bench.state import TARGETS
        >>> model = torch.nn.Linear(1000, 100, bias=False)
        >>> Sizes(model, [""]).expected(TARGETS["ONNX Runtime"](), []).megabytes
        0.4
    """

    def __init__(self, model: nn.Module, layers: Sequence[str]) -> None:
        modules = dict(model.named_modules(remove_duplicate=False))
        self._whole = state_bytes(model)
        self._weights: dict[str, tuple[list[torch.Size], int, int]] = {}
        seen: set[int] = set()
        for fqn in layers:
            found = [tensor for tensor in _weights_of(modules[fqn]) if id(tensor) not in seen]
            seen.update(map(id, found))
            count = sum(tensor.numel() * tensor.element_size() for tensor in found)
            axis = int(isinstance(modules[fqn], _TRANSPOSED) and modules[fqn].groups == 1)
            self._weights[fqn] = [tensor.shape for tensor in found], axis, count
        self._known: dict[tuple[str, QuantizationSettings, bool], int] = {}

    def expected(
        self, target: DeploymentSettings, explained: Iterable[ExplainedLayer], *, is_pruned: bool = False
    ) -> ExpectedSize:
        """Return the size of the model: integers, scales and zero points of quantized layers, and all else in float.

        Args:
            target: where it will run; layers whose settings it lacks count in float.
            explained: how layers are quantized.
            is_pruned: whether weights will be removed, which is not counted.
        """
        placement = target_for(target).placement
        count = self._whole
        for layer in explained:
            if layer.settings is None or layer.fqn not in self._weights or unsupported(layer.settings, placement):
                continue
            count -= self._weights[layer.fqn][2] - self._bytes(layer.fqn, layer.settings, bool(placement.reduce_range))
        note = "without what pruning removes" if is_pruned else ""
        return ExpectedSize(count / _MEGA, self._whole / _MEGA, note)

    def _bytes(self, fqn: str, settings: QuantizationSettings, reduce_range: bool) -> int:
        key = fqn, settings, reduce_range
        if key not in self._known:
            shapes, axis, _ = self._weights[fqn]
            weights = [torch.empty(shape, device="meta") for shape in shapes]
            wanted = WeightScheme.of(next(settings.candidates()), reduce_range=reduce_range)
            self._known[key] = sum(stored_bytes(weight, axis, fitted(wanted, weights, axis)) for weight in weights)
        return self._known[key]


def _weights_of(module: nn.Module | torch.Tensor) -> list[torch.Tensor]:
    """Return the tensors of a layer that are quantized: its own matrices, and those that a parametrization is of."""
    if isinstance(module, torch.Tensor):
        return [module]
    own = list(module.parameters(recurse=False))
    if "parametrizations" in module._modules:
        own += module.get_submodule("parametrizations").parameters()
    return [tensor for tensor in own if tensor.ndim >= 2]
