"""Work around recurrent layers of an empty batch, which crash ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np

from prepbench.targets.onnx.weights import add_initializer, constant_of, remove_unused_nodes

_LAYERS = ("LSTM", "DynamicQuantizeLSTM", "GRU", "RNN")
# the batch dims of these operators, by index of input or output
_STATES, _LENGTHS = (5, 6), 4
_MOVES = ("Split", "Slice", "Expand", "Identity", "Transpose", "Reshape")


def fill_empty_batches(model: Any) -> None:
    """Pad recurrent layers to at least one row, and drop that row for an empty batch, in place.

    Initial states of nothing but zeros are left out, because these operators begin with zeros by themselves.

    Args:
        model: an ``onnx_ir.Model``.
    """
    for node in [node for node in model.graph if node.op_type in _LAYERS]:
        states = [index for index in _STATES if index < len(node.inputs) and node.inputs[index] is not None]
        if all(_is_zero(node.inputs[index]) for index in states):
            for index in states:
                node.replace_input_with(index, None)
        if not _is_static(node.inputs[0]):
            _fill(model, node)
    remove_unused_nodes(model)


def _is_static(x: Any) -> bool:
    return x.shape is not None and isinstance(x.shape[1], int)


def _is_zero(value: Any) -> bool:
    """Return whether a value consists of zeros."""
    while (producer := value.producer()) is not None and producer.op_type in _MOVES:
        value = producer.inputs[0]
    if producer is not None and producer.op_type == "ConstantOfShape":
        fill = producer.attributes.get_tensor("value")
        return fill is None or not fill.numpy().any()
    array = constant_of(value)
    return array is not None and not array.any()


def _fill(model: Any, node: Any) -> None:
    import onnx_ir

    made: dict[str, Any] = {}

    def add(kind: str, *inputs: Any, **attributes: Any) -> Any:
        new = onnx_ir.node(kind, list(inputs), attributes=attributes)
        model.graph.insert_before(node, new)
        return new.outputs[0]

    def constant(value: list[int]) -> Any:
        name = f"{node.name}_{'_'.join(map(str, value))}"
        if name not in made:
            made[name] = add_initializer(model, name, np.array(value))
        return made[name]

    def fill(index: int, axis: int) -> None:
        """Pad the batch to the minimum."""
        pads = add("Concat", constant([0]), missing, axis=0)
        node.replace_input_with(index, add("Pad", node.inputs[index], pads, None, constant([axis])))

    batch = add("Shape", node.inputs[0], start=1, end=2)
    missing = add("Sub", add("Max", batch, constant([1])), batch)
    fill(0, 1)
    for index in (*_STATES, _LENGTHS):
        if index < len(node.inputs) and node.inputs[index] is not None:
            fill(index, 0 if index == _LENGTHS else 1)
    for place, output in enumerate(node.outputs):
        if output.uses() or output.is_graph_output():
            uses, is_output, name = list(output.uses()), output.is_graph_output(), output.name
            axis = 2 if place == 0 else 1
            cut = onnx_ir.node("Slice", [output, constant([0]), batch, constant([axis])])
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
