"""Models of which a target can take only parts: the rest runs in PyTorch between them."""

from __future__ import annotations

import json
import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import fx

from prepbench.capture.aten.export_again import export_again, sizes_of
from prepbench.errors import CaptureError
from prepbench.settings import DeploymentSettings
from prepbench.targets.base import Lowering, Runtime, Target
from prepbench.targets.eager import EagerTarget

Program = torch.export.ExportedProgram

_PLAN = "parts.json"
_TORCH = EagerTarget()


@dataclass(frozen=True)
class Part:
    """One piece of the graph: what it reads, what it computes, and what runs it.

    Attributes:
        inputs: names of values.
        outputs: names of values.
        on_target: whether the target runs it; otherwise PyTorch does.
        runtime: the piece, lowered.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    on_target: bool
    runtime: Runtime


class Parts(Runtime):
    """Runs pieces one after the other and hands values on.

    Args:
        inputs: names of the input leaves.
        outputs: names of the values that are the output leaves.
        parts: in execution order.
    """

    def __init__(self, inputs: Sequence[str], outputs: Sequence[str], parts: Sequence[Part]) -> None:
        self._inputs, self._outputs, self._parts = tuple(inputs), tuple(outputs), tuple(parts)
        reads = [set(part.inputs) for part in parts]
        # values that no later part reads are let go at once
        self._done = [
            (set(part.outputs) | set(part.inputs)) - set(outputs) - set().union(*reads[i + 1 :])
            for i, part in enumerate(parts)
        ]

    def run(self, leaves: Sequence[Any]) -> Sequence[Any]:
        values: dict[str, Any] = dict(zip(self._inputs, leaves, strict=True))
        for part, done in zip(self._parts, self._done, strict=True):
            results = part.runtime.run([values[name] for name in part.inputs])
            values.update(zip(part.outputs, results, strict=True))
            for name in done:
                del values[name]
        return [values[name] for name in self._outputs]

    def save(self, folder: Path) -> None:
        plan = []
        for index, part in enumerate(self._parts):
            place = folder / f"part_{index}"
            place.mkdir()
            part.runtime.save(place)
            plan.append({"inputs": part.inputs, "outputs": part.outputs, "on_target": part.on_target})
        content = {"inputs": self._inputs, "outputs": self._outputs, "parts": plan}
        (folder / _PLAN).write_text(json.dumps(content, indent=1))


def is_in_parts(folder: Path) -> bool:
    """Whether a saved model is one of these."""
    return (folder / _PLAN).exists()


def load_parts(target: Target, folder: Path, settings: DeploymentSettings) -> Runtime:
    """Read what :meth:`Parts.save` wrote."""
    content = json.loads((folder / _PLAN).read_text())
    parts = [
        Part(
            tuple(row["inputs"]),
            tuple(row["outputs"]),
            row["on_target"],
            (target if row["on_target"] else _TORCH).load(folder / f"part_{index}", settings),
        )
        for index, row in enumerate(content["parts"])
    ]
    return Parts(content["inputs"], content["outputs"], parts)


def lower_in_parts(
    target: Target, lowering: Lowering, settings: DeploymentSettings, in_torch: Sequence[fx.Node]
) -> Runtime:
    """Cut the graph around some of its nodes, lower what is left to the target, and run these nodes in PyTorch.

    Args:
        target: for the pieces that it can take.
        lowering: the whole graph.
        settings: of the target.
        in_torch: nodes of ``lowering.program`` that PyTorch shall run.

    Raises:
        TargetError: the target cannot take a piece for another reason.
        CaptureError: cutting the graph fixed a dynamic size.
    """
    program = lowering.program
    assert program.example_inputs is not None
    module = program.module(check_guards=False)
    assert isinstance(module, fx.GraphModule)
    names = {node.name for node in in_torch}
    levels = _levels(module.graph, names)
    _repeat_sizes(module.graph, levels)
    inputs = [node.name for node in module.graph.nodes if node.op == "placeholder"]
    output = next(iter(reversed(module.graph.nodes)))
    outputs = [node.name if isinstance(node, fx.Node) else "" for node in output.args[0]]
    values: dict[str, Any] = dict(zip(inputs, program.example_inputs[0], strict=True))
    parts = []
    for level in sorted({levels[node] for node in module.graph.nodes if node in levels}):
        nodes = [node for node in module.graph.nodes if levels.get(node) == level]
        piece, reads, writes = _piece(module, nodes)
        examples = [values[node.name] for node in reads]
        on_target = level % 2 == 0
        with torch.no_grad():
            values.update(zip((node.name for node in writes), piece(*examples), strict=True))
        part = replace(
            lowering,
            program=_export(piece, examples, reads),
            input_names=tuple(node.name for node in reads),
            output_names=tuple(node.name for node in writes),
            dimension_names={},
            leaves=() if on_target else lowering.leaves,
        )
        runtime = (target if on_target else _TORCH).lower(part, settings)
        parts.append(Part(tuple(node.name for node in reads), tuple(node.name for node in writes), on_target, runtime))
    return Parts(inputs, outputs, parts)


def _levels(graph: fx.Graph, in_torch: set[str]) -> dict[fx.Node, int]:
    """The piece of each node: even ones are for the target, odd ones for PyTorch; each reads only lower ones."""
    levels: dict[fx.Node, int] = {}
    for node in graph.nodes:
        if node.op in ("placeholder", "output", "get_attr"):
            continue
        level = max((levels.get(source, 0) for source in node.all_input_nodes), default=0)
        if node.target is operator.getitem:  # only whole tensors are handed on
            levels[node] = level
            continue
        wanted = int(node.name in in_torch)
        levels[node] = level if level % 2 == wanted else level + 1
    return levels


def _repeat_sizes(graph: fx.Graph, levels: dict[fx.Node, int]) -> None:
    """Compute sizes anew in each piece that needs them, so that only tensors are handed on."""
    for node in list(graph.nodes):
        if node not in levels:
            continue
        for source in list(node.all_input_nodes):
            if _is_number(source) and source.op == "call_function" and levels[source] != levels[node]:
                node.replace_input_with(source, _copied(graph, source, node, levels))


def _copied(graph: fx.Graph, source: fx.Node, user: fx.Node, levels: dict[fx.Node, int]) -> fx.Node:
    copies: dict[fx.Node, fx.Node] = {}

    def copy(node: fx.Node) -> fx.Node:
        if not _is_number(node) or node.op != "call_function":
            return node
        if node not in copies:
            for argument in node.all_input_nodes:
                copy(argument)
            with graph.inserting_before(user):
                copies[node] = graph.node_copy(node, lambda argument: copies.get(argument, argument))
            levels[copies[node]] = levels[user]
        return copies[node]

    return copy(source)


def _is_number(node: fx.Node) -> bool:
    return isinstance(node.meta.get("val"), int | torch.SymInt)


def _piece(module: fx.GraphModule, nodes: Sequence[fx.Node]) -> tuple[fx.GraphModule, list[fx.Node], list[fx.Node]]:
    """Some nodes as a module of their own, with what it reads and what of it others read."""
    inside = set(nodes)
    graph = fx.Graph()
    new: dict[fx.Node, fx.Node] = {}
    outside = [s for node in nodes for s in node.all_input_nodes if s not in inside and s.op != "get_attr"]
    reads = list(dict.fromkeys(outside))
    for source in reads:
        new[source] = graph.placeholder(source.name)
        new[source].meta = dict(source.meta)
    for node in nodes:
        for source in node.all_input_nodes:
            if source.op == "get_attr" and source not in new:
                new[source] = graph.node_copy(source)
        new[node] = graph.node_copy(node, lambda argument: new[argument])
    writes = [node for node in nodes if not _is_number(node) and any(user not in inside for user in node.users)]
    graph.output(tuple(new[node] for node in writes))
    return fx.GraphModule(module, graph), reads, writes


def _export(piece: fx.GraphModule, examples: Sequence[Any], reads: Sequence[fx.Node]) -> Program:
    """A piece as a program, with the sizes dynamic that were so in the whole."""

    def error(name: str) -> CaptureError:
        return CaptureError(
            f"Cutting the graph around what the target cannot take fixed dynamic sizes of {name}. Make these axes "
            "static (DynamicAxes.set), or choose a target that takes the whole model."
        )

    return export_again(piece, examples, [sizes_of(node.meta.get("val")) for node in reads], error)
