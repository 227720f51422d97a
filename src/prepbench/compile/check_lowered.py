"""Running a lowered program and PyTorch on the same inputs, so that a compiler bug is not mistaken for quantization
noise.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from prepbench.errors import TargetError
from prepbench.inputs import Sample
from prepbench.running.sqnr import sqnr
from prepbench.targets import Runtime
from prepbench.targets.programs import is_repeatable

# in dB: rounding alone never comes near
_LOWEST_SQNR = 20.0


def check_lowered(
    runtime: Runtime, program: torch.export.ExportedProgram, target: str, samples: Sequence[Sample]
) -> None:
    """Check that the lowered program computes what the program computes.

    Programs that keep state or draw random numbers are not checked: two runs of them differ anyway, and a run would
    change the model's buffers.

    Args:
        runtime: the lowered program.
        program: the program that the target was given.
        target: the name of the target.
        samples: calls of the flat program, of different sizes, because a graph may be right at one size only.

    Raises:
        TargetError: an output is below 20 dB SQNR, or has another shape, at the first call or at a second one; or an
            input is changed that the program does not change.
    """
    if not is_repeatable(program):
        return
    module = program.module(check_guards=False)
    references = []
    with torch.no_grad():
        for sample in samples:
            # clones, because a model may change its inputs in place
            for_module, for_runtime = _clones(sample.args), _clones(sample.args)
            references.append(module(*for_module))
            _check_outputs(references[-1], runtime.run(for_runtime), f"tracing_inputs[{sample.index}]", target)
            _check_inputs(sample.args, for_module, for_runtime, target)
        for sample, reference in zip(samples[:1], references, strict=False):
            again = runtime.run(_clones(sample.args))  # a kernel that adds to a constant is right only once
            _check_outputs(reference, again, f"a second call with tracing_inputs[{sample.index}]", target)


def _check_outputs(expected: Sequence[Any], actual: Sequence[Any], call: str, target: str) -> None:
    tensors = ([value for value in values if isinstance(value, torch.Tensor)] for values in (expected, actual))
    for index, (right, got) in enumerate(zip(*tensors, strict=False)):
        problem = f"{target} does not compute what the graph computes: on {call} output {index}"
        if right.shape != got.shape:
            raise TargetError(
                f"{problem} has the shape {tuple(got.shape)}, expected {tuple(right.shape)}. This is a bug of the "
                "target on this model. Choose another target."
            )
        if right.is_floating_point() and (found := sqnr(right, got)) < _LOWEST_SQNR:
            raise TargetError(
                f"{problem} has an SQNR of {found:.0f} dB (at least {_LOWEST_SQNR:.0f} dB expected). This is a bug of "
                "the target on this model. Choose another target, or keep layers in float with "
                "layer_quantization_settings until the result is right."
            )


def _check_inputs(before: Sequence[Any], by_module: Sequence[Any], by_runtime: Sequence[Any], target: str) -> None:
    for index, (value, right, got) in enumerate(zip(before, by_module, by_runtime, strict=True)):
        if isinstance(value, torch.Tensor) and _are_equal(value, right) and not _are_equal(value, got):
            raise TargetError(
                f"{target} changes input {index} of the graph while it runs. This is a bug of the target on this "
                "model. Choose another target, or keep the layers that read this input in float with "
                "layer_quantization_settings."
            )


def _clones(leaves: Sequence[Any]) -> list[Any]:
    return [leaf.clone() if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]


def _are_equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    return bool(((one == other) | ((one != one) & (other != other))).all())  # NaN differs from itself
