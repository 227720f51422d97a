"""Bags of embeddings, without the loop over bags and rows that torch's exporter writes."""

from __future__ import annotations

from typing import Any

import torch

_SUM, _MEAN, _MAX = range(3)


def embedding_bag(
    weight: torch.Tensor,
    indices: torch.Tensor,
    offsets: torch.Tensor,
    scale_grad_by_freq: bool = False,
    mode: int = _SUM,
    sparse: bool = False,
    per_sample_weights: torch.Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Any:
    """Look all rows up and reduce those of each bag; of four results only the first is computed.

    Which bag a row is in follows from how many bags begin up to it. A bag of nothing, or of padding, has zeros.
    """
    if indices.ndim != 1:
        return NotImplemented
    starts = offsets[:-1] if include_last_offset else offsets
    count = indices.shape[0]
    begins = torch.zeros([count + 1], dtype=torch.int64, device=weight.device)
    begins = begins.scatter_add(0, starts.to(torch.int64), torch.ones_like(starts, dtype=torch.int64))
    bags = (begins.cumsum(0) - 1).narrow(0, 0, count)
    rows = torch.ops.aten.embedding.default(weight, indices)
    if per_sample_weights is not None:
        rows = rows * per_sample_weights.unsqueeze(1)
    is_counted = torch.ones_like(bags, dtype=torch.bool)
    if padding_idx is not None and padding_idx >= -weight.shape[0]:
        is_counted = indices != padding_idx % weight.shape[0]
    places = bags.unsqueeze(1).expand_as(rows)
    sizes = torch.zeros_like(starts, dtype=rows.dtype).scatter_add(0, bags, is_counted.to(rows.dtype)).unsqueeze(1)
    filler = -torch.inf if mode == _MAX else 0.0
    rows = torch.where(is_counted.unsqueeze(1), rows, filler)
    empty = torch.full([starts.shape[0], rows.shape[1]], filler, dtype=rows.dtype, device=rows.device)
    if mode == _MAX:
        result = torch.where(sizes == 0, 0.0, empty.scatter_reduce(0, places, rows, "amax"))
    else:
        result = empty.scatter_add(0, places, rows)
        result = result / sizes.clamp(min=1) if mode == _MEAN else result
    return result, None, None, None
