"""The document of an exported program."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import fx

from prepbench._torch_compat.operators import OpOverload
from prepbench.capture.aten.leaf_operators import is_leaf_operator, leaf_label
from prepbench.capture.modules.graph_builder import (
    code_frames,
    count_parameters,
    label_text,
    shapes_and_dtypes,
    target_text,
)
from prepbench.capture.sizes.axis import Axis, SizeTexts, short_names
from prepbench.document.hierarchy import grouped, prefixes
from prepbench.document.model import Failure, Finding, Graph, GraphCollectionDocument, Module, Node, SourceLine
from prepbench.running.source_lines import place_in_stack_trace, source_line


def document_of_program(
    program: torch.export.ExportedProgram,
    model: torch.nn.Module,
    leaves: Iterable[Failure] = (),
    title: str = "",
    size_names: Mapping[str, str] | None = None,
    findings: Iterable[Finding] = (),
    axes: Iterable[Axis] = (),
) -> GraphCollectionDocument:
    """Return the ATen-level document of an exported program; operators that stand for modules or lines have status
    ``"leaf"``.

    Args:
        program: the exported program.
        model: the module it was exported from, for the hierarchy.
        leaves: the modules and lines that are one operator in the program, with the reasons.
        title: shown as the model's name instead of its class.
        size_names: the symbols of dynamic axes by the program's symbols for their sizes.
        findings: the assumptions of the program.
        axes: the dynamic axes.
    """
    hidden = _hidden(program)
    axes = tuple(axes)
    short = short_names(axes)
    inputs: dict[str, str] = {}
    for axis in axes:
        inputs.setdefault(short[axis.symbol], f"{axis.path}.shape[{axis.dim}]")
    texts = SizeTexts(inputs)
    names = {symbol: short.get(name, name) for symbol, name in (size_names or {}).items()}

    def made(node: fx.Node) -> Node:
        return _aten_node(node, hidden, shapes_and_dtypes(node.meta.get("val"), texts, names))

    nodes = tuple(made(node) for node in _in_order(program.graph) if node.name not in hidden)
    calls = {f":{node.name}": _calls_in_stack(node) for node in program.graph.nodes}
    failures = tuple(leaves)
    whole = {failure.fqn: failure for failure in failures if failure.lines is None}
    modules = _modules(model, whole, nodes, calls.values())
    graph = Graph("graph:", "", nodes)
    document = GraphCollectionDocument(
        title or type(model).__name__,
        "aten",
        (graph,),
        modules,
        failures,
        tuple(findings),
        frames=code_frames(nodes),
        sizes=texts.legend(),
    )
    return grouped(document, calls)


def _hidden(program: torch.export.ExportedProgram) -> set[str]:
    """Return the names of nodes that only hold parameters, buffers or subgraphs."""
    inputs = set(program.graph_signature.user_inputs)
    return {
        node.name
        for node in program.graph.nodes
        if (node.op == "placeholder" and node.name not in inputs)
        or (node.op == "get_attr" and isinstance(getattr(program.graph_module, str(node.target), 0), torch.nn.Module))
    }


def _modules(
    model: torch.nn.Module, leaves: Mapping[str, Failure], nodes: Iterable[Node], calls: Iterable[Mapping[str, int]]
) -> tuple[Module, ...]:
    numbers: dict[str, set[int]] = defaultdict(set)
    for made in calls:
        for fqn, number in made.items():
            numbers[fqn].add(number)
    called = {part for node in nodes for part in prefixes(node.fqn)} | {""}
    return tuple(
        Module(
            fqn,
            type(module).__name__,
            "leaf" if fqn in leaves else "traced" if fqn in called else "unvisited",
            count_parameters(module),
            len(numbers[fqn]) if fqn else 1,
            leaves.get(fqn),
        )
        for fqn, module in model.named_modules(remove_duplicate=False)
    )


def _calls_in_stack(node: fx.Node) -> dict[str, int]:
    """Return the call number of each module around a node; an exported stack numbers repeated calls (``@1``,
    ``@2``).
    """
    stack = _stack(node).items()
    numbers = ((_clean(path), re.search(r"@(\d+)$", str(key))) for key, (path, _) in stack)
    return {fqn: int(number[1]) if number else 0 for fqn, number in numbers if fqn}


def _aten_node(node: fx.Node, hidden: set[str], shapes: tuple[tuple[str, ...], tuple[str, ...]]) -> Node:
    stack = list(_stack(node).values())
    fqn = _clean(stack[-1][0]) if stack else ""
    is_leaf = is_leaf_operator(node.target)
    return Node(
        id=f":{node.name}",
        op=node.op,  # type: ignore[arg-type]
        label=leaf_label(node.target) if is_leaf and leaf_label(node.target) else label_text(node),
        target=target_text(node.target),
        fqn=fqn,
        type=label_text(node) if node.op == "call_function" else "",
        status="leaf" if is_leaf else "traced",
        shapes=shapes[0],
        dtypes=shapes[1],
        inputs=tuple(f":{source.name}" for source in node.all_input_nodes if source.name not in hidden),
        source=_source_in_stack_trace(node),
    )


def _stack(node: fx.Node) -> dict[str, Any]:
    """Return the modules around a node. Nodes inserted by quantization belong to the operation that they quantize."""
    while _is_inserted(node) and node.users:
        node = next(iter(node.users))
    stack: dict[str, Any] = node.meta.get("nn_module_stack") or {}
    return stack


def _in_order(graph: fx.Graph) -> list[fx.Node]:
    """Return the nodes in execution order, with nodes inserted by quantization right before the operation that they
    quantize.
    """
    waiting = {node for node in graph.nodes if _is_inserted(node) and node.users}
    order: list[fx.Node] = []

    def place(node: fx.Node) -> None:
        for source in node.all_input_nodes:
            if source in waiting:
                waiting.discard(source)
                place(source)
        order.append(node)

    for node in graph.nodes:
        if node not in waiting and not (_is_inserted(node) and node.users):
            place(node)
    return order


def _is_inserted(node: fx.Node) -> bool:
    return isinstance(node.target, OpOverload) and node.target.namespace == "quantized_decomposed"


def _source_in_stack_trace(node: fx.Node) -> SourceLine | None:
    place = place_in_stack_trace(node.meta.get("stack_trace")) if node.op == "call_function" else None
    return source_line(*place) if place else None


def _clean(path: str) -> str:
    """Return the fully qualified name in an exported module stack (``L['self']`` first, repeated calls numbered)."""
    path = re.sub(r"@\d+", "", path)
    path = re.sub(r"^L\['self'\]\.?", "", path)
    return re.sub(r"\._modules\['([^']*)'\]|\['([^']*)'\]|\[(\d+)\]", r".\1\2\3", path).lstrip(".")
