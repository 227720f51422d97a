"""Tracing for preparation: what stays whole, and what follows the training flag."""

from __future__ import annotations

import contextlib
import sys
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
from prepbench.prepare.modes import Modes, apply_modes, compare_modes, merge_modes
from prepbench.prepare.modules import Operator
from prepbench.prepare.steps import Step, record_steps
from prepbench.running.module_state import restored
from prepbench.running.patching import patched
from prepbench.running.source_lines import is_user_code, source_of_frame
from prepbench.running.unchanged import own_copy, unchanged

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


@dataclass
class Traced:
    """A model as one graph of calls, ready for the passes.

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


class _Tracer(RobustTracer):
    """Keeps excluded modules and prepared operations whole."""

    def __init__(self, whole: Callable[[torch.nn.Module], str]) -> None:
        super().__init__()
        self._whole = whole
        self.reasons: dict[str, str] = {}

    def is_leaf_module(self, m: torch.nn.Module, module_qualified_name: str) -> bool:
        if m is self.root:
            return False
        if isinstance(m, Operator):
            return True
        reason = self._whole(m)
        if reason:
            self.reasons[module_qualified_name] = reason
        return bool(reason) or super().is_leaf_module(m, module_qualified_name)


def trace(
    model: torch.nn.Module,
    samples: Sequence[Sample] | None,
    concrete_args: dict[str, Any] | None,
    modules_to_exclude: Sequence[torch.nn.Module],
    module_classes_to_exclude: Sequence[Any],
) -> Traced:
    """Trace ``model`` in its present mode, and again in the other one if its code asks for the mode.

    Raises:
        CaptureError: the model's own forward cannot be traced; the message says why and what to do.
    """
    excluded = {id(module) for module in modules_to_exclude}
    classes = tuple(module_classes_to_exclude)
    by_mode: dict[int, SourceLine | None] = {}

    def whole(module: torch.nn.Module) -> str:
        if id(module) in excluded:
            return "excluded by modules_to_exclude"
        if type(module) in classes:
            return f"excluded by module_classes_to_exclude ({type(module).__name__})"
        if id(module) in by_mode:
            return f"it computes other things in training than in evaluation ({place_text(by_mode[id(module)])})"
        if any(getattr(module, name, None) for name in _HOOKS):
            return "it has hooks, which run only when it is called"
        return ""

    def run() -> _Tracer:
        return _run(model, samples, concrete_args, whole)

    if samples is not None:
        return _with_samples(model, samples, whole, by_mode, run)
    while True:
        with _reads_of_training() as reads:
            tracer = run()
        traced = _result(model, tracer, with_inputs=False)
        if not reads:
            return traced
        other = _in_other_mode(model, run)
        place = merge_modes(traced.result.graph, other, model.training) if other is not None else _NO_NODE
        if place is None:
            return traced
        found = _parts_that_differ(model, reads, traced.result, other)
        if not found:
            traced.fixed_mode = place.meta.get("source") if place is not _NO_NODE else None
            traced.fixed_mode = traced.fixed_mode or next(iter(reads.values()))[1]
            return traced
        by_mode.update(found)


def _with_samples(
    model: torch.nn.Module,
    samples: Sequence[Sample],
    whole: Callable[[torch.nn.Module], str],
    by_mode: dict[int, SourceLine | None],
    run: Callable[[], _Tracer],
) -> Traced:
    """Trace in the present mode; two real runs tell what the other mode does differently."""
    while True:
        modes, reads = _modes_on(model, samples[-1], whole)
        places = {name: reads[id(part)][1] for name, part in model.named_modules() if id(part) in reads}
        small = [n for n in modes.differing if n and next(model.get_submodule(n).children(), None) is None]
        if not small:
            break
        # what comes after them is compared again, with these as single calls
        by_mode.update({id(model.get_submodule(name)): places.get(name) for name in small})
    tracer = run()
    traced = _result(model, tracer, with_inputs=True)
    fixed = modes.differing
    modes.settings = {key: found for key, found in modes.settings.items() if not _inside(key[0], traced)}
    if fixed or not apply_modes(traced.result.graph, modes):
        known = [places[name] for name in fixed if name in places]
        traced.fixed_mode = next((place for place in (*known, *places.values()) if place is not None), UNKNOWN_LINE)
    return traced


UNKNOWN_LINE = SourceLine("", 0, "code that depends on self.training")


def _inside(name: str, traced: Traced) -> bool:
    """Whether code of this module is part of a call that is not looked into."""
    return any(name == other or name.startswith(f"{other}.") for other in (*traced.whole, *traced.failures))


def _modes_on(
    model: torch.nn.Module, sample: Sample, whole: Callable[[torch.nn.Module], str]
) -> tuple[Modes, dict[int, tuple[torch.nn.Module, SourceLine | None]]]:
    """What the other mode does differently on one sample, and which modules ask for the mode."""
    leaf = _Tracer(whole).is_leaf_module
    with _reads_of_training() as reads:
        here = _steps(model, sample, leaf)
    if not reads or here is None:
        return Modes(), reads
    other = not model.training
    with restored(model):
        for module in model.modules():
            if not isinstance(module, torch.jit.ScriptModule):
                module.training = other
        there = _steps(model, sample, leaf)
    return Modes(differing=[""]) if there is None else compare_modes(here, there, model.training), reads


def _steps(model: torch.nn.Module, sample: Sample, leaf: Callable[[Any, str], bool]) -> list[Step] | None:
    """What the model calls on a sample; ``None`` if it raises, such as batch norm in training on one value."""
    found: list[Step] = []
    try:
        with torch.no_grad(), unchanged(model), _without_hooks(model):
            record_steps(model, own_copy(sample), leaf, lambda step: found.append(replace(step, result=None)))
    except Exception:  # the mode of the caller's own choice was run before
        return None
    return found


def _run(
    model: torch.nn.Module,
    samples: Sequence[Sample] | None,
    concrete_args: Any,
    whole: Callable[[Any], str],
) -> _Tracer:
    tracer = _Tracer(whole)
    with _without_hooks(model):
        tracer.trace(model, concrete_args, inputs=None if samples is None else list(samples))
    return tracer


def _result(model: torch.nn.Module, tracer: _Tracer, with_inputs: bool) -> Traced:
    assert tracer.result is not None
    result = tracer.result
    if result.error is not None:
        failure = tracer.failures.get("")
        text = f"{type(model).__name__} cannot be prepared, because its own forward cannot be traced"
        if failure is not None:
            where = f" at {failure.source.file}:{failure.source.line}: {failure.source.code}" if failure.source else ""
            text += f": {failure.kind}{where} ({failure.exception_type}: {failure.message}). {failure.remedy}"
        else:
            text += f": {result.error}."
        if not with_inputs:
            text += (
                " With sample inputs, prepare_model(model, inputs=[...]), branches on shapes and types, loops and "
                "**kwargs are followed."
            )
        raise CaptureError(text) from result.error
    return Traced(result, dict(tracer.reasons), {name: f for name, f in tracer.failures.items() if name})


@contextlib.contextmanager
def _without_hooks(model: torch.nn.Module) -> Iterator[None]:
    """The model's own hooks are off inside the block: they stay with the prepared model instead of in its graph."""
    kept = {name: vars(model)[name] for name in _HOOKS if name in vars(model)}
    vars(model).update({name: OrderedDict() for name in kept})
    try:
        yield
    finally:
        vars(model).update(kept)


# -- the training flag


class _WatchedFlag:
    """``Module.training`` as a property that notes when the user's code reads it."""

    def __init__(self) -> None:
        self.reads: dict[int, tuple[torch.nn.Module, SourceLine | None]] = {}

    def __get__(self, module: Any, owner: Any = None) -> Any:
        if module is None:
            return self
        frame = sys._getframe(1)
        if id(module) not in self.reads and is_user_code(frame.f_code):
            self.reads[id(module)] = module, source_of_frame(frame)
        own = vars(module)
        return own["training"] if "training" in own else type(module).__getattr__(module, "training")

    def __set__(self, module: Any, value: Any) -> None:
        vars(module)["training"] = value


@contextlib.contextmanager
def _reads_of_training() -> Iterator[dict[int, tuple[torch.nn.Module, SourceLine | None]]]:
    flag = _WatchedFlag()
    with patched(torch.nn.Module, "training", flag):
        yield flag.reads


def _in_other_mode(model: torch.nn.Module, run: Callable[[], _Tracer]) -> TraceResult | None:
    """The trace in the other mode; ``None`` if it fails there, e.g. on data-dependent layer drop."""
    other = not model.training
    with restored(model):
        for module in model.modules():
            if not isinstance(module, torch.jit.ScriptModule):
                module.training = other
        result = run().result
    return result if result is not None and result.error is None else None


_NO_NODE = fx.Graph().placeholder("none")


def _parts_that_differ(
    model: torch.nn.Module, reads: dict[int, Any], one: TraceResult, two: TraceResult | None
) -> dict[int, SourceLine | None]:
    """Small modules that read the flag and compute something else for it: those without submodules of their own."""
    names = {id(module): name for name, module in model.named_modules()}
    found = {}
    for module, place in reads.values():
        name = names.get(id(module))
        if not name or next(module.children(), None) is not None:
            continue
        if two is None or _operations(one, name) != _operations(two, name):
            found[id(module)] = place
    return found


def _operations(trace: TraceResult, name: str) -> list[tuple[str, Any]]:
    return [(node.op, node.target) for node in trace.graph.nodes if node.meta.get("fqn") == name]


def place_text(source: SourceLine | None) -> str:
    """A line of the user's for a message; its code only if the line is not known."""
    source = source or UNKNOWN_LINE
    return f"{source.file}:{source.line}: {source.code}" if source.line else source.code
