"""The Hessian of a layer's squared output error, which its inputs on samples determine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from prepbench.quantize.layer_nodes import LayerNode
from prepbench.quantize.weights import EPSILON

DAMPING = 0.01
"""Added to the squares of each input, as a fraction of their mean, so that inputs that hardly differ can be told
apart."""


@dataclass(frozen=True)
class InputHessian:
    """The Hessian ``X^T X`` of a layer's squared output error, with the inputs ``X`` of all positions of the samples.

    Attributes:
        matrix: of shape (in, in), the sum over all positions of the products of each two inputs.
        count: how many positions were added.
    """

    matrix: torch.Tensor
    count: int

    @classmethod
    def joined(cls, parts: Sequence[InputHessian]) -> InputHessian:
        """Combine the inputs of several calls of one layer."""
        matrix = parts[0].matrix
        for other in parts[1:]:
            matrix = matrix + other.matrix
        return cls(matrix, sum(part.count for part in parts))

    @property
    def power(self) -> torch.Tensor:
        """Return the mean square of each input, of shape (in,)."""
        return self.matrix.diag() / max(1, self.count)

    @cached_property
    def order(self) -> torch.Tensor:
        """Return the indices of the inputs, those with most power first."""
        return self.power.argsort(descending=True, stable=True)

    @cached_property
    def damped(self) -> torch.Tensor:
        """Return the damped Hessian."""
        return damped(self.matrix)

    @cached_property
    def inverse_factor(self) -> torch.Tensor | None:
        """Return the upper Cholesky factor of the inverse of the damped Hessian, in :attr:`order`; None where there
        is none.

        Computed once for all weights of these inputs.
        """
        return _inverse_factor(self.damped[self.order][:, self.order])


def damped(matrix: torch.Tensor, share: float = 1.0) -> torch.Tensor:
    """Return a Hessian with a little more on the diagonal, so that nearly equal inputs can be told apart.

    Args:
        matrix: of shape (in, in).
        share: how much of the usual damping; less, where many positions were seen.
    """
    changed = matrix.clone()
    # an input that was always zero says nothing about its weights, which are then rounded to nearest
    changed.diagonal().add_(max(share * DAMPING * float(matrix.diag().mean()), EPSILON))
    return changed


def _inverse_factor(damped: torch.Tensor) -> torch.Tensor | None:
    """Return the upper Cholesky factor of the inverse; None where it does not exist numerically."""
    # the factor of the inverse is the inverse of the factor, where both are found from the last input to the first
    lower, failed = torch.linalg.cholesky_ex(damped.flip(0, 1))
    if bool(failed):
        return None
    inverse = torch.linalg.solve_triangular(lower, torch.eye(len(lower)), upper=False)
    factor = inverse.flip(0, 1)
    return factor if bool(factor.isfinite().all()) else None


# im2col for convolutions: the Hessian of the input patches that a convolution multiplies by its weights.


_LARGEST = 2048  # inputs of a patch: the Hessian has their square
_POSITIONS = 4096  # of a sample; neighbours differ little
_VALUES = 2**24  # of patches that are cut out at a time


@dataclass(frozen=True)
class Im2col:
    """How a convolution cuts its input into patches (im2col).

    Attributes:
        kernel: sizes of a patch.
        stride: steps from one to the next.
        padding: zeros before and after each dimension.
        dilation: distances inside a patch.
        groups: of channels.
    """

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    dilation: tuple[int, ...]
    groups: int

    @classmethod
    def of(cls, layer: LayerNode) -> Im2col | None:
        """Return the patches of a convolution; None for other layers, and where the Hessian of patches would be too
        large.
        """
        shape = layer.weight.meta["val"].shape
        if not layer.is_convolution or layer.is_transposed or len(shape) not in (3, 4):
            return None
        if shape[1:].numel() > _LARGEST:
            return None
        kernel = tuple(shape[2:])
        names = ("stride", "padding", "dilation")
        given = [
            layer.node.args[index] if len(layer.node.args) > index else layer.node.kwargs.get(name)
            for index, name in enumerate(names, 3)
        ]
        stride, dilation = (_each(value, kernel, 1) for value in (given[0], given[2]))
        if given[1] == "same":
            whole = [step * (size - 1) for step, size in zip(dilation, kernel, strict=True)]
            padding = tuple((size // 2, size - size // 2) for size in whole)
        else:
            sizes = _each(0 if given[1] == "valid" else given[1], kernel, 0)
            padding = tuple((size, size) for size in sizes)
        return cls(kernel, stride, padding, dilation, layer.groups)

    def hessian(self, value: torch.Tensor) -> InputHessian:
        """Return the Hessian of the patches of an input, of shape (groups, inputs of a patch, inputs of a patch)."""
        dims = len(self.kernel)
        batch = value.detach().float()
        batch = batch[None] if batch.ndim == dims + 1 else batch
        windows = torch.nn.functional.pad(batch, [size for pair in reversed(self.padding) for size in pair])
        for dim, (size, step, gap) in enumerate(zip(self.kernel, self.stride, self.dilation, strict=True), 2):
            windows = windows.unfold(dim, gap * (size - 1) + 1, step)[..., ::gap]  # a view, patches in the last dims
        windows = windows.movedim(1, 1 + dims)
        places = windows.shape[: 1 + dims]
        chosen = torch.arange(0, places.numel(), -(-places.numel() // _POSITIONS))
        inputs = windows.shape[1 + dims :].numel() // self.groups
        matrix = torch.zeros(self.groups, inputs, inputs)
        for some in chosen.split(max(1, _VALUES // (inputs * self.groups))):
            rows = windows[torch.unravel_index(some, places)].reshape(len(some), self.groups, -1).transpose(0, 1)
            matrix.baddbmm_(rows.transpose(1, 2), rows)
        return InputHessian(matrix, len(chosen))


def _each(value: Any, kernel: Sequence[int], default: int) -> tuple[int, ...]:
    if value is None:
        return (default,) * len(kernel)
    sizes = [int(value)] if isinstance(value, int) else [int(size) for size in value]
    return tuple(sizes * len(kernel) if len(sizes) == 1 else sizes)
