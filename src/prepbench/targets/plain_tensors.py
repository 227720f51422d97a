"""Tensors whose memory other libraries can read."""

from __future__ import annotations

import torch


def plain_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor itself if its memory is readable as it is: on the CPU, contiguous, without gradient, and no
    negated or conjugated view. Else a copy that is.
    """
    # the common case; the check takes half as long as an unneeded conversion
    if (
        tensor.is_cpu
        and tensor.is_contiguous()
        and not (tensor.requires_grad or tensor.is_neg() or (tensor.is_complex() and tensor.is_conj()))
    ):
        return tensor
    return tensor.detach().cpu().contiguous().resolve_conj().resolve_neg()
