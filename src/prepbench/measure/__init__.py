"""Measuring models: accuracy, latency (in one process for each) and size on disk. ``pb.compare`` is ``run.compare``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from prepbench.measure import metrics as metrics
    from prepbench.measure.comparison import CandidateResult as CandidateResult
    from prepbench.measure.comparison import Comparison as Comparison
    from prepbench.measure.confusion import Confusion as Confusion
    from prepbench.measure.generation import Generation as Generation
    from prepbench.measure.kept_samples import WorstSamples as WorstSamples
    from prepbench.measure.run import compare as compare

_HOME = {
    "CandidateResult": "comparison",
    "Comparison": "comparison",
    "Confusion": "confusion",
    "Generation": "generation",
    "WorstSamples": "worst_samples",
    "compare": "run",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
