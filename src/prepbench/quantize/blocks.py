"""Weights with a scale for each block of inputs: one operator, which targets translate or decompose."""

from __future__ import annotations

import torch

from prepbench.patching import warnings_ignored_here

Program = torch.export.ExportedProgram


def dequantize_blocks_reference(
    q: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor | None, block_size: int, bits: int
) -> torch.Tensor:
    """Compute ``prepbench::dequantize_blocks`` in operators of PyTorch.

    Args:
        q: int8 of shape (out, in).
        scale: float32 of shape (out, in / block_size).
        zero_point: int8 of the shape of ``scale``, or None for none.
        block_size: inputs that share a scale.
        bits: bits of the integers, which decides how a target stores them.

    Returns:
        float32 of shape (out, in).
    """
    blocks = q.to(scale.dtype).reshape(scale.shape[0], scale.shape[1], block_size)
    if zero_point is not None:
        blocks = blocks - zero_point.to(scale.dtype).unsqueeze(-1)
    return (blocks * scale.unsqueeze(-1)).reshape(q.shape[0], q.shape[1])


@torch.library.custom_op("prepbench::dequantize_blocks", mutates_args=())
def dequantize_blocks(
    q: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor | None, block_size: int, bits: int
) -> torch.Tensor:
    """The operator; see :func:`dequantize_blocks_reference`."""
    blocks = q.to(scale.dtype).reshape(scale.shape[0], scale.shape[1], block_size)
    if zero_point is not None:
        blocks -= zero_point.to(scale.dtype).unsqueeze(-1)
    return blocks.mul_(scale.unsqueeze(-1)).reshape(q.shape)


@dequantize_blocks.register_fake
def _(
    q: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor | None, block_size: int, bits: int
) -> torch.Tensor:
    return torch.empty(q.shape, dtype=scale.dtype, device=q.device)


OPERATOR = torch.ops.prepbench.dequantize_blocks.default


def decompose_blocks(program: Program) -> Program:
    """Replace ``dequantize_blocks`` by plain operators, for targets that have no kernel for it."""
    if not any(node.target is OPERATOR for node in program.graph.nodes):
        return program
    with warnings_ignored_here():  # torch warns about its own internals
        decomposed: Program = program.run_decompositions({OPERATOR: dequantize_blocks_reference})
    return decomposed
