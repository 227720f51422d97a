"""Capture at ATen level: one ``torch.export`` program, with leaves as operators for the rest."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from prepbench.capture.aten.attempts import Attempts
from prepbench.capture.aten.captured import Captured, Origin
from prepbench.capture.aten.export_program import transforming_modules
from prepbench.capture.aten.holds_where import HoldsWhere, holds_where, with_small_sizes_refused
from prepbench.capture.aten.leaf_operators import chosen_leaves
from prepbench.capture.aten.variants import captured_variants, sizes_may_decide
from prepbench.capture.failures.describe import WrongProgram, failure_line
from prepbench.capture.failures.reproduce import with_reproduction
from prepbench.capture.sizes.dynamic_axes import DynamicAxes, SizesDecide, axes_of, check_axes
from prepbench.checks import check_count, check_switches
from prepbench.document.model import Failure, alike_failures
from prepbench.errors import CaptureError, InputError, page_of
from prepbench.inputs import Sample, named_leaves
from prepbench.objects.code import ModelCode, with_newest_code
from prepbench.objects.compare import Outcome
from prepbench.objects.flatten import register_nodes
from prepbench.progress_bar import shows_progress
from prepbench.running import check_inputs
from prepbench.running.callable_module import as_module
from prepbench.running.first_calls import REMEDY, WrittenTensors, built_buffers, fill_caches_, filled_for_all
from prepbench.running.given_samples import with_tokenizer
from prepbench.running.tracing import tracing
from prepbench.running.transforms import chosen_transform
from prepbench.running.unchanged import NotedState, outcome


class FullGraphError(CaptureError):
    """Raised if the model is not one graph; ``failures`` has every reason that was found."""

    is_repaired_in_bench = True

    def __init__(self, message: str, failures: Sequence[Failure]) -> None:
        super().__init__(message)
        self.failures = tuple(failures)
        kinds = dict.fromkeys(failure.kind for failure in self.failures)
        self.__notes__ = [f"Documentation: {page_of(kind)}" for kind in kinds] or self.__notes__


@shows_progress("capture")
def capture(
    module_or_func: Callable[..., Any],
    inputs: Any,
    *,
    dynamic_axes: DynamicAxes | None = None,
    leaf_modules: Iterable[Any] = (),
    fullgraph: bool = True,
    strict: bool = False,
    variants: int = 1,
    tokenizer: Callable[..., Any] | None = None,
    transform: Callable[[Any], Any] | None = None,
) -> Captured:
    """Capture a model, function or bound method as one ATen graph that equals it on the inputs.

    ``torch.export`` is tried without and then with dynamo. The result is run on the samples before it is returned. The
    model, with all that it keeps in Python objects, and the random number generators are left as they were. Buffers
    that a first call builds are in the graph as calls on all inputs leave them.

    Args:
        module_or_func: the model to capture, in its present mode.
        inputs: sample inputs; sizes that differ between them become dynamic.
        dynamic_axes: the dynamic dims; inferred from the inputs when not given.
        leaf_modules: modules to keep as leaves, one operator each: names, module objects or classes.
        fullgraph: if true, what cannot be exported is an error. Otherwise it becomes a leaf, and the rest stays one
            graph: the fewest consecutive statements of a forward, or of a function that it calls, whose inputs and
            results a graph can hold; else the module. A condition on data is computed in the graph, and where a target
            rounds it otherwise than PyTorch, values at its threshold may take the other side.
        strict: use dynamo first.
        variants: how many graphs there may be where the sizes of the inputs take both sides of a branch, so that one
            graph would be wrong for some of them: :attr:`Captured.variants`.
        tokenizer: makes tensors of texts where samples are texts or lists of them, called as
            ``tokenizer(texts, return_tensors="pt", padding=True)``.
        transform: applied to each sample first, of a data set of torch or Hugging Face ``datasets`` or of any other
            form: makes of it what the model is called with, batch dimension and all.

    Returns:
        The graph with its axes, its assumptions and its leaves.

    Raises:
        InputError: the inputs do not fit the model or each other.
        FullGraphError: the model cannot be one graph; lists all reasons found.

    Example:
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 2), torch.nn.ReLU())
        >>> captured = capture(model, [torch.randn(1, 4), torch.randn(3, 4)])
        >>> captured.program.module()(torch.randn(7, 4)).shape
        torch.Size([7, 2])
    """
    check_inputs.check_traced("module_or_func", module_or_func)
    check_switches(fullgraph=fullgraph, strict=strict)
    check_axes(dynamic_axes)
    check_count("variants", variants, 1)
    model = as_module(module_or_func)
    function = model if isinstance(module_or_func, torch.jit.ScriptModule) else module_or_func
    prepared = with_tokenizer(tokenizer, chosen_transform(transform))
    samples = check_inputs.alike_samples(function, inputs, data_transform_fn=prepared)
    axes = axes_of(samples, function) if dynamic_axes is None else dynamic_axes
    chosen = list(leaf_modules) if isinstance(leaf_modules, Iterator) else leaf_modules
    code = ModelCode.of(module_or_func)
    captured = captured_on(
        module_or_func, samples, axes, leaf_modules=chosen, fullgraph=fullgraph, strict=strict, variants=variants
    )

    def again() -> Captured:
        return capture(
            with_newest_code(module_or_func),
            samples,
            dynamic_axes=axes,
            leaf_modules=chosen,
            fullgraph=fullgraph,
            strict=strict,
            variants=variants,
        )

    return replace(captured, origin=Origin(code, again))


def captured_on(
    module_or_func: Callable[..., Any],
    samples: Sequence[Sample],
    axes: DynamicAxes,
    *,
    leaf_modules: Iterable[Any] = (),
    fullgraph: bool = True,
    strict: bool = False,
    variants: int = 1,
) -> Captured:
    """Return :func:`capture` for normalised samples and known axes."""
    start = time.perf_counter()
    model = as_module(module_or_func)
    check_inputs.check_names(model)
    if isinstance(module_or_func, torch.jit.ScriptModule):
        module_or_func = model  # the module knows the names of the arguments
    samples = check_inputs.on_device_of(model, samples)
    register_nodes([(sample.args, sample.kwargs) for sample in samples])
    axes.check_paths(dict(named_leaves(module_or_func, samples[0])))
    chosen = chosen_leaves(model, leaf_modules)

    def captured(some: Sequence[Sample], of_some: DynamicAxes) -> Captured:
        with tracing():
            program, leaves, where = _captured(model, some, of_some, chosen, fullgraph=fullgraph, strict=strict)
        told = with_reproduction(leaves, model, samples)
        return Captured(program, model, tuple(some), of_some, told, time.perf_counter() - start, where)

    try:
        return captured(samples, axes)
    except FullGraphError as error:
        if variants == 1 or not sizes_may_decide(error.failures):
            raise
        try:
            found = captured_variants(captured, model, samples, axes, variants)
        except CaptureError as why:
            raise FullGraphError(f"{error} {_NO_VARIANTS} {why}", error.failures) from why
    seconds = time.perf_counter() - start
    if len(found) == 1:  # torch's guards made no difference
        return replace(found[0], seconds=seconds)
    return replace(found[0], samples=tuple(samples), axes=axes, seconds=seconds, variants=found)


_NO_VARIANTS = "Nor do several graphs make it up, which was tried because sizes decide:"


def _captured(
    model: torch.nn.Module,
    samples: Sequence[Sample],
    axes: DynamicAxes,
    chosen: dict[str, Failure],
    *,
    fullgraph: bool,
    strict: bool,
) -> tuple[torch.export.ExportedProgram, list[Failure], HoldsWhere]:
    """Capture a twin, because export puts other tensors into a module while it traces."""
    twin = check_inputs.twin_with_own_writes(model, samples[0])
    noted, written = NotedState(twin.model), WrittenTensors(twin.model)
    with transforming_modules(twin.model) as deriving:
        expected = [_expected(twin.model, sample, noted, samples) for sample in samples]
    before = dict(twin.model.named_buffers())
    builds = any(built_buffers(before, found.buffers) for found in expected) and fill_caches_(twin.model, samples)
    if written.become_buffers_(samples[0]) or builds:
        noted = NotedState(twin.model)
        expected = [_expected(twin.model, sample, noted, samples) for sample in samples]
    check_inputs.warn_of_fast_path(model, samples[0], expected[0].output)
    attempts = Attempts(twin.model, samples, axes, expected, chosen, deriving)
    program = attempts.full_graph(noted, strict) if not chosen else None
    leaves: list[Failure] = []
    if program is None:
        failures = attempts.find_failures() if fullgraph else []
        if failures:
            failures = list(with_reproduction(failures, model, samples))
            raise FullGraphError(_message(model, failures, samples), failures) from attempts.error
        program, leaves = attempts.with_leaves()
    where = holds_where(program, twin.model, samples, axes, noted)
    attempts.give_back(twin, program)
    return with_small_sizes_refused(program, where), leaves, where


def _message(model: torch.nn.Module, failures: Sequence[Failure], samples: Sequence[Sample]) -> str:
    lines = [f"{type(model).__name__} cannot be captured as one graph: {len(failures)} module(s) fail."]
    for failure in alike_failures(failures):
        lines.append(f"- {failure_line(failure)}")
        if failure.source is not None and failure.source.code:
            lines.append(f"    {failure.source.code}")
        lines += [f"    {failure.exception_type}: {failure.message.splitlines()[0]}", f"    {failure.remedy}"]
    if {failure.exception_type for failure in failures} & {SizesDecide.__name__, WrongProgram.__name__}:
        odd = [(sample.index, text) for sample in samples if (text := check_inputs.odd_sizes(model, samples, sample))]
        if len(odd) == 1:  # with several samples, any of them may be the right one
            lines.append(f"In inputs[{odd[0][0]}], {odd[0][1]} If that is not meant, fix that sample first.")
        if shared := filled_for_all(model, samples):
            lines.append(f"{shared} {REMEDY}")
    lines.append("Or capture with fullgraph=False, which keeps these lines, or their modules, as operators.")
    return "\n".join(lines)


def _expected(model: torch.nn.Module, sample: Sample, noted: NotedState, samples: Sequence[Sample]) -> Outcome:
    try:
        found = outcome(model, sample, model, noted)
    except InputError:
        raise
    except Exception as error:
        raise check_inputs.itself_raises(model, sample, error, samples) from error
    register_nodes(found.output)
    return found
