"""The layers of a program's instructions, recorded during lowering, because the file has no names.

An instruction is an operator of ExecuTorch's own, or a delegate, which computes all operators of a partition. A
delegate's profile names its kernels by kind and not by node, so its operators are written down in their order.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import fx

from prepbench.targets.kernel_times import NO_MODULE

_DELEGATE = "executorch_call_delegate"
_METHOD = "forward"

Operators = tuple[tuple[str, str | None], ...]
"""Names of operators such as ``"convolution"`` in their order, with the FQNs of their layers; None for no layer."""


@dataclass(frozen=True)
class InstructionLayers:
    """The FQNs of a program's instructions, by instruction number: of operators, and of those of each delegate."""

    operators: Mapping[int, str | None]
    delegates: Mapping[int, Operators]

    def text(self) -> str:
        """Return JSON for :func:`read_layers`."""
        return json.dumps([list(self.operators.items()), list(self.delegates.items())], separators=(",", ":"))


NO_LAYERS = InstructionLayers({}, {})


def layers_by_handle(edge: Any) -> dict[int, str | None]:
    """Return FQNs by ExecuTorch's operator handles, which change later."""
    return {
        node.meta["debug_handle"]: _layer(node)
        for node in edge.exported_program().graph.nodes
        if node.op == "call_function" and node.meta.get("debug_handle") is not None
    }


def instruction_layers(edge: Any, lowered: Any, places: Mapping[int, str | None]) -> InstructionLayers:
    """Return the layers of a lowered program; ``places`` are from :func:`layers_by_handle` before it was lowered."""
    module = edge.exported_program().graph_module
    delegates = [
        _operators(getattr(module, node.args[0].target).original_module.graph)
        for node in module.graph.nodes
        if node.op == "call_function" and str(node.target) == _DELEGATE
    ]
    numbers = sorted(lowered.delegate_map.get(_METHOD, {}))
    handles: Mapping[int, Any] = lowered.debug_handle_map.get(_METHOD, {})
    operators = {
        number: places.get(handle if isinstance(handle, int) else next(iter(handle), -1))
        for number, handle in handles.items()
        if number not in numbers
    }
    if len(numbers) != len(delegates):
        return InstructionLayers(operators, {})
    return InstructionLayers(operators, dict(zip(numbers, delegates, strict=True)))


def read_layers(text: str) -> InstructionLayers:
    """Return the layers of a file; none if it is damaged.

    Example:
        >>> read_layers('[[[3,"norm"]],[]]').operators
        {3: 'norm'}
    """
    try:
        operators, delegates = json.loads(text)
        found = InstructionLayers(
            {number: _text(layer) for number, layer in operators},
            {number: tuple((str(name), _text(layer)) for name, layer in each) for number, each in delegates},
        )
    except (ValueError, TypeError, RecursionError):
        return NO_LAYERS
    return found


def _text(value: Any) -> str | None:
    if value is not None and not isinstance(value, str):
        raise TypeError(value)
    return value


def _operators(graph: fx.Graph) -> Operators:
    return tuple((_name(node), _layer(node)) for node in graph.nodes if node.op == "call_function")


def _name(node: fx.Node) -> str:
    """Return an operator's name without its package and variant, ``"relu"``."""
    operator = getattr(node.target, "_op", node.target)
    return str(getattr(operator, "overloadpacket", operator)).rpartition(".")[2]


def _layer(node: fx.Node) -> str | None:
    stack = [path for path, _ in (node.meta.get("nn_module_stack") or {}).values() if path != NO_MODULE]
    return stack[-1] if stack else None
