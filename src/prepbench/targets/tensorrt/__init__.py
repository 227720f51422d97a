"""TensorRT: an ONNX file with explicit symmetric quantization.

Where TensorRT and a GPU are there, the file becomes an engine; elsewhere it runs in ONNX Runtime, operator by operator
where that has no kernel, so that accuracy can be checked without the device. Latency measured that way says nothing
about TensorRT.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch

from prepbench.document.model import Failure
from prepbench.errors import TargetError, sentence
from prepbench.quantize import Placement
from prepbench.settings import DeploymentSettings, OnnxRuntimeDeployment, TensorRtDeployment
from prepbench.targets.base import Lowering, Runtime, Target
from prepbench.targets.onnx.export import FILE, export_onnx
from prepbench.targets.onnx.requirements import (
    check_no_complex_leaves,
    check_no_leaves,
    check_packages,
    unsupported_nodes,
)
from prepbench.targets.onnx.state import check_stateless
from prepbench.targets.onnxruntime import OnnxRuntime
from prepbench.targets.tensorrt.engine import Engine, has_tensorrt
from prepbench.targets.tensorrt.explicit import check_explicit


class TensorRtTarget(Target):
    """ONNX in the form that TensorRT builds engines from."""

    name = "tensorrt"
    settings_type = TensorRtDeployment
    # TensorRT quantizes what enters a layer and fuses outwards from there; a quantizer at an output would end the
    # fusion. Of the two operands of a residual addition, that which is no convolution's result needs one of its own.
    placement = Placement(
        conv_additions=True,
        fuses_additions=True,
        signed_activations=True,
        symmetric_activations=True,
        weights_bits=(8,),
        activations_bits=(8,),
    )

    def unsupported_nodes(self, program: torch.export.ExportedProgram) -> Sequence[torch.fx.Node]:
        self.check_available()
        return unsupported_nodes(program)

    def check_available(self) -> None:
        check_packages(("onnxruntime", "onnx", "onnxscript"), "TensorRtDeployment")

    def check_leaves(self, leaves: Sequence[Failure]) -> None:
        check_no_leaves(leaves, "TensorRT")

    def lower(self, lowering: Lowering, settings: DeploymentSettings) -> Runtime:
        check_stateless(lowering.program)
        check_no_complex_leaves(lowering)
        keep = tempfile.TemporaryDirectory(prefix="prepbench-tensorrt-")
        file = self.write_onnx(lowering, Path(keep.name))
        check_file(file)
        return _runtime(file, keep)

    def write_onnx(self, lowering: Lowering, folder: Path) -> Path:
        # biases stay in float: TensorRT adds them to the sums before these are rounded
        return export_onnx(lowering, folder, finish=())

    def load(self, folder: Path, settings: DeploymentSettings) -> Runtime:
        return _runtime(folder / FILE, None)


def check_file(file: Path) -> None:
    """Raise ``TargetError`` unless the file is valid ONNX and quantized in the way that TensorRT reads."""
    import onnx

    try:
        onnx.checker.check_model(str(file), full_check=True)
    except Exception as error:  # its errors have no common base
        raise TargetError(
            f"The graph is no valid ONNX: {sentence(error)} Choose another target for this model."
        ) from error
    check_explicit(onnx.load(str(file), load_external_data=False))


def _runtime(file: Path, keep: tempfile.TemporaryDirectory[str] | None) -> Runtime:
    # its fusions are for unsigned integers, and it moves signed ones past other operators with the wrong type
    reference = OnnxRuntime(file, OnnxRuntimeDeployment(), keep, fuse=False)
    return Engine(file, reference) if has_tensorrt() else reference
