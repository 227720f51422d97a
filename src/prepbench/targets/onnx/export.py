"""Export a flat program as an ONNX file with readable names of inputs, outputs and dynamic dims."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
import itertools
import json
import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from prepbench._torch_compat.onnx_exporter import (
    decomposing,
    exact_rules,
    translations_read_once,
)
from prepbench._torch_compat.programs import input_placeholders, without_guards
from prepbench._torch_compat.sizes import forget_pending_sizes
from prepbench.capture.aten.export_program import traced_alike
from prepbench.errors import TargetError, sentence
from prepbench.freed_memory import give_back
from prepbench.internal_errors import raise_if_internal
from prepbench.packages import Deferred
from prepbench.patching import logs_dropped_here, output_here, warnings_ignored_here
from prepbench.settings.numbers import INT4
from prepbench.targets.base import Lowering
from prepbench.targets.onnx.decompose import decompose_for_onnx, functional_forms
from prepbench.targets.onnx.finish import (
    clamp_narrow_ranges,
    forget_origin,
    leave_infinity,
    type_by_zero_point,
    write_dropout_out,
    write_layers,
)
from prepbench.targets.onnx.translations import OPSET, translations
from prepbench.targets.onnx.weights import (
    add_initializer,
    adds_before,
    constant_of,
    pack_weights,
    remove_unused_initializers,
    remove_unused_nodes,
)

onnx_ir: Any = Deferred("onnx_ir")


FILE = "model.onnx"
# metadata: a shape that each input can have
EXAMPLE_SHAPES = "prepbench.example_shapes"

# bytes of weights from which on they are written beside the graph
_LARGE = 2**26

# takes an ``onnx_ir.Model`` and changes it in place
Change = Callable[[Any], None]


def export_onnx(lowering: Lowering, folder: Path, changes: Sequence[Change], *, one_file: bool = False) -> Path:
    """Write ``folder/model.onnx``, and large weights beside it, one after the other.

    Args:
        lowering: the program and its names; the program is not changed.
        folder: an existing folder.
        changes: a runtime's changes of the ONNX graph.
        one_file: put weights into the file as long as it can hold them (2 GB), which takes memory for three copies.

    The file's metadata has an entry ``prepbench.inputs`` with a line for each input of the program: the name of the
    input of the file, or nothing where the input is a constant.

    Raises:
        TargetError: an operator, which the message names, cannot be written as ONNX.
    """
    program = clamp_narrow_ranges(lowering.program)
    lowering = replace(
        lowering, program=lowering.derived("attention for ONNX", program, lambda: decompose_for_onnx(program))
    )
    onnx_program = _convert(lowering)
    model = onnx_program.model
    _keep_free(model, {*lowering.input_names, *lowering.output_names})
    used = _name_inputs(model, lowering)
    _type_outputs(model, lowering.program)
    _name_outputs(model, lowering.output_names)
    _name_dimensions(model, lowering.dimension_names)
    merge_tables(model)
    pack_recurrent_weights(model)
    pack_weights(model)
    type_by_zero_point(model)
    write_dropout_out(model)
    leave_infinity(model)
    for change in changes:
        change(model)
    remove_unused_initializers(model)
    write_layers(model)
    forget_origin(model)
    model.metadata_props["prepbench.inputs"] = "\n".join(used)
    model.metadata_props[EXAMPLE_SHAPES] = json.dumps(_example_shapes(lowering.program, used))
    path = folder / FILE
    size = sum(int(value.const_value.nbytes) for value in model.graph.initializers.values())
    with _quiet():
        onnx_program.save(str(path), external_data=None if one_file else size > _LARGE or None)
    for value in model.graph.initializers.values():
        value.const_value = None  # at once: the model is cyclic, and would keep its weights until collected
    give_back(size)
    return path


def _convert(lowering: Lowering) -> Any:
    try:
        try:
            return _export(lowering)
        except Exception as error:
            # an earlier trace may have left pending unbacked symbols, which are discarded now
            if "Pending unbacked symbols" not in str(_first_cause(error)):
                raise
            return _export(lowering)
    except Exception as error:
        raise_if_internal(error)
        raise TargetError(
            f"The graph cannot be written as ONNX: {_reason(error)} "
            "Rewrite the operator named here, or choose InductorDeployment()."
        ) from error


def _reason(error: BaseException) -> str:
    cause = _first_cause(error)
    missing = re.search(r"No ONNX function found for <OpOverload\(op='([\w.]+)'", str(cause))
    if missing:
        return f"ONNX has nothing for {missing[1]}."
    # the exporter names the node around an error of its own or of a translation
    texts = [str(error)]
    while error.__cause__ is not None:
        error = error.__cause__
        texts.append(str(error))
    named = re.search(r"target=torch\.ops\.([\w.]+)\]", "\n".join(texts))
    where = f"{named[1].removesuffix('.default')}: " if named else ""
    return f"{where}{type(cause).__name__}: {sentence(cause)}"


def _export(lowering: Lowering) -> Any:
    # without gradients, because their rules refuse some operators on complex numbers
    decomposed = decomposing(functools.partial(lowering.derived, "operators of ONNX"), functional_forms())
    try:
        alike = traced_alike(lowering.program.graph)
        with _quiet(), torch.no_grad(), alike, decomposed, translations_read_once(), exact_rules() as exact:
            return torch.onnx.export(
                without_guards(lowering.program),
                dynamo=True,
                verbose=False,
                opset_version=OPSET,
                optimize=exact,
                custom_translation_table=translations(),
            )
    finally:  # it reruns operators with data-dependent sizes, and the next trace would look for their unbacked symbols
        forget_pending_sizes([node.meta.get("val") for node in lowering.program.graph.nodes])


def _first_cause(error: BaseException) -> BaseException:
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def _keep_free(model: Any, names: set[str]) -> None:
    """Rename values inside the graph that collide with the new names of inputs and outputs."""
    inside = [
        *model.graph.initializers.values(),
        *(value for node in model.graph.all_nodes() for value in node.outputs),
    ]
    taken = {*names, *(value.name for value in (*inside, *model.graph.inputs))}
    for value in inside:
        if value.name in names and not value.is_graph_output():
            value.name = next(name for i in itertools.count(1) if (name := f"{value.name}_{i}") not in taken)
            taken.add(value.name)


def _name_inputs(model: Any, lowering: Lowering) -> list[str]:
    """Name the graph's inputs; return the name of each input of the program, "" for a constant."""
    places = input_placeholders(lowering.program)
    tensors = ["" if place is None else name for name, place in zip(lowering.input_names, places, strict=True)]
    graph_inputs = list(model.graph.inputs)
    names = [name for name in tensors if name]
    if len(names) != len(graph_inputs):
        raise TargetError(
            f"The ONNX graph takes {len(graph_inputs)} inputs where the model takes the tensors {', '.join(names)}. "
            "Choose InductorDeployment() for this model."
        )
    for value, name in zip(graph_inputs, names, strict=True):
        value.name = name
    return tensors


def _example_shapes(program: torch.export.ExportedProgram, names: Sequence[str]) -> dict[str, list[int]]:
    leaves = program.example_inputs[0] if program.example_inputs is not None else ()
    return {
        name: list(leaf.shape)
        for name, leaf in zip(names, leaves, strict=False)
        if name and isinstance(leaf, torch.Tensor)
    }


_FLOATING = {
    torch.float16: "FLOAT16", torch.bfloat16: "BFLOAT16", torch.float32: "FLOAT", torch.float64: "DOUBLE",
}  # fmt: skip


def _type_outputs(model: Any, program: torch.export.ExportedProgram) -> None:
    """Cast floating outputs to the types that the program has for them.

    The exporter computes sums and maxima of half precision in float32 and casts the results for all that reads them,
    but an output keeps the value before the cast (torch 2.15).
    """
    values = {node.name: node.meta.get("val") for node in program.graph.nodes}
    names = program.graph_signature.user_outputs
    for place, (output, name) in enumerate(zip(model.graph.outputs, names, strict=False)):
        value = values.get(name) if isinstance(name, str) else None
        if not isinstance(value, torch.Tensor) or value.dtype not in _FLOATING or output.dtype is None:
            continue
        wanted = onnx_ir.DataType[_FLOATING[value.dtype]]
        if output.dtype.is_floating_point() and output.dtype != wanted:
            cast = onnx_ir.node("Cast", [output], attributes={"to": wanted.value})
            model.graph.append(cast)
            cast.outputs[0].name = f"{output.name}_cast"
            cast.outputs[0].dtype, cast.outputs[0].shape = wanted, output.shape
            model.graph.outputs[place] = cast.outputs[0]


def _name_outputs(model: Any, names: tuple[str, ...]) -> None:
    """Name the outputs; a value that is returned twice keeps its first name."""
    taken = {value.name for value in model.graph.inputs}
    seen: set[int] = set()
    for value, name in zip(model.graph.outputs, names, strict=False):
        if id(value) not in seen and not value.is_graph_input():
            value.name = name if name not in taken else f"{name}_out"
            taken.add(value.name)
            seen.add(id(value))


def _name_dimensions(model: Any, names: dict[str, str]) -> None:
    for value in [*model.graph.inputs, *model.graph.outputs]:
        if value.shape is not None:
            dims = [
                re.sub(r"\w+", lambda found: names.get(found[0], found[0]), str(dim.value))
                if isinstance(dim, onnx_ir.SymbolicDim) and dim.value is not None
                else dim
                for dim in value.shape
            ]
            value.shape = onnx_ir.Shape(dims)


@contextlib.contextmanager
def _quiet() -> Any:
    """Silence the exporter's prints and warnings about its own internals during the block."""
    with logs_dropped_here(below=logging.ERROR), warnings_ignored_here(), output_here(io.StringIO()):
        yield


# Weights that several layers read, dequantized once.


def merge_tables(model: Any) -> None:
    """Share one DequantizeLinear among all identical ones of a table, in place."""
    first: dict[Any, Any] = {}
    for node in [node for node in model.graph if node.op_type == "DequantizeLinear"]:
        arrays = [None if value is None else constant_of(value) for value in node.inputs]
        if arrays[0] is None or arrays[0].ndim != 2 or node.outputs[0].is_graph_output():
            continue
        digests = [None if array is None else hashlib.sha256(array.tobytes()).digest() for array in arrays]
        places = tuple(node.attributes.get_int(name, 0) for name in ("axis", "block_size"))
        kept = first.setdefault((arrays[0].shape, *digests, *places), node)
        if kept is not node:
            onnx_ir.convenience.replace_all_uses_with(node.outputs[0], kept.outputs[0])
            model.graph.remove(node, safe=True)


# Weights of recurrent layers as the operators of ONNX take them, computed once and stored in their integers.


Array = np.ndarray[Any, Any]

_LAYERS = ("LSTM", "GRU", "RNN")


def pack_recurrent_weights(model: Any) -> None:
    """Store the weights of recurrent layers in the order of ONNX, in place.

    Those in integers stay integers. Where a layer computes in float, a Cast and a product dequantize them, which
    runtimes compute once when they load the model; a DequantizeLinear they would compute in each call.
    """
    made: dict[bytes, Any] = {}
    for node in [node for node in model.graph if node.op_type in _LAYERS]:
        found = [_evaluated(value) for value in node.inputs[1:4]]
        for index, weight in enumerate(found, start=1):
            if weight is not None and not isinstance(weight, _Integers):
                node.replace_input_with(index, _constant(model, made, f"{node.name}_{_NAMES[index]}", weight))
        if node.op_type == "LSTM" and "activations" in node.attributes:
            _compute_in_integers(model, made, node, found[:2])
            continue
        for index, weight in enumerate(found[:2], start=1):
            if isinstance(weight, _Integers):
                node.replace_input_with(index, _dequantized(model, made, node, index, weight))
        _dequantize_at_load(model, node)
    remove_unused_nodes(model)


_NAMES = ("x", "weights", "recurrent_weights", "biases")


class _Integers:
    """A weight in integers, with scales and zero points.

    Attributes:
        integers: int8 of any shape.
        scale: float32 of the same shape.
        zero_point: int8, likewise; None for none.
        block_size: the number of neighbours along the last axis that share a scale.
    """

    def __init__(self, integers: Array, scale: Array, zero_point: Array | None, block_size: int) -> None:
        self.integers, self.scale, self.zero_point, self.block_size = integers, scale, zero_point, block_size

    def mapped(self, function: Callable[[Array], Array]) -> _Integers:
        """Return the weight with all parts moved in the same way."""
        zero_point = None if self.zero_point is None else function(self.zero_point)
        return _Integers(function(self.integers), function(self.scale), zero_point, self.block_size)


_Weight = Array | _Integers | None


def _evaluated(value: Any) -> _Weight:
    """Return the value of constants moved by operators; None for computed values."""
    if value is None:
        return None
    if (array := constant_of(value)) is not None:
        return array if array.dtype in (np.float32, np.int64) else None
    node = value.producer()
    if node is None:
        return None
    if node.op_type == "DequantizeLinear":
        return _from_quantized(node)
    operands: list[Any] = [_evaluated(operand) for operand in node.inputs]
    if any(operand is None for operand in operands):
        return None
    if node.op_type == "Concat":
        return _concatenated(operands, node.attributes.get_int("axis"))
    if node.op_type == "MatMul" and not any(isinstance(operand, _Integers) for operand in operands):
        return np.asarray(np.matmul(operands[0], operands[1]))
    if node.op_type == "Unsqueeze":
        axes = tuple(int(axis) for axis in operands[1])
        return _moved(operands[0], lambda array: np.expand_dims(array, axes))
    if node.op_type == "Split" and len(node.inputs) == 1:
        axis, count = node.attributes.get_int("axis", 0), len(node.outputs)
        place = next(i for i, output in enumerate(node.outputs) if output is value)
        return _moved(operands[0], lambda array: np.split(array, count, axis)[place])
    return None


def _from_quantized(node: Any) -> _Integers | None:
    arrays = [None if value is None else constant_of(value) for value in node.inputs]
    integers, scale, zero_point = arrays[0], arrays[1], arrays[2] if len(arrays) > 2 else None
    if integers is None or integers.ndim != 2 or scale is None:
        return None
    block = integers.shape[1] // scale.shape[1] if scale.ndim == 2 else integers.shape[1]

    def spread(array: Array) -> Array:
        """Return one for each integer."""
        wide = np.repeat(array, block, axis=1) if array.ndim == 2 else array.reshape(-1, 1)
        return np.broadcast_to(wide, integers.shape)

    zeros = None if zero_point is None or not zero_point.any() else spread(zero_point.astype(np.int8))
    return _Integers(integers.astype(np.int8), spread(scale), zeros, block)


def _moved(weight: Any, function: Callable[[Array], Array]) -> _Weight:
    return weight.mapped(function) if isinstance(weight, _Integers) else function(weight)


def _concatenated(parts: Sequence[Any], axis: int) -> _Weight:
    if not any(isinstance(part, _Integers) for part in parts):
        return np.concatenate(parts, axis)
    if not all(isinstance(part, _Integers) for part in parts) or len({part.block_size for part in parts}) > 1:
        return None
    zeros = [part.zero_point for part in parts]
    filled = [
        np.zeros(part.integers.shape, np.int8) if zero is None else zero
        for part, zero in zip(parts, zeros, strict=True)
    ]
    return _Integers(
        np.concatenate([part.integers for part in parts], axis),
        np.concatenate([part.scale for part in parts], axis),
        None if all(zero is None for zero in zeros) else np.concatenate(filled, axis),
        parts[0].block_size,
    )


def _compute_in_integers(model: Any, made: dict[bytes, Any], node: Any, weights: Sequence[Any]) -> None:
    """Make the operator take integers, of shape (directions, inputs, gates), and a scale for each gate."""
    node.op_type, node.domain = "DynamicQuantizeLSTM", "com.microsoft"
    for name in ("layout", "input_forget"):
        node.attributes.pop(name, None)
    model.graph.opset_imports.setdefault("com.microsoft", 1)
    node.resize_inputs(12)
    for index, (name, weight) in enumerate(zip(_NAMES[1:3], weights, strict=True), start=1):
        scale = weight.scale[:, :, 0]
        integers = np.ascontiguousarray(weight.integers.transpose(0, 2, 1))
        parts = {index: integers, 6 + 2 * index: scale, 7 + 2 * index: np.zeros(scale.shape, np.int8)}
        for place, array in parts.items():
            node.replace_input_with(place, _constant(model, made, f"{node.name}_{name}_{place}", array))


def _dequantized(model: Any, made: dict[bytes, Any], node: Any, index: int, weight: _Integers) -> Any:
    """Return the weight as the product of its integers and scales."""
    name, block = f"{node.name}_{_NAMES[index]}", weight.block_size
    shape = weight.integers.shape
    blocks = (*shape[:-1], shape[-1] // block, block)
    add = adds_before(node)

    def constant(kind: str, array: Array) -> Any:
        return _constant(model, made, f"{name}_{kind}", array)

    def of_blocks(array: Array) -> Array:
        return array.reshape(blocks)[..., :1]

    result = add("Cast", constant("integers", weight.integers.reshape(blocks)), to=int(onnx_ir.DataType.FLOAT))
    if weight.zero_point is not None:
        result = add("Sub", result, constant("zeros", of_blocks(weight.zero_point).astype(np.float32)))
    result = add("Mul", result, constant("scales", of_blocks(weight.scale)))
    return add("Reshape", result, constant("shape", np.array(shape)))


def _dequantize_at_load(model: Any, node: Any) -> None:
    """Rewrite remaining DequantizeLinear nodes of layers as products, if their values are more than moved."""
    rest = [value.producer() for value in node.inputs[1:3] if value is not None and value.producer() is not None]
    while rest:
        before = rest.pop()
        weight = _from_quantized(before) if before.op_type == "DequantizeLinear" else None
        if weight is not None:
            value = _dequantized(model, {}, before, 1, weight)
            onnx_ir.convenience.replace_all_uses_with(before.outputs[0], value)
            model.graph.remove(before, safe=True)
            continue
        if before.op_type in ("Concat", "MatMul", "Unsqueeze", "Split", "Transpose"):
            rest += [value.producer() for value in before.inputs if value is not None and value.producer() is not None]


def _constant(model: Any, made: dict[bytes, Any], name: str, array: Array) -> Any:
    """Return an initializer, the same for equal arrays."""
    array = np.ascontiguousarray(array)
    if array.dtype == np.int8 and array.size and INT4.holds(array) and "integers" in name:
        import ml_dtypes

        array = array.astype(ml_dtypes.int4)
    key = hashlib.sha256(f"{array.dtype} {array.shape}".encode() + array.tobytes()).digest()
    if key not in made:
        made[key] = add_initializer(model, name, array)
    return made[key]
