"""TensorRT: an ONNX file with explicit symmetric quantization.

Where TensorRT and a GPU are there, the file becomes an engine; elsewhere it runs in ONNX Runtime, operator by operator
where that has no kernel, so that accuracy can be checked without the device. Latency measured that way says nothing
about TensorRT.
"""

from __future__ import annotations

import importlib.util
import json
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from prepbench.errors import TargetError, sentence
from prepbench.internal_errors import raise_if_internal
from prepbench.quantize import Placement
from prepbench.settings import DeploymentSettings, OnnxRuntimeDeployment, TensorRtDeployment
from prepbench.settings.numbers import INT8
from prepbench.storage import KeptFolder
from prepbench.targets.base import NO_RECURRENT, NO_TABLES, NO_TRANSPOSED, NO_TRUST, Lowering, Runtime, Trust
from prepbench.targets.onnx.export import EXAMPLE_SHAPES, FILE, export_onnx
from prepbench.targets.onnx.target import OnnxTarget, check_saved
from prepbench.targets.onnxruntime import OnnxRuntime


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
        packs_weights=True,
        conv_additions=True,
        fuses_additions=True,
        signed_activations=True,
        symmetric_activations=True,
        weights=(INT8,),
        activations=(INT8,),
        constraints=(NO_TABLES, NO_TRANSPOSED, NO_RECURRENT),
    )

    def lower(self, lowering: Lowering, settings: DeploymentSettings) -> Runtime:
        self.check_program(lowering)
        keep = KeptFolder("tensorrt")
        file = export_onnx(lowering, keep.path, self.changes)
        check_file(file)
        return _runtime(file, keep)

    def load(self, folder: Path, settings: DeploymentSettings, trust: Trust = NO_TRUST) -> Runtime:
        check_saved(folder / FILE)
        return _runtime(folder / FILE, None)

    def runs_elsewhere(self) -> str:
        return "" if has_tensorrt() else "in ONNX Runtime"


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


# TensorRT engines (10 and later), written against the documentation of its Python interface.
#
# They need a GPU of NVIDIA: no test has run this file. Everything else of the target is tested without one.


_DTYPES = {
    "FLOAT": torch.float32,
    "HALF": torch.float16,
    "BF16": torch.bfloat16,
    "INT8": torch.int8,
    "UINT8": torch.uint8,
    "INT32": torch.int32,
    "INT64": torch.int64,
    "BOOL": torch.bool,
}


def has_tensorrt() -> bool:
    """Return whether engines can be built here."""
    return importlib.util.find_spec("tensorrt") is not None and torch.cuda.is_available()


class Engine(Runtime):
    """An engine built from an ONNX file; ``reference``, the file in ONNX Runtime, takes calls of other sizes."""

    def __init__(self, file: Path, reference: OnnxRuntime) -> None:
        self._reference = reference
        self._engine = _build(file, json.loads(reference.metadata.get(EXAMPLE_SHAPES, "{}")))
        self._names = [self._engine.get_tensor_name(i) for i in range(self._engine.num_io_tensors)]
        self._idle: deque[Any] = deque()  # contexts, of which each runs one call at a time

    def run(self, leaves: Sequence[Any]) -> Sequence[Any]:
        feeds = self._reference.feeds(leaves)
        try:
            context = self._idle.pop()
        except IndexError:
            context = self._engine.create_execution_context()
        try:
            results = self._call(context, feeds)
        finally:
            self._idle.append(context)
        return self._reference.run(leaves) if results is None else results

    def _call(self, context: Any, feeds: Mapping[str, Any]) -> list[torch.Tensor] | None:
        """Return the results, or None if the engine was not built for these sizes or cannot tell its results'."""
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            tensors = {name: torch.from_numpy(array).cuda().contiguous() for name, array in feeds.items()}
            if not all(context.set_input_shape(name, tuple(tensors[name].shape)) for name in tensors):
                return None
            for name in self._names:
                shape = tuple(context.get_tensor_shape(name))
                if min(shape, default=0) < 0:
                    return None
                if name not in tensors:
                    dtype = _DTYPES[self._engine.get_tensor_dtype(name).name]
                    tensors[name] = torch.empty(shape, dtype=dtype, device="cuda")
                context.set_tensor_address(name, tensors[name].data_ptr())
            if not context.execute_async_v3(stream.cuda_stream):
                raise TargetError("TensorRT could not run its engine. Its log on standard error says why.")
        stream.synchronize()
        return [tensors[name].cpu() for name in self._reference.output_names]

    def save(self, folder: Path) -> None:
        # an engine fits one GPU and one version; the file that it is built from fits all
        self._reference.save(folder)


def _build(file: Path, examples: Mapping[str, Sequence[int]]) -> Any:
    """Return an engine for sizes from small ones to a multiple of those of the examples, a shape for each input."""
    import tensorrt

    logger = tensorrt.Logger(tensorrt.Logger.ERROR)
    builder = tensorrt.Builder(logger)
    # the types of the file decide, as explicit quantization wants it
    network = builder.create_network(1 << int(tensorrt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    parser = tensorrt.OnnxParser(network, logger)
    if not parser.parse_from_file(str(file)):
        errors = "; ".join(str(parser.get_error(i)) for i in range(parser.num_errors))
        raise TargetError(f"TensorRT cannot read the graph: {errors}. Choose another target for this model.")
    config = builder.create_builder_config()
    profile = builder.create_optimization_profile()
    for i in range(network.num_inputs):
        tensor = network.get_input(i)
        if min(tensor.shape, default=0) >= 0:
            continue
        ranges = [
            _range(dim, example, size)
            for dim, (size, example) in enumerate(zip(tensor.shape, examples[tensor.name], strict=True))
        ]
        profile.set_shape(tensor.name, *(tuple(sizes) for sizes in zip(*ranges, strict=True)))
    config.add_optimization_profile(profile)
    plan = builder.build_serialized_network(network, config)
    if plan is None:
        raise TargetError("TensorRT could not build an engine. Its log on standard error says why.")
    return tensorrt.Runtime(logger).deserialize_cuda_engine(plan)


def _range(dim: int, example: int, size: int) -> tuple[int, int, int]:
    """Return the smallest, usual and largest size of a dim; the first one of a dynamic shape is usually the batch."""
    if size >= 0:
        return size, size, size
    return (1, example, max(32, 4 * example)) if dim == 0 else (max(1, example // 2), example, 4 * example)


# TensorRT's rules for explicit quantization: symmetric, signed, with constant scales.


_QUANTIZERS = ("QuantizeLinear", "DequantizeLinear")


def check_explicit(model: Any) -> None:
    """Raise ``TargetError`` naming the first quantizer that TensorRT would refuse or misread."""
    from onnx import TensorProto, numpy_helper

    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "Constant":
            value = next((attribute.t for attribute in node.attribute if attribute.name == "value"), None)
            if value is not None:
                constants[node.output[0]] = value
    signed = (TensorProto.INT8, TensorProto.INT4)
    for node in model.graph.node:
        if node.op_type not in _QUANTIZERS:
            continue
        if node.input[1] not in constants:
            raise _refused(node, "its scale is computed in the graph; a constant is needed")
        if len(node.input) > 2 and node.input[2]:
            zero = constants.get(node.input[2])
            if zero is None or zero.data_type not in signed or np.any(numpy_helper.to_array(zero).astype(np.int32)):
                raise _refused(node, "it has a zero point, or integers without sign; symmetric int8 is needed")
        elif node.op_type == "QuantizeLinear":
            raise _refused(node, "it names no type of integers, which means unsigned ones; symmetric int8 is needed")


def _refused(node: Any, reason: str) -> TargetError:
    return TargetError(
        f"TensorRT cannot take {node.op_type} {node.name or node.output[0]!r}: {reason}. Compile with "
        "deployment_settings=TensorRtDeployment(), which places such quantizers, from a model that has none of its own."
    )
