"""Requests of OpenVINO whose results share their memory instead of being copied.

Copying a cache of many layers takes half the time of a small model's token. So a request is reused only once its
earlier results are no longer referenced.
"""

from __future__ import annotations

import contextlib
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from prepbench.errors import TargetError
from prepbench.targets.base import Lowering
from prepbench.targets.kernel_times import KernelTimes, layer_of, mean_call, placed
from prepbench.targets.programs import plain_tensor

# requests that are kept for later calls; results keep their memory alive without the request that wrote it
_KEPT = 16
# the number of requests that a call tries before it makes a new one, which takes 0.02 ms
_LOOKED_AT = 4

Span = tuple[int, int]


class Requests:
    """The requests of one ``openvino.CompiledModel``. Thread-safe."""

    def __init__(self, compiled: Any) -> None:
        import openvino

        self._compiled = compiled
        self._bfloat16 = [output.element_type == openvino.Type.bf16 for output in compiled.outputs]
        self._returned: deque[tuple[Any, list[weakref.ref[Any]]]] = deque()

    def take(self) -> Any:
        """Return a request whose results are no longer in use, or a new one."""
        for _ in range(_LOOKED_AT):
            try:
                request, results = self._returned.pop()
            except IndexError:
                break
            if all(result() is None for result in results):
                return request
            self._returned.appendleft((request, results))
        return self._compiled.create_infer_request()

    def outputs(self, request: Any, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return the results of a finished request, in its own memory if nothing else uses it.

        A result that OpenVINO left in the memory of an input or of another result is copied, so that writing to one
        does not change the other. After this, the request may be taken again.
        """
        shared = [
            from_openvino(tensor, is_bfloat16=is_bfloat16)
            for tensor, is_bfloat16 in zip(request.output_tensors, self._bfloat16, strict=True)
        ]
        results = [result for result, _ in shared]
        spans = [_span(result) for result in results]
        around = sorted([*map(_span, inputs), *spans])
        if any(second[0] < first[1] for first, second in pairwise(around)):
            taken = [_span(value) for value in inputs]
            for index, span in enumerate(spans):
                if any(span[0] < end and start < span[1] for start, end in taken):
                    results[index] = results[index].clone()
                taken.append(span)
        self._returned.append((request, [weakref.ref(array) for _, array in shared]))
        if len(self._returned) > _KEPT:
            with contextlib.suppress(IndexError):  # other threads have taken them all
                self._returned.popleft()
        return results


def _span(tensor: torch.Tensor) -> Span:
    start = tensor.data_ptr()
    return start, start + tensor.nbytes


# Other names for the inputs and outputs of OpenVINO IR.


def rename_ends(source: Path, place: Path, inputs: Mapping[str, str], outputs: Sequence[str]) -> None:
    """Write IR (``.xml``) with other names; inputs and outputs in bfloat16 become float32, for NumPy arrays."""
    import openvino

    model = openvino.Core().read_model(source)
    names = [next(inputs[name] for name in end.get_names() if name in inputs) for end in model.inputs]
    for end, name in zip((*model.inputs, *model.outputs), (*names, *outputs), strict=True):
        end.get_tensor().set_names({name})
    openvino.save_model(_with_wide_ends(model), place, compress_to_fp16=False)


def _with_wide_ends(model: Any) -> Any:
    import openvino
    from openvino.preprocess import PrePostProcessor

    changed = PrePostProcessor(model)
    ends = [(changed.input, end) for end in model.inputs] + [(changed.output, end) for end in model.outputs]
    narrow = [(side, end) for side, end in ends if end.get_element_type() == openvino.Type.bf16]
    for side, end in narrow:
        side(end.get_any_name()).tensor().set_element_type(openvino.Type.f32)
    return changed.build() if narrow else model


# Tensors in and out of OpenVINO.


_INT32 = torch.iinfo(torch.int32)


def check_dtypes(lowering: Lowering) -> None:
    """Raise ``TargetError`` for inputs and outputs in float64, which OpenVINO silently computes in float32."""
    signature = lowering.program.graph_signature
    values = {node.name: node.meta.get("val") for node in lowering.program.graph.nodes}
    for kind, names, nodes in (
        ("input", lowering.input_names, signature.user_inputs),
        ("output", lowering.output_names, signature.user_outputs),
    ):
        for name, node in zip(names, nodes, strict=False):
            value = values.get(node) if isinstance(node, str) else None
            if isinstance(value, torch.Tensor) and value.dtype == torch.float64:
                raise TargetError(
                    f"The {kind} {name} is float64, and OpenVINO has no kernels for it: it would compute in float32. "
                    "Compile model.float() with float32 inputs, or choose OnnxRuntimeDeployment()."
                )


def to_openvino(leaf: torch.Tensor, name: str) -> tuple[Any, torch.Tensor]:
    """Return the tensor as OpenVINO's, and the torch tensor whose memory it reads without owning it.

    The memory is the leaf's own if it is contiguous and on the CPU, and a copy otherwise.

    Raises:
        TargetError: an int64 value that does not fit into 32 bits, in which OpenVINO computes.
    """
    import openvino

    leaf = plain_tensor(leaf)
    if leaf.dtype == torch.int64 and leaf.numel():
        low, high = (int(value) for value in torch.aminmax(leaf))
        if low < _INT32.min or high > _INT32.max:
            raise TargetError(
                f"{name} reaches from {low} to {high}, and OpenVINO computes int64 in 32 bits. Choose "
                "OnnxRuntimeDeployment() for such values."
            )
    if leaf.dtype == torch.bfloat16:  # which NumPy does not have
        array = leaf.view(torch.int16).numpy()
        return openvino.Tensor(array, openvino.Shape(list(leaf.shape)), openvino.Type.bf16), leaf
    return openvino.Tensor(leaf.numpy(), shared_memory=True), leaf


def from_openvino(tensor: Any, *, is_bfloat16: bool) -> tuple[torch.Tensor, Any]:
    """Return its memory as a torch tensor, and the array that lives as long as any view of that tensor."""
    array = tensor.data
    if is_bfloat16:
        array = array.view("int16")
        return torch.from_numpy(array).view(torch.bfloat16), array
    return torch.from_numpy(array), array


def kernel_times(
    compiled: Any, calls: Sequence[Callable[[Any], object]], rounds: int, layers: Mapping[str, str | None]
) -> KernelTimes:
    """Run a model compiled with ``PERF_COUNT``, after one call to warm up, and return the time of each kernel."""
    request, measured = compiled.create_infer_request(), []
    fused = {
        operation.get_friendly_name(): _original_names(operation)
        for operation in compiled.get_runtime_model().get_ordered_ops()
    }
    for index, call in enumerate([*calls, *(each for each in calls for _ in range(rounds))]):
        kept = call(request)  # alive until the call is done
        start = time.perf_counter()
        request.infer(share_outputs=True)
        seconds = time.perf_counter() - start
        del kept
        if index >= len(calls):
            measured.append(_call(request.profiling_info, seconds, fused, layers))
    return mean_call(measured, len(calls))


def named_operations(model: Any, layers: Mapping[str, str | None]) -> dict[str, str | None]:
    """Return FQNs by names of a model's operations, those of the file and those that reading it expanded them to."""
    found = dict(layers)
    for operation in reversed(model.get_ordered_ops()):
        name = operation.get_friendly_name()
        if not layer_of(name, found)[0]:
            readers = [
                target.get_node().get_friendly_name()
                for output in operation.outputs()
                for target in output.get_target_inputs()
            ]
            known = {layer_of(reader, found)[1] for reader in readers} - {None}
            if len(known) == 1:
                found[name] = known.pop()
    return found


def _original_names(operation: Any) -> list[str]:
    told = operation.get_rt_info()
    return told["originalLayersNames"].astype(str).split(",") if "originalLayersNames" in told else []


def _call(infos: Any, seconds: float, fused: Mapping[str, list[str]], layers: Mapping[str, str | None]) -> KernelTimes:
    kernels = []
    for info in infos:
        if "EXECUTED" not in str(info.status) or "NOT" in str(info.status):
            continue
        found = [layer_of(name, layers) for name in (*fused.get(info.node_name, ()), info.node_name) if name]
        layer = next((layer for is_known, layer in found if is_known), None)
        kernels.append(placed(info.node_name, info.node_type, layer, info.real_time.total_seconds()))
    return KernelTimes(tuple(kernels), seconds)
