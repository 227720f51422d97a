"""The process that times one candidate: ``python -m prepbench.measure.worker ARTIFACT INPUTS THREADS``.

It speaks JSON lines. First it answers ``{"ready": true}``; then each request ``{"settle": 1, "calls": 20}`` gets
``{"times_ns": [...]}``, and ``{"prompt": 0, "new_tokens": 16}`` gets ``{"generated": {...}}``. After ``{"load":
[ARTIFACT, INPUTS]}`` it drops its model, loads another one, and is ready again; with an empty ARTIFACT it begins
without a model and answers only once it has loaded one. Between requests it waits for input, so that its threads do
not slow down the process that is measured next. It ends when its standard input is closed, also when the parent is
killed.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import re
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO


def timed_calls(call: Callable[[], Any], settle: int, calls: int) -> list[int]:
    """Return the nanoseconds of each of ``calls`` calls, after ``settle`` others that wake threads and fill caches."""
    import torch

    wait = torch.cuda.synchronize if torch.cuda.is_initialized() else _no_synchronization
    collecting = gc.isenabled()
    gc.collect(1)  # young garbage only: a whole collection takes longer than a turn where torch is loaded
    gc.disable()
    times = []
    try:
        with torch.no_grad():
            for _ in range(settle):
                call()
            wait()
            for _ in range(calls):
                start = time.perf_counter_ns()
                output = call()
                wait()
                times.append(time.perf_counter_ns() - start)
                del output
    finally:
        if collecting:
            gc.enable()
    return times


def main(arguments: list[str]) -> None:
    """Load the artifact and the inputs, then answer requests until standard input ends."""
    replies = _take_stdout()
    # an interrupt at the terminal reaches the whole process group; the parent decides what it means
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    artifact, inputs, threads = arguments
    import torch

    from prepbench.measure.artifacts import load_candidate
    from prepbench.measure.transfer import load_call

    torch.set_num_threads(int(threads))
    model = call = None

    def load() -> tuple[Any, Callable[[], Any]]:
        model = load_candidate(Path(artifact))
        call = load_call(Path(inputs), model)
        gc.collect()
        gc.freeze()  # each turn begins with a collection, which need not look at what is there for good
        _reply(replies, {"ready": True})
        return model, call

    if artifact:
        model, call = load()
    for line in sys.stdin:
        request = json.loads(line)
        if "load" in request:
            model = call = None
            gc.unfreeze()
            gc.collect()
            artifact, inputs = request["load"]
            model, call = load()
            continue
        if "prompt" in request:
            _reply(replies, {"generated": generated(model, Path(inputs), **request)})
            continue
        assert call is not None, "a model is loaded first"
        times = timed_calls(call, request["settle"], request["calls"])
        _reply(replies, {"times_ns": times})


def generated(model: Any, inputs: Path, prompt: int, new_tokens: int) -> dict[str, Any]:
    """Return the times of a generation, and the peak memory of this process.

    Args:
        model: a compiled one.
        inputs: the folder with ids and mask of each prompt, or with the state after its first step.
        prompt: the index of the prompt.
        new_tokens: how many tokens to make; after a first step elsewhere, the first of them exists already.
    """
    from prepbench.generate.greedy import CompiledSteps, LaterSteps
    from prepbench.measure.generation import load_begun
    from prepbench.measure.transfer import load_sample

    begun = load_begun(inputs, prompt)
    if begun is not None:
        _, times = LaterSteps(model).generate(begun, new_tokens - 1)
    else:
        ids, mask = load_sample(inputs).args[2 * prompt : 2 * prompt + 2]
        times = CompiledSteps(model).generate(ids, mask, new_tokens).times_ns
    return {"times_ns": list(times), "peak_bytes": peak_bytes()}


def peak_bytes() -> int:
    """Return the peak memory of this process since its program began.

    On Linux the system's own counter starts at the peak of the parent process, which may be larger.
    """
    import resource

    with contextlib.suppress(OSError):
        status = Path("/proc/self/status").read_text(encoding="utf-8")
        found = re.search(r"^VmHWM:\s*(\d+) kB$", status, re.MULTILINE)
        if found:
            return int(found[1]) * 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _take_stdout() -> TextIO:
    """Return a private copy of standard output; any other output, from Python or C, goes to standard error."""
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    return replies


def _reply(replies: TextIO, message: dict[str, Any]) -> None:
    replies.write(json.dumps(message) + "\n")
    replies.flush()


def _no_synchronization() -> None:
    """Do nothing: calls on the CPU are finished when they return."""


if __name__ == "__main__":
    main(sys.argv[1:])
