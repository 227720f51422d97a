"""OpenVINO on the CPU: the program as OpenVINO IR, whose quantized layers become int8 kernels at compilation."""

from __future__ import annotations

import contextlib
import functools
import json
import math
import shutil
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from prepbench._torch_compat.programs import input_placeholders
from prepbench.errors import TargetError
from prepbench.quantize import RECURRENT_IN_FLOAT, Constraint, Placement, why_reduce_range
from prepbench.settings import DeploymentSettings, OpenVinoDeployment
from prepbench.settings.numbers import INT4, INT8
from prepbench.storage import KeptFolder, temporary_folder
from prepbench.targets.base import NO_TRUST, EndNames, Lowering, Runtime, Trust
from prepbench.targets.kernel_times import KernelTimes, layer_of, layers_from_text, mean_call, placed
from prepbench.targets.onnx.export import export_onnx
from prepbench.targets.onnx.finish import LAYERS, clip_before_quantizers, has_narrow_ranges
from prepbench.targets.onnx.target import OnnxTarget, unsupported_nodes
from prepbench.targets.openvino.exact_operators import (
    amplifies_rounding,
    check_right,
    is_all_integer,
    keep_bytes_wrapping,
    keep_extremes_in_floats,
    keep_indices_inside,
    keep_order_of_equals,
    keep_rounding,
    keep_small_exponentials,
    multiplies_few_bits,
    wrong_nodes,
)
from prepbench.targets.openvino.quantizers import add_biases, hoist_quantizers, multiply_rows, use_signed_integers
from prepbench.targets.programs import plain_tensor

_CHANGES = (
    clip_before_quantizers, use_signed_integers, hoist_quantizers, keep_extremes_in_floats, add_biases, multiply_rows,
    keep_indices_inside, keep_small_exponentials, keep_rounding, keep_bytes_wrapping,
)  # fmt: skip
FILES = ("model.xml", "model.bin")
# inputs that share a scale where layers with weights of 4 bits read them: what OpenVINO takes by itself
_ROUNDED_TOGETHER = 32
# where the IR keeps, for each input leaf, the name of the model's input, or "" when it is a constant
_LEAVES = ["prepbench", "inputs"]
# and whether quantization is so coarse that inference precision must be float32
_IS_COARSE = ["prepbench", "coarse"]


class OpenVino(Runtime):
    """A model compiled for this CPU, with one request per concurrent call.

    Activations of layers whose weights alone are quantized stay in float, where OpenVINO would round them to int8 in
    each call. Beside weights of 4 bits that rounding is small, and without it a prompt takes several times as long.
    int64 is computed in 32 bits, as OpenVINO always does on CPUs.

    Args:
        folder: holds the IR.
        settings: threads, precision, and what to optimise for.
        keep: a temporary folder that lives as long as the runtime.
    """

    def __init__(self, folder: Path, settings: OpenVinoDeployment, keep: KeptFolder | None = None) -> None:
        try:
            model = _core().read_model(folder / FILES[0])
            self._compiled = _core().compile_model(model, "CPU", _configuration(settings, model))
        except RuntimeError as error:  # the only kind that it raises
            raise _refused(error) from error
        self._settings = settings
        names: list[str] = json.loads(model.get_rt_info(_LEAVES).astype(str))
        places = {name: index for index, port in enumerate(self._compiled.inputs) for name in port.get_names()}
        # for each input leaf its name and which input of the model it is; None for a constant
        self._inputs = [(name, places[name]) if name else None for name in names]
        self._folder = folder
        self._keep = keep
        self._requests = Requests(self._compiled)

    def run(self, leaves: Sequence[Any]) -> Sequence[Any]:
        request = self._requests.take()
        inputs = self._set_inputs(request, leaves)
        request.infer(share_outputs=True)  # else it also returns unused copies of the results
        return self._requests.outputs(request, inputs)

    def _set_inputs(self, request: Any, leaves: Sequence[Any]) -> list[torch.Tensor]:
        """Set the inputs of a request; return the objects that must live until the call is done."""
        given = []
        for place, leaf in zip(self._inputs, leaves, strict=True):
            if place is not None:
                tensor, read = to_openvino(leaf, place[0])
                given.append(read)
                request.set_input_tensor(place[1], tensor)
        return given

    def kernel_times(self, calls: Sequence[Sequence[Any]], rounds: int) -> KernelTimes:
        model = _core().read_model(self._folder / FILES[0])
        layers = named_operations(model, layers_from_text(_text(model, ["framework", LAYERS])))
        compiled = _core().compile_model(model, "CPU", {**_configuration(self._settings, model), "PERF_COUNT": True})
        return kernel_times(compiled, [partial(self._set_inputs, leaves=leaves) for leaves in calls], rounds, layers)

    def stored_bits(self) -> Mapping[str, int]:
        constants = (
            op for op in _core().read_model(self._folder / FILES[0]).get_ops() if op.get_type_name() == "Constant"
        )
        return {
            op.get_friendly_name(): math.prod(op.get_output_shape(0)) * int(op.get_output_element_type(0).bitwidth)
            for op in constants
        }

    def save(self, folder: Path) -> None:
        for name in FILES:
            shutil.copy(self._folder / name, folder / name)


_NO_PROJECTIONS = Constraint(
    lambda call: call.layer.has_projections, "no integer form of LSTMs with projections for this target"
)
_RECURRENT_IN_FLOAT = Constraint(
    lambda call: call.layer.is_recurrent and not call.is_weights_only, RECURRENT_IN_FLOAT, of_activations=True
)


class OpenVinoTarget(OnnxTarget):
    """CPU inference with OpenVINO.

    What enters a layer is quantized, and the additions that end residual branches. A quantizer at the end of a
    convolution gained nothing where quantized layers follow and cost time and accuracy where none do. Linear layers
    leave their results in float, because activation functions, sums and normalisation are computed in float anyway;
    what enters them has no zero point, or one at 0, which is what its matrix products are fastest on. Attention between
    integer products was measured to be slower than its float kernel, and less accurate. Transposed convolutions are
    computed in float whatever is quantized (measured on a CPU with AVX2), and quantizers cost up to half of their time,
    so only their weights are stored in integers.
    """

    name = "openvino"
    display_name = "OpenVINO"
    settings_type = OpenVinoDeployment
    packages = ("openvino", *OnnxTarget.packages)
    modules = ("openvino",)  # used for writing files only, which no loaded model needs
    extra = "openvino"
    renamed_file = "openvino_model.xml"
    largest_integer = 2**24  # its kernels convert to float32 (OpenVINO 2026.4, CPU)
    unraised_errors = frozenset({"indices", "positions", "divisors", "singular"})
    placement = Placement(
        packs_weights=True,
        conv_additions=True,
        fuses_convolution_sums=True,
        middle_zero_points=True,
        activations=(INT4, INT8),
        constraints=(_NO_PROJECTIONS, _RECURRENT_IN_FLOAT),
        reduce_range=why_reduce_range(),
    )

    def unsupported_nodes(self, program: torch.export.ExportedProgram) -> Sequence[torch.fx.Node]:
        self.check_available()
        return unsupported_nodes(program, wrong_nodes(program))

    def lower(self, lowering: Lowering, settings: DeploymentSettings) -> Runtime:
        assert isinstance(settings, OpenVinoDeployment)
        self.check_program(lowering)
        # OpenVINO would silently compute float64 in float32
        for kind, name, node in lowering.ends():
            value = node.meta.get("val")
            if isinstance(value, torch.Tensor) and value.dtype == torch.float64:
                raise TargetError(
                    f"The {kind} {name} is float64, and OpenVINO has no kernels for it: it would compute in float32. "
                    "Compile model.float() with float32 inputs, or choose OnnxRuntimeDeployment()."
                )
        check_right(lowering.program)
        keep = KeptFolder("openvino")
        _write_ir(lowering, keep.path)
        return OpenVino(keep.path, settings, keep)

    def rename_ends(self, folder: Path, names: EndNames) -> None:
        rename_ends(folder / FILES[0], folder / self.renamed_file, names.inputs, names.outputs)
        for name in FILES:
            (folder / name).unlink()

    def load(self, folder: Path, settings: DeploymentSettings, trust: Trust = NO_TRUST) -> Runtime:
        assert isinstance(settings, OpenVinoDeployment)
        return OpenVino(folder, settings)


def _configuration(settings: OpenVinoDeployment, model: Any) -> dict[str, Any]:
    rounds = multiplies_few_bits(model) and settings.inference_precision != "f32"
    config: dict[str, Any] = {
        "PERFORMANCE_HINT": settings.performance_hint,
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": _ROUNDED_TOGETHER if rounds else 0,
    }
    if settings.inference_threads is not None:
        config["INFERENCE_NUM_THREADS"] = settings.inference_threads
    is_exact = not is_all_integer(model) or amplifies_rounding(model) or _text(model, _IS_COARSE) == "yes"
    precision = settings.inference_precision or ("f32" if is_exact else None)
    if precision is not None:
        config["INFERENCE_PRECISION_HINT"] = precision
    return config


def _text(model: Any, place: list[str]) -> str:
    """Return the text at a place of an IR; nothing for an IR written without it."""
    try:
        return str(model.get_rt_info(place).astype(str))
    except RuntimeError:
        return ""


def _write_ir(lowering: Lowering, folder: Path) -> None:
    """Write the program as IR, which stores 4- and 8-bit integers unchanged and loads without ONNX."""
    import openvino

    with temporary_folder("onnx") as onnx_folder:
        file = export_onnx(lowering, onnx_folder, _CHANGES)
        try:
            # not convert_model, which reports its use over the network
            model = _core().read_model(file)
            keep_order_of_equals(model)
            model.set_rt_info(json.dumps(_tensor_names(lowering)), _LEAVES)
            model.set_rt_info("yes" if has_narrow_ranges(lowering.program) else "no", _IS_COARSE)
            openvino.save_model(model, folder / FILES[0], compress_to_fp16=False)
        except RuntimeError as error:
            raise _refused(error) from error


def _tensor_names(lowering: Lowering) -> list[str]:
    places = input_placeholders(lowering.program)
    return ["" if place is None else name for name, place in zip(lowering.input_names, places, strict=True)]


@functools.cache
def _core() -> Any:
    """Return the process-wide core; it loads plug-ins and is thread-safe."""
    import openvino

    return openvino.Core()


def _refused(error: RuntimeError) -> TargetError:
    lines = [line.strip() for line in str(error).splitlines()]
    what = " ".join(line for line in lines if line and not line.startswith(("Exception from", "Check '")))
    return TargetError(
        f"OpenVINO cannot run the graph: {_ended(what)} Rewrite the operator that it fails at, or choose "
        "OnnxRuntimeDeployment() or InductorDeployment()."
    )


def _ended(text: str, most: int = 600) -> str:
    """Return a foreign text as sentences of a limited length."""
    text = text if len(text) <= most else f"{text[:most].rpartition(' ')[0]} ..."
    return text if text.endswith((".", "...")) else f"{text}."


# Requests of OpenVINO whose results share their memory instead of being copied.
#
# Copying a cache of many layers takes half the time of a small model's token. So a request is reused only once its
# earlier results are no longer referenced.


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
