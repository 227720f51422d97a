"""Find the nodes in which layers of a program multiply by their weights."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import fx

_WEIGHTS = {
    "linear": (1, 1),
    **{f"conv{n}d": (1, 1) for n in (1, 2, 3)},
    **{f"conv_transpose{n}d": (1, 0) for n in (1, 2, 3)},
    "addmm": (2, 0),
    "mm": (1, 0),
    "matmul": (1, 0),
}
# the place of the weight among the arguments, and its dim that lies along what enters


@dataclass(frozen=True)
class Use:
    """A node that multiplies by a parameter.

    Attributes:
        node: the node.
        place: of the weight among its arguments.
        weight: the placeholder of the weight.
        inputs: the dim of the weight along the input channels.
        groups: of a convolution.
    """

    node: fx.Node
    place: int
    weight: fx.Node
    inputs: int
    groups: int = 1

    @property
    def entering(self) -> int:
        """The argument index of the layer's input."""
        return self.place - 1

    def channel_dim(self, value: torch.Tensor, weight: torch.Tensor) -> int:
        """Return the dim of channels of the layer's input."""
        is_convolution = "conv" in str(self.node.target)
        return value.ndim - weight.ndim + 1 if is_convolution else value.ndim - 1


def uses_of(program: torch.export.ExportedProgram) -> list[Use]:
    """Return all products with a parameter, in the forms that torch's layers use."""
    signature, found = program.graph_signature, []
    for node in program.graph.nodes:
        name = str(node.target).removeprefix("aten.").partition(".")[0]
        if node.op != "call_function" or name not in _WEIGHTS:
            continue
        place, inputs = _WEIGHTS[name]
        weight = node.args[place] if place < len(node.args) else None
        if isinstance(weight, fx.Node) and weight.name in signature.inputs_to_parameters:
            found.append(Use(node, place, weight, inputs, _groups(node, name)))
    return found


def _groups(node: fx.Node, name: str) -> int:
    if not name.startswith("conv"):
        return 1
    return int(node.args[6] if len(node.args) > 6 else node.kwargs.get("groups", 1))  # type: ignore[arg-type]
