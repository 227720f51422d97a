"""PyTorch's Inductor: compile ahead of time, and run the compiled package (``torch._inductor``)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import torch

from prepbench._torch_compat.checks import needed_for
from prepbench.patching import patched_here


def find_cpp_compiler() -> str:
    """Return the C++ compiler that Inductor would call.

    Raises:
        Exception: there is none; Inductor has an error of its own for it.
    """
    with needed_for("finding a C++ compiler"):
        from torch._inductor.cpp_builder import get_cpp_compiler
    return get_cpp_compiler()


def inductor_options(**options: Any) -> AbstractContextManager[Any]:
    """Return a context in which Inductor compiles with these options.

    Raises:
        TorchVersionError: Inductor has no such option.
    """
    with needed_for("Inductor's options"):
        from torch._inductor import config

        for name in options:
            getattr(config, name)
    context: AbstractContextManager[Any] = config.patch(options)
    return context


def compile_package(program: torch.export.ExportedProgram, file: Path, options: dict[str, Any]) -> None:
    """Compile a program ahead of time and write the package, a ``.pt2`` file.

    Raises:
        Exception: whatever one of Inductor's passes raises.
    """
    with needed_for("compiling ahead of time"):
        from torch._inductor import aoti_compile_and_package
    with _limits_for_all_sizes():
        aoti_compile_and_package(program, package_path=str(file), inductor_configs=options)


@contextmanager
def _limits_for_all_sizes() -> Iterator[None]:
    """Keep the smaller and the larger of two sizes as formulas.

    Inductor takes the one that the example has, and notes a guard, which code that is compiled ahead of time does not
    check: the diagonal of a matrix with more rows than columns was read beyond its end (torch 2.13).
    """
    with needed_for("keeping limits of sizes as formulas"):
        from torch._inductor.sizevars import SizeVarAllocator
        from torch.utils._sympy.functions import Max, Min

        _ = SizeVarAllocator.evaluate_min, SizeVarAllocator.evaluate_max, SizeVarAllocator.statically_known_leq

    def limit(smaller: bool) -> Callable[[Any, Any, Any], Any]:
        def of(self: Any, left: Any, right: Any) -> Any:
            if self.statically_known_leq(left, right):
                return left if smaller else right
            if self.statically_known_leq(right, left):
                return right if smaller else left
            return (Min if smaller else Max)(left, right)

        return of

    with (
        patched_here(SizeVarAllocator, "evaluate_min", limit(True)),
        patched_here(SizeVarAllocator, "evaluate_max", limit(False)),
    ):
        yield


def kernel_events(call: Callable[[], object]) -> tuple[list[tuple[str, float]], float]:
    """Return the top-level events of torch's profiler during a call, names with seconds, in order; and the total
    seconds.
    """
    with needed_for("profiling"):
        from torch.autograd.profiler_legacy import profile  # the newer one prints on standard error

    with profile() as profiled:
        start = time.perf_counter()
        call()
        seconds = time.perf_counter() - start
    events = [event for event in profiled.function_events if event.cpu_parent is None]
    return [(event.name, event.time_range.elapsed_us() / 1e6) for event in events], seconds


def load_library(file: Path) -> Any:
    """Return a runner of the shared library in a package: ``run(inputs)``, and its weights to read and replace."""
    with needed_for("running what Inductor compiled ahead of time"):
        runner = torch._C._aoti.AOTIModelContainerRunnerCpu
        _ = runner.extract_constants_map, runner.update_constant_buffer
    return runner(str(file), 1)
