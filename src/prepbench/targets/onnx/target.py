"""The base class of targets that read ONNX, and checks of what ONNX can express and of saved files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import torch

from prepbench._torch_compat.operators import without_onnx_translation
from prepbench._torch_compat.scans import scans_in
from prepbench.capture.aten.computed_in_float32 import computed_in_float32
from prepbench.capture.sizes.recurrent import has_recurrent_layers
from prepbench.errors import ArtifactError, TargetError, sentence
from prepbench.targets.base import Lowering, Target
from prepbench.targets.onnx.decompose import decompose_for_onnx, functional_forms
from prepbench.targets.onnx.export import Change, export_onnx
from prepbench.targets.onnx.finish import quantize_biases
from prepbench.targets.onnx.translations import translations
from prepbench.targets.programs import check_stateless, is_complex


class OnnxTarget(Target):
    """A target that reads ONNX, after its own ``changes`` of the ONNX graph, each in place."""

    packages: ClassVar[tuple[str, ...]] = ("onnx", "onnxscript")
    changes: ClassVar[tuple[Change, ...]] = (quantize_biases,)
    # convolutions of ONNX do not take it, and ONNX Runtime has no matrix products of it
    types_without_kernels = frozenset({torch.bfloat16})
    runs_recurrent_layers = True
    unraised_errors = frozenset({"singular"})

    def types_to_replace(self, program: torch.export.ExportedProgram) -> frozenset[torch.dtype]:
        return _types_to_replace(program)

    def unsupported_nodes(self, program: torch.export.ExportedProgram) -> Sequence[torch.fx.Node]:
        self.check_available()
        return unsupported_nodes(program)

    def check_program(self, lowering: Lowering) -> None:
        """Raise ``TargetError`` for programs that no ONNX file can hold: state, and complex inputs or outputs."""
        check_stateless(lowering.program)
        for kind, name, node in lowering.ends():
            if is_complex(node):
                raise TargetError(
                    f"The {kind} {name} is complex, and ONNX files have no complex inputs or outputs. Use "
                    "torch.view_as_real and torch.view_as_complex inside the model, or choose InductorDeployment()."
                )


def write_onnx(target: Target, lowering: Lowering, folder: Path) -> Path:
    """Write a program as ``folder/model.onnx``: as ``target`` reads it, or as ONNX Runtime does if it reads no ONNX.

    Raises:
        TargetError: an operator cannot be written as ONNX.
    """
    program = computed_in_float32(lowering.program, _types_to_replace(lowering.program))
    lowering = replace(lowering, program=program)
    changes = target.changes if isinstance(target, OnnxTarget) else OnnxTarget.changes
    return export_onnx(lowering, folder, changes, one_file=True)


def _types_to_replace(program: torch.export.ExportedProgram) -> frozenset[torch.dtype]:
    """Return the types to replace; also float16 with recurrent layers or loops, which crash ONNX Runtime (1.31)."""
    types = OnnxTarget.types_without_kernels
    return types | {torch.float16} if has_recurrent_layers(program) or scans_in(program.graph) else types


# Checks for values and operators that ONNX cannot express.


def unsupported_nodes(
    program: torch.export.ExportedProgram, others: Sequence[torch.fx.Node] = ()
) -> list[torch.fx.Node]:
    """Return the nodes, after decomposition, whose operator cannot be written as ONNX.

    If there are any, the nodes that compute with complex numbers are added: complex tensors cannot be passed between
    a partition in PyTorch and one in ONNX.
    """
    nodes = without_onnx_translation(decompose_for_onnx(program), functional_forms())
    own = translations()
    unsupported = [*others, *(node for node in nodes if node.target not in own)]
    if unsupported:
        calls = [node for node in program.graph.nodes if node.op == "call_function" and node not in unsupported]
        unsupported += [node for node in calls if any(map(is_complex, (node, *node.all_input_nodes)))]
    return unsupported


# Checks of saved ONNX files before a runtime reads them, and weights in files beside them.


# bytes of one protobuf message
_LIMIT = 2**31 - 2**20


def check_saved(file: Path) -> None:
    """Raise ``ArtifactError`` unless the file is valid ONNX whose weights lie in it or beside it."""
    import onnx

    try:
        onnx.checker.check_model(str(file))
    except Exception as error:  # its errors share no base class
        raise ArtifactError(
            f"{file} is no valid ONNX: {sentence(error)} Copy the folder again, or compile and save the model again."
        ) from error


def put_weights_inside(file: Path) -> None:
    """Merge a graph and the weights beside it into one file, in place, up to its limit (2 GB)."""
    import onnx

    beside = [path for path in file.parent.glob(f"{file.name}*") if path != file]
    if not beside or sum(path.stat().st_size for path in (file, *beside)) >= _LIMIT:
        return
    onnx.save(onnx.load(str(file)), str(file))
    for path in beside:
        path.unlink()
