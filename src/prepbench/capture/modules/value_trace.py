"""Tracing by value: the real forward runs on tensors without data, and every torch call it makes becomes a node.

Because the values are true tensors with true (possibly symbolic) sizes, Python resolves as usual: branches on shapes,
``len``, iteration, item assignment, ``isinstance``, keyword arguments, output classes. Only what depends on tensor
*data* cannot be resolved. The innermost module that tries becomes a leaf, and tracing goes on behind it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from prepbench.capture.modules.fake_inputs import base_samples
from prepbench.capture.modules.graph_builder import UntracedTensor
from prepbench.capture.modules.sample_runs import SampleRuns
from prepbench.capture.modules.trace_result import IsLeaf, TraceResult
from prepbench.capture.modules.value_run import RunsNeeded, ValueRun, Way
from prepbench.inputs import Sample


def trace_values(
    root: torch.nn.Module | Callable[..., Any],
    samples: Sequence[Sample],
    *,
    is_leaf: IsLeaf,
    runs: SampleRuns,
    prefix: str = "",
) -> TraceResult:
    """Trace ``root`` on the samples.

    Args:
        root: a module, or a function over tensors.
        samples: at least one; sizes that differ between samples stay symbolic.
        is_leaf: which modules stay single calls; called with the module and its name within ``root``.
        runs: what the submodules do on the samples. If something fails, the model runs to record it, and ``root`` is
            traced once more.
        prefix: name of ``root`` within the model that runs.
    """
    best: TraceResult | None = None
    sizes_matter = False
    queue = _ways(base_samples(root, samples))
    while queue:
        way = queue.popleft()
        if best is not None and not _may_help(way, best, sizes_matter):
            continue
        try:
            trace = ValueRun(root, is_leaf, runs, prefix).trace(samples, way)
        except RunsNeeded:
            runs.record()
            trace = ValueRun(root, is_leaf, runs, prefix).trace(samples, way)
        sizes_matter |= bool(trace.fixed or trace.contradicted or trace.error) or any(map(_about_sizes, trace.errors))
        queue.extendleft(_next_ways(way, trace))
        if best is None or trace.losses < best.losses:
            if best is not None and way.strict:
                trace.keep_errors_of(best)
            best = trace
    assert best is not None  # there is at least one sample
    if runs.error is not None and best.error is not None and not prefix:
        # the model does not run on these inputs at all: its own error says more than that of a tensor without data
        best.error = runs.error
    return best


def _ways(bases: Sequence[int]) -> deque[Way]:
    """The ways to trace with these base samples, fastest first.

    Torch's Python kernels are slow but fix fewer sizes, and so may another sample. Models that know a way of their own
    for ``torch.export`` may take it as a last resort, before sizes that decide make leaves.
    """
    first = bases[0]
    with_kernels = [Way(base, kernels=True) for base in bases]
    return deque([
        Way(first), *with_kernels, Way(first, kernels=True, exporting=True), Way(first, kernels=True, strict=True)
    ])  # fmt: skip


def _next_ways(way: Way, trace: TraceResult) -> list[Way]:
    """What to try right after this result."""
    if trace.converted and not way.conversions:
        return [replace(way, conversions=True)]
    if way.conversions and not way.kernels and trace.avoidable:
        return [replace(way, kernels=True)]
    return []


def _about_sizes(error: Exception) -> bool:
    """Whether torch failed at a symbolic size, which its Python kernels may take."""
    return isinstance(error, UntracedTensor) or "sym" in str(error).lower()


def _may_help(way: Way, best: TraceResult, sizes_matter: bool) -> bool:
    """Whether tracing this way may keep what the best trace so far lost."""
    if not sizes_matter and not way.exporting:
        return False  # nothing was lost to a size, so neither the sample nor the kernels matter
    if way.conversions:
        return True
    if way.strict:
        return best.error is None and bool(best.contradicted)
    return best.avoidable
