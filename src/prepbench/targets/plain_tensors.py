"""Tensors whose memory other libraries can read."""

from __future__ import annotations

import torch


def plain_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor itself where its memory can be read as it is: on the CPU, contiguous, with no gradient to follow and
    no view that negates or conjugates. Else a copy that is so.
    """
    # most are so, and to ask takes half as long as to convert what need not be converted
    if (
        tensor.is_cpu
        and tensor.is_contiguous()
        and not (tensor.requires_grad or tensor.is_neg() or (tensor.is_complex() and tensor.is_conj()))
    ):
        return tensor
    return tensor.detach().cpu().contiguous().resolve_conj().resolve_neg()
