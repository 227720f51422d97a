"""Operators that OpenVINO reads but computes wrongly."""

from __future__ import annotations

import torch

from prepbench._torch_compat.operators import OpOverload
from prepbench.capture.sizes.recurrent import has_lengths
from prepbench.errors import TargetError
from prepbench.targets.dynamic_sizes import computed_from_sizes

Program = torch.export.ExportedProgram

_FOURIER = ("aten::fft_", "aten::_fft_", "aten::stft", "aten::istft")


def wrong_nodes(program: Program) -> list[torch.fx.Node]:
    """The nodes that :func:`check_right` would refuse."""
    return [node for node in program.graph.nodes if _what_is_wrong(node)]


def check_right(program: Program) -> None:
    """Raise ``TargetError`` naming the first operator that OpenVINO would compute wrongly."""
    for node in program.graph.nodes:
        if reason := _what_is_wrong(node):
            raise TargetError(
                f"OpenVINO computes {node.target} {reason}. Choose OnnxRuntimeDeployment() or InductorDeployment() "
                "for this model, or fullgraph=False, which leaves this operator to PyTorch."
            )


def _what_is_wrong(node: torch.fx.Node) -> str:
    """What OpenVINO (2026.4) does wrong with an operator; "" for nothing."""
    if not isinstance(node.target, OpOverload):
        return ""
    if node.target.name().startswith(_FOURIER) and node.target not in computed_from_sizes():
        return "along the wrong axis"  # since version 20 of ONNX it is an input, which is ignored
    if has_lengths(node):
        return "as if all sequences were of one length"
    return ""
