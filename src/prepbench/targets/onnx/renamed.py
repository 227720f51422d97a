"""Other names for the inputs and outputs of an ONNX file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def rename_ends(file: Path, inputs: Mapping[str, str], outputs: Sequence[str]) -> None:
    """Rename inputs and outputs of a file, in place; those in bfloat16 become float32, which arrays of NumPy have.

    Weights beside the file stay as they are.

    Args:
        file: the ONNX file.
        inputs: new names by the old ones.
        outputs: new names in order.
    """
    import onnx_ir

    model: Any = onnx_ir.load(file)
    for value in list(model.graph.inputs):
        name = inputs.get(value.name, value.name)
        value.name = f"{name} inside"  # outputs may have the name for now
        if value.dtype == onnx_ir.DataType.BFLOAT16:
            _widen_input(model, value)
    for place, name in enumerate(outputs):
        _name_output(model, place, name)
    for value in model.graph.inputs:
        value.name = value.name.removesuffix(" inside")
    names = model.metadata_props.get("prepbench.inputs", "").split("\n")
    model.metadata_props["prepbench.inputs"] = "\n".join(inputs.get(name, name) for name in names)
    onnx_ir.save(model, file)


def _widen_input(model: Any, value: Any) -> None:
    import onnx_ir

    uses = list(value.uses())
    cast = onnx_ir.node("Cast", [value], attributes={"to": onnx_ir.DataType.BFLOAT16})
    inside = cast.outputs[0]
    inside.dtype, inside.shape = onnx_ir.DataType.BFLOAT16, value.shape
    for node, place in uses:
        node.replace_input_with(place, inside)
    model.graph.insert_before(model.graph[0], cast)
    value.dtype = onnx_ir.DataType.FLOAT


def _name_output(model: Any, place: int, name: str) -> None:
    """Name an output; one that is something else as well, or in bfloat16, is a value of its own."""
    import onnx_ir

    value = model.graph.outputs[place]
    before = list(model.graph.outputs)[:place]
    is_narrow = value.dtype == onnx_ir.DataType.BFLOAT16
    if not is_narrow and not value.is_graph_input() and not any(value is other for other in before):
        value.name = name
        return
    to = {"to": onnx_ir.DataType.FLOAT} if is_narrow else {}
    node = onnx_ir.node("Cast" if is_narrow else "Identity", [value], attributes=to)
    made = node.outputs[0]
    made.dtype, made.shape, made.name = onnx_ir.DataType.FLOAT if is_narrow else value.dtype, value.shape, name
    if value.name == name:
        value.name = f"{name} inside"
    model.graph.append(node)
    model.graph.outputs[place] = made
