"""The Hessian of a layer's squared output error, which its inputs on samples determine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

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
