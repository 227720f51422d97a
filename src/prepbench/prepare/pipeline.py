"""``prepare_model``: trace, pass after pass, compare with the original, report."""

from __future__ import annotations

import copy
import gc
import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch

from prepbench.capture.modules.assumptions import SizeCheck, granted, readable
from prepbench.document.model import SourceLine
from prepbench.errors import CaptureError, PreparationError
from prepbench.inputs import Sample
from prepbench.objects.copy import Twin
from prepbench.prepare.kept import kept_operations
from prepbench.prepare.model import PreparedModel, names_taken
from prepbench.prepare.modules import Operator
from prepbench.prepare.passes.complete_signature import FixedNumbers, complete_signature_
from prepbench.prepare.passes.operations_to_modules import operations_to_modules_, unroll_reused_
from prepbench.prepare.report import Change, Compared, Kept, PreparationReport
from prepbench.prepare.trace import UNKNOWN_LINE, Traced, place_text, trace
from prepbench.prepare.validate import check_arguments, check_run
from prepbench.prepare.verify import (
    compare_in_other_mode,
    compare_on,
    fixed_sizes,
    unequal_sizes,
    verify,
    with_other_batch,
)
from prepbench.progress_bar import shows_progress
from prepbench.running.check_inputs import checked_samples, known_names
from prepbench.running.given_samples import normalize_samples
from prepbench.running.tracing import tracing
from prepbench.running.unchanged import without_output

Pass = Callable[[PreparedModel], Sequence[Change]]


@shows_progress("prepare")
def prepare_model(
    model: torch.nn.Module,
    modules_to_exclude: Sequence[torch.nn.Module] | None = None,
    module_classes_to_exclude: Sequence[type[torch.nn.Module]] | None = None,
    concrete_args: dict[str, Any] | None = None,
    *,
    inputs: Any = None,
    extra_passes: Sequence[Pass] = (),
) -> PreparedModel:
    """Return an equivalent of ``model`` in which each operation is a module of its own.

    Functions, ``Tensor`` methods and operators become modules that keep every argument. A module that is called several
    times becomes one module for each call. Layers, parameters and their names stay. ``model`` itself is not changed,
    but shares parameters and buffers with the result: training one trains the other, and a call that changes a buffer
    changes it for both. ``copy.deepcopy(model)`` keeps them apart.

    Args:
        model: prepared for the mode it is in. What depends on ``self.training``, such as dropout, still does.
        modules_to_exclude: submodules that stay single calls.
        module_classes_to_exclude: classes whose instances stay single calls.
        concrete_args: values by parameter name that become part of the graph, which decides branches on them.
        inputs: sample inputs. With them, all Python code except decisions on tensor data can be traced, sizes that
            differ between samples stay dynamic, and the result is compared with the original.
        extra_passes: further passes, such as :func:`prepbench.prepare.fold_batch_norm_`, in order.

    Returns:
        A graph module with ``.preparation_report``.

    Raises:
        CaptureError: the model's own forward cannot be traced, or the model raises on a sample.
        InputError: a sample does not fit, or an excluded module is not part of the model.
        PreparationError: the result differs from the original; the message names the first node that does.

    Example:
        >>> class Residual(torch.nn.Module):
        ...     def forward(self, x):
        ...         return x + torch.nn.functional.elu(x, 0.5)
        >>> prepare_model(Residual())
        Residual(
          (module_elu): ELU(alpha=0.5)
          (module_add): Add()
        )
    """
    check_arguments(model, modules_to_exclude, module_classes_to_exclude, extra_passes)
    concrete_args = known_names(model, concrete_args)
    with _collector_paused(), tracing(with_dynamo=inputs is not None):
        return _prepared(
            model, modules_to_exclude or (), module_classes_to_exclude or (), concrete_args, inputs, extra_passes
        )


def _prepared(
    model: torch.nn.Module, modules: Any, classes: Any, concrete_args: Any, inputs: Any, extra_passes: Sequence[Pass]
) -> PreparedModel:
    twin = Twin(model)
    samples = None if inputs is None else _with_fixed(checked_samples(twin.model, inputs), concrete_args)
    shown, traced = _traced(twin.model, samples, concrete_args, [twin.of(module) for module in modules], classes)
    traced.result.constants = {name: twin.original(value) for name, value in traced.result.constants.items()}
    prepared = PreparedModel.of(model, traced.result)
    signature, fixed = inspect.signature(model.forward), _fixed(concrete_args, samples)
    changes = _run(prepared, [lambda prepared: complete_signature_(prepared, signature, fixed)])
    _add_size_check(prepared, traced)
    changes += _run(prepared, [operations_to_modules_, unroll_reused_, *extra_passes])
    prepared.recompile()
    kept = _kept(prepared, traced)
    compared = _compared(model, prepared, samples, shown, traced) if samples is not None else []
    if traced.fixed_mode is not None:
        prepared.add_check(FixedMode(prepared.training, traced.fixed_mode))
    if samples is not None and (numbers := FixedNumbers.of(prepared, samples[0])).values:
        prepared.add_check(numbers)
    prepared.strip()
    prepared.preparation_report = PreparationReport(
        prepared.original_type.__name__, tuple(changes), kept, tuple(compared), _notes(model, traced)
    )
    return prepared


def _compared(
    model: torch.nn.Module, prepared: PreparedModel, samples: list[Sample], shown: list[Sample], traced: Traced
) -> list[Compared]:
    """Compare twins, because both modes run; the result refuses modes and sizes for which it is wrong."""
    model, twin = Twin((model, prepared)).model
    compared = list(verify(model, twin, samples, shown))
    if traced.fixed_mode is None:
        found, wrong = compare_in_other_mode(model, twin, shown[-1])
        compared.append(found)
        traced.fixed_mode = UNKNOWN_LINE if wrong else None
    sizes = fixed_sizes(model, twin, samples[0], shown)
    if sizes is not None:
        prepared.add_check(sizes)
        compared += [Compared(name, note=f"for {size} only") for _, _, size, name, _ in sizes.places]
    unequal = unequal_sizes(model, twin, shown, traced.result)
    if unequal is not None:
        prepared.add_check(unequal)
        compared += [Compared(name, note=f"refuses {size}, where it differs") for _, _, size, name, _ in unequal.places]
    return compared


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Pause garbage collection in the block: it would walk the many small objects of a graph repeatedly."""
    running = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if running:
            gc.enable()


def _traced(
    model: torch.nn.Module, samples: list[Sample] | None, concrete_args: Any, modules: Any, classes: Any
) -> tuple[list[Sample], Traced]:
    """Return the samples that were traced, if possible with one of another batch size, and the trace."""
    with without_output():
        if samples is None:
            return [], trace(model, None, concrete_args, modules, classes)
        more = with_other_batch(model, samples)
        if len(more) > len(samples):
            try:
                traced = trace(model, more, concrete_args, modules, classes)
            except CaptureError:
                traced = None
            if traced is not None and not traced.result.contradicted and not traced.failures:
                return more, traced
        return samples, trace(model, samples, concrete_args, modules, classes)


def run_passes(prepared: PreparedModel, passes: Sequence[Pass], *, inputs: Any = None) -> PreparedModel:
    """Return a copy of a prepared model with further passes applied, each followed by a check of the graph.

    Args:
        prepared: the result of :func:`prepare_model`; not changed.
        passes: for example ``[fold_batch_norm_, equalize_]``.
        inputs: sample inputs on which the result is compared with ``prepared``.

    Raises:
        PreparationError: the results differ, or a pass cannot be applied.
    """
    check_run(prepared, passes)
    made = copy.copy(prepared)
    changes = _run(made, passes)
    made.recompile()
    compared = [] if inputs is None else compare_on(prepared, made, normalize_samples(prepared, inputs))
    report = prepared.preparation_report
    made.preparation_report = replace(report, changes=(*report.changes, *changes), compared=tuple(compared))
    return made


def _run(prepared: PreparedModel, passes: Sequence[Pass]) -> list[Change]:
    changes: list[Change] = []
    for one in passes:
        changes += one(prepared)
        prepared.graph.lint()
    return changes


def _with_fixed(samples: list[Sample], concrete_args: dict[str, Any] | None) -> list[Sample]:
    """Return the samples with the values of ``concrete_args`` that they leave out."""
    fixed = concrete_args or {}
    return [replace(sample, kwargs={**fixed, **sample.kwargs}) for sample in samples] if fixed else samples


def _fixed(concrete_args: dict[str, Any] | None, samples: list[Sample] | None) -> dict[str, Any]:
    if samples is not None:
        return {}
    return {name: value for name, value in (concrete_args or {}).items() if not isinstance(value, torch.Tensor)}


def _add_size_check(prepared: PreparedModel, traced: Traced) -> None:
    size_check = SizeCheck.of(replace(traced.result, graph=prepared.graph)) if traced.result.assumptions else None
    if size_check is not None:
        prepared.add_check(size_check)


def _kept(prepared: PreparedModel, traced: Traced) -> tuple[Kept, ...]:
    found = kept_operations(prepared)
    for node in prepared.graph.nodes:
        if node.op != "call_module":
            continue
        name, target = (node.meta.get("origin") or ("",))[0], str(node.target)
        module = type(prepared.get_submodule(target)).__name__
        why = traced.whole.get(name, "")
        if name in traced.failures:
            failure = traced.failures[name]
            place = f" at {failure.source.file}:{failure.source.line}: {failure.source.code}" if failure.source else ""
            why = f"its code cannot be traced: {failure.kind}{place}"
        if why and not isinstance(prepared.get_submodule(target), Operator):
            found.append(Kept(node.name, target, module, why, node.meta.get("source")))
    return tuple(found)


def _notes(model: torch.nn.Module, traced: Traced) -> tuple[str, ...]:
    notes = [f"assumes {line}" for line in readable(traced.result)]
    notes += [
        f"takes for granted that {found.text}, as in all samples ({place_text(found.source)})"
        for found in granted(traced.result)
    ]
    if traced.fixed_mode is not None:
        mode = "training" if model.training else "evaluation"
        place = place_text(traced.fixed_mode)
        notes.append(f"prepared for {mode} only: the model runs other code in the other mode ({place})")
    notes += [f"the attribute {name!r} of the model is not kept: graph modules use it" for name in names_taken(model)]
    return tuple(notes)


# The check for a model that was prepared for one mode only.


class FixedMode:
    """Refuses to run a model in the mode that it was not prepared for, because the original runs other code there."""

    def __init__(self, training: bool, source: SourceLine) -> None:
        self.training, self.source = training, source

    def __call__(self, model: PreparedModel, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Check one call.

        Raises:
            PreparationError: the model is in the other mode.
        """
        if model.training != self.training:
            ours, other = ("train()", "eval()") if self.training else ("eval()", "train()")
            raise PreparationError(
                f"This {model.original_type.__name__} was prepared in {ours} mode and is in {other} mode, in which the "
                f"original runs other code ({place_text(self.source)}). Prepare it "
                f"again after model.{other}, or exclude the module with that line."
            )
