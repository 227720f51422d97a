"""Graphs become the plain document that diagrams, tables and files are made from."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from prepbench.capture.aten.leaf_operators import is_leaf_operator
from prepbench.capture.modules.operations import is_method
from prepbench.capture.modules.trace_result import ValueTrace
from prepbench.document.hierarchy import grouped, prefixes
from prepbench.document.model import (
    CodeFrame,
    Failure,
    Finding,
    Graph,
    GraphCollectionDocument,
    Module,
    Node,
    SourceLine,
    Status,
)
from prepbench.running import nested_values as structures
from prepbench.running.nested_values import collect
from prepbench.running.source_lines import frame_of, place_in_stack_trace, source_line

if TYPE_CHECKING:
    from prepbench.capture.modules.collection import GraphCollection

SHAPE_OUTPUTS = 8
"""Outputs of one node whose shapes are written down; caches have hundreds."""

FRAMES = 500
"""Lines of code whose surroundings are written down."""


def document_of_collection(collection: GraphCollection, traces: Mapping[str, ValueTrace]) -> GraphCollectionDocument:
    """The module-level document of a collection."""
    model = collection.model
    graphs = tuple(_graph(fqn, traces[fqn].graph, _size_names(traces[fqn]), model) for fqn in collection.graphs)
    frames = _frames(node for graph in graphs for node in graph.nodes)
    failures = collection.failures
    if not isinstance(model, torch.nn.Module):
        name = getattr(model, "__name__", type(model).__name__)
        return grouped(
            GraphCollectionDocument(name, "module", graphs, (), failures, collection.findings, frames=frames)
        )
    calls = [node for graph in graphs for node in graph.nodes if node.op == "call_module"]
    leaves = {node.fqn for node in calls if node.status == "leaf"}
    modules = _modules(model, failures, leaves, collection)
    name = type(model).__name__
    document = GraphCollectionDocument(name, "module", graphs, modules, failures, collection.findings, frames=frames)
    return grouped(document, {key: value for fqn in collection.graphs for key, value in _calls(fqn, traces[fqn].graph)})


def document_of_program(
    program: torch.export.ExportedProgram,
    model: torch.nn.Module,
    leaves: Iterable[Failure] = (),
    title: str = "",
    size_names: Mapping[str, str] | None = None,
    findings: Iterable[Finding] = (),
) -> GraphCollectionDocument:
    """The ATen-level document of an exported program; operators that stand for whole modules have status ``"leaf"``.

    Args:
        program: the exported program.
        model: the module it was exported from, for the hierarchy.
        leaves: the modules that were wrapped as opaque operators, with the reasons.
        title: shown as the model's name instead of its class.
        size_names: readable names for the program's symbolic sizes.
        findings: what the program takes for granted.
    """
    failures = tuple(leaves)
    wrapped = {failure.fqn for failure in failures}
    inputs = set(program.graph_signature.user_inputs)
    hidden = {
        node.name
        for node in program.graph.nodes
        if (node.op == "placeholder" and node.name not in inputs)
        or (node.op == "get_attr" and isinstance(getattr(program.graph_module, str(node.target), 0), torch.nn.Module))
    }
    nodes = tuple(
        _aten_node(node, hidden, size_names or {}) for node in _in_order(program.graph) if node.name not in hidden
    )
    calls = {f":{node.name}": _calls_in_stack(node) for node in program.graph.nodes}
    numbers: dict[str, set[int]] = defaultdict(set)
    for made in calls.values():
        for fqn, number in made.items():
            numbers[fqn].add(number)
    called = {part for node in nodes for part in prefixes(node.fqn)} | {""}
    modules = tuple(
        Module(
            fqn,
            type(module).__name__,
            "leaf" if fqn in wrapped else "traced" if fqn in called else "unvisited",
            _parameters(module),
            len(numbers[fqn]) if fqn else 1,
            next((failure for failure in failures if failure.fqn == fqn), None),
        )
        for fqn, module in model.named_modules(remove_duplicate=False)
    )
    graph = Graph("graph:", "", nodes)
    document = GraphCollectionDocument(
        title or type(model).__name__, "aten", (graph,), modules, failures, tuple(findings), frames=_frames(nodes)
    )
    return grouped(document, calls)


def _modules(
    model: torch.nn.Module, failures: tuple[Failure, ...], leaves: set[str], collection: GraphCollection
) -> tuple[Module, ...]:
    by_name = {failure.fqn: failure for failure in failures}
    first: dict[int, str] = {}
    result = []
    for fqn, module in model.named_modules(remove_duplicate=False):
        known = first.setdefault(id(module), fqn)  # a shared module is called by its first name
        status: Status = "traced"
        if known in by_name:
            status = "failed"
        elif known in leaves:
            status = "leaf"
        elif collection.is_unvisited(module) and not _holds_visited(module, collection):
            status = "unvisited"
        result.append(
            Module(fqn, type(module).__name__, status, _parameters(module), collection.calls(known), by_name.get(known))
        )
    return tuple(result)


def _holds_visited(module: torch.nn.Module, collection: GraphCollection) -> bool:
    """Whether a module that is never called itself, such as a ``ModuleList``, holds one that is."""
    return any(not collection.is_unvisited(part) for part in module.modules())


def _parameters(module: torch.nn.Module) -> int:
    return sum(0 if _is_lazy(parameter) else parameter.numel() for parameter in module.parameters())


def _is_lazy(parameter: torch.nn.Parameter) -> bool:
    return isinstance(parameter, torch.nn.parameter.UninitializedParameter)


# -- nodes


def _graph(fqn: str, graph: fx.Graph, names: Mapping[str, str], model: Any) -> Graph:
    def owner(name: str) -> str:
        return ".".join(part for part in (fqn, name) if part)

    return Graph(
        f"graph:{fqn}", fqn, tuple(_node(node, fqn, owner(_owner(node)), names, model) for node in graph.nodes)
    )


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


def _calls_in_stack(node: fx.Node) -> dict[str, int]:
    """The same from an exported stack, whose keys number repeated calls (``@1``, ``@2``)."""
    stack = _stack(node).items()
    numbers = ((_clean(path), re.search(r"@(\d+)$", str(key))) for key, (path, _) in stack)
    return {fqn: int(number[1]) if number else 0 for fqn, number in numbers if fqn}


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


def _node(node: fx.Node, graph: str, fqn: str, names: Mapping[str, str], model: Any) -> Node:
    status: Status = node.meta.get("status", "traced")
    if status == "leaf" and _is_operation(fqn, model):
        status = "traced"
    shapes, dtypes = _values(node.meta.get("val"), names)
    return Node(
        id=f"{graph}:{node.name}",
        op=node.op,  # type: ignore[arg-type]
        label=_label(node),
        target=fqn if node.op == "call_module" else target_text(node.target),
        fqn=fqn,
        type=_type(node, fqn, model),
        status=status,
        shapes=shapes,
        dtypes=dtypes,
        inputs=tuple(f"{graph}:{source.name}" for source in _sources(node)),
        source=node.meta.get("source"),
    )


def _is_operation(fqn: str, model: Any) -> bool:
    """Whether the module is one of torch's own, which always are single nodes: that says nothing about the user's
    model.
    """
    from prepbench.capture.modules.tracer import RobustTracer

    if not isinstance(model, torch.nn.Module):
        return False
    kind = type(model.get_submodule(fqn))
    return kind.__module__.startswith(
        ("torch.nn.", "prepbench.prepare.modules")
    ) and not RobustTracer.is_registered_leaf(kind)


def _aten_node(node: fx.Node, hidden: set[str], size_names: Mapping[str, str]) -> Node:
    stack = list(_stack(node).values())
    fqn = _clean(stack[-1][0]) if stack else ""
    shapes, dtypes = _values(node.meta.get("val"), size_names)
    return Node(
        id=f":{node.name}",
        op=node.op,  # type: ignore[arg-type]
        label=_label(node),
        target=target_text(node.target),
        fqn=fqn,
        type=_label(node) if node.op == "call_function" else "",
        status="leaf" if is_leaf_operator(node.target) else "traced",
        shapes=shapes,
        dtypes=dtypes,
        inputs=tuple(f":{source.name}" for source in node.all_input_nodes if source.name not in hidden),
        source=_source_in_stack_trace(node),
    )


def _stack(node: fx.Node) -> dict[str, Any]:
    """The modules around a node; what quantization puts in belongs to the operation that it is for."""
    while _is_inserted(node) and node.users:
        node = next(iter(node.users))
    stack: dict[str, Any] = node.meta.get("nn_module_stack") or {}
    return stack


def _in_order(graph: fx.Graph) -> list[fx.Node]:
    """The nodes as they run, with what quantization put in right before the operation that it is for."""
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
    return isinstance(node.target, torch._ops.OpOverload) and node.target.namespace == "quantized_decomposed"


def _source_in_stack_trace(node: fx.Node) -> SourceLine | None:
    place = place_in_stack_trace(node.meta.get("stack_trace")) if node.op == "call_function" else None
    return source_line(*place) if place else None


def _frames(nodes: Iterable[Node]) -> tuple[CodeFrame, ...]:
    """The surroundings of every line that made an operation; not of all lines of a program without end."""
    sources = list(dict.fromkeys(node.source for node in nodes if node.source is not None))[:FRAMES]
    made = ((source, frame_of(source)) for source in sources)
    return tuple(CodeFrame(source.file, source.line, text) for source, text in made if text)


def _clean(path: str) -> str:
    """The fully qualified name in an exported module stack (``L['self']`` first, repeated calls numbered)."""
    path = re.sub(r"@\d+", "", path)
    path = re.sub(r"^L\['self'\]\.?", "", path)
    return re.sub(r"\._modules\['([^']*)'\]|\['([^']*)'\]|\[(\d+)\]", r".\1\2\3", path).lstrip(".")


def _label(node: fx.Node) -> str:
    if node.op == "call_module":
        return str(node.target).rpartition(".")[2] or "module"
    if node.op in ("placeholder", "output", "call_method"):
        return str(node.target)
    if node.op == "get_attr":
        return str(node.target).rpartition(".")[2]
    return _short(node.target)


def _short(target: Any) -> str:
    if isinstance(target, torch._ops.OpOverload):
        return str(target.overloadpacket.__name__)
    return str(getattr(target, "__name__", type(target).__name__))


def _type(node: fx.Node, fqn: str, model: Any) -> str:
    if node.op == "call_module" and isinstance(model, torch.nn.Module):
        return type(model.get_submodule(fqn)).__name__
    return _label(node) if node.op in ("call_function", "call_method") else ""


def target_text(target: Any) -> str:
    """An FX target as text without addresses, e.g. ``"torch.nn.functional.relu"``."""
    if isinstance(target, str | torch._ops.OpOverload):
        return str(target)
    name = str(getattr(target, "__name__", type(target).__name__))
    if is_method(target, name):
        return f"torch.Tensor.{name}"
    module = str(getattr(target, "__module__", "") or "")
    if module in ("_operator", "builtins"):
        module = "operator" if module == "_operator" else ""
    elif module.startswith("torch._C") or not module:
        module = "torch"
    return f"{module}.{name}" if module else name


# -- shapes


def _size_names(trace: ValueTrace) -> dict[str, str]:
    return {str(symbol): size.name for symbol, size in trace.sizes.items()}


def _values(value: Any, names: Mapping[str, str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    tensors = [leaf for leaf in collect(value) if isinstance(leaf, torch.Tensor)][:SHAPE_OUTPUTS]
    shapes = tuple(shape_text(tensor, names) for tensor in tensors)
    return shapes, tuple(str(tensor.dtype).removeprefix("torch.") for tensor in tensors)


def shape_text(tensor: torch.Tensor, names: Mapping[str, str]) -> str:
    """``"B×3×32×32"``; a scalar is ``"scalar"``; symbols without a name stay as torch wrote them."""
    if tensor.dim() == 0:
        return "scalar"
    return "×".join(_size_text(size, names) for size in tensor.shape)


def _size_text(size: Any, names: Mapping[str, str]) -> str:
    text = re.sub(r"\b[a-z]+\d+\b", lambda match: names.get(match[0], match[0]), str(size))
    return f"({text})" if re.search(r"[-+*/ ]", text) else text
