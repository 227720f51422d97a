"""Running a lowered program and PyTorch on the same inputs, so that a compiler bug is not mistaken for quantization
noise.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from prepbench.compile.light_module import light_module
from prepbench.compile.tied_choices import with_ties_broken
from prepbench.errors import TargetError
from prepbench.inputs import Sample
from prepbench.running.equal_tensors import Closeness
from prepbench.running.equality import EXACT, difference
from prepbench.running.sqnr import sqnr
from prepbench.targets import Runtime
from prepbench.targets.programs import is_repeatable, outputs_computed_from_floats

# rounding alone never comes near 20 dB, and turns only near ties of argmax, sorting and comparisons
LOWERED = Closeness(sqnr=20.0, integers=0.05)


# dB that a runtime may be further from float than the quantized graph
_MORE_NOISE = 3.0


def check_lowered(
    runtime: Runtime,
    program: torch.export.ExportedProgram,
    target: str,
    samples: Sequence[Sample],
    original: torch.export.ExportedProgram | None = None,
) -> None:
    """Check that the lowered program computes what the program computes.

    Number and order of the outputs, shapes, dtypes, and the places of NaN and infinities must be the same, and integers
    too, unless they are computed from floating-point numbers: of those 5 % may differ.

    Where quantization itself leaves less than 20 dB, one value that is rounded the other way may change as much. There
    the lowered program must be as near to float as the program is, with 3 dB to spare.

    Programs that keep state or draw random numbers are not checked: two runs of them differ anyway, and a run would
    change the model's buffers.

    Args:
        runtime: the lowered program.
        program: the program that the target was given.
        target: the name of the target.
        samples: calls of the flat program, of different sizes, because a graph may be right at one size only.
        original: the program in float that was quantized; None where nothing was.

    Raises:
        TargetError: an output differs, or is below 20 dB SQNR, at the first call or at a second one; or an input is
            changed that the program does not change.
    """
    if not is_repeatable(program):
        return
    check = _Check(runtime, program, target, original)
    with torch.no_grad():
        expected = [check.call(sample, f"tracing_inputs[{sample.index}]") for sample in samples]
        if samples:  # a kernel that adds to a constant is right only once
            check.outputs(expected[0], samples[0], f"a second call with tracing_inputs[{samples[0].index}]")


class _Check:
    """A lowered program, and the program that it must equal."""

    def __init__(
        self,
        runtime: Runtime,
        program: torch.export.ExportedProgram,
        target: str,
        original: torch.export.ExportedProgram | None,
    ) -> None:
        self._runtime, self._target, self._original = runtime, target, original
        self._program = program
        self._module = light_module(program)
        self._from_floats = outputs_computed_from_floats(program)

    def call(self, sample: Sample, name: str) -> list[Any]:
        """Compare one call; returns the outputs that are right."""
        given = _clones(sample.args)  # a model may change its inputs in place
        expected = list(self._module(*given))
        after = self.outputs(expected, sample, name)
        for index, (before, right, got) in enumerate(zip(sample.args, given, after, strict=True)):
            if difference(before, right).equal and not difference(before, got).equal:
                raise TargetError(
                    f"{self._target} changes input {index} of the graph while it runs. This is a bug of the target on "
                    "this model. Choose another target, or keep the layers that read this input in float with "
                    "layer_quantization_settings."
                )
        return expected

    def outputs(self, expected: Sequence[Any], sample: Sample, name: str) -> list[Any]:
        """Compare what comes out of one call; returns the inputs as the call leaves them."""
        given = _clones(sample.args)
        got = list(self._runtime.run(given))
        if len(got) == len(expected):
            got = [_like(value, right) for value, right in zip(got, expected, strict=True)]
        found = difference(expected, got, LOWERED)
        for place, (right, value) in enumerate(zip(expected, got, strict=False)):
            if found.equal and not self._from_floats[place]:
                found = difference(right, value, EXACT, f"output[{place}]")
        if not found.equal and not self._is_as_near(expected, got, sample):
            raise TargetError(
                f"{self._target} does not compute what the graph computes: on {name}, {found.text}. "
                + self._reason(sample, expected)
            )
        return given

    def _reason(self, sample: Sample, expected: Sequence[Any]) -> str:
        for last_first in (False, True):
            results, places = with_ties_broken(self._program, sample, last_first=last_first)
            if places and not difference(expected, results, LOWERED).equal:
                return (
                    f"On this call {places[0]} chooses among equal values, or values that only rounding tells apart. "
                    "PyTorch promises no order of these, and with another order its own result is another, too. Give "
                    "samples or weights that decide (those of a router that was never trained may all be zero), keep "
                    "layers whose results are rounded to the same integers in float, or choose EagerDeployment(), "
                    "which computes as PyTorch does."
                )
        return (
            "This is a bug of the target on this model. Choose another target, or keep layers in float with "
            "layer_quantization_settings until the result is right."
        )

    def _is_as_near(self, expected: Sequence[Any], got: Sequence[Any], sample: Sample) -> bool:
        """Whether the runtime's result is as near to float as the graph's own, which quantization made noisy."""
        if self._original is None or len(expected) != len(got):
            return False
        in_float = list(self._original.module(check_guards=False)(*_clones(sample.args)))
        return all(
            difference(right, value, LOWERED if from_floats else EXACT).equal
            or (from_floats and difference(exact, value, _noise(exact, right)).equal)
            for exact, right, value, from_floats in zip(in_float, expected, got, self._from_floats, strict=True)
        )


def _noise(exact: Any, right: Any) -> Closeness:
    """What may differ from float where ``right`` is the result that quantization leaves of it."""
    if not isinstance(right, torch.Tensor) or right.shape != exact.shape:
        return LOWERED
    if right.is_floating_point():
        return Closeness(sqnr=min(LOWERED.sqnr or 0.0, sqnr(exact, right) - _MORE_NOISE))
    return Closeness(integers=LOWERED.integers + float((exact != right).float().mean()))


def _like(value: Any, right: Any) -> Any:
    """A number that a target gives as a tensor, as a number where the program gives one."""
    is_number = isinstance(right, int | float) and isinstance(value, torch.Tensor) and value.numel() == 1
    return value.item() if is_number else value


def _clones(leaves: Sequence[Any]) -> list[Any]:
    return [leaf.clone() if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
