"""The first stage of a compile: capture the model, or reuse an earlier capture."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial

from torch import nn

from prepbench.capture.aten.attempts import NoGraphError
from prepbench.capture.aten.capture import FullGraphError, captured_on
from prepbench.capture.aten.captured import Captured
from prepbench.capture.aten.variants import sizes_may_decide
from prepbench.compile.arguments import CompileRequest
from prepbench.compile.configuration import configuration_of
from prepbench.compile.kept_stages import KeptCapture, capture_key
from prepbench.compile.samples import with_static_sizes_of_first
from prepbench.compile.task import CompileTask
from prepbench.document.model import Failure
from prepbench.fixes.results import assumptions_of
from prepbench.inputs import Sample
from prepbench.jobs import ProgressCallback
from prepbench.objects.digest import state_digest
from prepbench.running.callable_module import as_module
from prepbench.running.check_inputs import on_device_of
from prepbench.running.tracing import tracing
from prepbench.running.twin import Twin


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

    Args:
        request: the model, its samples, and how to compile it.
        progress: told when this thread has to wait for another one that traces.
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
        remarks=tuple(f"a fix takes for granted that {text}" for text in assumptions_of(request.named_after)),
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
