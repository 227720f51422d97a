"""The kernels of what Inductor compiled, mapped to layers by its own notes on where each comes from."""

from __future__ import annotations

import json
import zipfile
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from torch import fx

from prepbench._torch_compat.inductor import kernel_events
from prepbench.quantize.layer_nodes import WEIGHTED
from prepbench.targets.eager.profiling import layers_of
from prepbench.targets.kernel_times import KernelTime, KernelTimes, mean_call, placed

# options with which kernels say when they run, and the package where they come from
OPTIONS = {"cpp.enable_kernel_profile": True, "trace.provenance_tracking_level": 1}

_NOTES = "kernel_information.json"
_FUSED = "cpp_fused_"


def kernel_times(
    run: Callable[[Sequence[Any]], object], calls: Sequence[Sequence[Any]], rounds: int, file: Path, graph: fx.Graph
) -> KernelTimes:
    """Run a package that was compiled with :data:`OPTIONS` and say what each kernel takes.

    Args:
        run: runs the package once.
        calls: the inputs of calls.
        rounds: how often each call is made, after once to warm up.
        file: the package.
        graph: of the program that was compiled.
    """
    sources = _sources(file)
    places = _Places(graph)
    for leaves in calls:
        run(leaves)
    measured = []
    for leaves in [each for each in calls for _ in range(rounds)]:
        events, seconds = kernel_events(partial(run, leaves))
        measured.append(_call(events, seconds, sources, places))
    return mean_call(measured, len(calls))


def _call(
    events: Sequence[tuple[str, float]], seconds: float, sources: Mapping[str, list[list[str]]], places: _Places
) -> KernelTimes:
    met: defaultdict[str, int] = defaultdict(int)
    kernels: list[KernelTime] = []
    for name, taken in events:
        name = name[name.find(_FUSED) :] if _FUSED in name else name
        known = sources.get(name, [])
        nodes = known[met[name] % len(known)] if known else []
        met[name] += 1
        kernels.append(placed(f"{name}:{met[name]}", _operator(name), places.of(name, nodes), taken))
    return KernelTimes(tuple(kernels), seconds)


def _operator(name: str) -> str:
    """A kernel's name without its number; one that only converts by what it does."""
    plain = name.rstrip("0123456789").rstrip("_")
    words = plain.removeprefix(_FUSED)
    return words if plain.startswith(_FUSED) and words.startswith(("quantize_per_", "dequantize_per_")) else plain


def _sources(file: Path) -> dict[str, list[list[str]]]:
    """The nodes from which the kernels of one name come, in the order in which these run."""
    with zipfile.ZipFile(file) as archive:
        path = next((name for name in archive.namelist() if name.endswith(_NOTES)), None)
        notes = json.loads(archive.read(path)) if path else {}
    found: defaultdict[str, list[list[str]]] = defaultdict(list)
    for key, note in notes.items():
        found[key.rpartition(":")[0]].append(list(note.get("pre_grad_nodes", ())))
    return found


class _Places:
    """The layer of a kernel, by the nodes that it computes."""

    def __init__(self, graph: fx.Graph) -> None:
        self._layers = layers_of(graph)
        self._nodes = {node.name: node for node in graph.nodes}

    def of(self, name: str, nodes: Sequence[str]) -> str | None:
        found = [self._layers[each] for each in nodes if self._layers.get(each) is not None]
        if found or name.startswith(_FUSED):
            return found[0] if found else None
        # a product that writes integers is known by the quantizer after it
        return next((layer for each in nodes if (layer := self._before(each)) is not None), None)

    def _before(self, name: str) -> str | None:
        node = self._nodes.get(name)
        while node is not None and node.target not in WEIGHTED:
            node = next(iter(node.all_input_nodes), None)
        return None if node is None else self._layers.get(node.name)
