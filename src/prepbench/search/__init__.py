"""Search: what each layer costs and gains, the settings that are best within a budget (``pb.search``), and sweeps over
models, targets and settings; here or on many machines.
"""

from prepbench._callable_package import make_callable

make_callable(__name__, "prepbench.search.search", "search")
