"""ONNX Runtime on the CPU: the program as an ONNX file with QuantizeLinear/DequantizeLinear pairs, which it fuses into
int8 kernels.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from prepbench.errors import TargetError
from prepbench.internal_errors import raise_if_internal
from prepbench.quantize import Constraint, Placement, why_reduce_range
from prepbench.settings import DeploymentSettings, OnnxRuntimeDeployment
from prepbench.settings.numbers import INT4, INT8, INT16
from prepbench.storage import KeptFolder
from prepbench.targets.base import NO_LEAVES, EndNames, Lowering, Runtime
from prepbench.targets.kernel_times import KernelTimes, layers_from_text
from prepbench.targets.onnx.export import FILE, export_onnx
from prepbench.targets.onnx.finish import LAYERS
from prepbench.targets.onnx.target import OnnxTarget, check_saved
from prepbench.targets.onnx.weights import dequantize_at_load, look_up_integers, rename_ends, stored_bits
from prepbench.targets.onnxruntime.empty_batches import fill_empty_batches
from prepbench.targets.onnxruntime.profiling import kernel_times
from prepbench.targets.onnxruntime.values import Session, open_session, public_value
from prepbench.targets.programs import plain_tensor


class OnnxRuntime(Runtime):
    """A session on an ONNX file, and the input leaves that it takes.

    Attributes:
        metadata: the file's metadata.

    Args:
        file: the ONNX file; large weights may lie beside it.
        settings: threads.
        keep: a temporary folder that lives as long as the runtime.
        fuse: whether quantizers are fused into integer kernels; otherwise each operator computes in float between them.
    """

    def __init__(
        self,
        file: Path,
        settings: OnnxRuntimeDeployment,
        keep: KeptFolder | None = None,
        *,
        fuse: bool = True,
    ) -> None:
        self._settings, self._fuse = settings, fuse
        try:
            self._session = open_session(file, self._options())
        except Exception as error:  # its errors share no base class
            raise_if_internal(error, of_libraries=True)
            raise TargetError(
                f"ONNX Runtime cannot run the graph: {str(error).strip()} If its number type is the reason, compile "
                "model.float(); else choose InductorDeployment()."
            ) from error
        self.metadata: dict[str, str] = self._session.get_modelmeta().custom_metadata_map
        # leaf i is the session's input inputs[i], or "" when the graph does not use it
        inputs = self.metadata.get("prepbench.inputs")
        self._inputs = inputs.split("\n") if inputs else []
        self._outputs = [output.name for output in self._session.get_outputs()]
        self._calls = Session(self._session, [name for name in self._inputs if name], self._outputs)
        self._file = file
        self._keep = keep

    def _options(self) -> Any:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        if self._settings.intra_op_threads is not None:
            options.intra_op_num_threads = self._settings.intra_op_threads
        options.log_severity_level = 4  # errors are raised, so printing them is redundant
        if not self._fuse:
            options.add_session_config_entry("session.disable_quant_qdq", "1")
        return options

    def run(self, leaves: Sequence[Any]) -> Sequence[Any]:
        return self._calls.run(list(self._tensors(leaves).values()))

    def feeds(self, leaves: Sequence[Any]) -> dict[str, Any]:
        """Return the input arrays of the file by name."""
        return {name: leaf.numpy() for name, leaf in self._tensors(leaves).items()}

    def _tensors(self, leaves: Sequence[Any]) -> dict[str, torch.Tensor]:
        return {
            name: plain_tensor(leaf)
            for name, leaf in zip(self._inputs, leaves, strict=True)
            if name and isinstance(leaf, torch.Tensor)
        }

    def kernel_times(self, calls: Sequence[Sequence[Any]], rounds: int) -> KernelTimes:
        layers = layers_from_text(self.metadata.get(LAYERS))
        feeds = [{name: public_value(leaf) for name, leaf in self._tensors(leaves).items()} for leaves in calls]
        return kernel_times(self._file, self._options(), feeds, rounds, layers)

    @property
    def output_names(self) -> list[str]:
        """The names of the results, in order."""
        return list(self._outputs)

    def stored_bits(self) -> Mapping[str, int]:
        return stored_bits(self._file)

    def save(self, folder: Path) -> None:
        for path in self._file.parent.glob(f"{FILE}*"):
            shutil.copy(path, folder / path.name)


_LONE_DEPTHWISE = Constraint(
    lambda call: not call.is_weights_only and call.layer.is_depthwise and not call.feeds_integers,
    "on this target, a depthwise convolution is faster in float where no layer reads its integers",
    of_neighbours=True,
)


class OnnxRuntimeTarget(OnnxTarget):
    """CPU inference with ONNX Runtime.

    Convolutions write integers, and residual sums are computed in them. Its float kernels for depthwise convolutions
    are as fast as those for int8, so these gain only where the next layer reads the integers.
    """

    name = "onnxruntime"
    display_name = "ONNX Runtime"
    settings_type = OnnxRuntimeDeployment
    packages = ("onnxruntime", *OnnxTarget.packages)
    modules = ("onnxruntime",)  # used for writing files only, which no loaded model needs
    renamed_file = FILE
    placement = Placement(
        conv_outputs=True,
        activations=(INT4, INT8, INT16),
        conv_additions=True,
        constraints=(_LONE_DEPTHWISE,),
        reduce_range=why_reduce_range(),
    )
    changes = (*OnnxTarget.changes, look_up_integers, dequantize_at_load, fill_empty_batches)

    def lower(self, lowering: Lowering, settings: DeploymentSettings) -> Runtime:
        assert isinstance(settings, OnnxRuntimeDeployment)
        self.check_program(lowering)
        keep = KeptFolder("onnx")
        file = export_onnx(lowering, keep.path, self.changes)
        return OnnxRuntime(file, settings, keep)

    def rename_ends(self, folder: Path, names: EndNames) -> None:
        rename_ends(folder / FILE, names.inputs, names.outputs)

    def load(
        self,
        folder: Path,
        settings: DeploymentSettings,
        *,
        allow_code: bool = False,
        leaves: Mapping[str, str] = NO_LEAVES,
    ) -> Runtime:
        assert isinstance(settings, OnnxRuntimeDeployment)
        check_saved(folder / FILE)
        return OnnxRuntime(folder / FILE, settings)
