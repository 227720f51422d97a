"""Round weights by the Hessian of their inputs on samples: a few layers at a time, to bound memory."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from prepbench._torch_compat.operators import schema_of
from prepbench.inputs import Sample
from prepbench.jobs import Progress, ProgressCallback
from prepbench.quantize.layer_nodes import LayerNode
from prepbench.quantize.observed import observer_of
from prepbench.quantize.plan import Plan
from prepbench.quantize.rounding import FOR_IM2COL, NEEDS_MOMENTS, Im2col, InputHessian
from prepbench.quantize.statistics import preserved_buffers
from prepbench.quantize.weights import WeightScheme
from prepbench.settings.quantization import BLOCK_SIZES

# bytes of results, or of Hessians, that are kept at a time
_MEMORY = 2**29
_STAGE = "round weights"

Source = tuple[str, Im2col | None]
"""The name of a node that gives a layer's input, and how a convolution cuts it."""


def products_bytes(weights: Iterable[torch.Tensor]) -> int:
    """Return the bytes of the Hessians of inputs that are needed at a time, for matrices with output channels first."""
    return max((4 * weight.shape[1] ** 2 for weight in weights if weight.ndim == 2), default=0)


def round_by_inputs(
    graph: fx.GraphModule,
    plan: Plan,
    samples: Sequence[Sample],
    progress: ProgressCallback,
    rows_of: Callable[[LayerNode], Any] | None = None,
) -> None:
    """Find the integers of weights whose algorithm needs the Hessian of their inputs, for all candidates of their
    layers.

    Samples run side by side, so that the Hessian of one layer is complete, and dropped, before the next layer runs.
    Where that would keep too many results of samples, or the graph writes to tensors, the whole graph runs once for
    every :data:`_MEMORY` bytes of Hessians.

    Args:
        graph: observed, its observers in the mode ``"pass"`` and with their weights read.
        plan: its layers.
        samples: calls of the graph.
        progress: called after each sample and each weight; may raise to cancel.
        rows_of: returns the ``CachedRows`` of the weight of a layer's node; by default those of its observer.
    """
    left = _wanted(plan, rows_of or _of_observers(graph))
    count = len(left)

    def report() -> None:
        progress(Progress(_STAGE, count - len(left), count))

    if left:
        report()
    if left and can_run_in_step(graph):
        found: dict[Source, InputHessian] = {}
        seen: set[Source] = set()
        sources = {source for weight in left for source in weight.sources}
        for name, values in run_in_step(graph, samples, {name for name, _ in sources}):
            here = [source for source in sources if source[0] == name]
            seen |= set(here)
            for source, value in itertools.product(here, values):
                _add(found, source, value)
            for weight in [weight for weight in left if weight.sources.keys() <= seen]:
                weight.round(found)
                left.remove(weight)
                report()
            needed = {source for weight in left for source in weight.sources}
            found = {source: one for source, one in found.items() if source in needed}
    for part in _passes(left):
        collector = _Collector(graph, {source for weight in part for source in weight.sources})
        with torch.no_grad(), preserved_buffers(graph):
            for sample in samples:
                collector.run(*sample.args)
                report()
        for weight in part:
            weight.round(collector.found)
            left.remove(weight)
            report()


class _Weight:
    """A weight, the nodes that give its inputs, and the schemes to round it for."""

    def __init__(self, rows: Any, axis: int) -> None:
        self.rows = rows
        self.axis = axis
        self.sources: dict[Source, None] = {}
        self.schemes: dict[WeightScheme, None] = {}

    @property
    def memory(self) -> int:
        """Return the bytes of the Hessian of its inputs."""
        shape = self.rows.weight.shape
        patches = next(iter(self.sources))[1]
        if patches is not None:
            return int(shape[1:].numel()) ** 2 * patches.groups * 4
        return int(shape[1 - self.axis]) ** 2 * 4

    def round(self, found: Mapping[Source, InputHessian]) -> None:
        """Find the integers, and drop the Hessian."""
        hessian = [found[source] for source in self.sources if source in found]
        if not hessian or not all(bool(one.matrix.isfinite().all()) for one in hessian):
            return
        # the object itself where there is one, because it knows what was computed from it for another weight
        self.rows.hessian = hessian[0] if len(hessian) == 1 else InputHessian.joined(hessian)
        for scheme in self.schemes:
            self.rows.rows(self.axis, scheme)
        self.rows.hessian = None


def _of_observers(graph: fx.GraphModule) -> Callable[[LayerNode], Any]:
    nodes = {node.name: node for node in graph.graph.nodes}
    return lambda layer: observer_of(graph, nodes[layer.node.name].args[layer.weight_index]).found


def _wanted(plan: Plan, rows_of: Callable[[LayerNode], Any]) -> list[_Weight]:
    found: dict[tuple[int, int], _Weight] = {}
    for fqn, layers in plan.nodes.items():
        schemes = [scheme for scheme in fitting_schemes(plan, fqn)[0] if scheme.algorithm in NEEDS_MOMENTS]
        # an embedding has no inputs to look at; where a layer shares its table, it gets the layer's integers
        for layer in layers if schemes and not layers[0].is_lookup and not layers[0].is_recurrent else ():
            rows = rows_of(layer)
            weight = found.setdefault((id(rows), layer.axis), _Weight(rows, layer.axis))
            weight.sources[layer.input.name, Im2col.of(layer)] = None
            weight.schemes.update(dict.fromkeys(schemes))
    return list(found.values())


def _passes(weights: Sequence[_Weight]) -> list[list[_Weight]]:
    """Group the weights so that the Hessians of a group fit into memory; weights of the same inputs stay together."""
    passes: list[list[_Weight]] = []
    used, seen = _MEMORY, set[Source]()
    for weight in weights:
        if not weight.sources.keys() <= seen:
            needed = weight.memory * len(weight.sources.keys() - seen)
            if used + needed > _MEMORY:
                passes.append([])
                used, seen, needed = 0, set(), weight.memory * len(weight.sources)
            used += needed
            seen |= weight.sources.keys()
        passes[-1].append(weight)
    return passes


class _Collector(fx.Interpreter):
    """Runs the graph, and accumulates the Hessians of some nodes' results."""

    def __init__(self, graph: fx.GraphModule, sources: set[Source]) -> None:
        super().__init__(graph)
        self._sources = sources
        self.found: dict[Source, InputHessian] = {}

    def run_node(self, n: fx.Node) -> Any:
        output = super().run_node(n)
        for source in self._sources:
            if source[0] == n.name:
                _add(self.found, source, output)
        return output


def _add(found: dict[Source, InputHessian], source: Source, value: Any) -> None:
    """Add a node's result, or its im2col patches, to a Hessian."""
    if not isinstance(value, torch.Tensor) or not value.numel():
        return
    patches, before = source[1], found.get(source)
    if patches is not None:
        new = patches.hessian(value)
        matrix = new.matrix if before is None else before.matrix.add_(new.matrix)
        found[source] = InputHessian(matrix, new.count + (before.count if before else 0))
        return
    rows = value.detach().reshape(-1, value.shape[-1]).float()
    if before is None:
        found[source] = InputHessian(rows.t() @ rows, len(rows))
    else:
        before.matrix.addmm_(rows.t(), rows)
        found[source] = InputHessian(before.matrix, before.count + len(rows))


# Running a graph on several samples side by side, so that what one node gives is known for all before it goes on.


def can_run_in_step(graph: fx.GraphModule) -> bool:
    """Return whether nothing writes to a tensor, which samples might share."""
    schemas = [schema_of(node.target) for node in graph.graph.nodes if node.op == "call_function"]
    return not any(schema is not None and schema.is_mutable for schema in schemas)


def run_in_step(
    graph: fx.GraphModule, samples: Sequence[Sample], stops: Collection[str]
) -> Iterator[tuple[str, list[Any]]]:
    """Run all samples up to each of some nodes, one node after the other; nodes behind the last one do not run.

    Ends before the last one where it would keep too much.

    Yields:
        The name of each stop, in execution order, and its result for each sample.
    """
    runners = [_Runner(graph, sample) for sample in samples]
    part: list[fx.Node] = []
    left = set(stops)
    for node in graph.graph.nodes:
        if not left:
            return
        part.append(node)
        if node.name in left:
            left.discard(node.name)
            with torch.no_grad():
                for runner in runners:
                    runner.run_part(part)
            yield node.name, [runner.env[node] for runner in runners]
            if sum(runner.kept_bytes() for runner in runners) > _MEMORY:
                return
            part = []


class _Runner(fx.Interpreter):
    """One sample on its way through the graph."""

    def __init__(self, graph: fx.GraphModule, sample: Sample) -> None:
        super().__init__(graph)
        self.env: dict[fx.Node, Any] = {}
        self.args_iter = iter(sample.args)

    def run_part(self, nodes: Sequence[fx.Node]) -> None:
        """Run these nodes next, and drop results after their last use."""
        for node in nodes:
            self.env[node] = self.run_node(node)
            for last in self.user_to_last_uses.get(node, []):
                del self.env[last]

    def kept_bytes(self) -> int:
        """Return the bytes of the results that are still needed."""
        results = [value for node, value in self.env.items() if node.op.startswith("call_")]
        tensors = {value.untyped_storage().data_ptr(): value for value in results if isinstance(value, torch.Tensor)}
        return sum(value.untyped_storage().nbytes() for value in tensors.values())


# The weight schemes that fit a layer's shape: the settings' candidates, or the next best.


def fitting_schemes(plan: Plan, fqn: str, *, choices: bool = False) -> tuple[list[WeightScheme], str]:
    """Return the schemes that a layer's settings allow, the smallest in memory first, and a note on them or "".

    Where no block size of the settings divides the inputs, the next smaller one that does is taken, and a scale for
    each channel where none does.

    Args:
        plan: with the layer's nodes and settings.
        fqn: the layer.
        choices: for a layer that finds ranges in each call, add that it multiplies in float.
    """
    layer = plan.nodes[fqn][0]
    weights = [node.meta["val"] for node in layer.weights]
    wanted = [
        WeightScheme.of(candidate, reduce_range=plan.reduce_range) for candidate in plan.settings[fqn].candidates()
    ]
    if layer.is_convolution or layer.is_recurrent or weights[0].ndim != 2:
        kept = FOR_IM2COL if Im2col.of(layer) is not None else frozenset[str]()
        wanted = [
            one if one.algorithm in kept else replace(one, algorithm=_without_hessian(one.algorithm)) for one in wanted
        ]
    fitting = [scheme for scheme in wanted if _fit(scheme, weights, layer.axis)]
    if fitting:
        if choices and layer.node.name in plan.dynamic:
            fitting += [replace(one, multiplies_in_float=True, reduce_range=False) for one in fitting]
        return list(dict.fromkeys(fitting)), ""
    size, smaller = wanted[0].block_size, _dividing(wanted[0], weights, layer.axis)
    scales = f"blocks of {smaller}" if smaller else "one scale for each channel"
    shape = next(tuple(weight.shape) for weight in weights if not wanted[0].fits(weight, layer.axis))
    note = f"{scales}, because its weight {shape} cannot be cut into blocks of {size}"
    return list(dict.fromkeys(replace(scheme, block_size=smaller) for scheme in wanted)), note


def _without_hessian(algorithm: str) -> str:
    return "nearest" if algorithm in NEEDS_MOMENTS else algorithm


def _fit(scheme: WeightScheme, weights: Sequence[torch.Tensor], axis: int) -> bool:
    return all(scheme.fits(weight, axis) for weight in weights)


def fitted(scheme: WeightScheme, weights: Sequence[torch.Tensor], axis: int) -> WeightScheme:
    """Return the scheme with a block size that divides the inputs of a layer's weights, as :func:`fitting_schemes`."""
    return scheme if _fit(scheme, weights, axis) else replace(scheme, block_size=_dividing(scheme, weights, axis))


def _dividing(scheme: WeightScheme, weights: Sequence[torch.Tensor], axis: int) -> int:
    smaller = (size for size in sorted(BLOCK_SIZES, reverse=True) if 0 < size < scheme.block_size)
    return next((size for size in smaller if _fit(replace(scheme, block_size=size), weights, axis)), 0)
