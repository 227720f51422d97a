"""The kernels of an ONNX Runtime session, from its own profile."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from prepbench.storage import temporary_folder
from prepbench.targets.kernel_times import KernelTime, KernelTimes, layer_of, mean_call, placed
from prepbench.targets.onnxruntime.values import open_session

_KERNEL, _CALL, _NODE = "_kernel_time", "model_run", "Node"
_FUSED = "fused "


def kernel_times(
    file: Path, options: Any, calls: Sequence[Mapping[str, Any]], rounds: int, layers: Mapping[str, str | None]
) -> KernelTimes:
    """Run an ONNX file and return the time of each of its kernels.

    Args:
        file: the ONNX file.
        options: of the session; they are changed.
        calls: an ``onnxruntime.OrtValue`` for each name of an input, each a call.
        rounds: the repetitions of each call, after one to warm up.
        layers: FQNs by names of nodes.
    """

    with temporary_folder("profile") as folder:
        options.enable_profiling = True
        options.profile_file_prefix = str(folder / "profile")
        session = open_session(file, options)
        for feeds in [*calls, *(each for each in calls for _ in range(rounds))]:
            session.run_with_ort_values(None, dict(feeds))
        events = json.loads(Path(session.end_profiling()).read_bytes())
    return mean_call([_call(run, layers) for run in list(_runs(events))[len(calls) :]], len(calls))


def _runs(events: Sequence[Mapping[str, Any]]) -> Iterator[tuple[float, list[tuple[float, Mapping[str, Any]]]]]:
    """Yield the seconds of each call, and its kernels with their own seconds."""
    kernels: list[Mapping[str, Any]] = []
    for event in events:
        if event.get("cat") == _NODE and event["name"].endswith(_KERNEL):
            kernels.append(event)
        elif event["name"] == _CALL:
            yield event["dur"] / 1e6, _own_times(kernels)
            kernels = []


def _own_times(events: list[Mapping[str, Any]]) -> list[tuple[float, Mapping[str, Any]]]:
    """Return kernels without the time of nested ones, as in the body of a loop."""
    own = [event["dur"] for event in events]
    around: list[int] = []
    for index in sorted(range(len(events)), key=lambda i: (events[i]["ts"], -events[i]["dur"])):
        event = events[index]
        while around and events[around[-1]]["ts"] + events[around[-1]]["dur"] <= event["ts"]:
            around.pop()
        if around:
            own[around[-1]] -= event["dur"]
        around.append(index)
    return [(max(seconds, 0) / 1e6, event) for seconds, event in zip(own, events, strict=True)]


def _call(run: tuple[float, list[tuple[float, Mapping[str, Any]]]], layers: Mapping[str, str | None]) -> KernelTimes:
    seconds, events = run
    return KernelTimes(tuple(_kernel(own, event, layers) for own, event in events), seconds)


def _kernel(seconds: float, event: Mapping[str, Any], layers: Mapping[str, str | None]) -> KernelTime:
    name, told = event["name"].removesuffix(_KERNEL).removeprefix(_FUSED), event.get("args", {})
    size = str(told.get("output_size", ""))
    layer = layer_of(name, layers)[1]
    return placed(name, str(told.get("op_name", "")), layer, seconds, int(size) if size.isdigit() else None)
