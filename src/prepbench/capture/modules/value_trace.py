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
from prepbench.capture.modules.observed import Observed
from prepbench.capture.modules.trace_result import IsLeaf, TraceResult
from prepbench.capture.modules.value_run import NotObserved, ValueRun, Way
from prepbench.inputs import Sample


def trace_values(
    root: torch.nn.Module | Callable[..., Any],
    samples: Sequence[Sample],
    *,
    is_leaf: IsLeaf,
    observe: Callable[[], Observed],
    observed: Observed | None = None,
    prefix: str = "",
) -> TraceResult:
    """Trace ``root`` on the samples.

    Args:
        root: a module, or a function over tensors.
        samples: at least one; sizes that differ between samples stay symbolic.
        is_leaf: which modules stay single calls; called with the module and its name within ``root``.
        observe: finds out what the submodules do on the samples, which needs a real forward; asked when something
            fails, and then ``root`` is traced once more with the answer.
        observed: the answer, if known already.
        prefix: name of ``root`` within the model that was observed.
    """
    best: TraceResult | None = None
    sizes_matter = False
    bases = base_samples(root, samples)
    # the fast way first; torch's Python kernels are slow but fix fewer sizes, and so may another sample; as a last
    # resort models that know a way of their own for torch.export may take it
    ways = [Way(bases[0]), *(Way(base, kernels=True) for base in bases), Way(bases[0], kernels=True, exporting=True)]
    queue = deque([*ways, Way(bases[0], kernels=True, strict=True)])
    while queue:
        way = queue.popleft()
        if best is not None and not _may_help(way, best):
            continue
        if best is not None and not sizes_matter and not way.exporting:
            continue  # what was lost was not lost to a size, so neither sample nor kernels matter
        try:
            trace = ValueRun(root, is_leaf, observed, prefix).trace(samples, way)
        except NotObserved:
            observed = observe()
            trace = ValueRun(root, is_leaf, observed, prefix).trace(samples, way)
        sizes_matter |= bool(trace.fixed or trace.contradicted or trace.error) or any(map(_about_sizes, trace.errors))
        if trace.converted and not way.conversions:
            queue.appendleft(replace(way, conversions=True))
        elif way.conversions and not way.kernels and trace.avoidable:
            queue.appendleft(replace(way, kernels=True))
        if best is None or trace.losses < best.losses:
            if best is not None and way.strict:
                trace.keep_errors_of(best)
            best = trace
    assert best is not None  # there is at least one sample
    if observed is not None and observed.error is not None and best.error is not None and not prefix:
        # the model does not run on these inputs at all: its own error says more than that of a tensor without data
        best.error = observed.error
    return best


def _about_sizes(error: Exception) -> bool:
    """Whether torch failed at a symbolic size, which its Python kernels may take."""
    return isinstance(error, UntracedTensor) or "sym" in str(error).lower()


def _may_help(way: Way, best: TraceResult) -> bool:
    """Whether tracing this way may keep what the best trace so far lost."""
    if way.conversions:
        return True
    if way.strict:
        return best.error is None and bool(best.contradicted)
    return best.avoidable
