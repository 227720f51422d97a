"""Partition a graph into pieces for a target and fallbacks to PyTorch for nodes that the target does not support."""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import fx

from prepbench.capture.aten.constant_nodes import is_pure
from prepbench.capture.aten.export_program import export_again, sizes_of
from prepbench.errors import ArtifactError, CaptureError, sentence
from prepbench.settings import DeploymentSettings
from prepbench.storage import write_file
from prepbench.targets.base import NO_TRUST, Lowering, Runtime, Target, Trust
from prepbench.targets.eager import EagerTarget
from prepbench.targets.kernel_times import KernelTimes
from prepbench.targets.programs import check_kept_state

Program = torch.export.ExportedProgram


@dataclass(frozen=True)
class Cut:
    """Some nodes of a graph as a module of their own.

    Attributes:
        module: computes ``writes`` from ``reads``.
        reads: nodes of the whole graph whose values it takes.
        writes: its nodes whose values others read.
        on_target: whether the target is to run it.
    """

    module: fx.GraphModule
    reads: list[fx.Node]
    writes: list[fx.Node]
    on_target: bool


def lower_partitioned(
    target: Target, lowering: Lowering, settings: DeploymentSettings, fallback: Iterable[fx.Node]
) -> Runtime:
    """Lower a graph in partitions: PyTorch runs some of its nodes, the target the rest.

    Raises:
        TargetError: the target cannot lower one of its partitions, or the model keeps state from call to call.
        CaptureError: a dynamic size became static where the graph was cut.
    """
    program = lowering.program
    assert program.example_inputs is not None
    module = program.module(check_guards=False)
    assert isinstance(module, fx.GraphModule)
    inputs = [node.name for node in module.graph.find_nodes(op="placeholder")]
    (output,) = module.graph.find_nodes(op="output")
    outputs = [node.name if isinstance(node, fx.Node) else "" for node in output.args[0]]
    check_kept_state(program)  # every partition has buffers of its own, so none sees what another one writes
    values: dict[str, Any] = dict(zip(inputs, program.example_inputs[0], strict=True))
    partitions = []
    # a partition of the target returns tensors only, so numbers among the model's results fall back to PyTorch
    numbers = {node.name for node in output.args[0] if isinstance(node, fx.Node) and _is_computed_number(node)}
    # each partition is exported with the real values that the partitions before it computed: the partitions run in
    # order, so every input of a cut is in ``values`` by then
    for cut in _cuts(module, {node.name for node in fallback} | numbers, numbers):
        partitions.append(_lowered(cut, [values[node.name] for node in cut.reads], target, lowering, settings))
        with torch.no_grad():
            values.update(zip(partitions[-1].outputs, cut.module(*(values[n.name] for n in cut.reads)), strict=True))
    return PartitionedRuntime(inputs, outputs, partitions)


def _lowered(
    cut: Cut, examples: Sequence[Any], target: Target, lowering: Lowering, settings: DeploymentSettings
) -> Partition:
    inputs, outputs = (tuple(node.name for node in nodes) for nodes in (cut.reads, cut.writes))
    part = replace(
        lowering,
        program=_exported(cut, examples),
        input_names=inputs,
        output_names=outputs,
        dimension_names={},
        leaves=() if cut.on_target else lowering.leaves,
    )
    runtime = (target if cut.on_target else FALLBACK).lower(part, settings)
    return Partition(inputs, outputs, cut.on_target, runtime)


def _exported(cut: Cut, examples: Sequence[Any]) -> Program:
    """Return a partition as a program; sizes that are dynamic in the whole graph stay dynamic."""

    def error(name: str) -> CaptureError:
        return CaptureError(
            f"Dynamic sizes of {name} became static where the graph was cut around what the target does not support. "
            "Make these axes static (DynamicAxes.set), or choose a target that supports the whole model."
        )

    return export_again(cut.module, examples, [sizes_of(node.meta.get("val")) for node in cut.reads], error)


def _cuts(module: fx.GraphModule, fallback: set[str], numbers: set[str]) -> list[Cut]:
    """Return the partitions in execution order; ``numbers`` names the numbers that the model returns."""
    levels = _levels(module.graph, fallback)
    # both copy nodes into the partition of their reader, so that each node still reads only its own level and lower
    # ones
    _repeat_sizes(module.graph, levels)
    _move_to_readers(module.graph, levels)
    cuts = []
    for level in sorted(set(levels.values())):
        nodes = [node for node in module.graph.nodes if levels.get(node) == level]
        # a level of nothing but sizes has no reader left: _repeat_sizes has copied these into their readers' partitions
        if not all(_is_number(node) and node.name not in numbers for node in nodes):
            cut = _cut_out(module, nodes, numbers, on_target=level % 2 == 0)
            if cut.writes or not cut.on_target:  # checks of sizes alone, which targets drop, make no file
                cuts.append(cut)
    return cuts


def _levels(graph: fx.Graph, fallback: set[str]) -> dict[fx.Node, int]:
    """Return the partition of each node: even ones for the target, odd ones for PyTorch. Each reads only lower ones."""
    levels: dict[fx.Node, int] = {}
    for node in graph.nodes:
        if node.op in ("placeholder", "output", "get_attr"):
            continue
        level = max((levels.get(source, 0) for source in node.all_input_nodes), default=0)
        if node.target is operator.getitem:  # partitions exchange tensors, not tuples of them
            levels[node] = level
            continue
        # As late as its inputs demand, and no later: a node joins the partition of its latest input if that has the
        # right parity, else it opens the next one. So there are only as many partitions as one path has changes between
        # target and PyTorch.
        wanted = int(node.name in fallback)
        levels[node] = level if level % 2 == wanted else level + 1
    return levels


def _repeat_sizes(graph: fx.Graph, levels: dict[fx.Node, int]) -> None:
    """Compute sizes in each partition that needs them, so that partitions exchange only tensors."""
    for node in list(graph.nodes):
        if node not in levels:
            continue
        for source in list(node.all_input_nodes):
            if _is_computed_number(source) and levels[source] != levels[node]:
                node.replace_input_with(source, _copied(graph, source, node, levels, _is_computed_number))


def _move_to_readers(graph: fx.Graph, levels: dict[fx.Node, int]) -> None:
    """Move computations on weights alone into each of the target's partitions that needs them.

    So a layer behind a fallback has its quantized weights beside it, and the target's kernels take them; the first
    partition would give them to it in float.
    """
    # level 0 only: a node computed from weights by PyTorch is an unsupported one, which the target cannot take over
    from_weights: set[fx.Node] = set()
    for node in graph.nodes:
        if node in levels and levels[node] == 0 and _follows_from_weights(node, from_weights):
            from_weights.add(node)
    for node in list(graph.nodes):
        if levels.get(node, 0) > 0 and levels[node] % 2 == 0:
            for source in [source for source in node.all_input_nodes if source in from_weights]:
                node.replace_input_with(source, _copied(graph, source, node, levels, from_weights.__contains__))
    # backwards, so that a chain whose last reader moved away goes as a whole
    for node in reversed(list(graph.nodes)):
        if node in from_weights and not node.users:
            del levels[node]
            graph.erase_node(node)


def _follows_from_weights(node: fx.Node, known: set[fx.Node]) -> bool:
    # a node without inputs, such as aten.arange or aten.full, is no function of a weight
    return is_pure(node) and all(source.op == "get_attr" or source in known for source in node.all_input_nodes)


def _copied(
    graph: fx.Graph, source: fx.Node, user: fx.Node, levels: dict[fx.Node, int], is_copied: Callable[[fx.Node], bool]
) -> fx.Node:
    """Return a copy of a node and its dependencies, in front of ``user`` and in its partition."""
    copies: dict[fx.Node, fx.Node] = {}

    def copy(node: fx.Node) -> fx.Node:
        if not is_copied(node):
            return node
        if node not in copies:
            for argument in node.all_input_nodes:
                copy(argument)
            with graph.inserting_before(user):
                copies[node] = graph.node_copy(node, lambda argument: copies.get(argument, argument))
            levels[copies[node]] = levels[user]
        return copies[node]

    return copy(source)


def _is_computed_number(node: fx.Node) -> bool:
    return node.op == "call_function" and _is_number(node)


def _is_number(node: fx.Node) -> bool:
    return isinstance(node.meta.get("val"), int | torch.SymInt)


def _cut_out(module: fx.GraphModule, nodes: Sequence[fx.Node], numbers: set[str], *, on_target: bool) -> Cut:
    inside = set(nodes)
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    outside = [s for node in nodes for s in node.all_input_nodes if s not in inside and s.op != "get_attr"]
    reads = list(dict.fromkeys(outside))
    for source in reads:
        copies[source] = graph.placeholder(source.name)
        copies[source].meta = dict(source.meta)
    for node in nodes:
        for source in node.all_input_nodes:
            if source.op == "get_attr" and source not in copies:
                copies[source] = graph.node_copy(source)
        copies[node] = graph.node_copy(node, lambda argument: copies[argument])
    # numbers are repeated by their readers, so only those that the model itself returns leave a partition
    shared = [node for node in nodes if not _is_number(node) or node.name in numbers]
    writes = [node for node in shared if any(user not in inside for user in node.users)]
    graph.output(tuple(copies[node] for node in writes))
    return Cut(fx.GraphModule(module, graph), reads, writes, on_target)


# A model in partitions, some run by a target and the others by PyTorch.


# the target of partitions that fall back to PyTorch
FALLBACK: Target = EagerTarget()

_FILE = "parts.json"


@dataclass(frozen=True)
class Partition:
    """One partition of the graph: its inputs, its outputs, and its runtime.

    Attributes:
        inputs: names of the values that it reads.
        outputs: names of the values that others read from it.
        on_target: whether the target runs it; otherwise PyTorch does.
        runtime: the lowered partition.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    on_target: bool
    runtime: Runtime


class PartitionedRuntime(Runtime):
    """Runs partitions one after the other and passes their tensors on, by the names of values."""

    def __init__(self, inputs: Sequence[str], outputs: Sequence[str], partitions: Sequence[Partition]) -> None:
        self._inputs, self._outputs, self._partitions = tuple(inputs), tuple(outputs), tuple(partitions)
        reads = [set(partition.inputs) for partition in partitions]
        # for each partition the values whose last reader it is, so that their memory is freed at once
        self._last_used = [
            (set(partition.outputs) | set(partition.inputs)) - set(outputs) - set().union(*reads[i + 1 :])
            for i, partition in enumerate(partitions)
        ]

    def stored_bits(self) -> Mapping[str, int]:
        found: dict[str, int] = {}
        for partition in self._partitions:
            found.update(partition.runtime.stored_bits())
        return found

    def run(self, leaves: Sequence[Any]) -> Sequence[Any]:
        return self._run(leaves, lambda partition, given: None)

    def kernel_times(self, calls: Sequence[Sequence[Any]], rounds: int) -> KernelTimes:
        given: dict[int, list[Sequence[Any]]] = {}
        for leaves in calls:
            self._run(leaves, lambda partition, inputs: given.setdefault(id(partition), []).append(inputs))
        times = [each.runtime.kernel_times(given[id(each)], rounds) for each in self._partitions]
        return KernelTimes(tuple(k for each in times for k in each.kernels), sum(each.seconds for each in times))

    def _run(self, leaves: Sequence[Any], note: Callable[[Partition, Sequence[Any]], None]) -> Sequence[Any]:
        values: dict[str, Any] = dict(zip(self._inputs, leaves, strict=True))
        for partition, last_used in zip(self._partitions, self._last_used, strict=True):
            inputs = [values[name] for name in partition.inputs]
            note(partition, inputs)
            results = partition.runtime.run(inputs)
            values.update(zip(partition.outputs, results, strict=True))
            for name in last_used:
                del values[name]
        return [values[name] for name in self._outputs]

    def save(self, folder: Path) -> None:
        rows = []
        for index, partition in enumerate(self._partitions):
            place = _place(folder, index)
            place.mkdir()
            partition.runtime.save(place)
            rows.append({"inputs": partition.inputs, "outputs": partition.outputs, "on_target": partition.on_target})
        content = {"inputs": self._inputs, "outputs": self._outputs, "parts": rows}
        write_file(folder / _FILE, json.dumps(content, indent=1))


def is_partitioned(folder: Path) -> bool:
    """Return whether the model in this folder is partitioned."""
    return (folder / _FILE).exists()


def load_partitioned(target: Target, folder: Path, settings: DeploymentSettings, trust: Trust = NO_TRUST) -> Runtime:
    """Read the files that :meth:`PartitionedRuntime.save` wrote; see :meth:`Target.load`."""
    content = _read(folder / _FILE)
    partitions = [
        Partition(
            tuple(row["inputs"]),
            tuple(row["outputs"]),
            row["on_target"],
            (target if row["on_target"] else FALLBACK).load(_place(folder, index), settings, trust),
        )
        for index, row in enumerate(content["parts"])
    ]
    return PartitionedRuntime(content["inputs"], content["outputs"], partitions)


def _read(path: Path) -> dict[str, Any]:
    """Return the description of the partitions, in which each reads inputs or values of earlier partitions.

    Raises:
        ArtifactError: it is damaged.
    """
    try:
        content: dict[str, Any] = json.loads(path.read_bytes())
        known = set(_names(content["inputs"]))
        for index, row in enumerate(content["parts"]):
            if type(row["on_target"]) is not bool or set(_names(row["inputs"])) - known:
                raise ValueError(f"partition {index} reads what no earlier one computes")
            known |= set(_names(row["outputs"]))
        if set(_names(content["outputs"])) - known:
            raise ValueError("no partition computes one of the results")
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise ArtifactError(f"{path} is damaged: {sentence(error)} Save the model again.") from error
    return content


def _names(value: Any) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise ValueError("names of values are a list of texts")
    return value


def _place(folder: Path, index: int) -> Path:
    return folder / f"part_{index}"
