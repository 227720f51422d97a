"""Edit the finished ONNX graph, an ``onnx_ir.Model``: enforce exact results in runtimes, and remove private data."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import fx

from prepbench._torch_compat.programs import with_graph
from prepbench.packages import Deferred
from prepbench.targets.kernel_times import NO_MODULE, layers_to_text
from prepbench.targets.onnx.weights import add_initializer, constant_of, dequantized_from

onnx_ir: Any = Deferred("onnx_ir")


# int8 kernels for these add the bias as an integer; with a float bias they are not used
_BIASED = ("Conv", "Gemm")


def quantize_biases(model: Any) -> None:
    """Store the biases of layers with quantized inputs and weights as int32, in place.

    Their scale is the product of the scales of input and weight, as ONNX Runtime's fusions of QuantizeLinear and
    DequantizeLinear expect. Otherwise a linear layer whose output stays in float would run in float. So do layers that
    read integers of 4 bits: their product of scales is too coarse for a bias.

    Args:
        model: an ``onnx_ir.Model``. Biases fit into int32, see :func:`prepbench.quantize.observed.fit_biases`.
    """
    for node in list(model.graph):
        if node.op_type not in _BIASED or len(node.inputs) < 3:
            continue
        operands = [_scale(value) for value in node.inputs[:2]]
        bias = node.inputs[2].const_value if node.inputs[2] is not None else None  # an initializer, or none
        if bias is None or any(scale is None for scale in operands) or _has_few_bits(node.inputs[0]):
            continue
        scale = np.asarray(operands[0] * operands[1], dtype=np.float32).squeeze()
        info = np.iinfo(np.int32)
        rounded = np.round(bias.numpy().astype(np.float64) / scale.astype(np.float64))
        integers = rounded.clip(info.min, info.max).astype(np.int32)
        inputs = [
            add_initializer(model, f"{node.name}_bias_{kind}", array)
            for kind, array in (("quantized", integers), ("scale", scale))
        ]
        dequantize = onnx_ir.node("DequantizeLinear", inputs, attributes={"axis": 0} if scale.ndim else {})
        model.graph.insert_before(node, dequantize)
        node.replace_input_with(2, dequantize.outputs[0])


def type_by_zero_point(model: Any) -> None:
    """Let only the zero point of a quantizer determine its integer type, in place.

    ONNX Runtime copies quantizers past operators that move values. It copies the attribute ``output_dtype`` but not
    the zero point, and then refuses its own copy when the integers are signed.
    """
    for node in model.graph:
        if node.op_type == "QuantizeLinear" and len(node.inputs) > 2 and node.inputs[2] is not None:
            node.attributes.pop("output_dtype", None)


def leave_infinity(model: Any) -> None:
    """Limit what has one limit alone by infinity on its other side, in place.

    ONNX Runtime and OpenVINO take a limit that is not given for the largest finite number.
    """
    limits: dict[tuple[Any, int], Any] = {}
    for node in [node for node in model.graph.all_nodes() if node.op_type == "Clip"]:
        kind = node.inputs[0].dtype
        if kind is None or kind.name not in ("FLOAT", "FLOAT16", "DOUBLE"):
            continue
        given = [*node.inputs, None, None][:3]
        for place, number in ((1, -np.inf), (2, np.inf)):
            if given[place] is None and given[3 - place] is not None:
                if (kind, place) not in limits:
                    array = np.array(number, kind.numpy())
                    limits[kind, place] = add_initializer(model, f"infinity_{kind.name}_{place}", array)
                node.resize_inputs(3)
                node.replace_input_with(place, limits[kind, place])


def write_dropout_out(model: Any) -> None:
    """Expand each active Dropout into its operations, in place.

    ONNX Runtime (1.31) skips those whose mask has no reader, whatever their training mode, and OpenVINO has none.
    """

    def node(op: str, *inputs: Any, **attributes: Any) -> Any:
        made = onnx_ir.node(op, inputs, attributes=attributes)
        model.graph.insert_before(dropout, made)
        return made.outputs[0]

    for dropout in [node for node in model.graph if node.op_type == "Dropout" and _is_active(node)]:
        x, ratio = dropout.inputs[0], _number(dropout.inputs[1], 0.5)
        limit = add_initializer(model, f"{dropout.name}_ratio", np.float32(ratio))
        factor = add_initializer(model, f"{dropout.name}_factor", np.float32(1 / (1 - ratio) if ratio < 1 else 0))
        zero = add_initializer(model, f"{dropout.name}_zero", np.float32(0))
        kept = node("GreaterOrEqual", node("RandomUniformLike", x, dtype=1), limit)
        # selected, not multiplied, because zero times infinity is NaN
        result = node("Where", kept, node("Mul", x, node("CastLike", factor, x)), node("CastLike", zero, x))
        for old, new in zip(dropout.outputs, (result, kept), strict=False):
            new.shape, new.type = old.shape, old.type
            onnx_ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)
        model.graph.remove(dropout, safe=True)


def _is_active(dropout: Any) -> bool:
    return len(dropout.inputs) > 2 and bool(_number(dropout.inputs[2], 0)) and _number(dropout.inputs[1], 0.5) > 0


def _number(value: Any, default: float) -> float:
    return default if value is None or value.const_value is None else float(value.const_value.numpy())


def forget_origin(model: Any) -> None:
    """Remove the exporter's notes on the origin of nodes, in place: they are large and contain file paths."""
    for graph in (model.graph, *model.functions.values()):
        graph.metadata_props.clear()
        for node in graph.all_nodes():
            node.metadata_props.clear()
            node.doc_string = None
            for value in node.outputs:
                value.metadata_props.clear()
    for value in (*model.graph.inputs, *model.graph.initializers.values()):
        value.metadata_props.clear()


def _has_few_bits(value: Any) -> bool:
    """Return whether a dequantized value has fewer bits than its integer type, by clipping."""
    clipped = value.producer().inputs[0].producer()
    return clipped is not None and clipped.op_type == "Clip"


def _scale(value: Any) -> Any:
    """Return the scale of a value that comes from a DequantizeLinear; None for others."""
    producer = dequantized_from(value)
    if producer is None or producer.inputs[1].const_value is None:
        return None
    return producer.inputs[1].const_value.numpy()


# Activations with fewer bits than their integer type, whose whole range QuantizeLinear would use.


Program = torch.export.ExportedProgram
_QUANTIZE = "quantized_decomposed.quantize_per_tensor.default"


def has_narrow_ranges(program: Program) -> bool:
    """Return whether a quantizer has fewer bits than its type."""
    return any(_limits(node) is not None for node in program.graph.nodes)


def clamp_narrow_ranges(program: Program) -> Program:
    """Clamp the integers of quantizers with fewer bits than their type, because ONNX clamps to the type's limits only.

    The program itself is returned where there are none.
    """
    if not has_narrow_ranges(program):
        return program
    graph = fx.Graph()
    graph.output(graph.graph_copy(program.graph, {}))
    module = fx.GraphModule(program.graph_module, graph)
    for node in list(graph.nodes):
        limits = _limits(node)
        if limits is None:
            continue
        readers = list(node.users)
        with graph.inserting_after(node):
            clamped = graph.call_function(torch.ops.aten.clamp.default, (node, *limits))
        clamped.meta = dict(node.meta)
        for reader in readers:
            reader.replace_input_with(node, clamped)
    module.recompile()
    return with_graph(program, module)


def _limits(node: fx.Node) -> tuple[int, int] | None:
    """Return the smallest and the largest integer of a quantizer, if they differ from those of its type."""
    if str(node.target) != _QUANTIZE:
        return None
    low, high, dtype = node.args[3:6]
    assert isinstance(low, int)
    assert isinstance(high, int)
    assert isinstance(dtype, torch.dtype)
    kind = torch.iinfo(dtype)
    return (low, high) if (low, high) != (kind.min, kind.max) else None


def clip_before_quantizers(model: Any) -> None:
    """Clip values in front of quantizers instead of their integers, in place; the integers stay the same.

    OpenVINO selects its integer kernels only if a quantizer and its dequantizer are adjacent.
    """
    for clip in [node for node in model.graph if node.op_type == "Clip"]:
        quantize = clip.inputs[0].producer()
        if quantize is None or quantize.op_type != "QuantizeLinear" or len(quantize.outputs[0].uses()) > 1:
            continue
        limits, (scale, zero_point) = clip.inputs[1:3], (constant_of(value) for value in quantize.inputs[1:3])
        values = [constant_of(value) for value in limits]
        if scale is None or zero_point is None or any(value is None for value in values):
            continue
        names = (f"{clip.name}_{kind}" for kind in ("least", "most"))
        floats = [
            add_initializer(model, name, np.array((float(value) - float(zero_point)) * float(scale), np.float32))
            for name, value in zip(names, values, strict=True)
        ]
        clipped = onnx_ir.node("Clip", [quantize.inputs[0], *floats])
        clipped.outputs[0].shape, clipped.outputs[0].dtype = quantize.inputs[0].shape, quantize.inputs[0].dtype
        model.graph.insert_before(quantize, clipped)
        quantize.replace_input_with(0, clipped.outputs[0])
        onnx_ir.convenience.replace_all_uses_with(clip.outputs[0], quantize.outputs[0])
        model.graph.remove(clip, safe=True)


# Record the layer of each ONNX node in the file, for profilers.


# metadata: FQNs by names of nodes and of what they give, None for quantizers
LAYERS = "prepbench.layers"

_REWRITTEN = "pkg.onnxscript.rewriter.rule_name"
_SCOPES, _CLASSES = "pkg.torch.onnx.name_scopes", "pkg.torch.onnx.class_hierarchy"
_QUANTIZERS = ("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear")
# operators that runtimes fuse into the end of the kernel before, which then has the name of this result
_FUSED = frozenset(["Add", "BatchNormalization", "Clip", "HardSigmoid", "LeakyRelu", "Relu", "Sigmoid", "Tanh"])
_WITH_WEIGHTS = frozenset(["Conv", "ConvTranspose", "Gemm", "MatMul"])


def write_layers(model: Any) -> None:
    """Record in the metadata of an ``onnx_ir.Model`` the layer of each node, and give each node a unique name.

    Nodes that prepbench adds to the exporter's belong to the layer that reads them, and so do quantizers of weights.
    Quantizers of activations belong to none.
    """
    nodes = [node for graph in (model.graph, *model.functions.values()) for node in graph.all_nodes()]
    count = Counter(node.name for node in nodes)
    for index, node in enumerate(nodes):
        if not node.name or count[node.name] > 1:
            node.name = f"{node.op_type}_node_{index}"
    layers: dict[str, str | None] = {}
    for node in reversed(nodes):  # readers come after their inputs
        layers[node.name] = layer = _layer(node, layers)
        layers.update({value.name: layer for value in node.outputs if value.name and value.is_graph_output()})
    for node in nodes:
        layer = layers[_fused_into(node).name]
        layers.update({value.name: layer for value in node.outputs if value.name and value.name not in layers})
    model.metadata_props[LAYERS] = layers_to_text(layers)


def _layer(node: Any, layers: Mapping[str, str | None]) -> str | None:
    if node.op_type in _QUANTIZERS:
        return _of_readers(node, layers) if all(_is_constant(value) for value in node.inputs) else None
    if _REWRITTEN in node.metadata_props and node.op_type in _WITH_WEIGHTS and _is_constant(node.inputs[1]):
        return str(node.inputs[1].name).rpartition(".")[0]  # the folded norm's place in the model is this node's
    scopes, classes = (_texts(node.metadata_props.get(key)) for key in (_SCOPES, _CLASSES))
    scopes = [each for each in scopes if each != NO_MODULE]
    if len(scopes) > 1 and not any("<locals>" in each for each in classes):
        return scopes[-2]
    return _of_readers(node, layers)


def _fused_into(node: Any) -> Any:
    """Return the first node of a chain that a runtime may fuse into one kernel; the node itself for others."""
    first, seen = node, 0
    while first.op_type in _FUSED and seen < len(_FUSED):
        before = [value.producer() for value in first.inputs if value is not None and len(value.uses()) == 1]
        before = [each for each in before if each is not None and each.op_type in _FUSED | _WITH_WEIGHTS]
        if not before:
            return node
        first, seen = before[0], seen + 1
    return first if first.op_type in _WITH_WEIGHTS else node


def _of_readers(node: Any, layers: Mapping[str, str | None]) -> str | None:
    readers: Iterable[Any] = (use.node for value in node.outputs for use in value.uses())
    found = [layers[reader.name] for reader in readers if layers.get(reader.name) is not None]
    return found[0] if found else None


def _is_constant(value: Any) -> bool:
    return value is None or value.const_value is not None


def _texts(text: str | None) -> list[str]:
    """Return a list of texts in the exporter's format."""
    try:
        found = ast.literal_eval(text or "[]")
    except (ValueError, SyntaxError):
        return []
    return [each for each in found if isinstance(each, str)] if isinstance(found, list) else []
