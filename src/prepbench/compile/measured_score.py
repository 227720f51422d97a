"""How far a compiled model is from float: what its report says, measured with the lowered program itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from prepbench.calls.call_spec import CallSpec
from prepbench.compile.quantize_program import Quantized
from prepbench.compile.samples import flat_samples
from prepbench.compile.task import CompileTask
from prepbench.inputs import Sample
from prepbench.internal_errors import raise_if_internal
from prepbench.objects.copy import clones
from prepbench.quantize.floors import Score
from prepbench.quantize.layer_noise import chosen_samples, measured_rows
from prepbench.quantize.predictions import ScoreSum, score_of
from prepbench.targets import Runtime
from prepbench.targets.programs import is_repeatable


def measured_score(
    task: CompileTask, quantized: Quantized, runtime: Runtime, call_spec: CallSpec, program: Any
) -> tuple[Score | None, str]:
    """Return how far the lowered program is from float on the samples of the simulation, and which rows these are.

    The simulation's own score stands where the lowered program cannot be run on them, and the words say so: where a run
    would change the model's state or draw numbers, where others than outputs are judged, and where it refuses one of
    the samples.

    Args:
        task: whose calibration samples they are.
        quantized: the quantized program, and its results in float.
        runtime: the lowered program.
        call_spec: checks its calls, as those of the compiled model.
        program: what was lowered.
    """
    if quantized.score is None:
        return None, ""
    samples = flat_samples(task.calibration, task.call_spec)
    rows = measured_rows(samples)
    if quantized.in_float is not None and is_repeatable(program):
        try:
            return score_of(quantized.in_float, chosen_samples(samples), _runs(runtime, call_spec)), rows
        except Exception as error:  # a runtime's own, on sizes that no tracing input has
            raise_if_internal(error, of_libraries=True)
    return quantized.score, f"{rows}, in simulation"


def sqnr_from_unpruned(
    task: CompileTask, quantized: Quantized | None, runtime: Runtime, call_spec: CallSpec, program: Any
) -> float | None:
    """Return how far the lowered program is from the float model before pruning, in dB of the worst output.

    None where nothing was pruned or quantized, and where :func:`measured_score` does not run the lowered program.
    Arguments as there.
    """
    is_run = quantized is not None and quantized.in_float is not None and is_repeatable(program)
    if task.unpruned is None or not is_run:
        return None
    module, run = task.unpruned.module(check_guards=False), _runs(runtime, call_spec)
    total = ScoreSum()
    try:
        with torch.no_grad():
            for sample in chosen_samples(flat_samples(task.calibration, task.call_spec)):
                total.add(module(*clones(sample.args)), tuple(run(sample)))
    except Exception as error:  # as above
        raise_if_internal(error, of_libraries=True)
        return None
    return total.score.sqnr


def _runs(runtime: Runtime, call_spec: CallSpec) -> Callable[[Sample], Sequence[Any]]:
    return lambda sample: call_spec.checked_outputs(runtime.run(call_spec.checked(clones(sample.args))))
