"""``RobustTracer``: one FX graph of a module in which whatever cannot be traced is a single call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from prepbench.capture.failures.describe import describe_failure
from prepbench.capture.modules import layer_classes
from prepbench.capture.modules.sample_runs import SampleRuns
from prepbench.capture.modules.symbolic_trace import trace_symbolically
from prepbench.capture.modules.trace_result import TraceResult
from prepbench.capture.modules.value_trace import trace_values
from prepbench.checks import check_text
from prepbench.document.model import Failure
from prepbench.inputs import Sample
from prepbench.running.alike_samples import alike_samples
from prepbench.running.check_inputs import check_traced, known_names
from prepbench.running.tracing import tracing
from prepbench.running.twin import Twin

Target = torch.nn.Module | Callable[..., Any]


class RobustTracer:
    """Traces modules into FX graphs; a part that cannot be traced does not stop the rest.

    Without inputs, tracing is symbolic. With ``inputs=`` the forward runs on tensors without data, so that Python
    control flow on shapes, ``len``, iteration, item assignment and output classes resolve. Either way, the innermost
    module whose code cannot be followed is recorded as one ``call_module`` node; the model is left as it was.

    Example:
        >>> tracer = RobustTracer()
        >>> graph = tracer.trace(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()))
        >>> [node.op for node in graph.nodes]
        ['placeholder', 'call_module', 'call_module', 'output']
    """

    _makes_twin = True  # False for a tracer that is given a twin already

    def __init__(self) -> None:
        self.root: Target | None = None
        self.graph: fx.Graph | None = None
        self.result: TraceResult | None = None
        """Everything the last :meth:`trace` found out, beside its graph."""
        self._failures: dict[int, tuple[Target, str]] = {}
        self._visited: dict[int, Target] = {}
        self.failures: dict[str, Failure] = {}
        self.counts: dict[str, int] = {}

    @classmethod
    def register_leaf(cls, m: type[torch.nn.Module]) -> None:
        """Keep every module of class ``m`` as a single call from now on.

        Args:
            m: this very class; subclasses are classes of their own.
        """
        layer_classes.register_leaf(m)

    @classmethod
    def unregister_leaf(cls, m: type[torch.nn.Module]) -> None:
        """Trace into modules of class ``m`` again.

        Args:
            m: the class, as it was registered.

        Raises:
            UnknownNameError: the class was not registered.
        """
        layer_classes.unregister_leaf(m)

    @classmethod
    def is_registered_leaf(cls, m: torch.nn.Module | type[torch.nn.Module]) -> bool:
        """Whether this class, or the class of this module, was registered as a leaf.

        Args:
            m: a class or a module.

        Returns:
            False also for layers of ``torch.nn``, which are leaves without being registered.
        """
        return layer_classes.is_registered_leaf(type(m) if isinstance(m, torch.nn.Module) else m)

    def is_leaf_module(self, m: torch.nn.Module, module_qualified_name: str) -> bool:
        """Whether ``m`` stays one call: a layer of ``torch.nn``, a scripted, registered or failed module.

        Args:
            m: the module.
            module_qualified_name: its name, which ``torch.fx`` gives and nothing depends on.

        Returns:
            False for what is traced through.
        """
        return (
            self.is_registered_leaf(m)
            or (layer_classes.is_layer_class(type(m)) and not isinstance(m, torch.nn.Sequential))
            or isinstance(m, torch.jit.ScriptModule)
            or (self.is_failed(m) and m is not self.root)
        )

    def is_failed(self, m: Target) -> bool:
        """Whether the code of ``m`` could not be traced.

        Args:
            m: a module or function.

        Returns:
            False also for what was never called.
        """
        return id(m) in self._failures

    def failure_msg(self, m: Target) -> str | None:
        """The error of a failed module, in one line.

        Args:
            m: a module or function.

        Returns:
            E.g. ``"TypeError: ..."``; None if it did not fail.
        """
        found = self._failures.get(id(m))
        return found[1] if found else None

    @property
    def _tracer_failed(self) -> dict[int, str]:
        """The messages of all failed modules by ``id``: what analysers written for ModelOpt's tracer read."""
        return {key: message for key, (_, message) in self._failures.items()}

    def is_unvisited(self, m: Target) -> bool:
        """Whether ``m`` was never called while tracing.

        Args:
            m: a module or function.

        Returns:
            False also for what was called and failed.
        """
        return id(m) not in self._visited

    def record_call_module(self, m: Target, e: Exception | None = None) -> None:
        """Note that ``m`` was called, and with ``e`` that its code could not be traced.

        Args:
            m: what was called.
            e: why it could not be traced; None if it could.
        """
        self._visited[id(m)] = m
        if e is not None:
            self._failures[id(m)] = (m, f"{type(e).__name__}: {e}")

    def trace(
        self,
        root: Target,
        concrete_args: dict[str, Any] | None = None,
        *,
        inputs: Any = None,
        runs: SampleRuns | None = None,
        prefix: str = "",
    ) -> fx.Graph:
        """The graph of ``root``; empty if its own forward failed (see :meth:`is_failed`).

        Args:
            root: a module or a function.
            concrete_args: values by parameter name, for symbolic tracing: only tensors become proxies.
            inputs: sample inputs; tracing then follows values. Sizes that differ between samples stay symbolic.
            runs: what submodules do on the samples, if something fails; by default ``root`` runs to find out.
            prefix: name of ``root`` within the model that runs.

        Returns:
            The graph, which belongs to this tracer.
        """
        check_traced("root", root)
        check_text("prefix", prefix, "encoder")
        self.root = root
        concrete_args = known_names(root, concrete_args)
        with tracing(with_dynamo=inputs is not None):
            result = self._traced(root, concrete_args, inputs, runs, prefix)
        self._note(root, result, prefix)
        self.result, self.graph = result, result.graph
        return result.graph

    def _traced(
        self, root: Target, concrete_args: dict[str, Any] | None, inputs: Any, runs: SampleRuns | None, prefix: str
    ) -> TraceResult:
        """Trace a twin, because forward may change what other threads see of ``root``."""
        twin = Twin(root if self._makes_twin else ())

        def is_leaf(module: torch.nn.Module, name: str) -> bool:
            return self.is_leaf_module(twin.original(module), name)

        if inputs is None:
            result = trace_symbolically(twin.of(root), concrete_args, is_leaf=is_leaf, keep=not self._makes_twin)
        else:
            samples = alike_samples(root, inputs) if not _are_samples(inputs) else list(inputs)
            runs = runs or SampleRuns(root, samples)
            result = trace_values(twin.of(root), samples, is_leaf=is_leaf, runs=runs, prefix=prefix)
        result.constants = {name: twin.original(value) for name, value in result.constants.items()}
        return result

    def _note(self, root: Target, result: TraceResult, prefix: str) -> None:
        modules = dict(root.named_modules()) if isinstance(root, torch.nn.Module) else {}
        for visit in result.visits if result.error is None else [v for v in result.visits if v.error]:
            full = ".".join(part for part in (prefix, visit.fqn) if part)
            if visit.fqn or visit.error is None:
                self._record(modules.get(visit.fqn, root), full, visit.error)
        if result.error is not None or not any(visit.fqn == "" for visit in result.visits):
            self._record(root, prefix, result.error)

    def _record(self, m: Target, fqn: str, error: Exception | None) -> None:
        self.record_call_module(m, error)
        self.counts[fqn] = self.counts.get(fqn, 0) + 1
        if error is not None:
            module = m if isinstance(m, torch.nn.Module) else None
            name = type(m).__name__ if module is not None else getattr(m, "__name__", type(m).__name__)
            self.failures[fqn] = describe_failure(error, fqn=fqn, module_type=name, module=module)


def _are_samples(inputs: Any) -> bool:
    return isinstance(inputs, list) and bool(inputs) and all(isinstance(sample, Sample) for sample in inputs)
