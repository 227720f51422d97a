"""``GraphCollection``: the graph of a model, and graphs of the parts inside modules that failed to trace."""

from __future__ import annotations

import operator
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from prepbench._display import HasDiagram, view
from prepbench.capture.failures.describe import normalize_message
from prepbench.capture.failures.findings import findings_of_trace
from prepbench.capture.failures.reproduce import with_reproduction
from prepbench.capture.failures.surroundings import findings_of_time
from prepbench.capture.failures.tensor_conditions import tensor_conditions
from prepbench.capture.modules.assumptions import SizeCheck, contradiction, number_findings, readable
from prepbench.capture.modules.graph_builder import (
    code_frames,
    count_parameters,
    label_text,
    shapes_and_dtypes,
    target_text,
)
from prepbench.capture.modules.sample_runs import SampleRuns
from prepbench.capture.modules.trace_result import TraceResult
from prepbench.capture.modules.tracer import RobustTracer, Target, is_layer_class, is_registered_leaf
from prepbench.capture.sizes.axis import SizeTexts
from prepbench.checks import check_text, described
from prepbench.document.hierarchy import grouped
from prepbench.document.model import (
    STATUS_WORDS,
    Failure,
    Finding,
    Graph,
    GraphCollectionDocument,
    Module,
    Node,
    Status,
)
from prepbench.errors import CaptureError, InputError, UnknownNameError
from prepbench.inputs import Sample
from prepbench.objects import flatten as structures
from prepbench.objects.code import ModelCode, with_newest_code
from prepbench.progress_bar import shows_progress
from prepbench.running.check_inputs import check_traced, checked_samples, known_names
from prepbench.running.source_lines import as_written


class GraphCollection(HasDiagram):
    """The FX graphs of a model.

    The graph of the model itself has the name ``""``. A module that could not be traced is a single call in the graph
    around it, and each submodule inside it has a graph of its own, so that as much as possible is covered.

    Attributes:
        model: the traced model.
        graphs: the graphs by fully qualified name of the traced module; the graph of a module whose own forward failed
            is empty.

    Example:
        >>> collection = recursive_trace(torch.nn.Sequential(torch.nn.Linear(4, 2)))
        >>> print(collection)
        GraphCollection of Sequential: 2 modules...
    """

    def __init__(self) -> None:
        self.model: Target | None = None
        self.graphs: dict[str, fx.Graph] = {}
        self._tracer = RobustTracer()
        self._traces: dict[str, TraceResult] = {}
        self._document: GraphCollectionDocument | None = None
        self._samples: list[Sample] | None = None
        self._findings: tuple[Finding, ...] | None = None
        self._concrete_args: dict[str, Any] | None = None
        self._code = ModelCode(())

    # -- tracing

    def recursive_trace(
        self, model: Target, concrete_args: dict[str, Any] | None = None, *, inputs: Any = None
    ) -> None:
        """Trace ``model`` and, inside every module that fails, each submodule on its own; replaces earlier results.

        Args:
            model: a module or a function.
            concrete_args: values by parameter name for the model itself; only tensors become proxies.
            inputs: sample inputs; tracing then follows values, and submodules are traced on what they receive.

        Raises:
            InputError: a sample does not fit the model or the others.
            CaptureError: the model itself raises on a sample; the cause is its error.
        """
        check_traced("model", model)
        concrete_args = known_names(model, concrete_args)
        GraphCollection.__init__(self)
        self.model, self._concrete_args, self._code = model, concrete_args, ModelCode.of(model)
        samples = None if inputs is None else checked_samples(model, inputs)
        self._samples = samples
        runs = None if samples is None else SampleRuns(model, samples)
        queue = deque([("", model)])
        queued = {id(model)}
        while queue:
            fqn, target = queue.popleft()
            given = samples if not fqn or runs is None else runs.samples_for(fqn)
            if fqn and samples is not None and not given:
                continue  # never called on the samples
            self._trace_one(fqn, target, concrete_args if not fqn else None, given, runs)
            for name, child in self._inside_failures(fqn, target):
                if id(child) not in queued:
                    queued.add(id(child))
                    queue.append((name, child))

    def _trace_one(
        self, fqn: str, target: Target, concrete_args: Any, samples: list[Sample] | None, runs: SampleRuns | None
    ) -> None:
        self.graphs[fqn] = self._tracer.trace(
            target,
            concrete_args,
            inputs=samples,
            runs=runs,
            prefix=fqn,
        )
        assert self._tracer.result is not None
        self._traces[fqn] = self._tracer.result

    def _inside_failures(self, prefix: str, target: Target) -> Iterator[tuple[str, torch.nn.Module]]:
        """Yield the parts to trace next: the direct children of each failed module; containers are descended into."""
        if not isinstance(target, torch.nn.Module):
            return
        for name, module in target.named_modules(prefix=prefix):
            if self._tracer.is_failed(module):
                yield from _callable_children(name, module)

    @property
    def newer_code(self) -> tuple[str, ...]:
        """The names of the model's classes and functions whose code has changed since; empty while it is the same.

        A redefined class, ``%autoreload``, ``importlib.reload`` and a changed helper that a method calls all count;
        comments, docstrings and moved lines do not.
        """
        return self._code.changed()

    def again(self) -> GraphCollection:
        """Give the model's modules the newest definitions of their classes, and trace again.

        Weights and all other attributes stay as they are; what a new ``__init__`` would add is not there.

        Returns:
            The new graphs.

        Raises:
            InputError: nothing was traced yet, or a module cannot take on its newest class.
            CaptureError: the model now raises on a sample.

        Example:
            >>> collection = recursive_trace(torch.nn.Sequential(torch.nn.Linear(4, 2)))
            >>> collection.newer_code, len(collection.again())
            ((), 1)
        """
        if self.model is None:
            raise InputError("Nothing was traced yet, so nothing can be traced again. Call recursive_trace(model).")
        return recursive_trace(with_newest_code(self.model), self._concrete_args or None, inputs=self._samples)

    # -- results

    def __iter__(self) -> Iterator[Target]:
        """Return the modules that have a graph."""
        return (self._target(fqn) for fqn in self.graphs)

    def __len__(self) -> int:
        return len(self.graphs)

    def __getitem__(self, key: str | Target) -> fx.Graph:
        """Return the graph of a module, given itself or its fully qualified name."""
        if isinstance(key, str) and key in self.graphs:
            return self.graphs[key]
        for fqn in self.graphs:
            if self._target(fqn) is key:
                return self.graphs[fqn]
        raise self._no_graph("key", key)

    def _no_graph(self, argument: str, given: object) -> UnknownNameError:
        return UnknownNameError(
            f"{argument}: {described(given)} has no graph of its own. Choose one of {sorted(self.graphs)}, or "
            "recursive_trace the module itself."
        )

    def _target(self, fqn: str) -> Target:
        assert self.model is not None
        return self.model.get_submodule(fqn) if fqn and isinstance(self.model, torch.nn.Module) else self.model

    def is_failed(self, m: Target) -> bool:
        """Return whether the code of ``m`` could not be traced.

        Args:
            m: a module or function.

        Returns:
            False also for what was never called.
        """
        return self._tracer.is_failed(m)

    def failure_msg(self, m: Target) -> str | None:
        """Return the error of a failed module, in one line.

        Args:
            m: a module or function.

        Returns:
            E.g. ``"TypeError: ..."``; None if it did not fail.
        """
        return self._tracer.failure_msg(m)

    def is_unvisited(self, m: Target) -> bool:
        """Return whether ``m`` was never called while tracing.

        Args:
            m: a module or function.

        Returns:
            False also for what was called and failed.
        """
        return self._tracer.is_unvisited(m)

    @property
    def failures(self) -> tuple[Failure, ...]:
        """The reasons why modules failed to trace, in ``named_modules()`` order.

        Where the samples need several graphs of the model itself, there is one for the first of them, and a failure.
        """
        described = {**self._contradictions(), **self._tracer.failures}
        if isinstance(self.model, torch.nn.Module):
            described = {name: described[name] for name, _ in self.model.named_modules() if name in described}
        return with_reproduction(described.values(), self.model, self._samples)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The assumptions of the graphs: fixed flags and values, numbers read from tensors, attributes that change."""
        if self._findings is None:
            found = [*findings_of_trace(self.model, self._samples), *self._number_findings()]
            if isinstance(self.model, torch.nn.Module) and self._samples:
                found += [one.finding() for one in tensor_conditions(self.model, self._samples)]
                found += findings_of_time(self.model, self._samples)
            self._findings = tuple(found)
        return self._findings

    def _contradictions(self) -> dict[str, Failure]:
        found = {fqn: contradiction(trace, fqn, self._type_name) for fqn, trace in self._traces.items()}
        return {fqn: failure for fqn, failure in found.items() if failure is not None}

    def _type_name(self, fqn: str) -> str:
        return type(self._target(fqn)).__name__

    def _number_findings(self) -> Iterator[Finding]:
        for prefix, trace in self._traces.items():
            yield from number_findings(trace, len(self._samples or ()), prefix, self._type_name)

    @property
    def assumptions(self) -> tuple[str, ...]:
        """The assumptions of the graphs on input sizes, one line each, e.g. a loop unrolled for one length."""
        return tuple(line for trace in self._traces.values() for line in readable(trace))

    def calls(self, fqn: str) -> int:
        """Return how often the module was called while tracing.

        Args:
            fqn: its name.

        Returns:
            0 for what was not called.
        """
        check_text("fqn", fqn, "encoder.0")
        return self._tracer.counts.get(fqn, 0)

    def graph_module(self, fqn: str = "") -> fx.GraphModule:
        """Return a runnable module with the traced graph; it shares parameters and leaf modules with the model.

        Args:
            fqn: the module; "" is the model.

        Returns:
            The module, to be called like the original.

        Raises:
            UnknownNameError: no graph has this name.
            CaptureError: the module's own forward could not be traced.
        """
        if not isinstance(fqn, str) or fqn not in self.graphs:
            raise self._no_graph("fqn", fqn)
        target = self._target(fqn)
        error = self._traces[fqn].error
        if error is not None:
            others = [name for name in self.graphs if name != fqn]
            raise CaptureError(
                f"{fqn or type(target).__name__} has no graph, because its forward could not be traced: "
                f"{normalize_message(error).rstrip('.')}. Its submodules have graphs: {others}."
            )
        return runnable(target, self._traces[fqn])

    # -- showing

    def document(self) -> GraphCollectionDocument:
        """Return all results as plain data."""
        if self._document is None:
            counts, unvisited = self._tracer.counts, set[str]()
            if isinstance(self.model, torch.nn.Module):
                unvisited = {fqn for fqn, module in self.model.named_modules() if self.is_unvisited(module)}
            visits = Visits(counts, unvisited)
            self._document = document_of_collection(self.model, self._traces, self.failures, self.findings, visits)
        return self._document

    def table(self) -> Any:
        """Return the failures as a ``pandas.DataFrame``."""
        return view("views.display", "failures_table", self.failures)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> Any:
        return view("views.display", "collection_bundle", self)

    def __repr__(self) -> str:
        if self.model is None:
            return "GraphCollection(nothing traced yet; use recursive_trace)"
        modules = self.document().modules
        count = Counter(module.status for module in modules)
        name = self.document().model_type
        lines = [
            f"GraphCollection of {name}: {len(modules)} modules, "
            + ", ".join(f"{count[status]} {words}" for status, words in STATUS_WORDS.items() if count[status])
        ]
        for failure in self.failures:
            where = f" at {failure.source.file}:{failure.source.line}" if failure.source else ""
            name = failure.fqn or "(model)"
            lines.append(f"  {name} ({failure.module_type}): {failure.kind}{where}. {failure.remedy}")
        lines += [f"  assumes {line}" for line in self.assumptions]
        return "\n".join([*lines, *(f"  note {finding.message}" for finding in self.findings)])


def _callable_children(prefix: str, module: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module]]:
    for name, child in module.named_children():
        path = f"{prefix}.{name}" if prefix else name
        if has_forward(child):
            yield path, child
        else:
            yield from _callable_children(path, child)


def has_forward(module: torch.nn.Module) -> bool:
    """Return whether the module can be called at all; ``ModuleList`` and other containers cannot."""
    forward: Callable[..., Any] = module.forward
    return getattr(forward, "__func__", forward) is not torch.nn.Module.forward


@shows_progress("trace")
def recursive_trace(
    model: Target, concrete_args: dict[str, Any] | None = None, *, inputs: Any = None
) -> GraphCollection:
    """Trace a model into a :class:`GraphCollection`.

    The model, with all that it keeps in Python objects, and the random number generators are left as they were.

    Args:
        model: a module or a function.
        concrete_args: values by parameter name, for the model's own forward; only tensors become proxies. Parameters
            with a default that are not given use the default.
        inputs: sample inputs. With them, Python control flow that depends on shapes, types or other values is
            resolved, and sizes that differ between samples stay free. Without them, tracing is symbolic.

    Returns:
        The graphs of the model, or of its parts where its own forward fails, and every reason why.

    Example:
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
        >>> collection = recursive_trace(model, inputs=[torch.ones(2, 4), torch.ones(3, 4)])
        >>> collection.graph_module()(torch.ones(5, 4)).shape
        torch.Size([5, 4])
    """
    collection = GraphCollection()
    collection.recursive_trace(model, concrete_args, inputs=inputs)
    return collection


# The document of module graphs, made from plain values.


@dataclass(frozen=True)
class Visits:
    """Counts how often tracing called each submodule; ``unvisited`` are the names of those it never called."""

    counts: Mapping[str, int]
    unvisited: AbstractSet[str]


def document_of_collection(
    model: Any,
    traces: Mapping[str, TraceResult],
    failures: Iterable[Failure],
    findings: Iterable[Finding],
    visits: Visits,
) -> GraphCollectionDocument:
    """Return the module-level document of a model, by the graphs of its traced modules."""
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
    knows_values = any("val" in node.meta for node in trace.graph.nodes)
    nodes = (
        _node(node, fqn, owner(_owner(node)), shapes(node), model, _sources(node, knows_values))
        for node in trace.graph.nodes
    )
    return Graph(f"graph:{fqn}", fqn, tuple(nodes))


def _calls(graph: str, traced: fx.Graph) -> Iterator[tuple[str, dict[str, int]]]:
    """Return, by node id, the call number of each module around the node."""
    prefix = f"{graph}." if graph else ""
    leaves: Counter[str] = Counter()
    for node in traced.nodes:
        calls = {f"{prefix}{path}": number for path, number in (node.meta.get("calls") or {}).items() if path}
        if node.op == "call_module":
            calls[f"{prefix}{node.target}"] = leaves[str(node.target)]
            leaves[str(node.target)] += 1
        yield f"{graph}:{node.name}", calls


def _sources(node: fx.Node, knows_values: bool) -> dict[fx.Node, None]:
    """Return the nodes whose values a node uses, seen through nodes that build structures or select from them."""
    found: dict[fx.Node, None] = {}
    for source in node.all_input_nodes:
        builds = source.op == "call_function" and getattr(source.target, "__module__", "") == structures.__name__
        # what is selected from a tensor has a value of its own
        selects = source.target is operator.getitem and knows_values and "val" not in source.meta
        if builds or selects:
            found |= _sources(source, knows_values)
        else:
            found[source] = None
    return found


def _owner(node: fx.Node) -> str:
    return str(node.target) if node.op == "call_module" else str(node.meta.get("fqn", ""))


def _node(
    node: fx.Node,
    graph: str,
    fqn: str,
    shapes: tuple[tuple[str, ...], tuple[str, ...]],
    model: Any,
    sources: Iterable[fx.Node],
) -> Node:
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
        inputs=tuple(f"{graph}:{source.name}" for source in sources),
        source=as_written(node.meta.get("source")),
    )


def _is_operation(fqn: str, model: Any) -> bool:
    """Return whether the module is a layer, which is always a single node, so its status is not "leaf"."""
    if not isinstance(model, torch.nn.Module) or isinstance(model, torch.jit.ScriptModule):
        return False
    kind = type(model.get_submodule(fqn))
    return is_layer_class(kind) and not is_registered_leaf(kind)


def _type(node: fx.Node, fqn: str, model: Any) -> str:
    if node.op == "call_module" and isinstance(model, torch.nn.Module):
        return type(model.get_submodule(fqn) if fqn else model).__name__
    return label_text(node) if node.op in ("call_function", "call_method") else ""


def _inputs_sizes(traces: Mapping[str, TraceResult]) -> dict[str, str]:
    """Return the meaning of the names of inputs' sizes; graphs of inner modules may use those of the model."""
    found: dict[str, str] = {}
    for fqn, trace in traces.items():
        for size in trace.sizes.values():
            meaning = f"the value of {size.path}" if size.dim is None else f"{size.path}.shape[{size.dim}]"
            found.setdefault(size.name, f"{fqn}: {meaning}" if fqn else meaning)
    return found


# A traced graph becomes a module that runs.


_ROOT = "module"


def runnable(target: torch.nn.Module | Callable[..., Any], trace: TraceResult) -> fx.GraphModule:
    """Return a ``GraphModule`` for ``trace`` that shares the parameters and leaf modules of ``target``."""
    graph = fx.Graph()
    graph.output(graph.graph_copy(trace.graph, {}))
    for new, old in zip(graph.nodes, trace.graph.nodes, strict=True):
        new.meta = dict(old.meta)
    root = torch.nn.Module()
    if isinstance(target, torch.nn.Module):
        # a shell with the same content: FX attaches constants to what it is given
        vars(root).update({name: dict(v) if isinstance(v, dict) else v for name, v in vars(target).items()})
        for name in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"):
            vars(root)[name] = type(vars(target)[name])()
    for name, value in trace.constants.items():
        if isinstance(value, torch.Tensor):
            root.register_buffer(name, value, persistent=False)
        else:
            setattr(root, name, value)
    for node in graph.nodes:
        if node.op == "call_module" and node.target == "":
            node.target = _ROOT
            root.add_module(_ROOT, target)  # type: ignore[arg-type]
    name = type(target).__name__ if isinstance(target, torch.nn.Module) else getattr(target, "__name__", "Graph")
    module = fx.GraphModule(root, graph, class_name=name)
    check = SizeCheck.of(trace)
    if check is not None:
        module.register_forward_pre_hook(check, with_kwargs=True)
    return module
