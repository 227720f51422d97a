"""Record the layer of each ONNX node in the file, for profilers."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from prepbench.targets.kernel_times import NO_MODULE, layers_to_text

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
