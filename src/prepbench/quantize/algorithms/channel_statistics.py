"""Ranges and powers of activation channels on samples, from which scales are chosen."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn

from prepbench.inputs import Sample
from prepbench.jobs import Progress, ProgressCallback
from prepbench.quantize.calibration import run_sample
from prepbench.quantize.written_state import preserved_buffers


@dataclass(frozen=True)
class ChannelStatistics:
    """The statistics of an activation's channels from one pass over the samples.

    Attributes:
        low: the smallest value of each channel, or zero if that is smaller.
        high: the largest value of each channel, or zero if that is larger.
        power: the mean of the squares of each channel.
    """

    low: torch.Tensor
    high: torch.Tensor
    power: torch.Tensor

    @property
    def largest(self) -> torch.Tensor:
        """Return the largest absolute value of each channel."""
        return self.high.maximum(-self.low)


def measure_channels(
    graph: fx.GraphModule,
    axes: Mapping[fx.Node, int],
    samples: Sequence[Sample],
    stage: str,
    progress: ProgressCallback,
    known: MutableMapping[tuple[Any, ...], ChannelStatistics | None] | None = None,
) -> dict[fx.Node, ChannelStatistics | None]:
    """Run the samples and measure the results of nodes; None for a result without values, or with infinite ones.

    Args:
        graph: it is as before afterwards, with the buffers that it writes to.
        axes: of the channels, by node.
        samples: calls of the graph.
        stage: the stage in progress reports.
        progress: called after each sample; may raise to cancel.
        known: earlier measurements of the same graph and samples, by the name of the node and the axis; new ones are
            added. The samples run only where one is missing.

    Raises:
        CalibrationError: the graph cannot run on a sample.
    """
    known = {} if known is None else known
    found = {node: (node.name, axis) for node, axis in axes.items()}
    left = {node: axes[node] for node, key in found.items() if key not in known}
    if left:
        known.update({found[node]: one for node, one in _measured(graph, left, samples, stage, progress).items()})
    return {node: known[key] for node, key in found.items()}


def _measured(
    graph: fx.GraphModule,
    axes: Mapping[fx.Node, int],
    samples: Sequence[Sample],
    stage: str,
    progress: ProgressCallback,
) -> dict[fx.Node, ChannelStatistics | None]:
    records = {node: _ChannelRecorder(axis) for node, axis in axes.items()}
    with preserved_buffers(graph), _recorders(graph, records):
        progress(Progress(stage, 0, len(samples)))
        for done, sample in enumerate(samples, start=1):
            run_sample(graph, graph.forward, sample)  # without the hook that wants the sizes of the tracing inputs
            progress(Progress(stage, done, len(samples)))
    return {node: _statistics(record) for node, record in records.items()}


@contextmanager
def _recorders(graph: fx.GraphModule, records: Mapping[fx.Node, _ChannelRecorder]) -> Iterator[None]:
    """Insert modules that see the values of nodes; the graph is restored afterwards, also after an error."""
    added = []
    try:
        for number, (node, record) in enumerate(records.items()):
            graph.add_submodule(f"_channels_{number}", record)
            after = node if node.op != "placeholder" else _last_placeholder(graph)
            with graph.graph.inserting_after(after):
                added.append(graph.graph.call_module(f"_channels_{number}", (node,)))
        graph.recompile()
        yield
    finally:
        for added_node in added:
            graph.graph.erase_node(added_node)
            graph.delete_submodule(str(added_node.target))
        graph.recompile()


def _last_placeholder(graph: fx.GraphModule) -> fx.Node:
    placeholders: list[fx.Node] = [node for node in graph.graph.nodes if node.op == "placeholder"]
    return placeholders[-1]


def _statistics(record: _ChannelRecorder) -> ChannelStatistics | None:
    if record.low is None or record.high is None or record.squares is None:
        return None
    if not bool((record.low.isfinite() & record.high.isfinite()).all()):
        return None
    power = (record.squares / record.count).to(record.low.dtype)
    return ChannelStatistics(record.low.clamp_max(0), record.high.clamp_min(0), power)


class _ChannelRecorder(nn.Module):
    """Passes a tensor on; records the smallest and largest value of each channel, and the sum of the squares."""

    def __init__(self, axis: int) -> None:
        super().__init__()
        self.axis = axis
        self.low: torch.Tensor | None = None
        self.high: torch.Tensor | None = None
        self.squares: torch.Tensor | None = None
        self.count = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.detach().movedim(self.axis, -1).reshape(-1, x.shape[self.axis])
        if len(rows):
            low, high, squares = rows.amin(0), rows.amax(0), rows.square().sum(0, dtype=torch.float64)
            self.low = low if self.low is None else self.low.minimum(low)
            self.high = high if self.high is None else self.high.maximum(high)
            self.squares = squares if self.squares is None else self.squares + squares
            self.count += len(rows)
        return x
