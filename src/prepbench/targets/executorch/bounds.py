"""The largest values of dynamic sizes, for which ExecuTorch plans memory."""

from __future__ import annotations

import math
import operator
from collections.abc import Set as AbstractSet
from typing import Any

import sympy
import torch
from torch import fx

from prepbench._torch_compat import pytree
from prepbench._torch_compat.number_analysis import is_unbounded
from prepbench.capture.aten.export_again import dynamic_sizes
from prepbench.capture.sizes.sample_sizes import value_at
from prepbench.errors import TargetError

Program = torch.export.ExportedProgram

# how many values of a size are tried, counted down from the largest
_POINTS = 16


class LargestSizes:
    """A pass that gives each tensor the sizes for which memory is planned.

    A dynamic size of an input may grow to ``factor`` times its value in the example inputs, or less where the model
    allows less. Sizes computed from it are largest there or slightly below, as with padding to a multiple, so a few
    values are tried. Interval arithmetic would give too much, and not the same for a tensor and its views.

    Args:
        program: what is lowered.
        factor: how many times its sizes in the example inputs dynamic ones may become.
        graph: in which the sizes occur, for messages.
    """

    def __init__(self, program: Program, factor: int, graph: fx.Graph) -> None:
        assert program.example_inputs is not None
        self._graph = graph
        ranges = {symbol: (int(values.lower), values.upper) for symbol, values in program.range_constraints.items()}
        for value, sizes in zip(program.example_inputs[0], dynamic_sizes(program), strict=True):
            for dim, size in sizes.items():
                for symbol in size.node.expr.free_symbols:  # one size may be computed from another
                    lower, upper = ranges[symbol]
                    ranges[symbol] = (lower, min(upper, value.shape[dim] * factor))
        bounded = {symbol: (lower, int(upper)) for symbol, (lower, upper) in ranges.items() if not is_unbounded(upper)}
        self._points = [
            {symbol: sympy.Integer(max(lower, upper - below)) for symbol, (lower, upper) in bounded.items()}
            for below in range(_POINTS)
        ]
        self._points.append({symbol: sympy.Integer(max(lower, 1)) for symbol, (lower, _) in bounded.items()})
        self._known: dict[Any, int] = {}

    def __call__(self, graph: fx.GraphModule) -> Any:
        from executorch.exir.pass_base import PassResult
        from executorch.exir.tensor import TensorSpec

        for module in graph.modules():
            for node in module.graph.nodes if isinstance(module, fx.GraphModule) else ():
                for spec in pytree.tree_leaves(node.meta.get("spec")):
                    if isinstance(spec, TensorSpec):
                        spec.shape = [self.largest(size) for size in spec.shape]
                        spec.stride = tuple(self.largest(step) for step in spec.stride)
        return PassResult(graph, True)

    def largest(self, size: Any) -> int:
        """The largest value of a size in the graph."""
        if not isinstance(size, torch.SymInt):
            return int(size)
        expression = size.node.expr
        if expression not in self._known:
            # a point where a size is divided by 0 is no call
            found = [value_at(expression, point) for point in self._points]
            values = [value for value in found if value is not None]
            if not all(value.is_Integer for value in values):
                raise TargetError(
                    "ExecuTorch plans memory ahead, and the size of a tensor in the graph depends on data, without a "
                    f"largest value. {self._remedy(expression.free_symbols)} Or choose another target for this model."
                )
            self._known[expression] = max(map(int, values))
        return self._known[expression]

    def _remedy(self, symbols: AbstractSet[Any]) -> str:
        """What keeps a size out of the graph: the module that makes it as a leaf."""
        makes = next((node for node in self._graph.nodes if not symbols.isdisjoint(_symbols(node))), None)
        stack = list((makes.meta.get("nn_module_stack") or {}).values()) if makes is not None else []
        module = str(stack[-1][0]) if stack else ""
        first = "" if module else "Move the lines that make it into a module of their own. "
        name = repr(module) if module else "its name"
        return (
            f"{first}With leaf_modules=[{name}] and fullgraph=False PyTorch runs that module, if the sizes of its "
            "results follow from those of its inputs."
        )


def _symbols(node: fx.Node) -> set[Any]:
    """The symbols in a number or in the sizes of a tensor."""
    value = node.meta.get("val")
    sizes = tuple[Any, ...](value.shape) if isinstance(value, torch.Tensor) else (value,)
    return {symbol for size in sizes if isinstance(size, torch.SymInt) for symbol in size.node.expr.free_symbols}


def bytes_needed(graph: fx.Graph, sizes: LargestSizes) -> int:
    """About how many bytes a graph needs at a time, at its largest sizes."""
    last_reader = {source: node for node in graph.nodes for source in node.all_input_nodes}
    held: dict[fx.Node, int] = {}
    most = 0
    for node in graph.nodes:
        if node.op == "call_function" and node.target is not operator.getitem:
            held[node] = sum(_bytes(value, sizes) for value in pytree.tree_leaves(node.meta.get("val")))
        most = max(most, sum(held.values()))
        for source in node.all_input_nodes:
            # a value from getitem is a part of the operator's result
            if last_reader[source] is node and node.target is not operator.getitem:
                held.pop(source.args[0] if source.target is operator.getitem else source, None)
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    return most + sum(_bytes(node.meta.get("val"), sizes) for node in inputs if _is_dynamic(node.meta.get("val")))


def _bytes(value: Any, sizes: LargestSizes) -> int:
    if not isinstance(value, torch.Tensor):
        return 0
    return math.prod(sizes.largest(size) for size in value.shape) * value.element_size()


def _is_dynamic(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and any(
        isinstance(size, torch.SymInt) for size in tuple[Any, ...](value.shape)
    )
