"""The base class of targets that read ONNX."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import torch

from prepbench._torch_compat.scans import scans_in
from prepbench.capture.aten.computed_in_float32 import computed_in_float32
from prepbench.capture.sizes.recurrent import has_recurrent_layers
from prepbench.targets.base import Lowering, Target
from prepbench.targets.onnx.export import Change, export_onnx
from prepbench.targets.onnx.finish import quantize_biases
from prepbench.targets.onnx.requirements import check_no_complex_values, unsupported_nodes
from prepbench.targets.state import check_stateless


class OnnxTarget(Target):
    """A target that reads ONNX.

    Attributes:
        changes: its changes of the ONNX graph, each in place.
    """

    packages: ClassVar[tuple[str, ...]] = ("onnx", "onnxscript")
    changes: ClassVar[tuple[Change, ...]] = (quantize_biases,)
    # convolutions of ONNX do not take it, and ONNX Runtime has no matrix products of it
    types_without_kernels = frozenset({torch.bfloat16})

    def types_to_replace(self, program: torch.export.ExportedProgram) -> frozenset[torch.dtype]:
        return _types_to_replace(program)

    def unsupported_nodes(self, program: torch.export.ExportedProgram) -> Sequence[torch.fx.Node]:
        self.check_available()
        return unsupported_nodes(program)

    def check_program(self, lowering: Lowering) -> None:
        """Raise ``TargetError`` for programs that no ONNX file can hold: state, and complex inputs or outputs."""
        check_stateless(lowering.program)
        check_no_complex_values(lowering)


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
