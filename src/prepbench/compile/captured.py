"""The first stages of a compile: capture the model or reuse an earlier capture, and prune it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial

from torch import nn

from prepbench.adapt.prune import Pruned, prune, resized
from prepbench.capture.aten.attempts import NoGraphError
from prepbench.capture.aten.capture import FullGraphError, captured_on
from prepbench.capture.aten.captured import Captured
from prepbench.capture.aten.variants import sizes_may_decide
from prepbench.capture.failures.findings import remark_of, remarks_on_state
from prepbench.capture.failures.surroundings import findings_of_time
from prepbench.capture.failures.tensor_conditions import ordered_keywords, tensor_conditions
from prepbench.capture.sizes.resizing import varied
from prepbench.compile.compile_log import StageTimer
from prepbench.compile.kept_stages import KeptCapture, capture_key
from prepbench.compile.request import CompileRequest
from prepbench.compile.samples import flat_samples, with_static_sizes_of_first
from prepbench.compile.task import CompileTask
from prepbench.document.model import Failure
from prepbench.errors import SettingsError
from prepbench.fixes.results import assumptions_of
from prepbench.generate.transformers_style import configuration_of
from prepbench.inputs import Sample
from prepbench.internal_errors import raise_if_internal
from prepbench.jobs import ProgressCallback
from prepbench.objects.copy import Twin
from prepbench.objects.digest import state_digest
from prepbench.package.report import megabytes
from prepbench.quantize import LayerReport
from prepbench.running.callable_module import as_module
from prepbench.running.check_inputs import on_device_of
from prepbench.running.tracing import tracing
from prepbench.running.unchanged import run
from prepbench.settings import PrunableLayer
from prepbench.settings.numbers import FLOAT32


@dataclass(frozen=True)
class CaptureStage:
    """The result of the stage.

    Attributes:
        task: the capture, to compile in float; or why the whole model would be one leaf module.
        model: the twin that was captured.
        kept: what earlier compiles made of the same capture; None where nothing is kept.
        is_reused: whether the model was captured by an earlier compile.
        checked: around the stages behind this one, see :meth:`Captures.checked`.
    """

    task: CompileTask | Failure
    model: nn.Module
    kept: KeptCapture | None = None
    is_reused: bool = False
    checked: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext


def captured_task(request: CompileRequest, progress: ProgressCallback) -> CaptureStage:
    """Capture a model, or reuse the capture of an earlier compile with the same dependencies.

    Everything that compiles, trains, prunes or simulates a model begins here.
    """
    request = request.read()
    assert request.dynamic_axes is not None
    captures = None if request.reuse is None else request.reuse.table
    roots = (request.model, request.forward_fn)
    with tracing(progress):
        state = None if captures is None else state_digest(*roots)
        twin = Twin(request.called)  # because other threads see the model's mode
        model = as_module(twin.model)
        if not request.skip_eval_set_mode:
            with contextlib.suppress(NotImplementedError):  # the mode of an exported program is part of its graph
                request.set_mode(model)
        samples = with_static_sizes_of_first(request.samples, request.dynamic_axes, request.called)
        changes = (*remarks_on_state(model, samples), *map(remark_of, findings_of_time(model, samples)))
        of_tensors = tensor_conditions(model, samples)
        # how many graphs there may be is no part of the key: a capture with several is not kept
        modes = (_one_graph(request), not request.discard_input_model, request.skip_eval_set_mode)
        key = (
            None
            if state is None
            else capture_key(state, samples, request.dynamic_axes.axes, request.leaf_modules, *modes)
        )
        kept = None if captures is None or key is None else captures.find(key)
        is_reused = kept is not None
        if kept is not None:
            of_model = tuple(on_device_of(kept.task.captured.model, samples))
            task = replace(kept.task, captured=replace(kept.task.captured, samples=of_model))
        else:
            made = _new_task(request, twin, samples)
            if isinstance(made, Failure):
                return CaptureStage(made, model)
            task = made
            if captures is not None and key is not None:
                kept = captures.keep(key, task)
    task = replace(
        task,
        target=request.target,
        settings=request.settings,
        options=request.options,
        name=request.name,
        calibration=request.calibration,
        is_pretrained=request.is_model_pretrained,
        fullgraph=request.fullgraph,
        data_transform_fn=request.data_transform_fn,
        configuration=configuration_of(request.named_after),
        call_spec=replace(task.call_spec, of_tensors=of_tensors, ordered=ordered_keywords(model, samples)),
        remarks=(*changes, *(f"a fix takes for granted that {text}" for text in assumptions_of(request.named_after))),
    )
    if captures is None or key is None or kept is None:
        return CaptureStage(task, model)
    checked = partial(captures.checked, key, roots, [*samples, *request.calibration])
    return CaptureStage(task, model, kept, is_reused, checked)


def _one_graph(request: CompileRequest) -> bool:
    """Return whether leaves that the user did not choose are an error; a dry run shows them."""
    return request.fullgraph and not request.is_dry_run


def _new_task(request: CompileRequest, twin: Twin, samples: Sequence[Sample]) -> CompileTask | Failure:
    captured = _captured(request, twin.model, samples)
    if isinstance(captured, Failure):
        return captured
    for one in captured.variants or (captured,):
        twin.give_back(one.program)
    of_target = (request.target, request.settings, request.options, request.name)
    return CompileTask.of(*of_target, twin.model, captured, own_weights=not request.discard_input_model)


def _captured(
    request: CompileRequest, function: Callable[..., object], samples: Sequence[Sample]
) -> Captured | Failure:
    """Return the graph; or the reason why the whole model would be one leaf module, if leaves are allowed."""
    assert request.dynamic_axes is not None
    one_graph = _one_graph(request)
    leaves = request.leaf_modules
    variants = request.variants if request.fullgraph and not leaves else 1
    capture_it = partial(captured_on, function, samples, request.dynamic_axes)
    try:
        captured = capture_it(leaf_modules=leaves, fullgraph=one_graph, variants=variants if one_graph else 1)
        if variants > 1 and not one_graph and sizes_may_decide(captured.leaves):
            with contextlib.suppress(FullGraphError):  # the plan for several graphs
                captured = capture_it(variants=variants)
    except NoGraphError as error:
        if request.fullgraph or request.is_dry_run:
            raise
        return error.failure
    whole = next((leaf for leaf in captured.leaves if not leaf.fqn and leaf.lines is None), None)
    return captured if whole is None or request.fullgraph or request.is_dry_run else whole


# The pruning stage of a compile, between capture and quantization.


def pruned_task(task: CompileTask, layers: Sequence[PrunableLayer], timer: StageTimer, *, is_plan: bool) -> CompileTask:
    """Return the task with a pruned program; arguments and errors as for :func:`pruned_program`."""
    made = with_pruned(task, pruned_program(task, layers, timer, is_plan=is_plan))
    return made if is_plan or task.layer_settings is None else replace(made, unpruned=task.program)


def pruned_program(task: CompileTask, layers: Sequence[PrunableLayer], timer: StageTimer, *, is_plan: bool) -> Pruned:
    """Return the program of a task, pruned.

    Raises:
        SettingsError: nothing would be pruned, or a part of the model is no graph.
        PreparationError: the smaller program does not compute what it should.
    """
    captured = task.captured
    if captured.leaves:
        names = ", ".join(leaf.part for leaf in captured.leaves[:3])
        raise SettingsError(
            f"pruning_settings need the whole model as one graph, because what runs in Python ({names}) keeps its own "
            "weights. Rewrite these lines (pb.fix), or leave pruning_settings out."
        )
    with timer("prune"), tracing(timer.progress):
        checked = [] if is_plan else _checked(task)
        return prune(task.program, layers, flat_samples(task.calibration, task.call_spec), checked)


def with_pruned(task: CompileTask, pruned: Pruned) -> CompileTask:
    """Return the task with another program, and a model that counts the remaining parameters."""
    return replace(
        task,
        program=pruned.program,
        captured=replace(task.captured, model=resized(task.captured.model, pruned.program)),
        pruned=pruned.layers,
        dense_bytes=task.float_bytes,
    )


def _checked(task: CompileTask) -> list[Sample]:
    """Return samples, and calls of sizes that no sample has, as far as the model takes them."""
    captured = task.captured
    found = list(captured.samples[:2])
    for sample in varied(captured.model, captured.samples, captured.axes):
        try:
            run(captured.model, sample, captured.model)
        except Exception as error:  # of the user's model: a size that it rejects proves nothing
            raise_if_internal(error)
            continue
        found.append(sample)
    return flat_samples(found, task.call_spec)


def size_remarks(task: CompileTask, rows: Sequence[LayerReport]) -> tuple[str, ...]:
    """Return remarks on the size that masks allow once zeros are left out."""
    masked = [row for row in task.pruned if row.zeros]
    if not masked:
        return ()
    bits = dict.fromkeys((row.fqn for row in masked), FLOAT32.bits) | {row.fqn: row.weights_bits for row in rows}
    stored = sum(row.left * bits[row.fqn] / 8 for row in masked)
    # a bit for each weight says whether it is there
    packed = sum((row.left - row.zeros) * bits[row.fqn] / 8 + row.left / 8 for row in masked)
    return (
        f"masks gain size only, because {task.target.display_name} multiplies by zeros like by other weights: the "
        f"masked layers take {megabytes(stored)}, and {megabytes(packed)} once zeros are left out",
    )
