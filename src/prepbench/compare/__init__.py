"""Compare candidates: accuracy, latency (one process for each) and size on disk."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from prepbench._callable_package import make_callable

if TYPE_CHECKING:
    from prepbench.compare import metrics as metrics
    from prepbench.compare.comparison import CandidateResult as CandidateResult
    from prepbench.compare.comparison import Comparison as Comparison
    from prepbench.compare.run import compare as compare

_HOME = {"CandidateResult": "comparison", "Comparison": "comparison", "compare": "run"}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)


make_callable(__name__, "prepbench.compare.run", "compare")
