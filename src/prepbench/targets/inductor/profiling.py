"""The kernels of an Inductor package, mapped to layers by Inductor's own notes on their origin."""

from __future__ import annotations

import json
import zipfile
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from torch import fx

from prepbench._torch_compat.inductor import kernel_events
from prepbench.quantize.layer_nodes import WEIGHTED
from prepbench.targets.kernel_times import KernelTime, KernelTimes, layers_of, mean_call, placed

# options with which kernels say when they run, and the package where they come from
OPTIONS = {"cpp.enable_kernel_profile": True, "trace.provenance_tracking_level": 1}

_NOTES = "kernel_information.json"
_FUSED = "cpp_fused_"
_PRODUCTS = ("conv", "linear")  # in the names of kernels, and of operators


def kernel_times(
    run: Callable[[Sequence[Any]], object], calls: Sequence[Sequence[Any]], rounds: int, file: Path, graph: fx.Graph
) -> KernelTimes:
    """Run a package that was compiled with :data:`OPTIONS` and return the time of each kernel.

    Args:
        run: runs the package once.
        calls: the inputs of calls.
        rounds: the repetitions of each call, after one to warm up.
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
    names = [event[event.find(_FUSED) :] if _FUSED in event else event for event, _ in events]
    counts = Counter(names)
    met: defaultdict[str, int] = defaultdict(int)
    layers: list[str | None] = []
    unknown, left = [], places.products()
    for at, name in enumerate(names):
        known = sources.get(name, [])
        nodes = known[met[name] % len(known)] if known else []
        met[name] += 1
        # products without fused nodes have no notes, so the notes of the others cannot be matched by position
        product = places.product(name, nodes) if len(known) == counts[name] else None
        if product in left:
            left.remove(product)
        elif _kind(name):
            unknown.append(at)
        layers.append(places.of(name, nodes) if product is None else places.layer(product))
    for kind in _PRODUCTS:
        kernels_of_kind = [at for at in unknown if _kind(names[at]) == kind]
        nodes_of_kind = [node for node in left if kind in str(node.target)]
        if len(kernels_of_kind) == len(nodes_of_kind):
            for at, node in zip(kernels_of_kind, nodes_of_kind, strict=True):
                layers[at] = places.layer(node)
    met.clear()
    kernels: list[KernelTime] = []
    for name, layer, (_, taken) in zip(names, layers, events, strict=True):
        met[name] += 1
        kernels.append(placed(f"{name}:{met[name]}", _operator(name), layer, taken))
    return KernelTimes(tuple(kernels), seconds)


def _kind(name: str) -> str:
    """Return the kind of layer that an external kernel multiplies for; empty for others."""
    return "" if name.startswith(_FUSED) else next((kind for kind in _PRODUCTS if kind in name), "")


def _operator(name: str) -> str:
    """Return a kernel's name without its number; conversions by what they convert."""
    plain = name.rstrip("0123456789").rstrip("_")
    words = plain.removeprefix(_FUSED)
    return words if plain.startswith(_FUSED) and words.startswith(("quantize_per_", "dequantize_per_")) else plain


def _sources(file: Path) -> dict[str, list[list[str]]]:
    """Return the nodes from which the kernels of one name come, in execution order."""
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
        self._order = {node: place for place, node in enumerate(graph.nodes)}

    def of(self, name: str, nodes: Sequence[str]) -> str | None:
        """Return the layer of a kernel that is no product."""
        return next((self._layers[each] for each in nodes if self._layers.get(each) is not None), None)

    def layer(self, node: fx.Node) -> str | None:
        """Return the layer of a node."""
        return self._layers.get(node.name)

    def products(self) -> list[fx.Node]:
        """Return the nodes that multiply by weights, in the order of the graph."""
        return [node for node in self._nodes.values() if node.target in WEIGHTED]

    def product(self, name: str, nodes: Sequence[str]) -> fx.Node | None:
        """Return the product that a kernel computes, from the notes on nodes fused into it, or on the quantizer after
        it.

        If one fused kernel contains two products, it computes the later one: the other has been computed before.
        """
        if not _kind(name):
            return None
        found, left = set[fx.Node](), [self._nodes[each] for each in nodes if each in self._nodes]
        seen = set(left)
        while left:
            node = left.pop()
            if node.target in WEIGHTED:
                found.add(node)
                continue
            before = [each for each in node.all_input_nodes if each not in seen]
            seen.update(before)
            left += before
        return max(found, key=self._order.__getitem__, default=None)
