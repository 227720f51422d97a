"""The time of each operator of a program in PyTorch."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx

from prepbench.targets.kernel_times import NO_MODULE, KernelTime, KernelTimes, mean_call, placed

_STORED = ("p_", "b_", "c_")
"""The prefixes of an exported graph's inputs for parameters, buffers and constants."""


def kernel_times(
    module: fx.GraphModule, calls: Sequence[Sequence[Any]], rounds: int, layers: Mapping[str, str | None]
) -> KernelTimes:
    """Run a program operator by operator and return the time of each.

    Args:
        module: the program.
        calls: the inputs of calls.
        rounds: the repetitions of each call, after one to warm up.
        layers: FQNs by names of operators.
    """
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

    Args:
        graph: of an exported program.
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


def stored_by_layer(graph: fx.Graph) -> tuple[dict[str, str], dict[str, int]]:
    """Return the class of each module, and the bytes of the tensors that it keeps, by FQN.

    Args:
        graph: of an exported program.
    """
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
                    sizes[fqn] = sizes.get(fqn, 0) + value.numel() * value.element_size()
    return types, sizes
