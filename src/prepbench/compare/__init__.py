"""Compare candidates: accuracy, latency (one process for each) and size on disk."""

from prepbench._callable_package import make_callable

make_callable(__name__, "prepbench.compare.compare", "compare")
