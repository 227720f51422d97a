"""What cannot be written as ONNX."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from prepbench._torch_compat.operators import without_onnx_translation
from prepbench.errors import TargetError
from prepbench.targets.base import Lowering
from prepbench.targets.onnx.decompose import decompose_for_onnx
from prepbench.targets.onnx.translations import translations


def check_no_complex_values(lowering: Lowering) -> None:
    """Raise ``TargetError`` for a complex input or output: ONNX files have none, only pairs of real numbers inside."""
    signature = lowering.program.graph_signature
    values = {node.name: node for node in lowering.program.graph.nodes}
    for kind, names, nodes in (
        ("input", lowering.input_names, signature.user_inputs),
        ("output", lowering.output_names, signature.user_outputs),
    ):
        for name, node in zip(names, nodes, strict=False):
            if isinstance(node, str) and node in values and _is_complex(values[node]):
                raise TargetError(
                    f"The {kind} {name} is complex, which no ONNX file takes or gives. Use torch.view_as_real and "
                    "torch.view_as_complex inside the model, or choose InductorDeployment()."
                )


def unsupported_nodes(
    program: torch.export.ExportedProgram, others: Sequence[torch.fx.Node] = ()
) -> list[torch.fx.Node]:
    """The nodes, after decomposition, whose operator cannot be written as ONNX.

    Where there are such nodes, what computes with complex numbers is among them: these cannot pass from a part of the
    graph in PyTorch to one in ONNX.

    Args:
        program: the graph.
        others: nodes that the target cannot take for reasons of its own.
    """
    nodes = without_onnx_translation(decompose_for_onnx(program))
    own = translations()
    lacking = [*others, *(node for node in nodes if node.target not in own)]
    if lacking:
        calls = [node for node in program.graph.nodes if node.op == "call_function" and node not in lacking]
        lacking += [node for node in calls if any(map(_is_complex, (node, *node.all_input_nodes)))]
    return lacking


def _is_complex(node: torch.fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.dtype.is_complex
