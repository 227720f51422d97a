"""Trace for preparation: in the model's mode, with the differences of the other mode."""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import fx

from prepbench.capture.modules.trace_result import TraceResult
from prepbench.capture.modules.tracer import RobustTracer
from prepbench.document.model import Failure, SourceLine
from prepbench.errors import CaptureError
from prepbench.inputs import Sample
from prepbench.internal_errors import raise_if_internal
from prepbench.objects.parts import is_user_code
from prepbench.objects.restore import restored
from prepbench.patching import patched, undoing
from prepbench.prepare.modules import Operator
from prepbench.prepare.steps import Modes, Step, apply_modes, compare_modes, merge_modes, record_steps
from prepbench.running.source_lines import source_of_frame
from prepbench.running.unchanged import own_copy, unchanged


@dataclass
class Traced:
    """A model as one graph of calls, the input of the passes.

    Attributes:
        result: the graph, with what it needs to run.
        whole: why a module of the user's is a single call, by fully qualified name.
        failures: why a module could not be traced, by fully qualified name.
        fixed_mode: the user's line that computes other things in training than in evaluation, if the graph is that of
            one mode only.
    """

    result: TraceResult
    whole: dict[str, str] = field(default_factory=dict)
    failures: dict[str, Failure] = field(default_factory=dict)
    fixed_mode: SourceLine | None = None


def trace(
    model: torch.nn.Module,
    samples: Sequence[Sample] | None,
    concrete_args: dict[str, Any] | None,
    modules_to_exclude: Sequence[torch.nn.Module],
    module_classes_to_exclude: Sequence[Any],
) -> Traced:
    """Trace ``model`` in its present mode; settings that differ in the other mode follow the mode.

    Raises:
        CaptureError: the model's own forward cannot be traced; the message says why and what to do.
    """
    whole = WholeModules(modules_to_exclude, module_classes_to_exclude)

    def run() -> PreparationTracer:
        tracer = PreparationTracer(whole)
        with without_hooks(model):
            tracer.trace(model, concrete_args, inputs=None if samples is None else list(samples))
        return tracer

    if samples is None:
        return _traced_symbolically(model, whole, run)
    return _traced_by_value(model, samples, whole, run)


def _result(model: torch.nn.Module, tracer: PreparationTracer, remedy: str = "") -> Traced:
    assert tracer.result is not None
    result = tracer.result
    if result.error is None:
        return Traced(result, dict(tracer.reasons), {name: f for name, f in tracer.failures.items() if name})
    text = f"{type(model).__name__} cannot be prepared, because its own forward cannot be traced"
    failure = tracer.failures.get("")
    if failure is None:
        text += f": {result.error}."
    else:
        where = f" at {failure.source.file}:{failure.source.line}: {failure.source.code}" if failure.source else ""
        text += f": {failure.kind}{where} ({failure.exception_type}: {failure.message}). {failure.remedy}"
    raise CaptureError(text + remedy) from result.error


# -- with samples


def _traced_by_value(
    model: torch.nn.Module, samples: Sequence[Sample], whole: WholeModules, run: Callable[[], PreparationTracer]
) -> Traced:
    """Trace by value in the present mode; two real runs show the differences of the other mode."""
    while True:
        modes, reads = _modes_on(model, samples[-1], whole)
        lines = {name: reads[id(part)][1] for name, part in model.named_modules() if id(part) in reads}
        small = [name for name in modes.differing if name and _has_no_children(model.get_submodule(name))]
        if not small:
            break
        # the steps after them are compared again, with these as single calls
        whole.by_mode.update({id(model.get_submodule(name)): lines.get(name) for name in small})
    traced = _result(model, run())
    modes.settings = {key: found for key, found in modes.settings.items() if not _inside(key[0], traced)}
    if modes.differing or not apply_modes(traced.result.graph, modes):
        known = [lines[name] for name in modes.differing if name in lines]
        traced.fixed_mode = next((line for line in (*known, *lines.values()) if line is not None), UNKNOWN_LINE)
    return traced


def _has_no_children(module: torch.nn.Module) -> bool:
    return next(module.children(), None) is None


def _inside(name: str, traced: Traced) -> bool:
    """Return whether code of this module is part of a single call."""
    return any(name == other or name.startswith(f"{other}.") for other in (*traced.whole, *traced.failures))


def _modes_on(model: torch.nn.Module, sample: Sample, whole: WholeModules) -> tuple[Modes, Reads]:
    """Return the differences of the other mode on one sample, and the modules that read the mode."""
    is_leaf = PreparationTracer(whole).is_leaf_module
    with reads_of_training() as reads:
        here = _steps(model, sample, is_leaf)
    if not reads or here is None:
        return Modes(), reads
    with restored(model), in_other_mode(model):
        there = _steps(model, sample, is_leaf)
    return Modes(differing=[""]) if there is None else compare_modes(here, there, model.training), reads


def _steps(model: torch.nn.Module, sample: Sample, is_leaf: Callable[[Any, str], bool]) -> list[Step] | None:
    """Return the calls of a model on a sample; ``None`` if it raises, such as batch norm in training on one value."""
    found: list[Step] = []
    try:
        with torch.no_grad(), unchanged(model), without_hooks(model):
            record_steps(model, own_copy(sample), is_leaf, lambda step: found.append(replace(step, result=None)))
    except Exception as error:  # the mode of the caller's own choice was run before
        raise_if_internal(error)
        return None
    return found


# -- without samples


_USE_SAMPLES = (
    " With sample inputs, prepare_model(model, inputs=[...]), branches on shapes and types, loops and **kwargs are "
    "followed."
)
_NO_NODE = fx.Graph().placeholder("none")


def _traced_symbolically(model: torch.nn.Module, whole: WholeModules, run: Callable[[], PreparationTracer]) -> Traced:
    """Trace symbolically in the present mode, and again in the other one if the model's code reads the mode."""
    while True:
        with reads_of_training() as reads:
            tracer = run()
        traced = _result(model, tracer, _USE_SAMPLES)
        if not reads:
            return traced
        other = _trace_in_other_mode(model, run)
        differs = _NO_NODE if other is None else merge_modes(traced.result.graph, other, model.training)
        if differs is None:
            return traced
        found = _parts_that_differ(model, reads, traced.result, other)
        if not found:
            traced.fixed_mode = differs.meta.get("source") or next(iter(reads.values()))[1]
            return traced
        whole.by_mode.update(found)


def _trace_in_other_mode(model: torch.nn.Module, run: Callable[[], PreparationTracer]) -> TraceResult | None:
    """Return the trace in the other mode; ``None`` if it fails there, e.g. because layers are dropped at random."""
    with restored(model), in_other_mode(model):
        result = run().result
    return result if result is not None and result.error is None else None


def _parts_that_differ(
    model: torch.nn.Module, reads: Reads, one: TraceResult, two: TraceResult | None
) -> dict[int, SourceLine | None]:
    """Return modules without submodules that read the flag and compute something else for it."""
    names = {id(module): name for name, module in model.named_modules()}
    found = {}
    for module, line in reads.values():
        name = names.get(id(module))
        if not name or not _has_no_children(module):
            continue
        if two is None or _operations(one, name) != _operations(two, name):
            found[id(module)] = line
    return found


def _operations(trace: TraceResult, name: str) -> list[tuple[str, Any]]:
    return [(node.op, node.target) for node in trace.graph.nodes if node.meta.get("fqn") == name]


# Modules that stay single calls in a prepared model, and why.


_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


class WholeModules:
    """The user's modules that stay single calls.

    Attributes:
        by_mode: modules that compute other things in training than in evaluation, by ``id``, with the line that does.
    """

    def __init__(self, modules: Sequence[torch.nn.Module], classes: Sequence[Any]) -> None:
        self._excluded = {id(module) for module in modules}
        self._classes = tuple(classes)
        self.by_mode: dict[int, SourceLine | None] = {}

    def reason(self, module: torch.nn.Module) -> str:
        """Return why this module stays a single call; "" if its code is traced."""
        if id(module) in self._excluded:
            return "excluded by modules_to_exclude"
        if type(module) in self._classes:
            return f"excluded by module_classes_to_exclude ({type(module).__name__})"
        if id(module) in self.by_mode:
            return f"it computes other things in training than in evaluation ({place_text(self.by_mode[id(module)])})"
        if any(getattr(module, name, None) for name in _HOOKS):
            return "it has hooks, which run only when it is called"
        return ""


class PreparationTracer(RobustTracer):
    """A tracer for which whole modules and prepared operations are leaves."""

    _makes_twin = False

    def __init__(self, whole: WholeModules) -> None:
        super().__init__()
        self._whole = whole
        self.reasons: dict[str, str] = {}

    def is_leaf_module(self, m: torch.nn.Module, module_qualified_name: str) -> bool:
        if m is self.root:
            return False
        if isinstance(m, Operator):
            return True
        reason = self._whole.reason(m)
        if reason:
            self.reasons[module_qualified_name] = reason
        return bool(reason) or super().is_leaf_module(m, module_qualified_name)


@contextlib.contextmanager
def without_hooks(model: torch.nn.Module) -> Iterator[None]:
    """Disable the model's own hooks during the block: they stay with the prepared model instead of in its graph."""
    with contextlib.ExitStack() as stack:
        for name in _HOOKS:
            if name in vars(model):
                stack.enter_context(patched(model, name, OrderedDict()))
        yield


# ``Module.training``: record its readers, and run a model in the other mode.


Reads = dict[int, tuple[torch.nn.Module, SourceLine | None]]
"""The modules whose flag the user's code reads, with the line that does; by ``id``."""

UNKNOWN_LINE = SourceLine("", 0, "code that depends on self.training")


class _WatchedFlag:
    """``Module.training`` as a property that records reads by the user's code."""

    def __init__(self) -> None:
        self.reads: Reads = {}
        self._here = threading.get_ident()

    def __get__(self, module: Any, owner: Any = None) -> Any:
        if module is None:
            return self
        frame = sys._getframe(1)
        here = threading.get_ident() == self._here
        if here and id(module) not in self.reads and is_user_code(frame.f_code):
            self.reads[id(module)] = module, source_of_frame(frame)
        own = vars(module)
        return own["training"] if "training" in own else type(module).__getattr__(module, "training")

    def __set__(self, module: Any, value: Any) -> None:
        vars(module)["training"] = value


@contextlib.contextmanager
def reads_of_training() -> Iterator[Reads]:
    """Record the readers of ``training`` during the block."""
    flag = _WatchedFlag()
    with patched(torch.nn.Module, "training", flag):
        yield flag.reads


@contextlib.contextmanager
def in_other_mode(model: torch.nn.Module, *others: torch.nn.Module) -> Iterator[None]:
    """Put all modules into the mode that ``model`` is not in, without calling ``train()``, during the block."""
    modules = [part for root in (model, *others) for part in root.modules()]
    flags = [(part, part.training) for part in modules if not isinstance(part, torch.jit.ScriptModule)]
    other = not model.training
    with undoing() as undo:
        for part, flag in flags:
            undo.add(functools.partial(setattr, part, "training", flag))
            part.training = other
        yield


def place_text(source: SourceLine | None) -> str:
    """Return a user's line for a message; only its code if the line number is unknown."""
    source = source or UNKNOWN_LINE
    return f"{source.file}:{source.line}: {source.code}" if source.line else source.code
