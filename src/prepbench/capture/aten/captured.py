"""``Captured``: a model as one ATen graph, with its conditions, leaves and verification."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import fx

from prepbench._display import HasDiagram, view
from prepbench._torch_compat.operators import OpOverload
from prepbench.capture.aten.holds_where import NOTHING, HoldsWhere
from prepbench.capture.aten.leaf_operators import is_leaf_operator, leaf_label
from prepbench.capture.aten.verification import (
    AxesReport,
    condition_lines,
    conditions_text,
    dynamic_text,
    verify_axes,
    verify_variants,
)
from prepbench.capture.failures.describe import failure_line
from prepbench.capture.failures.findings import findings_of_program
from prepbench.capture.failures.surroundings import findings_of_time
from prepbench.capture.failures.tensor_conditions import tensor_conditions
from prepbench.capture.modules.collection import GraphCollection, recursive_trace
from prepbench.capture.modules.graph_builder import (
    code_frames,
    count_parameters,
    label_text,
    shapes_and_dtypes,
    target_text,
)
from prepbench.capture.sizes.axis import Axis, SizeTexts, short_names
from prepbench.capture.sizes.conditions import SizeCondition
from prepbench.capture.sizes.dynamic_axes import DynamicAxes, check_axes
from prepbench.document.hierarchy import grouped, prefixes
from prepbench.document.model import (
    Failure,
    Finding,
    Graph,
    GraphCollectionDocument,
    Module,
    Node,
    alike_failures,
)
from prepbench.errors import CaptureError
from prepbench.inputs import Sample, named_leaves
from prepbench.objects.code import ModelCode
from prepbench.running.source_lines import line_in_stack_trace


@dataclass(frozen=True)
class Origin:
    """How a capture was made: with which code, and how to capture ``again`` with the newest code."""

    code: ModelCode
    again: Callable[[], Captured]


@dataclass(frozen=True, repr=False)
class Captured(HasDiagram):
    """A model as one graph.

    Attributes:
        program: the ``torch.export.ExportedProgram``. ``captured.program.module()`` runs it with the weights
            and buffers of the model: a call that changes a buffer changes it there, too.
        model: the module that was captured (for a function, a module that calls it).
        samples: the inputs it was captured with.
        axes: the dims of the inputs that may vary.
        leaves: the modules, and the lines of modules, that are one operator in the graph, and why.
        seconds: the duration of the capture.
        holds_where: the conditions of the graph on sizes, and the trial calls.
        origin: how it was made.
        variants: a capture each for the ways that the sizes of samples lead; the program is that of the first. Empty
            where one graph is enough.

    Example:
        >>> captured = pb.capture(model, samples)
        >>> captured.axes.axes[0].dynamic, captured.leaves
        (True, ())
        >>> captured.program.module()(torch.ones(7, 4)).shape
        torch.Size([7, 2])
    """

    program: torch.export.ExportedProgram
    model: torch.nn.Module
    samples: tuple[Sample, ...]
    axes: DynamicAxes
    leaves: tuple[Failure, ...] = ()
    seconds: float = field(default=0.0, compare=False)
    holds_where: HoldsWhere = NOTHING
    variants: tuple[Captured, ...] = ()
    origin: Origin | None = field(default=None, compare=False)

    @property
    def newer_code(self) -> tuple[str, ...]:
        """The names of the model's classes and functions whose code has changed since; empty while it is the same."""
        return self.origin.code.changed() if self.origin is not None else ()

    def again(self) -> Captured:
        """Give the model's modules the newest definitions of their classes, and capture again in the same way.

        Returns:
            The new graph.

        Raises:
            InputError: a module cannot take on its newest class.
            CaptureError: the model is not one graph any more, or it was not this process that captured.
        """
        if self.origin is None:
            raise CaptureError("This capture does not know how it was made. Capture the model with pb.capture(model).")
        return self.origin.again()

    @property
    def conditions(self) -> tuple[SizeCondition, ...]:
        """The conditions on sizes under which the graph equals the model, in words, with the lines that ask.

        Where there are variants, they are those of the first, whose program this is.
        """
        return self.holds_where.conditions()

    def verify(self, axes: DynamicAxes | None = None) -> AxesReport:
        """Run the graph and the model on the samples and on sizes that no sample had, and compare.

        Args:
            axes: the axes to try; those that the graph was captured with when not given.

        Returns:
            For each axis the sizes that were tried, and what the graph requires of them.
        """
        check_axes(axes)
        if self.variants:
            graphs = [(variant.program, variant.conditions) for variant in self.variants]
            return verify_variants(graphs, self.model, self.samples, self.axes if axes is None else axes)
        return verify_axes(self.program, self.model, self.samples, self.axes if axes is None else axes)

    @property
    def failures(self) -> tuple[Failure, ...]:
        """Why modules and lines are leaves; the same as ``leaves``."""
        return self.leaves

    @cached_property
    def findings(self) -> tuple[Finding, ...]:
        """The assumptions of the graph: fixed flags and values, randomness, state that changes."""
        of_tensors = tensor_conditions(self.model, self.samples)
        found = findings_of_program(self.model, self.program, self.samples)
        of_time = findings_of_time(self.model, self.samples)
        return (*found, *(condition.finding() for condition in of_tensors), *of_time)

    @property
    def collection(self) -> GraphCollection:
        """The module graphs of the same model, traced with the same samples."""
        return recursive_trace(self.model, inputs=self.samples)

    def document(self) -> GraphCollectionDocument:
        """Return the graph as plain data."""
        return document_of_program(
            self.program,
            self.model,
            self.leaves,
            type(self.model).__name__,
            self.size_names,
            self.findings,
            self.axes.dynamic,
        )

    @property
    def size_names(self) -> dict[str, str]:
        """The names of the dynamic axes, by the symbols that the program has for their sizes."""
        assert self.program.example_inputs is not None
        args, kwargs = self.program.example_inputs
        paths = [path for path, _ in named_leaves(self.model, Sample(tuple(args), dict(kwargs)))]
        values = {node.name: node.meta.get("val") for node in self.program.graph.nodes if node.op == "placeholder"}
        symbols = {(axis.path, axis.dim): axis.symbol for axis in self.axes.dynamic}
        names: dict[str, str] = {}
        for path, placeholder in zip(paths, self.program.graph_signature.user_inputs, strict=True):
            value = values.get(placeholder) if isinstance(placeholder, str) else None
            sizes: tuple[Any, ...] = tuple(value.shape) if isinstance(value, torch.Tensor) else ()
            for dim, size in enumerate(sizes):
                if not isinstance(size, int) and symbols.get((path, dim)):
                    names.setdefault(str(size), symbols[path, dim])
        return names

    def table(self) -> Any:
        """Return the leaves and why they are leaves, as a pandas ``DataFrame``."""
        return view("views.display", "failures_table", self.leaves)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> Any:
        return view("views.display", "captured_bundle", self)

    def __repr__(self) -> str:
        calls = sum(node.op == "call_function" for node in self.program.graph.nodes)
        dynamic = dynamic_text(self.axes.dynamic)
        lines = [
            f"Captured {type(self.model).__name__}: {calls} operations, {len(self.samples)} samples",
            f"  dynamic: {dynamic or 'nothing (all samples have the same sizes)'}",
        ]
        if any(leaf.fqn == "" and leaf.lines is None for leaf in self.leaves):
            lines.append("  the whole model is one operator:")
        lines += [f"  leaf {failure_line(leaf)}" for leaf in alike_failures(self.leaves)]
        lines += [f"  note {finding.message}" for finding in self.findings]
        lines += [f"  holds where {line}" for line in condition_lines(self.conditions) if not self.variants]
        for index, variant in enumerate(self.variants):
            given = ", ".join(f"inputs[{sample.index}]" for sample in variant.samples)
            where = conditions_text(variant.conditions) or "nothing is asked"
            lines.append(f"  variant {index}: for {given} and where {where}")
        return "\n".join(lines)


# The document of an exported program.


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
    """Return the call number of each module around a node; exported stacks number repeated calls (``@1``, ``@2``)."""
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
        source=line_in_stack_trace(node.meta.get("stack_trace")) if node.op == "call_function" else None,
    )


def _stack(node: fx.Node) -> dict[str, Any]:
    """Return the modules around a node. Nodes inserted by quantization belong to the operation that they quantize."""
    while _is_inserted(node) and node.users:
        node = next(iter(node.users))
    stack: dict[str, Any] = node.meta.get("nn_module_stack") or {}
    return stack


def _in_order(graph: fx.Graph) -> list[fx.Node]:
    """Return the nodes in execution order, those that quantization inserted right before what they quantize."""
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


def _clean(path: str) -> str:
    """Return the fully qualified name in an exported module stack (``L['self']`` first, repeated calls numbered)."""
    path = re.sub(r"@\d+", "", path)
    path = re.sub(r"^L\['self'\]\.?", "", path)
    return re.sub(r"\._modules\['([^']*)'\]|\['([^']*)'\]|\[(\d+)\]", r".\1\2\3", path).lstrip(".")
