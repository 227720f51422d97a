"""Module graphs (``RobustTracer``, ``recursive_trace``) and ATen graphs (``capture``), with every failure as data."""

from prepbench._callable_package import make_callable

make_callable(__name__, "prepbench.capture.aten.capture", "capture")
