"""``Captured``: a model as one ATen graph, with its conditions, leaves and verification."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch

from prepbench._display import HasDiagram, view
from prepbench.capture.aten.documents import document_of_program
from prepbench.capture.aten.holds_where import NOTHING, HoldsWhere
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
from prepbench.capture.modules.collection import GraphCollection, recursive_trace
from prepbench.capture.sizes.conditions import SizeCondition
from prepbench.capture.sizes.dynamic_axes import DynamicAxes, check_axes
from prepbench.document.model import Failure, Finding, GraphCollectionDocument, alike_failures
from prepbench.errors import CaptureError
from prepbench.inputs import Sample, named_leaves
from prepbench.objects.code import ModelCode


@dataclass(frozen=True)
class Origin:
    """How a capture was made.

    Attributes:
        code: the code of the model then.
        again: captures again with the newest code, in the same way.
    """

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
        return findings_of_program(self.model, self.program, self.samples)

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
        return view("views.tables", "failures_table", self.leaves)

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
