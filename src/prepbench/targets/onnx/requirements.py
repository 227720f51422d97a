"""Checks for values and operators that ONNX cannot express."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from prepbench._torch_compat.operators import without_onnx_translation
from prepbench.errors import TargetError
from prepbench.targets.base import Lowering
from prepbench.targets.onnx.decompose import decompose_for_onnx
from prepbench.targets.onnx.translations import translations


def check_no_complex_values(lowering: Lowering) -> None:
    """Raise ``TargetError`` for a complex input or output, which ONNX files do not support."""
    signature = lowering.program.graph_signature
    values = {node.name: node for node in lowering.program.graph.nodes}
    for kind, names, nodes in (
        ("input", lowering.input_names, signature.user_inputs),
        ("output", lowering.output_names, signature.user_outputs),
    ):
        for name, node in zip(names, nodes, strict=False):
            if isinstance(node, str) and node in values and _is_complex(values[node]):
                raise TargetError(
                    f"The {kind} {name} is complex, and ONNX files have no complex inputs or outputs. Use "
                    "torch.view_as_real and torch.view_as_complex inside the model, or choose InductorDeployment()."
                )


def unsupported_nodes(
    program: torch.export.ExportedProgram, others: Sequence[torch.fx.Node] = ()
) -> list[torch.fx.Node]:
    """Return the nodes, after decomposition, whose operator cannot be written as ONNX.

    If there are any, the nodes that compute with complex numbers are added: complex tensors cannot be passed between
    a partition in PyTorch and one in ONNX.

    Args:
        program: the graph.
        others: nodes that the target does not support for other reasons.
    """
    nodes = without_onnx_translation(decompose_for_onnx(program))
    own = translations()
    unsupported = [*others, *(node for node in nodes if node.target not in own)]
    if unsupported:
        calls = [node for node in program.graph.nodes if node.op == "call_function" and node not in unsupported]
        unsupported += [node for node in calls if any(map(_is_complex, (node, *node.all_input_nodes)))]
    return unsupported


def _is_complex(node: torch.fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.dtype.is_complex
