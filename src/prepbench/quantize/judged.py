"""Find the values by which a model is judged that chooses rows by their numbers: detectors, retrieval, ``argmax``.

``topk``, ``sort``, ``nonzero`` and non-maximum suppression order their rows by scores. A rounding error, however small,
may exchange two rows of nearly the same score, and then a comparison of outputs row by row says nothing. So such
outputs are judged by the floating-point values in front of the last choice.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from prepbench._torch_compat import pytree
from prepbench.quantize.layer_nodes import LOOKUPS, WEIGHTED

_aten = torch.ops.aten
_CHOICES = frozenset(
    (
        _aten.topk, _aten.sort, _aten.argsort, _aten.argmax, _aten.argmin, _aten.nonzero, _aten.nonzero_static,
        _aten.masked_select, _aten.msort, _aten.kthvalue, _aten.unique_dim, _aten._unique2,
    )
)  # fmt: skip
_WITH_INDICES = frozenset((_aten.max, _aten.min))
_OWN = "prepbench"


@dataclass(frozen=True)
class Judged:
    """The values by which a graph is judged.

    Attributes:
        outputs: how many outputs the graph has of its own.
        chosen: which of these come from a choice of rows, and are not judged themselves.
        frontier: the floating-point values in front of the last choices.
        choices: the names of the operators that choose.
    """

    outputs: int
    chosen: frozenset[int] = frozenset()
    frontier: tuple[fx.Node, ...] = ()
    choices: tuple[str, ...] = ()

    @property
    def remark(self) -> str:
        """How the model was judged, where that is not by its outputs; else empty."""
        if not self.frontier:
            return ""
        one = len(self.frontier) == 1
        return (
            f"exactness was measured at the {'value' if one else f'{len(self.frontier)} values'} in front of "
            f"{', '.join(self.choices)}, because outputs whose rows are chosen by their numbers cannot be compared row "
            "by row"
        )

    def judge(self, outputs: Sequence[Any]) -> tuple[Any, ...]:
        """Return the values of a run with None in place of those that are not judged."""
        return tuple(None if index in self.chosen else value for index, value in enumerate(outputs))


def judged_values(graph: fx.Graph) -> Judged:
    """Return by which values a graph is judged.

    Args:
        graph: of ATen operators.

    Example:
        >>> class Model(torch.nn.Module):
        ...     def forward(self, x, weight):
        ...         return torch.nn.functional.linear(x, weight).topk(2).values
        >>> found = judged_values(torch.export.export(Model(), (torch.ones(3, 4), torch.ones(5, 4))).graph)
        >>> found.chosen, [node.name for node in found.frontier], found.choices
        (frozenset({0}), ['linear'], ('topk',))
    """
    (output,) = graph.find_nodes(op="output")
    results = _results(output)
    layers = [node for node in graph.nodes if _is_layer(node)]
    before, after = dependencies(layers), _followers(layers)
    roots = [node for node in graph.nodes if node not in before and node in after and _chooses(node)]
    chosen = _followers(roots)
    indices = frozenset(index for index, one in enumerate(results) if one in chosen)
    frontier = _frontier((node for node in graph.nodes if node in chosen and node is not output), chosen, after)
    if not indices or not frontier:
        return Judged(len(results))
    return Judged(len(results), indices, frontier, tuple(dict.fromkeys(map(_name, roots))))


def add_outputs(graph: fx.GraphModule, judged: Judged) -> None:
    """Make the values in front of choices outputs, behind those that are there, in place.

    The graph then has more results than its structure of results says: run it with ``enable_io_processing=False``.
    """
    if judged.frontier:
        (output,) = graph.graph.find_nodes(op="output")
        output.args = ((*_results(output), *judged.frontier),)
        graph.recompile()


def remove_outputs(graph: fx.GraphModule, judged: Judged) -> None:
    """Undo :func:`add_outputs`, in place."""
    if judged.frontier:
        (output,) = graph.graph.find_nodes(op="output")
        output.args = (_results(output)[: judged.outputs],)
        graph.recompile()


def _results(output: fx.Node) -> tuple[Any, ...]:
    found = output.args[0]
    return tuple(found) if isinstance(found, tuple | list) else (found,)


def _is_layer(node: fx.Node) -> bool:
    """Return whether a node is a layer, or one of our operators, which hold loops and recurrent layers."""
    return node.target in WEIGHTED or node.target in LOOKUPS or _namespace(node) == _OWN


def _namespace(node: fx.Node) -> str:
    return str(getattr(node.target, "namespace", "")) if node.op == "call_function" else ""


def _chooses(node: fx.Node) -> bool:
    """Return whether a node chooses or orders rows by numbers.

    Of operators that are not PyTorch's that is told by what they return: positions or classes, or as many rows as there
    happen to be.
    """
    if node.op != "call_function":
        return False
    packet = getattr(node.target, "overloadpacket", None)
    if packet in _CHOICES:
        return True
    if node.target is operator.getitem:
        source = node.args[0]
        return getattr(getattr(source, "target", None), "overloadpacket", None) in _WITH_INDICES and bool(
            node.args[1] == 1
        )
    sizes = _data_sizes(node) - {size for one in node.all_input_nodes for size in _data_sizes(one)}
    is_foreign = _namespace(node) not in ("", "aten", "prims", "quantized_decomposed", "torchao")
    return bool(sizes) or (is_foreign and any(_is_integer(leaf) for leaf in _values(node)))


def _frontier(nodes: Iterable[fx.Node], chosen: set[fx.Node], after: set[fx.Node]) -> tuple[fx.Node, ...]:
    """Return the floating-point values that these nodes read, also through masks and positions made of them."""
    found: dict[fx.Node, None] = {}
    seen: set[fx.Node] = set()
    left = [source for node in nodes for source in node.all_input_nodes]
    while left:
        source = left.pop(0)
        if source in seen or source in chosen or source not in after:
            continue
        seen.add(source)
        value = _value(source)
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            found.setdefault(source)
        else:
            left.extend(source.all_input_nodes)
    return tuple(found)


def _followers(nodes: Iterable[fx.Node]) -> set[fx.Node]:
    """Return these nodes, and all that depend on them."""
    found, left = set(nodes), list(nodes)
    while left:
        for user in left.pop().users:
            if user not in found:
                found.add(user)
                left.append(user)
    return found


def dependencies(nodes: Iterable[fx.Node]) -> set[fx.Node]:
    """Return all nodes that these depend on."""
    found: set[fx.Node] = set()
    left = list(nodes)
    while left:
        for source in left.pop().all_input_nodes:
            if source not in found:
                found.add(source)
                left.append(source)
    return found


def _value(node: fx.Node) -> Any:
    value = node.meta.get("val")
    if value is None and node.op == "call_module" and node.all_input_nodes:
        return _value(node.all_input_nodes[0])  # an observer
    return value


def _values(node: fx.Node) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(_value(node)) if isinstance(leaf, torch.Tensor)]


def _is_integer(leaf: torch.Tensor) -> bool:
    return not leaf.is_floating_point() and not leaf.is_complex()


def _data_sizes(node: fx.Node) -> set[str]:
    """Return the sizes of a node's results that are known only when the data is."""
    from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

    return {str(symbol) for leaf in _values(node) for symbol in free_unbacked_symbols(leaf)}


def _name(node: fx.Node) -> str:
    source = node.args[0] if node.target is operator.getitem else node
    assert isinstance(source, fx.Node)
    packet = getattr(source.target, "overloadpacket", source.target)
    return str(packet).removeprefix("aten.").removeprefix("_")
