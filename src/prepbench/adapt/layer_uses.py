"""Find the nodes in which layers of a program multiply by their weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from prepbench.inputs import Sample
from prepbench.jobs import check_cancelled

_WEIGHTS = {
    "linear": (1, 1),
    **{f"conv{n}d": (1, 1) for n in (1, 2, 3)},
    **{f"conv_transpose{n}d": (1, 0) for n in (1, 2, 3)},
    "addmm": (2, 0),
    "mm": (1, 0),
    "matmul": (1, 0),
}
# the place of the weight among the arguments, and its dim that lies along what enters


@dataclass(frozen=True)
class Use:
    """A node that multiplies by a parameter.

    Attributes:
        node: the node.
        place: of the weight among its arguments.
        weight: the placeholder of the weight.
        inputs: the dim of the weight along the input channels.
        groups: of a convolution.
    """

    node: fx.Node
    place: int
    weight: fx.Node
    inputs: int
    groups: int = 1

    @property
    def entering(self) -> int:
        """The argument index of the layer's input."""
        return self.place - 1

    def channel_dim(self, value: torch.Tensor, weight: torch.Tensor) -> int:
        """Return the dim of channels of the layer's input."""
        is_convolution = "conv" in str(self.node.target)
        return value.ndim - weight.ndim + 1 if is_convolution else value.ndim - 1


def uses_of(program: torch.export.ExportedProgram) -> list[Use]:
    """Return all products with a parameter, in the forms that torch's layers use."""
    signature, found = program.graph_signature, []
    for node in program.graph.nodes:
        name = str(node.target).removeprefix("aten.").partition(".")[0]
        if node.op != "call_function" or name not in _WEIGHTS:
            continue
        place, inputs = _WEIGHTS[name]
        weight = node.args[place] if place < len(node.args) else None
        if isinstance(weight, fx.Node) and weight.name in signature.inputs_to_parameters:
            found.append(Use(node, place, weight, inputs, _groups(node, name)))
    return found


def _groups(node: fx.Node, name: str) -> int:
    if not name.startswith("conv"):
        return 1
    return int(node.args[6] if len(node.args) > 6 else node.kwargs.get("groups", 1))  # type: ignore[arg-type]


# Record the inputs and outputs of layers of a program on samples.


class _Watched(fx.Interpreter):
    """Runs a graph and passes the inputs and outputs of some nodes to a callback."""

    def __init__(self, graph: fx.GraphModule, seen: Callable[[fx.Node, Sequence[Any], Any], None], nodes: set[fx.Node]):
        super().__init__(graph)
        self._seen, self._nodes = seen, nodes

    def run_node(self, n: fx.Node) -> Any:
        if n not in self._nodes:
            return super().run_node(n)
        args, kwargs = self.fetch_args_kwargs_from_env(n)
        result = n.target(*args, **kwargs)  # type: ignore[operator]
        self._seen(n, args, result)
        return result


@torch.no_grad()
def watch(
    program: torch.export.ExportedProgram,
    samples: Sequence[Sample],
    nodes: Sequence[fx.Node],
    seen: Callable[[fx.Node, Sequence[Any], Any], None],
) -> None:
    """Run a flat program on samples; ``seen`` is called with each watched node, its arguments and its result."""
    runner = _Watched(program.graph_module, seen, set(nodes))
    for sample in samples:
        check_cancelled("prune")
        runner.run(*_arguments(program, sample.args))


def _arguments(program: torch.export.ExportedProgram, given: Sequence[Any]) -> list[Any]:
    signature = program.graph_signature
    tables: Mapping[str, str] = {
        **signature.inputs_to_parameters,
        **signature.inputs_to_buffers,
        **signature.inputs_to_lifted_tensor_constants,
    }
    left, arguments = iter(given), []
    for node in program.graph.find_nodes(op="placeholder"):
        name = tables.get(node.name)
        if name is None:
            arguments.append(next(left))
        else:
            value = program.state_dict[name] if name in program.state_dict else program.constants[name]
            arguments.append(value.clone() if node.name in signature.inputs_to_buffers else value)
    return arguments


def input_powers(
    program: torch.export.ExportedProgram, samples: Sequence[Sample], uses: Sequence[Use]
) -> dict[fx.Node, torch.Tensor]:
    """Return for each node the sum of squares of each input channel, in float64."""
    by_node, powers = {use.node: use for use in uses}, dict[fx.Node, torch.Tensor]()

    def seen(node: fx.Node, args: Sequence[Any], _: Any) -> None:
        use = by_node[node]
        value = args[use.entering]
        dim = use.channel_dim(value, args[use.place])
        others = [each for each in range(value.ndim) if each != dim]
        power = value.double().square()
        power = power.sum(others) if others else power
        powers[node] = powers[node] + power if node in powers else power

    watch(program, samples, list(by_node), seen)
    return powers


def noises(
    program: torch.export.ExportedProgram,
    samples: Sequence[Sample],
    uses: Sequence[Use],
    changed: Mapping[fx.Node, Sequence[torch.Tensor]],
) -> dict[fx.Node, list[float]]:
    """Return the noise that other weights would add to the outputs of layers, relative to the signal power.

    Returns:
        For each node a ratio for each of these; 0 where there is no signal and no noise.
    """
    by_node = {use.node: use for use in uses if use.node in changed}
    noise = {node: [0.0] * len(changed[node]) for node in by_node}
    signal = dict.fromkeys(by_node, 0.0)

    def seen(node: fx.Node, args: Sequence[Any], result: Any) -> None:
        use, given = by_node[node], list(args)
        signal[node] += float(result.double().square().sum())
        for index, weight in enumerate(changed[node]):
            given[use.place] = weight.to(args[use.place].dtype)
            other = node.target(*given)  # type: ignore[operator]
            noise[node][index] += float((other - result).double().square().sum())

    watch(program, samples, list(by_node), seen)
    return {node: [_ratio(each, signal[node]) for each in found] for node, found in noise.items()}


def _ratio(noise: float, signal: float) -> float:
    return noise / signal if signal > 0 else float("inf") if noise > 0 else 0.0
