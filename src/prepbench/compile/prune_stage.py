"""The pruning stage of a compile, between capture and quantization."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from prepbench.adapt.prune import Pruned, prune, resized
from prepbench.capture.sizes.resizing import varied
from prepbench.compile.samples import flat_samples
from prepbench.compile.stage_timer import StageTimer
from prepbench.compile.task import CompileTask
from prepbench.errors import SettingsError
from prepbench.inputs import Sample
from prepbench.internal_errors import raise_if_internal
from prepbench.quantize import LayerReport
from prepbench.running.outcomes import run
from prepbench.running.tracing import tracing
from prepbench.settings import PrunableLayer


def pruned_task(task: CompileTask, layers: Sequence[PrunableLayer], timer: StageTimer, *, is_plan: bool) -> CompileTask:
    """Return the task with a pruned program; arguments and errors as for :func:`pruned_program`."""
    return with_pruned(task, pruned_program(task, layers, timer, is_plan=is_plan))


def pruned_program(task: CompileTask, layers: Sequence[PrunableLayer], timer: StageTimer, *, is_plan: bool) -> Pruned:
    """Return the program of a task, pruned.

    Args:
        task: what was captured.
        layers: what is decided for each layer.
        timer: of the stages.
        is_plan: whether nothing will run, so that nothing needs to be proven.

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
    bits = {row.fqn: row.weights_bits for row in rows}
    stored = sum(row.left * bits.get(row.fqn, 32) / 8 for row in masked)
    # a bit for each weight says whether it is there
    packed = sum((row.left - row.zeros) * bits.get(row.fqn, 32) / 8 + row.left / 8 for row in masked)
    return (
        f"masks gain size only, because {task.target.display_name} multiplies by zeros like by other weights: the "
        f"masked layers take {stored / 1e6:.2f} MB, and {packed / 1e6:.2f} MB once zeros are left out",
    )
