"""The kernels of a model compiled by OpenVINO, from its own counters."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from prepbench.targets.kernel_times import KernelTimes, layer_of, mean_call, placed

_CHAIN = 8
"""The largest distance of an unnamed operation from a named one after it: the operations of a normalisation."""


def kernel_times(
    compiled: Any, calls: Sequence[Callable[[Any], object]], rounds: int, layers: Mapping[str, str | None]
) -> KernelTimes:
    """Run a model that was compiled with ``PERF_COUNT`` and return the time of each kernel.

    Args:
        compiled: the compiled model.
        calls: each sets the inputs of a request.
        rounds: the repetitions of each call, after one to warm up.
        layers: FQNs by names of operations, see :func:`named_operations`.
    """
    request, measured = compiled.create_infer_request(), []
    fused = {
        operation.get_friendly_name(): _original_names(operation)
        for operation in compiled.get_runtime_model().get_ordered_ops()
    }
    for index, call in enumerate([*calls, *(each for each in calls for _ in range(rounds))]):
        kept = call(request)  # alive until the call is done
        start = time.perf_counter()
        request.infer(share_outputs=True)
        seconds = time.perf_counter() - start
        del kept
        if index >= len(calls):
            measured.append(_call(request.profiling_info, seconds, fused, layers))
    return mean_call(measured, len(calls))


def named_operations(model: Any, layers: Mapping[str, str | None]) -> dict[str, str | None]:
    """Return FQNs by names of a model's operations: those that the file names, and those that reading expanded them to.

    Args:
        model: as it was read.
        layers: FQNs by the names in the file.
    """
    found = dict(layers)
    for operation in reversed(model.get_ordered_ops()):
        name = operation.get_friendly_name()
        if not layer_of(name, found)[0]:
            readers = [
                target.get_node().get_friendly_name()
                for output in operation.outputs()
                for target in output.get_target_inputs()
            ]
            known = {layer_of(reader, found)[1] for reader in readers} - {None}
            if len(known) == 1:
                found[name] = known.pop()
    return found


def _original_names(operation: Any) -> list[str]:
    told = operation.get_rt_info()
    return told["originalLayersNames"].astype(str).split(",") if "originalLayersNames" in told else []


def _call(infos: Any, seconds: float, fused: Mapping[str, list[str]], layers: Mapping[str, str | None]) -> KernelTimes:
    kernels = []
    for info in infos:
        if "EXECUTED" not in str(info.status) or "NOT" in str(info.status):
            continue
        found = [layer_of(name, layers) for name in (*fused.get(info.node_name, ()), info.node_name) if name]
        layer = next((layer for is_known, layer in found if is_known), None)
        kernels.append(placed(info.node_name, info.node_type, layer, info.real_time.total_seconds()))
    return KernelTimes(tuple(kernels), seconds)
