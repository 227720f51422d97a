"""The last stage: replace observers by quantize and dequantize operators, and weights by integers."""

from __future__ import annotations

import functools
import itertools
import operator
import re
import unicodedata
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn

from prepbench._torchao_compat import pt2e, quick_conversion
from prepbench.capture.sizes.recurrent import RECURRENT
from prepbench.quantize.dynamic_lstm import use_integers
from prepbench.quantize.layer_nodes import LOOKUPS, WEIGHTED, aten, parameter_of
from prepbench.quantize.observed import Observed, all_observers, observer_of
from prepbench.quantize.plan import Plan
from prepbench.quantize.repeatable import as_before
from prepbench.quantize.rounding import NEEDS_MOMENTS
from prepbench.quantize.rows import OPERATOR
from prepbench.quantize.simulate import in_integers
from prepbench.quantize.statistics import restore_buffers


def convert(observed: Observed) -> fx.GraphModule:
    """Replace observers by quantize and dequantize operators with the learned scales; weights become int8 constants."""
    blocks: dict[Any, dict[str, str]] = {}
    for observer in all_observers(observed.graph):
        if getattr(observer, "scheme", None) is not None and observer.scheme.in_blocks:
            observer.convert = functools.partial(_convert_blocks, observer, blocks)
    _use_rounded_weights(observed.graph)
    use_integers(observed.graph, in_integers(observed.graph, observed.plan))
    with quick_conversion(_is_float):
        converted = pt2e().convert_pt2e(observed.graph)
    assert isinstance(converted, fx.GraphModule)
    # afterwards, because it runs what depends on constants alone, which includes writes to buffers
    restore_buffers(converted, observed.written)
    as_before(converted)
    cast_remaining_weights(converted)
    _forget_unused(converted)
    _without_gradients(converted)
    return converted


def name_weights(graph: fx.GraphModule, plan: Plan) -> dict[str, Stored]:
    """Name integers of weights after their layers, in place, for whoever reads a file; return them by the new names."""
    nodes = {node.name: node for node in graph.graph.nodes}
    found: dict[str, Stored] = {}
    first: dict[fx.Node | None, str] = {}
    for fqn, calls in plan.nodes.items():
        for call in calls:
            node = nodes.get(call.node.name)
            if node is None or node.target not in {*WEIGHTED, *LOOKUPS, *RECURRENT}:
                continue  # it has become another operator, which holds integers itself
            for operand, weight in zip(call.weight_operands(node.args), call.weights, strict=True):
                integers = operand.args[0] if "dequantize" in str(operand.target) else None
                if not isinstance(integers, fx.Node) or integers.op != "get_attr":
                    continue
                value = operator.attrgetter(str(integers.target))(graph)
                same = first.get(source := parameter_of(weight))
                if same is not None and torch.equal(_bytes(operator.attrgetter(same)(graph)), _bytes(value)):
                    integers.target = same  # layers that share a tensor are rounded alike, and share its integers
                elif integers.target not in found:
                    # as Python reads the name where torch writes it into code
                    wanted = re.sub(r"\W", "_", unicodedata.normalize("NFKC", f"{fqn}_integers"))
                    first[source] = name = _renamed(graph, str(integers.target), wanted)
                    found[name] = Stored(value.numel(), frozenset())
                name = str(integers.target)
                found[name] = Stored(found[name].elements, found[name].layers | {fqn})
    _forget_unused(graph)
    graph.recompile()
    return found


def _bytes(value: torch.Tensor) -> torch.Tensor:
    return value.contiguous().view(torch.uint8)  # torch compares no numbers of 8 bits in floating point


@dataclass(frozen=True)
class Stored:
    """The stored integers of a weight: their bits, and their layers."""

    elements: int
    layers: frozenset[str]


def _renamed(graph: fx.GraphModule, old: str, wanted: str) -> str:
    """Rename an attribute of the graph; return the new, unique name."""
    new = next(name for i in itertools.count() if not hasattr(graph, name := f"{wanted}_{i}"))
    graph.register_buffer(new, operator.attrgetter(old)(graph).detach())
    for node in graph.graph.find_nodes(op="get_attr"):
        if node.target == old:
            node.target = new
    path, _, last = old.rpartition(".")
    delattr(graph.get_submodule(path), last)
    return new


def _is_float(node: fx.Node) -> bool:
    """Return whether it gives a weight as the layer multiplies by it, and not as it is stored."""
    return (
        node.target is OPERATOR
        or "dequantize_per" in str(node.target)
        or (
            node.op == "call_function"
            and parameter_of(node) is not None
            and not any("quantize_per" in str(user.target) for user in node.users)
        )
    )


def _forget_unused(graph: fx.GraphModule) -> None:
    """Remove the float weights that int8 ones replace; they would be saved with the model."""
    used = {str(node.target) for node in graph.graph.nodes if node.op == "get_attr"}
    for module_name, module in graph.named_modules():
        prefix = f"{module_name}." if module_name else ""
        for name in [*module._parameters, *module._buffers]:
            if prefix + name not in used:
                delattr(module, name)


def _without_gradients(graph: fx.GraphModule) -> None:
    """Recreate parameters without gradients around the same memory; those that stay in float are the user's own."""
    made: dict[int, nn.Parameter] = {}
    for module in graph.modules():
        for name, value in module._parameters.items():
            if value is not None and value.requires_grad:
                made.setdefault(id(value), nn.Parameter(value.detach(), requires_grad=False))
                module._parameters[name] = made[id(value)]


def _use_rounded_weights(graph: fx.GraphModule) -> None:
    """Replace a weight whose integers are not the nearest by its rounded values, in place.

    Rounding these to nearest then gives the same integers.
    """
    made: dict[Any, str] = {}
    for node in list(graph.graph.nodes):
        observer = observer_of(graph, node)
        scheme = getattr(observer, "scheme", None)
        if scheme is None or scheme.in_blocks or scheme.algorithm not in NEEDS_MOMENTS:
            continue
        key = (id(observer.found), observer.axis, scheme)
        if key not in made:
            made[key] = f"{node.target}_rounded".replace(".", "_")
            value = observer.rows().floats(observer.weight, observer.axis)
            graph.register_parameter(made[key], nn.Parameter(value, requires_grad=False))
        with graph.graph.inserting_before(node):
            new = graph.graph.get_attr(made[key])
        new.meta = dict(node.args[0].meta)
        node.update_arg(0, new)


def _convert_blocks(observer: Any, made: dict[Any, dict[str, str]], graph: fx.GraphModule, node: fx.Node) -> None:
    """Replace the observer of a weight by its integers, the scales of its blocks and the operator that multiplies
    them.

    Args:
        observer: of class ``WeightObserver``, whose scheme is ``in_blocks``.
        made: the attributes of weights that were replaced before; several layers may have one.
        graph: where ``node`` stands; changed in place.
        node: the call of ``observer`` on a weight.
    """
    nodes: dict[str, fx.Node | None] = {"zero_point": None}
    scheme = observer.scheme
    with graph.graph.inserting_before(node):
        key = (id(observer.found), observer.axis, scheme)
        if key not in made:
            made[key] = {}
            for name, value in _block_constants(observer).items():
                made[key][name] = f"{node.target}_{name}".replace(".", "_")
                graph.register_buffer(made[key][name], value.contiguous())
        for name, attribute in made[key].items():
            nodes[name] = graph.graph.get_attr(attribute)
        arguments = (
            nodes["q"],
            nodes["scale"],
            nodes["zero_point"],
            scheme.block_size or observer.weight[0].numel(),
            scheme.bits,
        )
        call = graph.graph.call_function(OPERATOR, arguments)
    source = node.args[0]
    assert isinstance(source, fx.Node)
    call.meta = {key: value for key, value in source.meta.items() if key in ("val", "nn_module_stack", "stack_trace")}
    user = next(iter(node.users), None)
    if user is not None and "nn_module_stack" in user.meta:
        call.meta["nn_module_stack"] = user.meta["nn_module_stack"]
    node.replace_all_uses_with(call)
    graph.graph.erase_node(node)


def _block_constants(observer: Any) -> dict[str, torch.Tensor]:
    """Return the operator's constants: integers, scales and, of asymmetric weights, zero points."""
    weight, scheme, rows = observer.weight, observer.scheme, observer.rows()
    channels = weight.shape[0]
    # a scale for each channel, also where one is for all
    scale = rows.scale.expand(channels) if len(rows.scale) == 1 else rows.scale
    parts = {"q": rows.integers.reshape(weight.shape), "scale": scale.reshape(channels, -1)}
    if not scheme.symmetric:
        parts["zero_point"] = rows.zero_point.reshape(weight.shape[0], -1).to(torch.int8)
    return parts


# Keep weights in half precision while their layers are quantized, and cast them where they are read.


_HALF = frozenset({torch.float16, torch.bfloat16})
_NORMS = frozenset([aten.batch_norm.default, aten._native_batch_norm_legit_no_training.default])
# operators whose weight is a matrix, which no algorithm changes before it is quantized
_MATRICES = {
    target: place[1]
    for target, place in {**WEIGHTED, **LOOKUPS}.items()
    if target in (aten.linear.default, aten.addmm.default, aten.mm.default, aten.matmul.default, *LOOKUPS)
}


def weights_to_cast(program: torch.export.ExportedProgram) -> frozenset[str]:
    """Return the placeholders of weights in half precision that are cast only where layers read them.

    They are matrices that only layers read. Where batch norms may be folded into weights, there are none.
    """
    nodes = program.graph.nodes
    if any(node.target in _NORMS for node in nodes):
        return frozenset()
    parameters = program.graph_signature.inputs_to_parameters
    by_tensor: dict[int, list[fx.Node]] = {}
    for node in nodes:
        if node.op == "placeholder" and node.name in parameters:
            by_tensor.setdefault(id(program.state_dict[parameters[node.name]]), []).append(node)
    return frozenset(node.name for same in by_tensor.values() if all(map(_is_weight_of_layers, same)) for node in same)


def _is_weight_of_layers(node: fx.Node) -> bool:
    value = node.meta["val"]
    return (
        value.dtype in _HALF
        and value.ndim == 2
        and all(
            user.target in _MATRICES
            and [place for place, one in enumerate(user.args) if one is node] == [_MATRICES[user.target]]
            for user in node.users
        )
    )


def cast_remaining_weights(graph: fx.GraphModule) -> None:
    """Convert half-precision weights whose layers stay in float to float32, in place."""
    made: dict[str, str] = {}
    for node in list(graph.graph.nodes):
        source = parameter_of(node)
        if source is None or source is node:
            continue
        if not node.users:
            graph.graph.erase_node(node)
            continue
        name = str(source.target)
        if name not in made:
            made[name] = f"{name}_in_float32".replace(".", "_")
            value = operator.attrgetter(name)(graph).detach().float()
            graph.register_parameter(made[name], nn.Parameter(value, requires_grad=False))
        with graph.graph.inserting_before(node):
            new = graph.graph.get_attr(made[name])
        new.meta = dict(node.meta)
        node.replace_all_uses_with(new)
        graph.graph.erase_node(node)
    graph.recompile()
