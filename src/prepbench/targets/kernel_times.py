"""The kernels of a lowered program by layer, and the operators of a program in PyTorch, with their times."""

from __future__ import annotations

import json
import math
import re
import statistics
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx

CONVERSIONS = "conversions between integers and floats"
REORDERING = "reordering of memory"
BETWEEN = "between kernels"
OTHERS = "kernels of no layer"

NO_MODULE = "_empty_nn_module_stack_from_metadata_hook"
"""The text of torch for an unknown FQN of a module."""

_CONVERTING = re.compile(r"(Dynamic|Fake|De)?Quantize|Convert|Cast$|.*quantize_per_", re.IGNORECASE)
_REORDERING = frozenset(["ReorderInput", "ReorderOutput", "Reorder", "Transpose", "Reshape", "Squeeze", "Unsqueeze"])


@dataclass(frozen=True)
class KernelTime:
    """One kernel of a runtime, in one call of the model.

    Attributes:
        name: as the runtime calls it.
        operator: its operator, as the runtime calls it, such as ``"QLinearConv"``.
        place: FQN of the layer, "" for the model itself; where ``is_layer`` is false one of the names above.
        seconds: its own time, without the kernels of nested graphs.
        is_layer: whether ``place`` is an FQN.
        result_bytes: of its results; None where the runtime does not tell.
    """

    name: str
    operator: str
    place: str
    seconds: float
    is_layer: bool = True
    result_bytes: int | None = None


@dataclass(frozen=True)
class KernelTimes:
    """The kernels of one call in their order, and its seconds; what is in no kernel is the runtime's own."""

    kernels: tuple[KernelTime, ...]
    seconds: float


def placed(name: str, operator: str, layer: str | None, seconds: float, result_bytes: int | None = None) -> KernelTime:
    """Return a kernel of a layer, or of the runtime between layers, which its operator names."""
    if layer is not None:
        return KernelTime(name, operator, layer, seconds, True, result_bytes)
    rest = CONVERSIONS if _CONVERTING.match(operator) else REORDERING if operator in _REORDERING else OTHERS
    return KernelTime(name, operator, rest, seconds, False, result_bytes)


def layer_of(name: str, layers: Mapping[str, str | None]) -> tuple[bool, str | None]:
    """Return whether a kernel's name comes from a known one, and the layer of that.

    Runtimes append to the names of fused or changed nodes: ``node_conv2d_1_token_4``, ``node_linear/WithoutBiases``.

    Args:
        name: as the runtime says it.
        layers: FQNs by the names that the runtime got; None for what belongs to no layer.

    Example:
        >>> layer_of("conv_1_token_4", {"conv": "stem", "conv_1": "head"})
        (True, 'head')
    """
    end = len(name)
    while end > 0:
        if name[:end] in layers:
            return True, layers[name[:end]]
        end = max(name.rfind(mark, 0, end) for mark in "_/ ")
    return False, None


def layers_to_text(layers: Mapping[str, str | None]) -> str:
    """Return FQNs by names as text for :func:`layers_from_text`."""
    names: defaultdict[str | None, list[str]] = defaultdict(list)
    for name, layer in layers.items():
        names[layer].append(name)
    return json.dumps(list(names.items()), separators=(",", ":"))  # a list, because keys of objects are never null


def layers_from_text(text: str | None) -> dict[str, str | None]:
    """Return FQNs by names; nothing for missing or damaged text."""
    try:
        return {name: layer for layer, names in json.loads(text or "[]") for name in names if _is_layer(layer)}
    except (ValueError, TypeError, RecursionError):
        return {}


def _is_layer(value: object) -> bool:
    return value is None or isinstance(value, str)


def mean_call(measured: Sequence[KernelTimes], samples: int) -> KernelTimes:
    """Return the mean over samples of a typical call of each.

    Args:
        measured: as many calls of each sample, those of one after those of another.
        samples: the number of samples.
    """
    rounds = len(measured) // samples
    found = [typical(measured[at * rounds : (at + 1) * rounds]) for at in range(samples)]
    kernels = tuple(
        replace(
            kernel,
            seconds=kernel.seconds / samples,
            result_bytes=None if kernel.result_bytes is None else round(kernel.result_bytes / samples),
        )
        for one in found
        for kernel in one.kernels
    )
    return KernelTimes(kernels, sum(one.seconds for one in found) / samples)


def typical(calls: Sequence[KernelTimes]) -> KernelTimes:
    """Return the median of each kernel, and of the time between kernels, over the quickest quarter of some calls.

    Slower calls were interrupted by other programs. Where these calls ran different kernels, it is one of them.
    """
    calls = sorted(calls, key=lambda call: call.seconds)[: math.ceil(len(calls) / 4)]
    if len({tuple(kernel.name for kernel in call.kernels) for call in calls}) > 1:
        return calls[len(calls) // 2]
    columns = zip(*(call.kernels for call in calls), strict=True)
    kernels = tuple(replace(each[0], seconds=statistics.median(k.seconds for k in each)) for each in columns)
    between = statistics.median(call.seconds - sum(k.seconds for k in call.kernels) for call in calls)
    return KernelTimes(kernels, sum(kernel.seconds for kernel in kernels) + max(between, 0.0))


# The time of each operator of a program in PyTorch.


_STORED = ("p_", "b_", "c_")
"""The prefixes of an exported graph's inputs for parameters, buffers and constants."""


def kernel_times(
    module: fx.GraphModule, calls: Sequence[Sequence[Any]], rounds: int, layers: Mapping[str, str | None]
) -> KernelTimes:
    """Run a program operator by operator, after one call to warm up, and return the time of each."""
    measured = []
    for index, leaves in enumerate([*calls, *(each for each in calls for _ in range(rounds))]):
        timed = _Timed(module, layers)
        start = time.perf_counter()
        with torch.no_grad():
            timed.run(*leaves)
        seconds = time.perf_counter() - start
        if index >= len(calls):
            measured.append(KernelTimes(tuple(timed.kernels), seconds))
    return mean_call(measured, len(calls))


class _Timed(fx.Interpreter):
    """Runs a graph and records the time of each operator."""

    def __init__(self, module: fx.GraphModule, layers: Mapping[str, str | None]) -> None:
        super().__init__(module)
        self.kernels: list[KernelTime] = []
        self._layers = layers

    def run_node(self, n: fx.Node) -> Any:
        if n.op not in ("call_function", "call_module", "call_method"):
            return super().run_node(n)
        start = time.perf_counter()
        result = super().run_node(n)
        seconds = time.perf_counter() - start
        self.kernels.append(placed(n.name, str(n.target), self._layers.get(n.name), seconds, _bytes(result)))
        return result


def _bytes(result: Any) -> int:
    several = result if isinstance(result, tuple | list) else [result]
    return sum(each.nbytes for each in several if isinstance(each, torch.Tensor))


def layers_of(graph: fx.Graph) -> dict[str, str | None]:
    """Return FQNs by node names.

    Quantizers of weights belong to what reads them, and those of activations to nothing.
    """
    layers: dict[str, str | None] = {}
    for node in reversed(graph.nodes):
        stack = [path for path, _ in (node.meta.get("nn_module_stack") or {}).values() if path != NO_MODULE]
        if "quantize" in str(node.target):
            is_weight = all(each.op == "placeholder" and each.name[:2] in _STORED for each in node.all_input_nodes)
            layers[node.name] = next((layers.get(user.name) for user in node.users), None) if is_weight else None
        elif node.op == "call_function":
            layers[node.name] = stack[-1] if stack else None
    return layers


def stored_by_layer(
    graph: fx.Graph, bits: Mapping[str, float | None], stored: Mapping[str, int]
) -> tuple[dict[str, str], dict[str, int]]:
    """Return the class of each module, and the bytes of the tensors that it keeps, by FQN.

    Args:
        graph: of an exported program.
        bits: in which a runtime stores each weight of a quantized layer, by FQN; the program has them in 8.
        stored: the bits of constants that a runtime has under the program's names.
    """
    few = {fqn: each for fqn, each in bits.items() if each is not None and each < 8}
    types: dict[str, str] = {}
    sizes: dict[str, int] = {}
    layers, seen = layers_of(graph), set[fx.Node]()
    for node in graph.nodes:
        fqn = layers.get(node.name)
        if fqn is None:
            continue
        for path, kind in (node.meta.get("nn_module_stack") or {}).values():
            types[path] = (kind if isinstance(kind, str) else kind.__name__).rpartition(".")[2]
        for source in node.all_input_nodes:
            value = source.meta.get("val")
            if source.op == "placeholder" and source.name[:2] in _STORED and source not in seen:
                seen.add(source)
                if isinstance(value, torch.Tensor):
                    each: float = 8 * value.element_size()
                    if fqn in few and value.dtype in (torch.int8, torch.uint8) and value.ndim > 1:
                        each = few[fqn]
                    elif fqn in bits and value.dtype is torch.int64:
                        each = 8  # zero points, which runtimes have in the type of the integers
                    size = int(stored.get(source.name[2:], value.numel() * each)) // 8
                    sizes[fqn] = sizes.get(fqn, 0) + size
    return types, sizes
