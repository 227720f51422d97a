"""The first stage of a compile: capture the model, or reuse an earlier capture."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from prepbench.capture.aten.attempts import NoGraphError
from prepbench.capture.aten.capture import FullGraphError, capture
from prepbench.capture.aten.captured import Captured
from prepbench.capture.aten.variants import sizes_may_decide
from prepbench.capture.sizes.dynamic_axes import DynamicAxes
from prepbench.compile.kept_stages import CaptureKey, Captures, KeptCapture, capture_key
from prepbench.compile.task import CompileTask
from prepbench.document.model import Failure
from prepbench.inputs import Sample
from prepbench.objects.digest import StateDigest
from prepbench.running.check_inputs import on_device_of
from prepbench.running.twin import Twin


@dataclass(frozen=True)
class Wanted:
    """A model, and the options of its capture.

    Attributes:
        called: the user's model or function, and the ``forward_fn`` around it.
        state: what these were before the twin was made; None where nothing is kept.
        twin: of what they call together.
        samples: the samples that are traced.
        axes: which dims are dynamic.
        leaves: names of the modules to keep as leaf modules.
        fullgraph: whether modules that cannot be captured are an error.
        is_plan: whether the graph is only looked at, so that leaves are allowed, but not in its place.
        own_weights: whether the program gets copies of the weights.
        keeps_mode: whether the model is captured in the mode that it is in.
        variants: how many graphs there may be.
    """

    called: tuple[Any, ...]
    state: StateDigest | None
    twin: Twin
    samples: Sequence[Sample]
    axes: DynamicAxes
    leaves: tuple[str, ...]
    fullgraph: bool
    is_plan: bool
    own_weights: bool
    keeps_mode: bool
    variants: int = 1

    @property
    def one_graph(self) -> bool:
        """Whether leaves that the user did not choose are an error."""
        return self.fullgraph and not self.is_plan


@dataclass(frozen=True)
class CaptureStage:
    """The result of the stage.

    Attributes:
        task: the capture, to compile in float; or why the whole model would be one leaf module.
        kept: what earlier compiles made of the same capture; None where nothing is kept.
        is_reused: whether the model was captured by an earlier compile.
        checked: around the stages behind this one, see :meth:`Captures.checked`.
    """

    task: CompileTask | Failure
    kept: KeptCapture | None = None
    is_reused: bool = False
    checked: Callable[[Sequence[Sample]], AbstractContextManager[None]] = lambda _: contextlib.nullcontext()


def captured_or_reused(
    wanted: Wanted, captures: Captures | None, first_task: Callable[..., CompileTask]
) -> CaptureStage:
    """Capture a model, or reuse the capture of an earlier compile with the same dependencies.

    Args:
        wanted: the model, and how it is to be captured.
        captures: what earlier compiles found.
        first_task: makes a task of the model's twin, its capture, and ``own_weights``.
    """
    key = _key(wanted)
    kept = None if captures is None or key is None else captures.find(key)
    is_reused = kept is not None
    if kept is not None:
        samples = tuple(on_device_of(kept.task.captured.model, wanted.samples))
        task = replace(kept.task, captured=replace(kept.task.captured, samples=samples))
    else:
        captured = _captured(wanted)
        if isinstance(captured, Failure):
            return CaptureStage(captured)
        for one in captured.variants or (captured,):
            wanted.twin.give_back(one.program)
        task = first_task(wanted.twin.model, captured, own_weights=wanted.own_weights)
        if captures is not None and key is not None:
            kept = captures.keep(key, task)
    if captures is None or key is None or kept is None:
        return CaptureStage(task)
    return CaptureStage(task, kept, is_reused, lambda samples: captures.checked(key, wanted.called, samples))


def _key(wanted: Wanted) -> CaptureKey | None:
    # how many graphs there may be is none of them: what has several is not kept
    modes = (wanted.one_graph, wanted.own_weights, wanted.keeps_mode)
    choices = (wanted.axes.axes, wanted.leaves, *modes)
    return None if wanted.state is None else capture_key(wanted.state, wanted.samples, *choices)


def _captured(wanted: Wanted) -> Captured | Failure:
    """Return the graph; or the reason why the whole model would be one leaf module, if leaves are allowed."""
    variants = wanted.variants if wanted.fullgraph and not wanted.leaves else 1
    capture_it = partial(capture, wanted.twin.model, wanted.samples, dynamic_axes=wanted.axes)
    try:
        captured = capture_it(
            leaf_modules=wanted.leaves, fullgraph=wanted.one_graph, variants=variants if wanted.one_graph else 1
        )
        if variants > 1 and not wanted.one_graph and sizes_may_decide(captured.leaves):
            with contextlib.suppress(FullGraphError):  # the plan for several graphs
                captured = capture_it(variants=variants)
    except NoGraphError as error:
        if wanted.fullgraph or wanted.is_plan:
            raise
        return error.failure
    whole = next((leaf for leaf in captured.leaves if not leaf.fqn and leaf.lines is None), None)
    return captured if whole is None or wanted.fullgraph or wanted.is_plan else whole
