"""Compare candidates: accuracy, latency (one process for each) and size on disk."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from prepbench._callable_package import make_callable

if TYPE_CHECKING:
    from prepbench.compare import metrics as metrics
    from prepbench.compare.compare import compare as compare
    from prepbench.compare.comparison import CandidateResult as CandidateResult
    from prepbench.compare.comparison import Comparison as Comparison

_VALUES = ("CandidateResult", "Comparison")


def __getattr__(name: str) -> Any:
    if name in _VALUES:
        from prepbench.compare import comparison

        return getattr(comparison, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


make_callable(__name__, "prepbench.compare.compare", "compare")
