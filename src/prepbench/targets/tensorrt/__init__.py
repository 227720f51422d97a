"""TensorRT: an ONNX file with explicit symmetric quantization.

Where TensorRT and a GPU are there, the file becomes an engine; elsewhere it runs in ONNX Runtime, operator by operator
where that has no kernel, so that accuracy can be checked without the device. Latency measured that way says nothing
about TensorRT.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from prepbench.errors import TargetError, sentence
from prepbench.internal_errors import raise_if_internal
from prepbench.quantize import Placement
from prepbench.settings import DeploymentSettings, OnnxRuntimeDeployment, TensorRtDeployment
from prepbench.storage import KeptFolder
from prepbench.targets.base import NO_LEAVES, Lowering, Runtime
from prepbench.targets.capabilities import NO_RECURRENT, NO_TABLES, NO_TRANSPOSED
from prepbench.targets.onnx.export import FILE, export_onnx
from prepbench.targets.onnx.saved import check_saved
from prepbench.targets.onnx.target import OnnxTarget
from prepbench.targets.onnxruntime import OnnxRuntime
from prepbench.targets.tensorrt.engine import Engine, check_explicit, has_tensorrt


class TensorRtTarget(OnnxTarget):
    """ONNX files from which TensorRT builds engines."""

    name = "tensorrt"
    display_name = "TensorRT"
    settings_type = TensorRtDeployment
    packages = ("onnxruntime", *OnnxTarget.packages)
    modules = ("onnxruntime",)
    changes = ()  # biases stay in float: TensorRT adds them to the sums before these are rounded
    # TensorRT quantizes what enters a layer and fuses outwards from there; a quantizer at an output would end the
    # fusion. Of the two operands of a residual addition, that which is no convolution's result needs one of its own.
    placement = Placement(
        conv_additions=True,
        fuses_additions=True,
        signed_activations=True,
        symmetric_activations=True,
        weights_bits=(8,),
        activations_bits=(8,),
        constraints=(NO_TABLES, NO_TRANSPOSED, NO_RECURRENT),
    )

    def lower(self, lowering: Lowering, settings: DeploymentSettings) -> Runtime:
        self.check_program(lowering)
        keep = KeptFolder("tensorrt")
        file = export_onnx(lowering, keep.path, self.changes)
        check_file(file)
        return _runtime(file, keep)

    def load(
        self,
        folder: Path,
        settings: DeploymentSettings,
        *,
        allow_code: bool = False,
        leaves: Mapping[str, str] = NO_LEAVES,
    ) -> Runtime:
        check_saved(folder / FILE)
        return _runtime(folder / FILE, None)


def check_file(file: Path) -> None:
    """Raise ``TargetError`` unless the file is valid ONNX with the explicit quantization that TensorRT reads."""
    import onnx

    try:
        onnx.checker.check_model(str(file), full_check=True)
    except Exception as error:  # its errors share no base class
        raise_if_internal(error, of_libraries=True)
        raise TargetError(
            f"The graph is not valid ONNX: {sentence(error)} Choose another target for this model."
        ) from error
    check_explicit(onnx.load(str(file), load_external_data=False))


def _runtime(file: Path, keep: KeptFolder | None) -> Runtime:
    # its fusions are for unsigned integers, and it moves signed ones past other operators with the wrong type
    reference = OnnxRuntime(file, OnnxRuntimeDeployment(), keep, fuse=False)
    return Engine(file, reference) if has_tensorrt() else reference
