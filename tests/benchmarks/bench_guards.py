"""What safety costs: the share of capture and compile that goes into the lock, twins, undoing and safe points.

Each case runs once to load everything, and then :data:`RUNS` times. Counted is what happens when a block begins or ends
in which something is replaced, held back or put back, noting what a run may change, the making of twins, and the
questions whether to stop. All of it in CPU time, so that other work on the machine does not count.
"""

from __future__ import annotations

import contextlib
import statistics
import time
import timeit
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

from prepbench import jobs
from prepbench.running import tracing as tracing_module
from prepbench.running import twin as twin_module
from prepbench.running import unchanged as unchanged_module
from tests.benchmarks.models import build
from tests.benchmarks.revisions import TASKS

LIMIT = 0.02
RUNS = 3
CASES = (("capture", "resnet"), ("capture", "bert"), ("compile", "resnet"), ("compile", "mlp"))
_FILES = (
    *("interrupts.py", "patching.py", "running/tracing.py", "objects/restore.py", "running/unchanged.py"),
    *("_torch_compat/threads.py", "_torch_compat/threads.py"),
    *("_torch_compat/generators.py", "_torch_compat/exporting.py"),
)
_QUESTION = "from prepbench.jobs import check_cancelled"


class Spent:
    """Seconds by what they went into; what is inside something counted is not counted again."""

    def __init__(self) -> None:
        self.seconds = {"blocks": 0.0, "noted": 0.0, "twins": 0.0}
        self.questions = 0
        self._inside = False

    def timed(self, kind: str, call: Callable[[], Any]) -> Any:
        if self._inside:
            return call()
        self._inside, start = True, time.process_time()
        try:
            return call()
        finally:
            self.seconds[kind] += time.process_time() - start
            self._inside = False

    def around(self, kind: str, original: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args, **kwargs: self.timed(kind, lambda: original(*args, **kwargs))

    @staticmethod
    def method(call: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args: call(*args)

    def around_block(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(manager: Any, *args: Any) -> Any:
            code = getattr(manager.gen, "gi_code", None)
            is_ours = code is not None and "prepbench" in code.co_filename and code.co_filename.endswith(_FILES)
            run = lambda: original(manager, *args)  # noqa: E731
            return self.timed("blocks", run) if is_ours else run()

        return call

    def asked(self, stage: str = "") -> None:
        self.questions += 1
        jobs.check_cancelled(stage)

    @contextlib.contextmanager
    def counted(self) -> Iterator[None]:
        manager: Any = contextlib._GeneratorContextManager
        with contextlib.ExitStack() as stack:
            for name in ("__enter__", "__exit__"):
                stack.enter_context(mock.patch.object(manager, name, self.around_block(getattr(manager, name))))
            for made, kind in ((twin_module.Twin, "twins"), (unchanged_module.NotedState, "noted")):
                start = self.around(kind, made.__init__)
                stack.enter_context(mock.patch.object(made, "__init__", self.method(start)))
            stack.enter_context(mock.patch.object(tracing_module, "check_cancelled", self.asked))
            yield


def share(task: str, name: str, question: float) -> tuple[float, str]:
    """The share of the time of a case, and what it consists of; ``question`` is the seconds of one."""
    model, samples = build(name)
    TASKS[task](model, samples)
    shares, parts = [], ""
    for _ in range(RUNS):
        spent, start = Spent(), time.process_time()
        with spent.counted():
            TASKS[task](model, samples)
        whole = time.process_time() - start
        seconds = {**spent.seconds, f"{spent.questions} questions": spent.questions * question}
        shares.append(sum(seconds.values()) / whole)
        parts = ", ".join(f"{kind} {value * 1e3:.1f} ms" for kind, value in seconds.items()) + f" of {whole:.2f} s"
    return statistics.median(shares), parts


def main() -> None:
    """Print the share of each case."""
    count = 100_000
    question = timeit.timeit("check_cancelled()", _QUESTION, number=count) / count
    for task, name in CASES:
        found, parts = share(task, name, question)
        word = "PASS" if found < LIMIT else "FAIL"
        print(f"{word}  {task} {name}: {found:.2%} (limit {LIMIT:.0%}): {parts}", flush=True)


if __name__ == "__main__":
    main()
