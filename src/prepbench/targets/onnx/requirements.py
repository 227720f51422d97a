"""What the targets that go through ONNX need, and what they refuse, in words."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence

import torch

from prepbench._torch_compat import without_onnx_translation
from prepbench.document.model import Failure
from prepbench.errors import MissingPackageError, TargetError
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


def unsupported_nodes(program: torch.export.ExportedProgram) -> list[torch.fx.Node]:
    """The nodes, after decomposition, whose operator cannot be written as ONNX."""
    nodes = without_onnx_translation(decompose_for_onnx(program))
    own = translations()
    return [node for node in nodes if node.target not in own]


def _place(leaf: Failure) -> str:
    return f" at {leaf.source.file}:{leaf.source.line}" if leaf.source else ""
