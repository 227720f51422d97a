"""Operators that are taken apart before the ONNX file is written, because the exporter's own form of them is slow or
missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from prepbench.targets.decompose import attention, take_apart
from prepbench.targets.pooling import is_mean

Program = torch.export.ExportedProgram
aten = torch.ops.aten


def decompose_for_onnx(program: Program) -> Program:
    """The program with attention as products and a softmax, and with the dims of reductions over all of them named.

    The exporter's own translation of attention transposes the keys in a detour over their shape, scales queries and
    keys apart and looks for NaN in every weight, so that no runtime recognises it. In this form OpenVINO computes it in
    one kernel, also between integer layers.
    """
    return take_apart(
        program,
        {
            aten.scaled_dot_product_attention.default: attention,
            aten.avg_pool2d.default: _average,
            aten.amax.default: _over_all(aten.amax.default),
            aten.amin.default: _over_all(aten.amin.default),
        },
    )


def _average(
    x: torch.Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    ceil_mode: bool = False,
    *rest: Any,
) -> Any:
    """One window over everything, which OpenVINO refuses where it is larger than the image: only with ``ceil_mode``."""
    if not ceil_mode or not is_mean(x.shape[-2:], kernel_size, stride, padding, ceil_mode, *rest):
        return NotImplemented
    return x.mean((-2, -1), keepdim=True)


def _over_all(reduction: Any) -> Any:
    def reduce(x: torch.Tensor, dim: Sequence[int] = (), keepdim: bool = False) -> Any:
        return NotImplemented if dim or not x.ndim else reduction(x, list(range(x.ndim)), keepdim)

    return reduce
