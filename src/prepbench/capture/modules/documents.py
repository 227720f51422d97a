"""The document of module graphs, made from plain values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from prepbench.capture.modules.layer_classes import is_layer_class, is_registered_leaf
from prepbench.capture.modules.node_text import (
    code_frames,
    count_parameters,
    label_text,
    shapes_and_dtypes,
    target_text,
)
from prepbench.capture.modules.trace_result import TraceResult
from prepbench.capture.sizes.size_texts import SizeTexts
from prepbench.document.hierarchy import grouped
from prepbench.document.model import Failure, Finding, Graph, GraphCollectionDocument, Module, Node, Status
from prepbench.running import nested_values as structures


@dataclass(frozen=True)
class Visits:
    """How often tracing called each submodule.

    Attributes:
        counts: the number of calls by fully qualified name.
        unvisited: the names of the modules that were never called.
    """

    counts: Mapping[str, int]
    unvisited: AbstractSet[str]


def document_of_collection(
    model: Any,
    traces: Mapping[str, TraceResult],
    failures: Iterable[Failure],
    findings: Iterable[Finding],
    visits: Visits,
) -> GraphCollectionDocument:
    """The module-level document of a model.

    Args:
        model: the module or function that was traced.
        traces: its graphs by the name of the traced module.
        failures: why modules could not be traced.
        findings: what the graphs assume.
        visits: which modules were called while tracing.
    """
    texts = SizeTexts(_inputs_sizes(traces))
    graphs = tuple(_graph(fqn, trace, texts, model) for fqn, trace in traces.items())
    frames = code_frames(node for graph in graphs for node in graph.nodes)
    failures, findings = tuple(failures), tuple(findings)
    if not isinstance(model, torch.nn.Module):
        name = getattr(model, "__name__", type(model).__name__)
        alone = GraphCollectionDocument(
            name, "module", graphs, (), failures, findings, frames=frames, sizes=texts.legend()
        )
        return grouped(alone)
    calls = [node for graph in graphs for node in graph.nodes if node.op == "call_module"]
    leaves = {node.fqn for node in calls if node.status == "leaf"}
    modules = _modules(model, failures, leaves, visits)
    name = type(model).__name__
    document = GraphCollectionDocument(
        name, "module", graphs, modules, failures, findings, frames=frames, sizes=texts.legend()
    )
    return grouped(document, {key: value for fqn, trace in traces.items() for key, value in _calls(fqn, trace.graph)})


def _modules(
    model: torch.nn.Module, failures: tuple[Failure, ...], leaves: set[str], visits: Visits
) -> tuple[Module, ...]:
    by_name = {failure.fqn: failure for failure in failures}
    # a shared module is called by its first name
    first = {id(module): fqn for fqn, module in model.named_modules()}

    def is_unvisited(module: torch.nn.Module) -> bool:
        # a ModuleList is never called itself, but what it holds may be
        return all(first[id(part)] in visits.unvisited for part in module.modules())

    result = []
    for fqn, module in model.named_modules(remove_duplicate=False):
        known = first[id(module)]
        status: Status = "traced"
        if known in by_name:
            status = "failed"
        elif known in leaves:
            status = "leaf"
        elif is_unvisited(module):
            status = "unvisited"
        calls = visits.counts.get(known, 0)
        result.append(Module(fqn, type(module).__name__, status, count_parameters(module), calls, by_name.get(known)))
    return tuple(result)


def _graph(fqn: str, trace: TraceResult, texts: SizeTexts, model: Any) -> Graph:
    def owner(name: str) -> str:
        return ".".join(part for part in (fqn, name) if part)

    def shapes(node: fx.Node) -> tuple[tuple[str, ...], tuple[str, ...]]:
        return shapes_and_dtypes(node.meta.get("val"), texts, names)

    names = {str(symbol): size.name for symbol, size in trace.sizes.items()}
    nodes = (_node(node, fqn, owner(_owner(node)), shapes(node), model) for node in trace.graph.nodes)
    return Graph(f"graph:{fqn}", fqn, tuple(nodes))


def _calls(graph: str, traced: fx.Graph) -> Iterator[tuple[str, dict[str, int]]]:
    """Which call of each module around it made a node, by its id."""
    prefix = f"{graph}." if graph else ""
    leaves: Counter[str] = Counter()
    for node in traced.nodes:
        calls = {f"{prefix}{path}": number for path, number in (node.meta.get("calls") or {}).items() if path}
        if node.op == "call_module":
            calls[f"{prefix}{node.target}"] = leaves[str(node.target)]
            leaves[str(node.target)] += 1
        yield f"{graph}:{node.name}", calls


def _sources(node: fx.Node) -> dict[fx.Node, None]:
    """The nodes whose values a node uses; what only puts values into a structure is no operation."""
    found: dict[fx.Node, None] = {}
    for source in node.all_input_nodes:
        if source.op == "call_function" and getattr(source.target, "__module__", "") == structures.__name__:
            found |= _sources(source)
        else:
            found[source] = None
    return found


def _owner(node: fx.Node) -> str:
    return str(node.target) if node.op == "call_module" else str(node.meta.get("fqn", ""))


def _node(node: fx.Node, graph: str, fqn: str, shapes: tuple[tuple[str, ...], tuple[str, ...]], model: Any) -> Node:
    status: Status = node.meta.get("status", "traced")
    if status == "leaf" and _is_operation(fqn, model):
        status = "traced"
    return Node(
        id=f"{graph}:{node.name}",
        op=node.op,  # type: ignore[arg-type]
        label=label_text(node),
        target=fqn if node.op == "call_module" else target_text(node.target),
        fqn=fqn,
        type=_type(node, fqn, model),
        status=status,
        shapes=shapes[0],
        dtypes=shapes[1],
        inputs=tuple(f"{graph}:{source.name}" for source in _sources(node)),
        source=node.meta.get("source"),
    )


def _is_operation(fqn: str, model: Any) -> bool:
    """Whether the module is a layer, which is always a single node, so its status is not "leaf"."""
    if not isinstance(model, torch.nn.Module) or isinstance(model, torch.jit.ScriptModule):
        return False
    kind = type(model.get_submodule(fqn))
    return is_layer_class(kind) and not is_registered_leaf(kind)


def _type(node: fx.Node, fqn: str, model: Any) -> str:
    if node.op == "call_module" and isinstance(model, torch.nn.Module):
        return type(model.get_submodule(fqn) if fqn else model).__name__
    return label_text(node) if node.op in ("call_function", "call_method") else ""


def _inputs_sizes(traces: Mapping[str, TraceResult]) -> dict[str, str]:
    """What the names of inputs' sizes stand for; graphs of modules inside may use those of the model."""
    found: dict[str, str] = {}
    for fqn, trace in traces.items():
        for size in trace.sizes.values():
            meaning = f"the value of {size.path}" if size.dim is None else f"{size.path}.shape[{size.dim}]"
            found.setdefault(size.name, f"{fqn}: {meaning}" if fqn else meaning)
    return found
