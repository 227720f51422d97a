"""The float graphs of a model, for evaluation and training, with fake quantizers in the places of observers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch
from torch import fx, nn

from prepbench._torch_compat import pytree
from prepbench.capture.sizes.recurrent import WITH_GRADIENTS
from prepbench.quantize.algorithms.batch_norms import NORMS, scaled_weight
from prepbench.quantize.dynamic_lstm import OPERATOR
from prepbench.quantize.layer_nodes import WEIGHTED, parameter_of
from prepbench.quantize.observed import observer_of

Quantizers = Mapping[str, nn.Module]
"""By the name of the observer in the observed graph."""

_SMALLEST = 1e-12


class FoldedNorms:
    """The batch norms that the observed graph has folded into the layers before them."""

    def __init__(self, unfolded: fx.GraphModule, observed: fx.GraphModule) -> None:
        left = {node.name for node in observed.graph.nodes}
        self.names = {
            node.args[0].name: node.name
            for node in unfolded.graph.nodes
            if node.target in NORMS and node.name not in left and isinstance(node.args[0], fx.Node)
        }


def counterparts(ours: fx.Graph, theirs: fx.Graph) -> dict[str, fx.Node]:
    """Map each call of ``ours``, by name, to the same call of the same module in ``theirs``.

    Modes may differ in other calls (dropout, statistics). Calls of one operator in one module correspond if both
    graphs have equally many of them.
    """
    found: dict[tuple[Any, str], list[fx.Node]] = {}
    for node in theirs.nodes:
        found.setdefault(_place(node), []).append(node)
    counts = Counter(_place(node) for node in ours.nodes)
    seen: Counter[tuple[Any, str]] = Counter()
    result = {}
    for node in ours.nodes:
        place = _place(node)
        if node.op == "call_function" and len(found.get(place, ())) == counts[place]:
            result[node.name] = found[place][seen[place]]
        seen[place] += 1
    return result


def _place(node: fx.Node) -> tuple[Any, str]:
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    return node.target if node.op == "call_function" else node.op, str(stack[-1][0]) if stack else ""


def insert_quantizers(
    graph: fx.GraphModule,
    observed: fx.GraphModule,
    norms: FoldedNorms,
    quantizers: Quantizers,
    same: Callable[[str], fx.Node | None],
) -> list[str]:
    """Insert quantizers into a float graph where another graph of the same model has observers, in place.

    Args:
        graph: in float, batch norms not folded.
        observed: with observers.
        norms: the norms that ``observed`` has folded. A folded weight is multiplied by the norm, rounded, and divided
            by the norm again, so that the norm may use the statistics of a batch.
        quantizers: the replacement of each observer.
        same: the node of ``graph`` for the name of a node of ``observed``.

    Returns:
        The nodes of ``observed`` that have no counterpart.
    """
    made: dict[Any, fx.Node] = {}
    lacking = []
    for name, quantizer in quantizers.items():
        graph.add_submodule(_attribute(name), quantizer)
    for node in observed.graph.nodes:
        paths = _observed_arguments(observed, node)
        if observer_of(observed, node) is not None or not paths:
            continue
        user = node if node.op == "output" else same(node.name)
        if user is None:
            lacking.append(node.name)
            continue
        if node.op == "output":
            (user,) = graph.graph.find_nodes(op="output")
        norm = same(norms.names[node.name]) if node.name in norms.names else None
        leaves, spec = pytree.tree_flatten((user.args, user.kwargs))
        if (norm is None and node.name in norms.names) or not all(_is_value(leaves, place) for place in paths):
            lacking.append(node.name)
            continue
        for place, chain in paths.items():
            leaves[place] = _quantized(graph, leaves[place], chain, user, norm, made)
        user.args, user.kwargs = pytree.tree_unflatten(leaves, spec)
    return lacking


def _is_value(leaves: list[Any], place: int) -> bool:
    return place < len(leaves) and isinstance(leaves[place], fx.Node)


def _attribute(name: str) -> str:
    return f"quantizer_{name.replace('.', '_')}"


def _observed_arguments(observed: fx.GraphModule, node: fx.Node) -> dict[int, list[str]]:
    """Return by position among the leaves of a node's arguments the observers on it, the innermost first."""
    leaves, _ = pytree.tree_flatten((node.args, node.kwargs))
    found: dict[int, list[str]] = {}
    for place, leaf in enumerate(leaves):
        chain: list[str] = []
        while observer_of(observed, leaf) is not None:
            chain.insert(0, str(leaf.target))
            leaf = leaf.args[0]
        if chain:
            found[place] = chain
    return found


def _quantized(
    graph: fx.GraphModule,
    value: fx.Node,
    chain: list[str],
    user: fx.Node,
    norm: fx.Node | None,
    made: dict[Any, fx.Node],
) -> fx.Node:
    is_weight = parameter_of(value) is not None
    folded = norm if is_weight else None
    for name in chain:
        key = (value, name, None if folded is None else folded.args[1:5])
        if key not in made:
            with graph.graph.inserting_before(user) if is_weight else graph.graph.inserting_after(value):
                made[key] = (
                    graph.graph.call_module(_attribute(name), (value,))
                    if folded is None
                    else _folded(graph, value, name, folded, user)
                )
            made[key].meta = {key: value.meta[key] for key in ("val",) if key in value.meta}
        value = made[key]
    return value


def _folded(graph: fx.GraphModule, weight: fx.Node, name: str, norm: fx.Node, layer: fx.Node) -> fx.Node:
    """Return a weight as the layer multiplies by it: with the norm folded, then rounded."""
    scale, _, _, variance = norm.args[1:5]
    kind: Any = norm.target
    factor = graph.graph.call_function(norm_factor, (scale, variance, norm.args[NORMS[kind]]))
    axis = WEIGHTED[layer.target][2]
    folded = graph.graph.call_function(_scaled_exactly, (weight, factor, axis))
    rounded = graph.graph.call_module(_attribute(name), (folded,))
    inverse = graph.graph.call_function(torch.reciprocal, (factor,))
    return graph.graph.call_function(_scaled_exactly, (rounded, inverse, axis))


def _scaled_exactly(weight: torch.Tensor, factor: torch.Tensor, axis: int) -> torch.Tensor:
    """Return the weight times a factor for each output channel, to the last bit as a compile folds norms.

    The largest number of a row lies halfway between two integers, so a bit decides which one it becomes.
    """
    return scaled_weight(weight.to(factor.dtype), factor, axis).to(weight.dtype)


def use_gradients(graph: fx.GraphModule, in_integers: Collection[str] = ()) -> None:
    """Let recurrent layers use the operators with gradients, or integers where these are named."""
    for node in graph.graph.nodes:
        if node.op == "call_function":
            node.target = OPERATOR if node.name in in_integers else WITH_GRADIENTS.get(node.target, node.target)


def take_states(graph: fx.GraphModule, owner: nn.Module) -> tuple[fx.GraphModule, list[tuple[nn.Module, str]]]:
    """Turn the parameters and buffers of a module into the first inputs of a graph.

    So the graph reads the module's current values when it is called: trained, moved or loaded weights.

    Returns:
        The graph as a module without these tensors, and for each such input the module that holds it, and its name
        there.
    """
    places: dict[str, tuple[nn.Module, str]] = {}
    for path, module in owner.named_modules():
        for name in (*module._parameters, *module._buffers):
            places[f"{path}.{name}" if path else name] = (module, name)
    reads: dict[str, list[fx.Node]] = {}
    for node in graph.graph.find_nodes(op="get_attr"):
        if str(node.target) in places:
            reads.setdefault(str(node.target), []).append(node)
    first = next(iter(graph.graph.nodes))
    for number, nodes in enumerate(reads.values()):
        with graph.graph.inserting_before(first):
            state = graph.graph.placeholder(f"state_{number}")
        state.meta = dict(nodes[0].meta)
        for node in nodes:
            node.replace_all_uses_with(state)
    for node in [node for nodes in reads.values() for node in nodes]:
        graph.graph.erase_node(node)
    graph.graph.set_codegen(fx.graph.CodeGen())  # arguments and results as they are
    return fx.GraphModule(graph, graph.graph), [places[target] for target in reads]


def norm_factor(scale: torch.Tensor | None, variance: torch.Tensor, epsilon: float) -> torch.Tensor:
    """Return the factor of each channel of a batch norm with these statistics, in float64 where the device has it;
    never 0, because it is a divisor.
    """
    variance = variance if variance.device.type == "mps" else variance.double()
    factor = (variance + epsilon).rsqrt()
    factor = factor if scale is None else factor * scale
    return torch.where(factor.abs() < _SMALLEST, torch.full_like(factor, _SMALLEST), factor).detach()
