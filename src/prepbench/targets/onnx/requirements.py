"""What the targets that go through ONNX need, and what they refuse, in words."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence

import torch

from prepbench._torch_compat.operators import without_onnx_translation
from prepbench.document.model import Failure
from prepbench.errors import MissingPackageError, TargetError
from prepbench.targets.base import Lowering
from prepbench.targets.onnx.decompose import decompose_for_onnx
from prepbench.targets.onnx.translations import translations


def check_packages(packages: Sequence[str], settings: str) -> None:
    """Raise ``MissingPackageError`` with the install command when one of them is missing.

    Args:
        packages: names, by which they are imported as well as installed.
        settings: name of the settings class that needs them.
    """
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        raise MissingPackageError(
            f"{settings} needs {', '.join(missing)}: pip install {' '.join(missing)}. Or choose InductorDeployment()."
        )


def check_no_leaves(leaves: Sequence[Failure], runtime: str) -> None:
    """Raise ``TargetError`` naming the leaf-wrapped modules: nothing that reads ONNX calls back into Python."""
    if leaves:
        names = "; ".join(
            f"{leaf.fqn or 'the model itself'} ({leaf.module_type}): {leaf.kind}{_place(leaf)}" for leaf in leaves
        )
        raise TargetError(
            f"{runtime} cannot run leaf-wrapped modules, because they call back into Python. Leaf-wrapped: {names}. "
            f"Rewrite the module ({leaves[0].remedy.rstrip('.')}) or compile with "
            "deployment_settings=InductorDeployment(), which runs leaves."
        )


def check_no_complex_leaves(lowering: Lowering) -> None:
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


def _place(leaf: Failure) -> str:
    return f" at {leaf.source.file}:{leaf.source.line}" if leaf.source else ""
