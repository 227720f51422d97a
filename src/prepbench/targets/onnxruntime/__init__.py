"""ONNX Runtime on the CPU: the program as an ONNX file with QuantizeLinear/DequantizeLinear pairs, which it fuses into
int8 kernels.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.dlpack import from_dlpack, to_dlpack  # type: ignore[attr-defined]

from prepbench.errors import TargetError, sentence
from prepbench.internal_errors import raise_if_internal
from prepbench.packages import Deferred
from prepbench.quantize import Constraint, Placement, why_reduce_range
from prepbench.settings import DeploymentSettings, OnnxRuntimeDeployment
from prepbench.settings.numbers import INT4, INT8, INT16
from prepbench.storage import KeptFolder, temporary_folder
from prepbench.targets.base import NO_TRUST, EndNames, Lowering, Runtime, Trust
from prepbench.targets.kernel_times import KernelTime, KernelTimes, layer_of, layers_from_text, mean_call, placed
from prepbench.targets.onnx import weights
from prepbench.targets.onnx.export import FILE, export_onnx
from prepbench.targets.onnx.finish import LAYERS
from prepbench.targets.onnx.target import OnnxTarget, check_saved
from prepbench.targets.onnxruntime.exact_integers import keep_large_integers
from prepbench.targets.onnxruntime.fast_kernels import use_fast_kernels
from prepbench.targets.programs import plain_tensor

onnx_ir: Any = Deferred("onnx_ir")

_LAYERS = ("LSTM", "DynamicQuantizeLSTM", "GRU", "RNN")
# the batch dims of these operators, by index of input or output
_STATES, _LENGTHS = (5, 6), 4
_MOVES = ("Split", "Slice", "Expand", "Identity", "Transpose", "Reshape")


def fill_empty_batches(model: Any) -> None:
    """Pad recurrent layers to at least one row, and drop that row for an empty batch, in place.

    GRUs are padded to one step, too: a sequence of length 0 ends the process (ONNX Runtime 1.31).

    Initial states of nothing but zeros are left out, because these operators begin with zeros by themselves.
    """
    for node in [node for node in model.graph if node.op_type in _LAYERS]:
        states = [index for index in _STATES if index < len(node.inputs) and node.inputs[index] is not None]
        if all(_is_zero(node.inputs[index]) for index in states):
            for index in states:
                node.replace_input_with(index, None)
        if not _is_static(node.inputs[0], 1):
            ends = {index: 0 if index == _LENGTHS else 1 for index in (0, *_STATES, _LENGTHS)}
            _fill(model, node, 1, ends, {place: 2 if place == 0 else 1 for place in range(len(node.outputs))})
        if node.op_type == "GRU" and not _is_static(node.inputs[0], 0):
            _fill(model, node, 0, {0: 0}, {0: 0})
    weights.remove_unused_nodes(model)


def count_dims_from_front(model: Any) -> None:
    """Write the dims of reductions as numbers from 0 on, in place.

    A reduction of nothing over dims that count from the end gives the shape of its input (ONNX Runtime 1.31).
    """
    for node in list(model.graph.all_nodes()):
        is_place = node.op_type in ("ArgMax", "ArgMin")
        if not (is_place or node.op_type.startswith("Reduce")) or node.inputs[0].shape is None:
            continue
        rank = len(node.inputs[0].shape)
        if is_place and rank:
            node.attributes["axis"] = onnx_ir.AttrInt64("axis", node.attributes.get_int("axis", 0) % rank)
        axes = onnx_ir.convenience.get_const_tensor(node.inputs[1]) if len(node.inputs) > 1 and node.inputs[1] else None
        if axes is not None and rank and (axes.numpy() < 0).any():
            name = f"{node.inputs[1].name}_of_{rank}"
            node.replace_input_with(1, weights.add_initializer(model, name, axes.numpy() % rank))


# A product of matrices whose rows were the first dim before a transposition becomes one kernel, which divides by the
# size of that dim: in version 1.31 an empty batch ends the process.
_CROSSING, _CROSSED = ("MatmulTransposeFusion",), "prepbench.crossed_products"


def mark_crossed_products(model: Any) -> None:
    """Note in the metadata of a model that such a product may be empty, for :func:`open_session`."""
    for node in model.graph:
        producers = [value.producer() for value in node.inputs if value is not None] if node.op_type == "MatMul" else []
        for producer in producers:
            if producer is not None and producer.op_type == "Transpose":
                order, shape = producer.attributes.get_ints("perm", ()), producer.inputs[0].shape
                if order and order[0] != 0 and not (shape is not None and shape.is_static()):
                    model.metadata_props[_CROSSED] = "1"


def keep_integer_products(model: Any) -> None:
    """Give each bias that is added to a product of integers as many dims as the product has, in place.

    Where all sizes are fixed, ONNX Runtime (seen in 1.31) first makes ``Gemm`` in float of a product and a bias of one
    dim, and then does not find the product of integers, which is three times as fast in a small transformer.
    """
    changed = False
    for node in list(model.graph.all_nodes()):
        if node.op_type != "MatMul" or not all(map(_is_dequantized, node.inputs)):
            continue
        shape, weight = (value.shape for value in node.inputs)
        if shape is None or not shape.is_static() or len(shape) < 3 or weight is None or len(weight) != 2:
            continue
        for add, place in list(node.outputs[0].uses()):
            bias = add.inputs[1 - place] if add.op_type == "Add" else None
            array = weights.constant_of(bias)
            if bias is not None and array is not None and array.ndim == 1:
                wide = array.reshape((1,) * (len(shape) - 1) + array.shape)
                add.replace_input_with(1 - place, weights.add_initializer(model, f"{bias.name}_wide", wide))
                changed = True
    if changed:
        weights.remove_unused_initializers(model)


def _is_dequantized(value: Any) -> bool:
    producer = value.producer()
    while producer is not None and producer.op_type == "Transpose":
        producer = producer.inputs[0].producer()
    return producer is not None and producer.op_type == "DequantizeLinear"


def _refused(text: str) -> str:
    """Return why ONNX Runtime refuses a file, and what to do."""
    wrong = re.search(r"Type 'tensor\((\w+)\)' of input parameter \(\w+\) of operator \((\w+)\)", text)
    if wrong is None or "float" in wrong[1] or wrong[1] == "double":
        return f"{text} If its number type is the reason, compile model.float(); else choose InductorDeployment()."
    return (
        f"ONNX has no {wrong[2]} of {wrong[1]}. Convert its operands in forward, for example to torch.int32, or choose "
        "InductorDeployment()."
    )


def _is_static(x: Any, dim: int) -> bool:
    return x.shape is not None and isinstance(x.shape[dim], int)


def _is_zero(value: Any) -> bool:
    """Return whether a value consists of zeros."""
    while (producer := value.producer()) is not None and producer.op_type in _MOVES:
        value = producer.inputs[0]
    if producer is not None and producer.op_type == "ConstantOfShape":
        fill = producer.attributes.get_tensor("value")
        return fill is None or not fill.numpy().any()
    array = weights.constant_of(value)
    return array is not None and not array.any()


def _fill(model: Any, node: Any, dim: int, inputs: Mapping[int, int], outputs: Mapping[int, int]) -> None:
    """Pad dims of a layer's inputs to at least 1, and cut its outputs, by their dims, back to the given size."""
    made: dict[str, Any] = {}
    add = weights.adds_before(node)

    def constant(value: list[int]) -> Any:
        name = f"{node.name}_{dim}_{'_'.join(map(str, value))}"
        if name not in made:
            made[name] = weights.add_initializer(model, name, np.array(value))
        return made[name]

    size = add("Shape", node.inputs[0], start=dim, end=dim + 1)
    missing = add("Sub", add("Max", size, constant([1])), size)
    for index, axis in inputs.items():
        if index < len(node.inputs) and node.inputs[index] is not None:
            pads = add("Concat", constant([0]), missing, axis=0)
            node.replace_input_with(index, add("Pad", node.inputs[index], pads, None, constant([axis])))
    for place, axis in outputs.items():
        output = node.outputs[place]
        if output.uses() or output.is_graph_output():
            uses, is_output, name = list(output.uses()), output.is_graph_output(), output.name
            cut = onnx_ir.node("Slice", [output, constant([0]), size, constant([axis])])
            new = cut.outputs[0]
            new.shape, new.dtype = output.shape, output.dtype
            output.shape = None  # renamed, because ONNX Runtime shares memory between values of one symbolic shape
            model.graph.insert_after(node, cut)
            for user, index in uses:
                user.replace_input_with(index, new)
            if is_output:
                at = list(model.graph.outputs).index(output)
                model.graph.outputs[at] = new
                output.name, new.name = f"{name}_all", name


class OnnxRuntime(Runtime):
    """A session on an ONNX file, and the input leaves that it takes.

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
            raise TargetError(f"ONNX Runtime cannot run the graph: {_refused(str(error).strip())}") from error
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
        pairs = zip(self._inputs, leaves, strict=True)
        return self._calls.run([plain_tensor(leaf) for name, leaf in pairs if name and isinstance(leaf, torch.Tensor)])

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
        return weights.stored_bits(self._file)

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
        packs_weights=True,
        conv_outputs=True,
        activations=(INT4, INT8, INT16),
        conv_additions=True,
        constraints=(_LONE_DEPTHWISE,),
        reduce_range=why_reduce_range(),
    )
    changes = (
        *OnnxTarget.changes,
        count_dims_from_front,
        weights.look_up_integers,
        weights.dequantize_at_load,
        keep_integer_products,
        keep_large_integers,
        fill_empty_batches,
        mark_crossed_products,
        use_fast_kernels,
    )

    def lower(self, lowering: Lowering, settings: DeploymentSettings) -> Runtime:
        assert isinstance(settings, OnnxRuntimeDeployment)
        self.check_program(lowering)
        keep = KeptFolder("onnx")
        file = export_onnx(lowering, keep.path, self.changes)
        return OnnxRuntime(file, settings, keep)

    def rename_ends(self, folder: Path, names: EndNames) -> None:
        weights.rename_ends(folder / FILE, names.inputs, names.outputs)

    def load(self, folder: Path, settings: DeploymentSettings, trust: Trust = NO_TRUST) -> Runtime:
        assert isinstance(settings, OnnxRuntimeDeployment)
        check_saved(folder / FILE)
        return OnnxRuntime(folder / FILE, settings)


_KERNEL, _CALL, _NODE = "_kernel_time", "model_run", "Node"
_FUSED = "fused "


def kernel_times(
    file: Path, options: Any, calls: Sequence[Mapping[str, Any]], rounds: int, layers: Mapping[str, str | None]
) -> KernelTimes:
    """Run an ONNX file and return the time of each of its kernels.

    Args:
        file: the ONNX file.
        options: of the session; they are changed.
        calls: an ``onnxruntime.OrtValue`` for each name of an input, each a call.
        rounds: the repetitions of each call, after one to warm up.
        layers: FQNs by names of nodes.
    """

    with temporary_folder("profile") as folder:
        options.enable_profiling = True
        options.profile_file_prefix = str(folder / "profile")
        session = open_session(file, options)
        for feeds in [*calls, *(each for each in calls for _ in range(rounds))]:
            session.run_with_ort_values(None, dict(feeds))
        events = json.loads(Path(session.end_profiling()).read_bytes())
    return mean_call([_call(run, layers) for run in list(_runs(events))[len(calls) :]], len(calls))


def _runs(events: Sequence[Mapping[str, Any]]) -> Iterator[tuple[float, list[tuple[float, Mapping[str, Any]]]]]:
    """Yield the seconds of each call, and its kernels with their own seconds."""
    kernels: list[Mapping[str, Any]] = []
    for event in events:
        if event.get("cat") == _NODE and event["name"].endswith(_KERNEL):
            kernels.append(event)
        elif event["name"] == _CALL:
            yield event["dur"] / 1e6, _own_times(kernels)
            kernels = []


def _own_times(events: list[Mapping[str, Any]]) -> list[tuple[float, Mapping[str, Any]]]:
    """Return kernels without the time of nested ones, as in the body of a loop."""
    own = [event["dur"] for event in events]
    around: list[int] = []
    for index in sorted(range(len(events)), key=lambda i: (events[i]["ts"], -events[i]["dur"])):
        event = events[index]
        while around and events[around[-1]]["ts"] + events[around[-1]]["dur"] <= event["ts"]:
            around.pop()
        if around:
            own[around[-1]] -= event["dur"]
        around.append(index)
    return [(max(seconds, 0) / 1e6, event) for seconds, event in zip(own, events, strict=True)]


def _call(run: tuple[float, list[tuple[float, Mapping[str, Any]]]], layers: Mapping[str, str | None]) -> KernelTimes:
    seconds, events = run
    return KernelTimes(tuple(_kernel(own, event, layers) for own, event in events), seconds)


def _kernel(seconds: float, event: Mapping[str, Any], layers: Mapping[str, str | None]) -> KernelTime:
    name, told = event["name"].removesuffix(_KERNEL).removeprefix(_FUSED), event.get("args", {})
    size = str(told.get("output_size", ""))
    layer = layer_of(name, layers)[1]
    return placed(name, str(told.get("op_name", "")), layer, seconds, int(size) if size.isdigit() else None)


# `InferenceSession.run` copies every result into an array of NumPy, which for a cache of many layers takes as long as
# some of its kernels. ONNX Runtime never lets two results, or a result and an input, share memory, so that its values
# can be handed out as they are. The calls for that are not public, and have changed: from 1.32 on values know booleans,
# before they came as bytes. Where they are missing, arrays of NumPy are copied, which is slower and all that is lost.


# Zero-copy tensors in and out of ONNX Runtime.


class Session:
    """The calls of one session, on values."""

    def __init__(self, session: Any, inputs: Sequence[str], outputs: Sequence[str]) -> None:
        self._session, self._inputs, self._outputs = session, list(inputs), list(outputs)
        if shares_memory():
            from onnxruntime import RunOptions
            from onnxruntime.capi.onnxruntime_pybind11_state import OrtDevice, OrtValueVector

            self._options, self._vector = RunOptions(), OrtValueVector
            self._devices = [OrtDevice(OrtDevice.cpu(), OrtDevice.default_memory(), 0)] * len(self._outputs)

    def run(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return the results for inputs in the order of their names; several threads may call it at once.

        Args:
            tensors: as :func:`prepbench.targets.programs.plain_tensor` gives them.
        """
        if not shares_memory():
            values = {name: _value(tensor) for name, tensor in zip(self._inputs, tensors, strict=True)}
            return [_copied(result) for result in self._session.run_with_ort_values(self._outputs, values)]
        feeds, results = self._vector(), self._vector()
        feeds.reserve(len(tensors))
        for tensor in tensors:
            feeds.push_back(_shared_value(tensor))
        self._session.run_with_ortvaluevector(self._options, self._inputs, feeds, self._outputs, results, self._devices)
        made: list[torch.Tensor] = results.to_dlpacks(from_dlpack)
        if _booleans_are_bytes():
            for place in results.bool_tensor_indices():
                made[place] = made[place].view(torch.bool)
        return made


def public_value(tensor: torch.Tensor) -> Any:
    """Return an ``onnxruntime.OrtValue`` of a tensor, which it keeps alive, for ``run_with_ort_values``."""
    import onnxruntime

    return onnxruntime.OrtValue(_shared_value(tensor)) if shares_memory() else _value(tensor)


@cache
def shares_memory() -> bool:
    """Return whether this ONNX Runtime supports passing tensors without copies."""
    try:
        from onnxruntime import InferenceSession
        from onnxruntime.capi.onnxruntime_pybind11_state import OrtDevice, OrtValue, OrtValueVector
    except ImportError:
        return False
    needed = (
        (OrtValue, "from_dlpack"),
        (OrtValueVector, "to_dlpacks"),
        (OrtValueVector, "reserve"),
        (OrtDevice, "default_memory"),
        (InferenceSession, "run_with_ortvaluevector"),
    )
    return all(hasattr(owner, name) for owner, name in needed)


@cache
def _booleans_are_bytes() -> bool:
    from onnxruntime.capi.onnxruntime_pybind11_state import OrtValueVector

    return hasattr(OrtValueVector, "bool_tensor_indices")


@cache
def _reader() -> Callable[..., Any]:
    from onnxruntime.capi.onnxruntime_pybind11_state import OrtValue

    read: Callable[..., Any] = OrtValue.from_dlpack
    return read


def _shared_value(tensor: torch.Tensor) -> Any:
    # Tensor.__dlpack__ repeats the checks of plain_tensor in Python, which takes five times as long
    if not _booleans_are_bytes():
        return _reader()(to_dlpack(tensor))
    is_bool = tensor.dtype == torch.bool
    return _reader()(to_dlpack(tensor.view(torch.uint8) if is_bool else tensor), is_bool)


def _value(tensor: torch.Tensor) -> Any:
    import onnxruntime

    if tensor.dtype == torch.bfloat16:  # NumPy has no such type
        from onnx import TensorProto

        bits = tensor.view(torch.int16).numpy()
        return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, TensorProto.BFLOAT16)
    return onnxruntime.OrtValue.ortvalue_from_numpy(tensor.numpy())


def _copied(value: Any) -> torch.Tensor:
    try:
        return torch.from_numpy(value.numpy())
    except (RuntimeError, TypeError) as error:  # bfloat16, which NumPy does not have
        raise TargetError(
            f"This ONNX Runtime hands out no results of type {value.data_type()}: {sentence(error)} Install a version "
            "that shares memory (onnxruntime 1.22 to 1.32 do), or compile model.float()."
        ) from error


# ONNX Runtime sessions on prepbench's own files.


# By default it gives convolutions and linear layers on integers 8-bit weights with one scale for all channels, also
# where these weights are floats because the layer was to stay in float.
_DISABLED = ("WeightBiasQuantization",)


def open_session(file: Path, options: Any) -> Any:
    """Return a session on the CPU that keeps layers in float which are in float in the file."""
    session = _session(file, options, _DISABLED)
    if _CROSSED in session.get_modelmeta().custom_metadata_map:
        session = _session(file, options, (*_DISABLED, *_CROSSING))
    return session


def _session(file: Path, options: Any, disabled: Sequence[str]) -> Any:
    import onnxruntime

    return onnxruntime.InferenceSession(
        str(file), options, providers=["CPUExecutionProvider"], disabled_optimizers=list(disabled)
    )
