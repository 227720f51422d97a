"""How far a compiled model is from float: what its report says, measured with the lowered program itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from prepbench.calls.call_spec import CallSpec
from prepbench.compile.quantize_program import Quantized
from prepbench.compile.samples import flat_samples
from prepbench.compile.task import CompileTask
from prepbench.inputs import Sample
from prepbench.internal_errors import raise_if_internal
from prepbench.objects.copy import clones
from prepbench.quantize.floors import Score
from prepbench.quantize.layer_noise import chosen_samples, measured_rows
from prepbench.quantize.predictions import score_of
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

    def run(sample: Sample) -> Sequence[Any]:
        return call_spec.checked_outputs(runtime.run(call_spec.checked(clones(sample.args))))

    if quantized.in_float is not None and is_repeatable(program):
        try:
            return score_of(quantized.in_float, chosen_samples(samples), run), rows
        except Exception as error:  # a runtime's own, on sizes that no tracing input has
            raise_if_internal(error, of_libraries=True)
    return quantized.score, f"{rows}, in simulation"
