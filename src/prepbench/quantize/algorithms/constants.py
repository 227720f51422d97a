"""The constants of a graph: their readers, and how to scale them without changing the user's tensors."""

from __future__ import annotations

import operator
from collections.abc import Collection

import torch
from torch import fx, nn

from prepbench._torch_compat.operators import schema_of
from prepbench.quantize.layer_nodes import BIASES, parameter_of

aten = torch.ops.aten

_KEEPS_CHANNELS_LAST = frozenset(
    [
        aten.alias.default,
        aten.clone.default,
        aten.contiguous.default,
        aten.detach.default,
        aten.dropout.default,
        aten._unsafe_view.default,
        aten.flatten.using_ints,
        aten.reshape.default,
        aten.view.default,
        aten.permute.default,
        aten.transpose.int,
        aten.select.int,
        aten.slice.Tensor,
        aten.unsqueeze.default,
    ]
)


def source_of(node: fx.Node) -> fx.Node:
    """Return the ``get_attr`` node of a constant, which may be read through a cast from half precision."""
    source = parameter_of(node)
    return node if source is None else source


def value_of(graph: fx.GraphModule, node: fx.Node) -> torch.Tensor:
    """Return the tensor that a ``get_attr`` node reads, before any cast."""
    value = operator.attrgetter(str(source_of(node).target))(graph)
    assert isinstance(value, torch.Tensor)
    return value.detach()


class Constants:
    """The constants of a graph: finds all readers of a constant's memory, under any name, and scales constants.

    It stays valid while constants are scaled through it; make another one after they are replaced elsewhere.
    """

    def __init__(self, graph: fx.GraphModule) -> None:
        self.graph = graph
        self._spans: dict[int, list[tuple[int, int, fx.Node]]] = {}
        for node in graph.graph.find_nodes(op="get_attr"):
            if node.users:
                self._add(node)

    def readers(self, node: fx.Node) -> set[fx.Node]:
        """Return all nodes that read memory of this constant."""
        value = value_of(self.graph, node)
        start, end = _span(value)
        found = _users(source_of(node))
        if start < end:
            for first, last, other in self._spans.get(_memory(value), ()):
                if first < end and start < last:
                    found |= _users(other)
        return found

    def can_scale(self, node: fx.Node) -> bool:
        """Return whether it is a constant that is read in float32, and stays constant while the graph runs."""
        value = value_of(self.graph, node)
        is_read_in_float32 = value.dtype == torch.float32 or source_of(node) is not node
        plain = is_read_in_float32 and value.layout == torch.strided
        return plain and not any(writes(reader) for reader in self.readers(node))

    def scale(self, node: fx.Node, factor: torch.Tensor, users: Collection[fx.Node]) -> None:
        """Make ``users`` read the constant times ``factor``, under its name if nothing else reads it, else under a
        new one.

        The old tensor stays unchanged, because it is shared with the user's model. One in half precision becomes
        float32.
        """
        graph, value, name = self.graph, value_of(self.graph, node), str(source_of(node).target)
        scaled = value * factor
        reads = [read for read in graph.graph.find_nodes(op="get_attr") if read.target == name]
        if self.readers(node) <= set(users) and scaled.dtype == value.dtype:
            if value.layout == torch.strided:
                spans = self._spans.get(_memory(value), [])
                spans[:] = [span for span in spans if span[2] not in reads]
            assign_constant(graph, name, scaled)
            for read in reads:
                self._add(read)
            return
        through = [*reads, *(user for read in reads for user in read.users if parameter_of(user) is read)]
        served = {user: read for read in through for user in read.users if user in users}
        with graph.graph.inserting_before(min(served)):
            copy = add_constant(graph, f"{name.replace('.', '_')}_scaled", scaled)
        copy.meta = dict(node.meta)
        for user, read in served.items():
            user.replace_input_with(read, copy)
        for cast in {read for read in served.values() if read.op != "get_attr" and not read.users}:
            graph.graph.erase_node(cast)
        self._add(copy)

    def _add(self, node: fx.Node) -> None:
        value = operator.attrgetter(str(node.target))(self.graph)
        if isinstance(value, torch.Tensor) and value.layout == torch.strided:
            self._spans.setdefault(_memory(value), []).append((*_span(value), node))


def _users(source: fx.Node) -> set[fx.Node]:
    """Return the users of a constant, past a cast of it."""
    casts = {user for user in source.users if parameter_of(user) is source}
    return (set(source.users) - casts).union(*(cast.users for cast in casts))


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    if tensor.numel() == 0 or tensor.layout != torch.strided:
        return 0, 0
    size = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), tensor.data_ptr() + size * tensor.element_size()


def consumers(node: fx.Node) -> list[fx.Node]:
    """Return the nodes that read its values; those that ask for its size do not."""
    return [user for user in node.users if user.target is not aten.sym_size.int]


def add_constant(graph: fx.GraphModule, name: str, value: torch.Tensor) -> fx.Node:
    """Add a buffer and a node that reads it at the insertion point; return the node, whose meta the caller sets."""
    number = next(i for i in range(len(graph.graph.nodes) + 1) if not hasattr(graph, f"{name}_{i}"))
    graph.register_buffer(f"{name}_{number}", value)
    return graph.graph.get_attr(f"{name}_{number}")


def assign_constant(graph: fx.GraphModule, target: str, value: torch.Tensor) -> None:
    path, _, name = target.rpartition(".")
    owner = graph.get_submodule(path)
    old = getattr(owner, name)
    if name in owner._parameters:
        setattr(owner, name, nn.Parameter(value, requires_grad=old.requires_grad))
    else:
        setattr(owner, name, value)


def bias_of(constants: Constants, node: fx.Node) -> fx.Node | None:
    """Return the constant that a layer adds to each output channel, if there is one.

    Raises:
        ValueError: the bias is computed in the graph, so it cannot be scaled.
    """
    index = BIASES[node.target][2] if node.target in BIASES else None
    bias = node.args[index] if index is not None and len(node.args) > index else node.kwargs.get("bias")
    if bias is None:
        return None
    if not isinstance(bias, fx.Node) or bias.op != "get_attr" or not constants.can_scale(bias):
        raise ValueError(f"The bias of {node.name} is computed in the graph")
    if value_of(constants.graph, bias).ndim != 1:
        raise ValueError(f"The bias of {node.name} is no vector")
    return bias


def channels(node: object) -> int | None:
    """Return the size of the last axis of a node's result, if that is one tensor and the size is static."""
    value = node.meta.get("val") if isinstance(node, fx.Node) else None
    size = value.shape[-1] if isinstance(value, torch.Tensor) and value.ndim else None
    return size if isinstance(size, int) else None


def keeps_channels_last(node: fx.Node) -> bool:
    """Return whether the operator only moves or drops whole rows: element c of the last axis stays element c."""
    if node.op != "call_function" or node.target not in _KEEPS_CHANNELS_LAST:
        return False
    source = node.args[0]
    if channels(source) is None or channels(source) != channels(node):
        return False
    assert isinstance(source, fx.Node)
    ndim = source.meta["val"].ndim
    if node.target is aten.permute.default:
        dims = node.args[1]
        return isinstance(dims, list | tuple) and dims[-1] in (-1, ndim - 1)
    if node.target is aten.transpose.int:
        return not {-1, ndim - 1} & {dim for dim in node.args[1:3] if isinstance(dim, int)}
    if node.target in (aten.select.int, aten.slice.Tensor):
        return (node.args[1] if len(node.args) > 1 else 0) not in (-1, ndim - 1)
    if node.target is aten.unsqueeze.default:
        return node.args[1] not in (-1, ndim)
    return True


def writes(node: fx.Node) -> bool:
    """Return whether the operator changes one of its inputs in place."""
    schema = schema_of(node.target)
    return bool(schema is not None and schema.is_mutable)
