"""Operators that OpenVINO reads but computes wrongly."""

from __future__ import annotations

import torch

from prepbench._torch_compat.operators import OpOverload
from prepbench.errors import TargetError

Program = torch.export.ExportedProgram

_FOURIER = ("aten::fft_", "aten::_fft_", "aten::stft", "aten::istft")


def wrong_nodes(program: Program) -> list[torch.fx.Node]:
    """Fourier transforms: since version 20 of ONNX their axis is an input, which OpenVINO (2026.4) ignores."""
    return [
        node
        for node in program.graph.nodes
        if isinstance(node.target, OpOverload) and node.target.name().startswith(_FOURIER)
    ]


def check_right(program: Program) -> None:
    """Raise ``TargetError`` naming the first operator that OpenVINO would compute wrongly."""
    for node in wrong_nodes(program):
        raise TargetError(
            f"OpenVINO computes {node.target} along the wrong axis. Choose "
            "OnnxRuntimeDeployment() or InductorDeployment() for this model."
        )
