"""Engines of TensorRT. Written after its Python interface; it runs only where there is a GPU, so tests on a CPU do not
reach it.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from prepbench.errors import TargetError
from prepbench.targets.base import Runtime
from prepbench.targets.onnxruntime import OnnxRuntime

# smallest, usual and largest size of each dynamic dim, as multiples of 1
_SIZES = (1, 8, 64)


def has_tensorrt() -> bool:
    """Whether engines can be built here."""
    return importlib.util.find_spec("tensorrt") is not None and torch.cuda.is_available()


class Engine(Runtime):
    """An engine built from an ONNX file; calls of other sizes than it was built for run in ONNX Runtime.

    Args:
        file: the ONNX file.
        reference: the same file in ONNX Runtime, which also knows the names.
    """

    def __init__(self, file: Path, reference: OnnxRuntime) -> None:
        self._reference = reference
        self._engine = _build(file)
        self._names = [self._engine.get_tensor_name(i) for i in range(self._engine.num_io_tensors)]

    def run(self, leaves: Sequence[Any]) -> Sequence[Any]:
        feeds = self._reference.feeds(leaves)
        context = self._engine.create_execution_context()
        tensors: dict[str, torch.Tensor] = {}
        for name in self._names:
            if name in feeds:
                tensors[name] = torch.from_numpy(feeds[name]).cuda().contiguous()
                if not context.set_input_shape(name, tuple(tensors[name].shape)):
                    return self._reference.run(leaves)
        for name in self._names:
            if name not in feeds:
                dtype = _torch_dtype(self._engine.get_tensor_dtype(name))
                tensors[name] = torch.empty(tuple(context.get_tensor_shape(name)), dtype=dtype, device="cuda")
            context.set_tensor_address(name, tensors[name].data_ptr())
        stream = torch.cuda.current_stream()
        if not context.execute_async_v3(stream.cuda_stream):
            raise TargetError("TensorRT could not run its engine. Its log on standard error says why.")
        stream.synchronize()
        return [tensors[name].cpu() for name in self._reference.output_names]

    def save(self, folder: Path) -> None:
        # an engine fits one GPU and one version; the file it is built from fits all
        self._reference.save(folder)


def _build(file: Path) -> Any:
    import tensorrt

    logger = tensorrt.Logger(tensorrt.Logger.ERROR)
    builder = tensorrt.Builder(logger)
    network = builder.create_network(0)
    parser = tensorrt.OnnxParser(network, logger)
    if not parser.parse_from_file(str(file)):
        errors = "; ".join(str(parser.get_error(i)) for i in range(parser.num_errors))
        raise TargetError(f"TensorRT cannot read the graph: {errors}. Choose another target for this model.")
    config = builder.create_builder_config()
    profile = builder.create_optimization_profile()
    for i in range(network.num_inputs):
        tensor = network.get_input(i)
        shapes = [tuple(size if dim < 0 else dim for dim in tensor.shape) for size in _SIZES]
        profile.set_shape(tensor.name, *shapes)
    config.add_optimization_profile(profile)
    plan = builder.build_serialized_network(network, config)
    if plan is None:
        raise TargetError("TensorRT could not build an engine. Its log on standard error says why.")
    return tensorrt.Runtime(logger).deserialize_cuda_engine(plan)


def _torch_dtype(dtype: Any) -> torch.dtype:
    names = {"FLOAT": torch.float32, "HALF": torch.float16, "INT32": torch.int32, "INT64": torch.int64}
    return names.get(dtype.name, torch.bool if dtype.name == "BOOL" else torch.int8)
