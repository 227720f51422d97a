"""Capture at ATen level: one ``torch.export`` program, with every module that cannot be in it as one operator."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch

from prepbench._display import HasDiagram, view
from prepbench.capture.aten.attempts import Procedure
from prepbench.capture.aten.documents import document_of_program
from prepbench.capture.aten.leaf_wrapping import chosen_leaves
from prepbench.capture.aten.verification import AxesReport, verify_axes
from prepbench.capture.failures.findings import findings_of_program
from prepbench.capture.failures.reproduce import with_reproduction
from prepbench.capture.modules.collection import GraphCollection, recursive_trace
from prepbench.capture.sizes.dynamic_axes import DynamicAxes
from prepbench.document.model import Failure, Finding, GraphCollectionDocument
from prepbench.errors import CaptureError, InputError
from prepbench.inputs import Sample, named_leaves, normalize_samples
from prepbench.running.callable_module import as_module
from prepbench.running.check_inputs import itself_raises, on_device_of
from prepbench.running.object_nodes import register_nodes
from prepbench.running.outcomes import Outcome, outcome


@dataclass(frozen=True, repr=False)
class Captured(HasDiagram):
    """A model as one graph.

    Attributes:
        program: the ``torch.export.ExportedProgram``; ``captured.program.module()`` runs it, with the model's weights.
        model: the module that was captured (for a function, a module that calls it).
        samples: the inputs it was captured with.
        axes: which dims of the inputs may vary.
        leaves: the modules that are one opaque operator in the graph, and why.
        seconds: how long capturing took.
    """

    program: torch.export.ExportedProgram
    model: torch.nn.Module
    samples: tuple[Sample, ...]
    axes: DynamicAxes
    leaves: tuple[Failure, ...] = ()
    seconds: float = field(default=0.0, compare=False)

    def verify(self, axes: DynamicAxes | None = None) -> AxesReport:
        """Run the graph and the model on the samples and on sizes that no sample had, and compare.

        Args:
            axes: the axes to try; those that the graph was captured with when not given.
        """
        return verify_axes(self.program, self.model, self.samples, self.axes if axes is None else axes)

    @property
    def failures(self) -> tuple[Failure, ...]:
        """Why modules are opaque operators; the same as ``leaves``."""
        return self.leaves

    @cached_property
    def findings(self) -> tuple[Finding, ...]:
        """What the graph takes for granted: fixed flags and values, randomness, state that changes."""
        return findings_of_program(self.model, self.program, self.samples)

    @property
    def collection(self) -> GraphCollection:
        """The module graphs of the same model, traced with the same samples."""
        return recursive_trace(self.model, inputs=self.samples)

    def document(self) -> GraphCollectionDocument:
        """The graph as plain data."""
        return document_of_program(
            self.program, self.model, self.leaves, type(self.model).__name__, self.size_names, self.findings
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
        """The leaves and why they are leaves, as a pandas ``DataFrame``."""
        return view("views.tables", "failures_table", self.leaves)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> Any:
        return view("views.display", "captured_bundle", self)

    def __repr__(self) -> str:
        calls = sum(node.op == "call_function" for node in self.program.graph.nodes)
        dynamic = [f"{axis.path}.shape[{axis.dim}] ({axis.symbol})" for axis in self.axes.dynamic]
        lines = [
            f"Captured {type(self.model).__name__}: {calls} operations, {len(self.samples)} samples, "
            f"{self.seconds:.1f} s",
            f"  dynamic: {', '.join(dynamic) or 'nothing (all samples have the same sizes)'}",
        ]
        if any(leaf.fqn == "" for leaf in self.leaves):
            lines.append("  the whole model is one operator:")
        lines += [f"  leaf {describe(leaf)}" for leaf in self.leaves]
        lines += [f"  note {finding.message}" for finding in self.findings]
        return "\n".join(lines)


class FullGraphError(CaptureError):
    """The model is not one graph; ``failures`` has every reason that was found."""

    def __init__(self, message: str, failures: Sequence[Failure]) -> None:
        super().__init__(message)
        self.failures = tuple(failures)


def capture(
    module_or_func: Callable[..., Any],
    inputs: Any,
    *,
    dynamic_axes: DynamicAxes | None = None,
    leaf_modules: Iterable[Any] = (),
    fullgraph: bool = True,
    strict: bool = False,
) -> Captured:
    """Capture a model, function or bound method as one ATen graph that equals it on the inputs.

    ``torch.export`` is tried without and then with dynamo. The result is run on the samples before it is returned. The
    model is left exactly as it was.

    Args:
        module_or_func: what to capture, in the mode it is in.
        inputs: sample inputs; sizes that differ between them become dynamic.
        dynamic_axes: which dims are dynamic; inferred from the inputs when not given.
        leaf_modules: modules to keep as one opaque operator: names, module objects or classes.
        fullgraph: if true, a module that cannot be exported is an error; otherwise it becomes a leaf and the rest stays
            one graph.
        strict: use dynamo first.

    Raises:
        InputError: the inputs do not fit the model or each other.
        FullGraphError: the model cannot be one graph; lists all reasons found.

    Example:
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 2), torch.nn.ReLU())
        >>> captured = capture(model, [torch.randn(1, 4), torch.randn(3, 4)])
        >>> captured.program.module()(torch.randn(7, 4)).shape
        torch.Size([7, 2])
    """
    start = time.perf_counter()
    model = as_module(module_or_func)
    samples = on_device_of(model, normalize_samples(module_or_func, inputs))
    register_nodes([(sample.args, sample.kwargs) for sample in samples])
    axes = DynamicAxes.infer(samples, module_or_func) if dynamic_axes is None else dynamic_axes
    axes.check_paths(dict(named_leaves(module_or_func, samples[0])))
    chosen = chosen_leaves(model, leaf_modules)
    expected = [_expected(model, sample) for sample in samples]
    procedure = Procedure(model, samples, axes, expected, chosen)
    program = procedure.full_graph(strict) if not chosen else None
    leaves: list[Failure] = []
    if program is None:
        failures = procedure.find_failures() if fullgraph else []
        if failures:
            failures = list(with_reproduction(failures, model, samples))
            raise FullGraphError(_message(model, failures), failures) from procedure.error
        program, leaves = procedure.with_leaves()
    told = with_reproduction(leaves, model, samples)
    return Captured(program, model, tuple(samples), axes, told, time.perf_counter() - start)


def describe(failure: Failure) -> str:
    """One failure in one line: name, type, kind and place."""
    place = f", {failure.source.file}:{failure.source.line}" if failure.source else ""
    return f"{failure.fqn or 'the model'} ({failure.module_type}): {failure.kind}{place}"


def _message(model: torch.nn.Module, failures: Sequence[Failure]) -> str:
    lines = [f"{type(model).__name__} cannot be captured as one graph: {len(failures)} module(s) fail."]
    for failure in failures:
        lines.append(f"- {describe(failure)}")
        if failure.source is not None and failure.source.code:
            lines.append(f"    {failure.source.code}")
        lines += [f"    {failure.exception_type}: {failure.message.splitlines()[0]}", f"    {failure.remedy}"]
    lines.append("Or capture with fullgraph=False, which keeps these modules as opaque operators.")
    return "\n".join(lines)


def _expected(model: torch.nn.Module, sample: Sample) -> Outcome:
    try:
        found = outcome(model, sample, model)
    except InputError:
        raise
    except Exception as error:
        raise itself_raises(model, sample, error) from error
    register_nodes(found.output)
    return found
