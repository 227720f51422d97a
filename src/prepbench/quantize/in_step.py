"""Running a graph on several samples side by side, so that what one node gives is known for all before it goes on."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import torch
from torch import fx

from prepbench._torch_compat.operators import schema_of
from prepbench.inputs import Sample


def can_run_in_step(graph: fx.GraphModule) -> bool:
    """Whether nothing writes to a tensor, which samples might share."""
    schemas = [schema_of(node.target) for node in graph.graph.nodes if node.op == "call_function"]
    return not any(schema is not None and schema.is_mutable for schema in schemas)


def run_in_step(
    graph: fx.GraphModule, samples: Sequence[Sample], stops: Collection[str], limit: int
) -> Iterator[tuple[str, list[Any]]]:
    """Run up to each of some nodes on all samples, then to the next one; what comes behind the last one is not run.

    Ends before the last one where it would keep too much.

    Args:
        graph: see :func:`can_run_in_step`.
        samples: calls of the graph.
        stops: names of nodes.
        limit: bytes of results that may be kept from one stop to the next.

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
            if sum(runner.kept_bytes() for runner in runners) > limit:
                return
            part = []


class _Runner(fx.Interpreter):
    """One sample on its way through the graph."""

    def __init__(self, graph: fx.GraphModule, sample: Sample) -> None:
        super().__init__(graph)
        self.env: dict[fx.Node, Any] = {}
        self.args_iter = iter(sample.args)

    def run_part(self, nodes: Sequence[fx.Node]) -> None:
        """Go on with these nodes, and forget what is read for the last time."""
        for node in nodes:
            self.env[node] = self.run_node(node)
            for last in self.user_to_last_uses.get(node, []):
                del self.env[last]

    def kept_bytes(self) -> int:
        """What the results that are still needed take."""
        results = [value for node, value in self.env.items() if node.op.startswith("call_")]
        tensors = {value.untyped_storage().data_ptr(): value for value in results if isinstance(value, torch.Tensor)}
        return sum(value.untyped_storage().nbytes() for value in tensors.values())
