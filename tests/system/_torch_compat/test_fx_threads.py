"""Long calls run models while other threads trace with FX."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
import torch
from torch import fx, nn

import prepbench as pb
from prepbench._torch_compat.symbolic_fx import thread_local_fx_traces
from prepbench._torch_compat.threads import torch_traces_here
from prepbench.patching import patched_here
from prepbench.progress_bar import shows_progress


class Held(nn.Module):
    """Stays inside its forward until it is let go, as a large model does that is traced."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.begun, self.go_on = threading.Event(), threading.Event()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.begun.set()
        assert self.go_on.wait(60)
        return self.layer(x)


@contextmanager
def traced_elsewhere() -> Iterator[fx.GraphModule]:
    """In the block, another thread is in the middle of a trace; what it traced is checked at the end."""
    model = Held()
    with ThreadPoolExecutor(1) as thread:
        graph = thread.submit(fx.symbolic_trace, model)
        try:
            assert model.begun.wait(60)
            yield
        finally:
            model.go_on.set()
        assert [node.op for node in graph.result().graph.nodes] == ["placeholder", "call_module", "output"]


LONG: dict[str, Callable[[Callable[[], None]], None]] = {
    "a public function": lambda run: shows_progress("run")(run)(),
    "a job": lambda run: pb.Job(lambda progress: run()).result(),
}


@pytest.mark.parametrize("long", LONG.values(), ids=LONG)
def test_a_model_runs_while_another_thread_traces(long: Callable[[Callable[[], None]], None]) -> None:
    layer, x = nn.Linear(4, 4), torch.ones(2, 4)

    def run() -> None:
        with traced_elsewhere():
            assert torch.equal(layer(x), nn.functional.linear(x, layer.weight, layer.bias))

    before = dict(vars(fx._symbolic_trace._Patcher)), nn.Module.__call__
    long(run)
    assert (dict(vars(fx._symbolic_trace._Patcher)), nn.Module.__call__) == before


def test_blocks_of_several_threads_end_in_any_order() -> None:
    before = dict(vars(fx._symbolic_trace._Patcher))
    first, second = thread_local_fx_traces(), thread_local_fx_traces()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    layer = nn.Linear(4, 4)
    with traced_elsewhere():
        layer(torch.ones(2, 4))
    second.__exit__(None, None, None)
    assert dict(vars(fx._symbolic_trace._Patcher)) == before


def test_torch_is_not_loaded_for_a_job() -> None:
    code = "import sys, prepbench.jobs as jobs; jobs.Job(lambda progress: 1).result(); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_a_trace_begins_while_another_thread_answers_a_flag_itself() -> None:
    with patched_here(torch.compiler, "is_compiling", lambda: True), ThreadPoolExecutor(1) as pool:

        def traced() -> tuple[bool, bool]:
            with torch_traces_here():
                return torch.compiler.is_compiling(), torch.compiler.is_exporting()

        assert pool.submit(traced).result(60) == (False, False)
        assert torch.compiler.is_compiling()
    assert not torch.compiler.is_compiling()
