"""Largest sizes: ExecuTorch plans memory ahead, so every dynamic size needs one."""

from __future__ import annotations

import math
import operator
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree
from torch.utils._sympy.value_ranges import ValueRanges, bound_sympy

from prepbench.errors import TargetError
from prepbench.targets.weights import dynamic_sizes

Program = torch.export.ExportedProgram


class LargestSizes:
    """A pass that gives each tensor the sizes for which memory is planned.

    A dynamic size may reach ``factor`` times what it is in the example inputs, or less where the model takes no more.
    """

    def __init__(self, program: Program, factor: int) -> None:
        assert program.example_inputs is not None
        self._ranges: dict[Any, Any] = {
            symbol: ValueRanges(min(values.lower, 1), values.upper)
            for symbol, values in program.range_constraints.items()
        }
        for value, sizes in zip(program.example_inputs[0], dynamic_sizes(program), strict=True):
            for dim, size in sizes.items():
                wanted = value.shape[dim] * factor
                for symbol in size.node.expr.free_symbols:  # one size may be computed from another
                    known = self._ranges[symbol]
                    self._ranges[symbol] = ValueRanges(known.lower, min(known.upper, wanted))

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
        upper = bound_sympy(size.node.expr, self._ranges).upper
        if not upper.is_Integer:
            raise TargetError(
                f"ExecuTorch plans memory ahead, and the size {size} of a tensor in the graph depends on data, without "
                "a largest value. Choose another target for this model."
            )
        return int(upper)


def bytes_needed(graph: fx.Graph, sizes: LargestSizes) -> int:
    """About how many bytes the values of a graph take at once, at its largest sizes."""
    last_reader = {source: node for node in graph.nodes for source in node.all_input_nodes}
    held: dict[fx.Node, int] = {}
    most = 0
    for node in graph.nodes:
        if node.op == "call_function" and node.target is not operator.getitem:
            held[node] = sum(_bytes(value, sizes) for value in pytree.tree_leaves(node.meta.get("val")))
        most = max(most, sum(held.values()))
        for source in node.all_input_nodes:
            # what getitem takes from a result is a part of it
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
