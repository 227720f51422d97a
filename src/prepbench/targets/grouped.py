"""Grouped matrix products, rows with the matrix of their group, as mixtures of experts use them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from prepbench._torch_compat.operators import OpOverload

# torch's own, and the one that transformers runs where torch's does not take the dtype
_NAMES = ("aten._grouped_mm.default", "transformers.grouped_mm_fallback.default")


def grouped_products(program: torch.export.ExportedProgram) -> Mapping[OpOverload, Callable[..., Any]]:
    """Return the replacements of grouped products for :func:`prepbench.targets.decompose.decompose`."""
    targets = {node.target for node in program.graph.nodes if str(node.target) in _NAMES}
    return dict.fromkeys(targets, grouped_product)


def grouped_product(
    input: torch.Tensor,
    weight: torch.Tensor,
    offs: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> Any:
    """Return the product of each row with the matrix of its group, selected from the products with all matrices.

    No runtime has an operator with as many rows for each matrix as data says. This takes as many times the work as
    there are groups, but one product of fixed form, which runtimes compute fast.

    Args:
        input: (rows, in); the rows of a group stand together.
        weight: (groups, in, out).
        offs: (groups,), the number of the first row after each group. Rows after the last group give 0.
        bias: taken by no kernel of torch yet.
        out_dtype: dtype of the result; None: that of the input.

    Returns:
        (rows, out), or ``NotImplemented`` where groups are not of rows.
    """
    if offs is None or bias is not None or input.dim() != 2 or weight.dim() != 3:
        return NotImplemented
    rows = torch.arange(input.shape[0], device=input.device).unsqueeze(1)
    group = (rows >= offs).sum(1).clamp(max=weight.shape[0] - 1)
    # the matrices are concatenated, because every runtime has a fast product of two matrices
    beside = weight.transpose(0, 1).flatten(1)
    products = torch.matmul(input, beside).unflatten(1, (weight.shape[0], weight.shape[2]))
    chosen = products.gather(1, group.view(-1, 1, 1).expand(-1, 1, weight.shape[2])).squeeze(1)
    result = torch.where(rows < offs[-1], chosen, 0.0)
    return result.to(input.dtype if out_dtype is None else out_dtype)
