"""Lower a program to a target's runtime, with a fallback to PyTorch for unsupported nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from prepbench.calls.call_spec import CallSpec
from prepbench.capture.aten.captured import Captured
from prepbench.capture.aten.leaf_operators import is_leaf_operator
from prepbench.compile.constants import with_computed
from prepbench.compile.task import CompileTask
from prepbench.errors import PrepbenchError, TargetError
from prepbench.internal_errors import raise_if_internal
from prepbench.jobs import ProgressCallback
from prepbench.storage import temporary_space
from prepbench.targets import Lowering, Runtime, Target
from prepbench.targets.kept_programs import KeptPrograms
from prepbench.targets.partition import FALLBACK, lower_partitioned
from prepbench.targets.programs import check_kept_state, is_complex

Program = torch.export.ExportedProgram


def lowering_of(
    program: Program,
    captured: Captured,
    call_spec: CallSpec,
    progress: ProgressCallback,
    programs: KeptPrograms | None = None,
) -> Lowering:
    """Return the input of the target: the program, and readable names for its inputs, outputs and dynamic sizes."""
    return Lowering(
        program,
        call_spec.input_names,
        (*call_spec.output_names, *call_spec.named_assertions),
        _size_names(program, captured),
        captured.leaves,
        keep_alive=captured,
        progress=progress,
        programs=programs,
    )


def lower(task: CompileTask, lowering: Lowering, in_pytorch: Collection[str] = ()) -> tuple[Runtime, tuple[str, ...]]:
    """Lower the whole graph, or, with ``fullgraph=False``, the parts of it that the target supports.

    Args:
        task: the target, and whether the graph may be cut.
        lowering: the graph.
        in_pytorch: names of its nodes that PyTorch must run, because the target was seen to fail at them.

    Returns:
        The runtime, and the operators that PyTorch runs.

    Raises:
        TargetError: the target cannot lower the graph; names the operators that it does not support.
    """
    target, program = task.target, lowering.program
    if in_pytorch:
        names = set(in_pytorch)
        fallback = _unsupported(target, program)
        fallback += [node for node in program.graph.nodes if node not in fallback and names & _origins(node)]
        fallback += _with_complex_numbers(program, fallback)
        with temporary_space():
            if not fallback:  # a beginning of the graph, to find where the target fails
                return target.lower(lowering, task.settings), ()
            return lower_partitioned(target, lowering, task.settings, fallback), tuple(operator_places(fallback))
    try:
        target.check_leaves(lowering.leaves)
        with temporary_space():
            return target.lower(lowering, task.settings), ()
    except TargetError as error:
        fallback = _unsupported(target, program)
        if not fallback:
            raise
        computed = with_computed(program, fallback)
        if computed is not None:
            return lower(task, replace(lowering, program=computed))
        if task.fullgraph:
            raise TargetError(
                f"{error} {target.display_name} does not support: {', '.join(operator_places(fallback))}. With "
                f"fullgraph=False these run in PyTorch, and the rest on {target.display_name}."
            ) from error
    with temporary_space():
        return lower_partitioned(target, lowering, task.settings, fallback), tuple(operator_places(fallback))


def can_be_cut(task: CompileTask, program: Program) -> bool:
    """Return whether PyTorch may run parts of a program that a target fails at."""
    try:
        check_kept_state(program)
    except TargetError:
        return False
    return type(task.target) is not type(FALLBACK)


def alike_nodes(program: Program, node: fx.Node) -> set[str]:
    """Return the names of the nodes that call the operator of ``node`` with the same other arguments: where a target
    fails at one, it fails at all.
    """
    same = (node.target, _without_values(node))
    calls = (each for each in program.graph.nodes if each.op == "call_function")
    return {node.name, *(each.name for each in calls if (each.target, _without_values(each)) == same)}


def _without_values(node: fx.Node) -> str:
    return str(fx.node.map_arg((node.args, node.kwargs), lambda _: None))


def _with_complex_numbers(program: Program, fallback: Sequence[fx.Node]) -> list[fx.Node]:
    """Return the other nodes that compute with complex numbers, if one of ``fallback`` does: partitions exchange
    none.
    """
    calls = [node for node in program.graph.nodes if node.op == "call_function"]
    of_complex = [node for node in calls if any(map(is_complex, (node, *node.all_input_nodes)))]
    known = set(fallback)
    return [node for node in of_complex if node not in known] if known.intersection(of_complex) else []


def _unsupported(target: Target, program: Program) -> list[fx.Node]:
    """Return the nodes of ``program`` that the target does not support; it may have examined a decomposed program.

    None where torch cannot decompose the program: what lowering said stands then.
    """
    try:
        unsupported = list(target.unsupported_nodes(program))
    except PrepbenchError:
        raise
    except Exception as error:  # torch's own, of any kind: its decompositions divide by sizes of 0, for example
        raise_if_internal(error)
        return []
    names = {name for node in unsupported for name in _origins(node)}
    operators = {node.target for node in unsupported}
    return [
        node
        for node in program.graph.nodes
        if node.op == "call_function"
        and (node.name in names or node.target in operators or is_leaf_operator(node.target))
    ]


def _origins(node: fx.Node) -> set[str]:
    """Return the names of a node and of those that it was decomposed from."""
    names, rest = {node.name}, list(node.meta.get("from_node") or ())
    while rest:
        source = rest.pop()
        names.add(source.name)
        rest += source.from_node or ()
    return names


def operator_places(nodes: Sequence[fx.Node]) -> list[str]:
    """Return operators with the modules that call them, and counts."""
    places: Counter[tuple[str, str]] = Counter()
    for node in nodes:
        stack = list((node.meta.get("nn_module_stack") or {}).values())
        places[str(node.target).removesuffix(".default"), str(stack[-1][0]) if stack else ""] += 1
    return [
        f"{fqn or 'the model'}: {operator}" + (f" ({count} times)" if count > 1 else "")
        for (operator, fqn), count in places.items()
    ]


def _size_names(program: Program, captured: Captured) -> dict[str, str]:
    """Return the names of dynamic sizes by the symbols of ``program``, which may differ from those of the capture."""
    symbols = [_sizes(p) for p in (captured.program, program)]
    return {
        str(now): captured.size_names[str(then)]
        for then, now in zip(*symbols, strict=True)
        if str(then) in captured.size_names
    }


def _sizes(program: Program) -> list[Any]:
    """Return all sizes of all input tensors, in order."""
    values = {node.name: node.meta.get("val") for node in program.graph.nodes if node.op == "placeholder"}
    inputs = [values.get(name) for name in program.graph_signature.user_inputs if isinstance(name, str)]
    return [size for value in inputs if isinstance(value, torch.Tensor) for size in value.shape]
