"""Finding the layers of a model in its ATen graph: which node multiplies by the weight of which layer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeGuard

import torch
from torch import fx

from prepbench._torch_compat.scans import scans_in
from prepbench.capture.sizes.recurrent import RECURRENT, matrices
from prepbench.settings import is_within

aten = torch.ops.aten

CONVOLUTIONS = frozenset(
    getattr(getattr(aten, name), overload)
    for name in ("conv1d", "conv2d", "conv3d")
    for overload in ("default", "padding")
)
TRANSPOSED = frozenset([aten.conv_transpose1d.default, aten.conv_transpose2d.input, aten.conv_transpose3d.input])
# operator -> (index of the input, index of the weight, axis of the weight that counts output channels)
WEIGHTED = {
    **dict.fromkeys(CONVOLUTIONS, (0, 1, 0)),
    **dict.fromkeys(TRANSPOSED, (0, 1, 1)),
    aten.linear.default: (0, 1, 0),
    aten.addmm.default: (1, 2, 1),
    aten.mm.default: (0, 1, 1),
    aten.matmul.default: (0, 1, 1),
}
# the same for operators that only look up
LOOKUPS = {aten.embedding.default: (1, 0, 0)}
# operator -> (index of the input, of the weight, of the bias)
BIASES = {**dict.fromkeys([*CONVOLUTIONS, *TRANSPOSED, aten.linear.default], (0, 1, 2)), aten.addmm.default: (1, 2, 0)}

_OPERANDS = {**WEIGHTED, **LOOKUPS}

SOURCES = "prepbench_sources"
"""In the meta of a ``get_attr`` node: the names that :func:`sources_of` gives."""
TIED = "prepbench_tied"
"""In the meta of a ``get_attr`` node: the other names of its tensor in the model."""

SELECTS_MATRICES = "prepbench_selects_matrices"
"""In the meta of a lookup: its rows are those of matrices that something multiplies by."""

ACTIVATIONS = frozenset(
    getattr(aten, name).default for name in ("relu", "relu_", "relu6", "relu6_", "hardtanh", "hardtanh_")
)
ADDITIONS = frozenset([aten.add.Tensor, aten.add_.Tensor])


def nodes_reached(
    starts: Iterable[fx.Node], step: Callable[[fx.Node], Iterable[fx.Node]] = lambda node: node.all_input_nodes
) -> set[fx.Node]:
    """Return these nodes, and all that steps lead to from them; by default, steps lead to what a node reads."""
    left = list(starts)
    found = set(left)
    while left:
        new = set(step(left.pop())) - found
        found |= new
        left += new
    return found


@dataclass(frozen=True)
class LayerNode:
    """A node that multiplies by the weight of a layer. A layer that is called twice has two of them.

    Attributes:
        fqn: the layer.
        node: the node that multiplies.
        input: the layer's input.
        weight: the ``get_attr`` node that reads the layer's weight, or the cast of one in half precision.
        axis: the axis of the weight that counts output channels. In transposed convolutions of groups, which have them
            along two axes, the one that counts the groups.
        others: further weights that it multiplies by in the same way, which recurrent layers have.
    """

    fqn: str
    node: fx.Node
    input: fx.Node
    weight: fx.Node
    axis: int
    others: tuple[fx.Node, ...] = ()

    @property
    def weights(self) -> tuple[fx.Node, ...]:
        """Return all nodes that read its weights."""
        return (self.weight, *self.others)

    @property
    def is_recurrent(self) -> bool:
        return self.node.target in RECURRENT

    @property
    def is_convolution(self) -> bool:
        return self.node.target in CONVOLUTIONS or self.is_transposed

    @property
    def is_transposed(self) -> bool:
        return self.node.target in TRANSPOSED

    @property
    def is_lookup(self) -> bool:
        return self.node.target in LOOKUPS

    @property
    def selects_matrices(self) -> bool:
        """Whether it looks up the rows of matrices that something multiplies by, such as those of some experts."""
        return self.node.meta.get(SELECTS_MATRICES, False) is True

    @property
    def groups(self) -> int:
        """The groups of a convolution; 1 for other layers."""
        groups = self.node.args[6] if len(self.node.args) > 6 else self.node.kwargs.get("groups", 1)
        assert isinstance(groups, int)
        return groups if self.is_convolution else 1

    @property
    def input_channels(self) -> int:
        """The channels of a convolution's input."""
        channels: int = self.input.meta["val"].shape[1 - self.weight.meta["val"].ndim]
        return channels

    @property
    def is_depthwise(self) -> bool:
        """Whether a convolution computes each of several input channels by itself."""
        return self.node.target in CONVOLUTIONS and self.input_channels > 1 and self.weight.meta["val"].shape[1] == 1

    @property
    def has_projections(self) -> bool:
        """Whether a recurrent layer projects its states."""
        return self.is_recurrent and len(self.weights) > 2 * int(self.node.meta["val"][1].shape[0])

    @property
    def input_index(self) -> int:
        """The index of the input among the node's arguments."""
        return 0 if self.is_recurrent else _OPERANDS[self.node.target][0]

    @property
    def weight_index(self) -> int:
        """The index of the weight among the node's arguments."""
        return RECURRENT[self.node.target] if self.is_recurrent else _OPERANDS[self.node.target][1]

    def weight_operands(self, args: Sequence[Any]) -> list[Any]:
        """Return the arguments of a call at the positions of :attr:`weights`."""
        given = args[self.weight_index]
        return [given[place] for place in self._places(given)] if self.is_recurrent else [given]

    def _places(self, given: Sequence[Any]) -> list[int]:
        return matrices(len(given), self.node.meta["val"][1].shape[0])

    @property
    def bias_index(self) -> int | None:
        """The index of the bias among the node's arguments, if it takes one."""
        return BIASES[self.node.target][2] if self.node.target in BIASES else None

    @property
    def channels(self) -> int:
        """The axis of the output that counts output channels."""
        return 1 - self.weight.meta["val"].ndim if self.is_convolution else -1

    def end(self) -> fx.Node:
        """Return the last node that one kernel computes: the layer, or the activation that alone follows it."""
        users = list(self.node.users)
        return users[0] if len(users) == 1 and users[0].target in ACTIVATIONS else self.node


def layer_nodes(
    graph: fx.Graph, layers: Mapping[str, object], *, lookups: bool = False, recurrent: bool = False
) -> list[LayerNode]:
    """Return the nodes of ``layers`` in ``graph``, in execution order; other multiplications with parameters are
    excluded.

    Args:
        graph: of ATen operators.
        layers: by FQN.
        lookups: also the nodes of embeddings.
        recurrent: also those of LSTM, GRU and RNN that are one operator.
    """
    found: list[LayerNode] = []
    operands = _OPERANDS if lookups else WEIGHTED
    for node in graph.nodes:
        if node.op == "call_function" and node.target in RECURRENT and recurrent:
            found += _recurrent(node, layers)
        if node.op != "call_function" or node.target not in operands:
            continue
        input_index, weight_index, axis = operands[node.target]
        operand, weight = node.args[input_index], node.args[weight_index]
        if is_weight(weight, node) and isinstance(operand, fx.Node) and operand.op != "get_attr":
            fqn = _owner(node, weight, layers)
            if fqn is not None:
                layer = LayerNode(fqn, node, operand, weight, axis)
                found.append(replace(layer, axis=0) if layer.is_transposed and layer.groups > 1 else layer)
    return found


def _recurrent(node: fx.Node, layers: Mapping[str, object]) -> list[LayerNode]:
    """Return the layer of a recurrent node; empty if its weights are computed elsewhere."""
    given = node.args[RECURRENT[node.target]]
    assert isinstance(given, list | tuple)
    x, weights = node.args[0], [given[place] for place in matrices(len(given), node.meta["val"][1].shape[0])]
    reads = [weight for weight in weights if isinstance(weight, fx.Node) and weight.op == "get_attr"]
    fqn = _owner(node, reads[0], layers) if len(reads) == len(weights) else None
    if fqn is None or not isinstance(x, fx.Node):
        return []
    return [LayerNode(fqn, node, x, reads[0], 0, tuple(reads[1:]))]


def is_weight(weight: object, node: fx.Node) -> TypeGuard[fx.Node]:
    """Return whether it is a parameter that int8 kernels multiply by: ``matmul`` also takes vectors and batches."""
    if not isinstance(weight, fx.Node) or parameter_of(weight) is None:
        return False
    value = weight.meta.get("val")
    return node.target is not aten.matmul.default or (isinstance(value, torch.Tensor) and value.ndim == 2)


def parameter_of(node: fx.Node) -> fx.Node | None:
    """Return the ``get_attr`` node that a node is, or that it casts from half precision to float32; None for others."""
    if node.target is aten.to.dtype and isinstance(node.args[0], fx.Node) and node.args[1] is torch.float32:
        node, casts = node.args[0], True
    else:
        casts = False
    value = node.meta.get("val")
    is_half = isinstance(value, torch.Tensor) and value.dtype in (torch.float16, torch.bfloat16)
    return node if node.op == "get_attr" and (is_half or not casts) else None


def sources_of(parameter: fx.Node) -> tuple[str, ...]:
    """Return the names of the tensors that a ``get_attr`` node reads, or that its constant was computed from."""
    found: tuple[str, ...] = parameter.meta.get(SOURCES, (str(parameter.target),))
    return found


def _owner(node: fx.Node, weight: fx.Node, layers: Mapping[str, object]) -> str | None:
    """Return the layer that makes this call: the innermost module around it, else the owner of the (maybe tied)
    weight.

    A module that uses the weights of an inner layer without calling it (attention does) counts as that layer; one that
    has a tied weight by a name of its own does not, so that skipping it has an effect.
    """
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    path = str(stack[-1][0]) if stack else ""
    parameter = parameter_of(weight)
    assert parameter is not None
    names = sources_of(parameter)
    if path not in layers and any(name.rpartition(".")[0] == path for name in parameter.meta.get(TIED, ())):
        return None
    owners = [name.rpartition(".")[0] for name in names]
    owner = next((name for name in owners if name in layers), owners[0])
    is_inner = owner in layers and owner.startswith(f"{path}." if path else "")
    is_computed = str(parameter.target) not in names  # from tensors of parametrizations, which are no layers
    if path in layers and (is_computed or not is_inner):
        return path
    if node.target in LOOKUPS and not is_within(owner, path):
        return None  # an embedding that shares its table with a layer, and is not quantized with it
    # a tensor may be a layer by itself, where its module has several
    own = next((name for name in names if name in layers), None)
    return own if own is not None else owner if owner in layers else None


def runs_in_steps(graph: fx.Graph, fqn: str) -> bool:
    """Return whether the module ``fqn`` computes in the body of a loop, which is a graph of its own."""
    weights = (parameter_of(source) for node in scans_in(graph) for source in node.all_input_nodes)
    return any(weight is not None and str(weight.target).rpartition(".")[0] == fqn for weight in weights)


def operators_of(graph: fx.Graph, fqn: str) -> list[str]:
    """Return the operators of the module ``fqn``, those on its parameters first, to explain why it stayed in float."""
    on_parameters: list[str] = []
    others: list[str] = []
    for node in graph.nodes:
        stack = node.meta.get("nn_module_stack") or {}
        if node.op == "call_function" and any(path == fqn for path, _ in stack.values()):
            if parameter_of(node) is not None:
                continue
            reads = any(parameter_of(source) is not None for source in node.all_input_nodes)
            (on_parameters if reads else others).append(str(node.target).removesuffix(".default"))
    return list(dict.fromkeys(on_parameters or others))
