"""The stages of a compile as functions from value to value."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from prepbench.capture.aten.captured import Captured
from prepbench.capture.aten.export_again import dynamic_sizes, export_again
from prepbench.capture.aten.leaf_operators import is_leaf_operator
from prepbench.capture.sizes.dynamic_axes import DynamicAxes
from prepbench.compile.call_spec import CallSpec
from prepbench.compile.request import Request, Stages
from prepbench.errors import CaptureError, InputError, TargetError
from prepbench.inputs import Sample, named_leaves
from prepbench.jobs import ProgressCallback
from prepbench.quantize import LayerReport, calibrate, choose_weight_schemes, convert, insert_observers
from prepbench.targets import Lowering, Runtime, Target
from prepbench.targets.partition import lower_partitioned
from prepbench.targets.programs import is_repeatable

Program = torch.export.ExportedProgram


def agreeing(samples: Sequence[Sample], axes: DynamicAxes, function: Callable[..., Any]) -> list[Sample]:
    """The samples that have the sizes of the first wherever ``axes`` says that a size is static."""
    dynamic = {(axis.path, axis.dim) for axis in axes.dynamic}

    def static_sizes(sample: Sample) -> dict[tuple[str, int], int]:
        return {
            (path, dim): size
            for path, leaf in named_leaves(function, sample)
            if isinstance(leaf, torch.Tensor)
            for dim, size in enumerate(leaf.shape)
            if (path, dim) not in dynamic
        }

    first = static_sizes(samples[0])
    return [sample for sample in samples if static_sizes(sample) == first]


@dataclass(frozen=True)
class Quantized:
    """A quantized program and how it came about."""

    program: Program
    layers: tuple[LayerReport, ...]
    model_sqnr: float | None


def quantize(request: Request, stages: Stages) -> Quantized:
    """Insert observers, calibrate, choose weight schemes, convert, and export again with the same dynamic sizes."""
    program, captured, progress = request.program, request.captured, stages.progress
    assert request.explained is not None
    leaves = {leaf.fqn: leaf.kind for leaf in captured.leaves}
    samples = flat_samples(request.calibration, request.calls)
    with stages("insert observers"):
        observed = insert_observers(
            program,
            captured.model,
            request.explained,
            request.target.placement,
            leaves,
            options=request.options,
            samples=samples,
            progress=progress,
        )
    with stages("calibrate", counts=True):
        observed = calibrate(observed, samples, progress)
    if request.measured:
        with stages("measure", counts=True):
            observed = choose_weight_schemes(observed, samples, progress)
    with stages("convert"):
        assert program.example_inputs is not None
        inputs, dynamic = program.example_inputs[0], dynamic_sizes(program)
        converted = export_again(convert(observed), inputs, dynamic, _not_dynamic)
    return Quantized(converted, observed.layers, observed.model_sqnr)


def _not_dynamic(name: str) -> CaptureError:
    return CaptureError(
        f"Quantizing fixed the dynamic sizes of the input {name!r}. Make these axes static (DynamicAxes.set), or "
        "compile in float."
    )


def lowering(program: Program, captured: Captured, calls: CallSpec, progress: ProgressCallback) -> Lowering:
    """What the target gets: the program with readable names."""
    return Lowering(
        program,
        calls.input_names,
        calls.output_names,
        _size_names(program, captured),
        captured.leaves,
        keep_alive=captured,
        progress=progress,
    )


def lower(request: Request, lowered: Lowering) -> tuple[Runtime, tuple[str, ...]]:
    """Lower the whole graph, or, where the target cannot take all of it and need not, the parts that it can.

    Returns:
        The runtime, and what runs in PyTorch between parts.

    Raises:
        TargetError: the target cannot lower the graph; names the operators that it does not support.
    """
    target, program = request.target, lowered.program
    try:
        target.check_leaves(lowered.leaves)
        return target.lower(lowered, request.settings), ()
    except TargetError as error:
        fallback = _unsupported(target, program)
        if not fallback:
            raise
        places = ", ".join(operator_places(fallback))
        if request.fullgraph:
            raise TargetError(
                f"{error} {target.display_name} does not support: {places}. With fullgraph=False these run in "
                f"PyTorch, and the rest on {target.display_name}."
            ) from error
    return lower_partitioned(target, lowered, request.settings, fallback), tuple(operator_places(fallback))


def _unsupported(target: Target, program: Program) -> list[fx.Node]:
    """The nodes of ``program`` that the target does not support; it may have looked at them after decomposition."""
    unsupported = list(target.unsupported_nodes(program))
    names = {name for node in unsupported for name in _origins(node)}
    operators = {node.target for node in unsupported}
    return [
        node
        for node in program.graph.nodes
        if node.op == "call_function"
        and (node.name in names or node.target in operators or is_leaf_operator(node.target))
    ]


def _origins(node: fx.Node) -> set[str]:
    """The names of a node and of those that it was decomposed from."""
    names, rest = {node.name}, list(node.meta.get("from_node") or ())
    while rest:
        source = rest.pop()
        names.add(source.name)
        rest += source.from_node or ()
    return names


def operator_places(nodes: Sequence[fx.Node]) -> list[str]:
    """Operators with the modules that call them and how often."""
    places: Counter[tuple[str, str]] = Counter()
    for node in nodes:
        stack = list((node.meta.get("nn_module_stack") or {}).values())
        places[str(node.target).removesuffix(".default"), str(stack[-1][0]) if stack else ""] += 1
    return [
        f"{fqn or 'the model'}: {operator}" + (f" ({count} times)" if count > 1 else "")
        for (operator, fqn), count in places.items()
    ]


def check_lowered(runtime: Runtime, program: Program, target: str, samples: Sequence[Sample]) -> None:
    """Run the lowered program and PyTorch on the same inputs: a compiler's mistake shall not pass as quantization
    noise.

    Args:
        runtime: what the target made.
        program: what it was given.
        target: its name.
        samples: calls of the flat program, whose sizes differ: a graph may be right at one size only.

    Raises:
        TargetError: an output is further than 20 dB from what the program computes, far more than rounding explains,
            at the first call or at a second one; or an input is changed that the program does not change.
    """
    if not is_repeatable(program):  # two runs differ by themselves, and this one would change the model's buffers
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
        if right.shape != got.shape:
            raise TargetError(
                f"{target} computes something else than the graph it was given: on {call} output {index} has the shape "
                f"{tuple(got.shape)}, expected {tuple(right.shape)}. This is a fault of the target on this model. "
                "Choose another target."
            )
        if not right.is_floating_point():
            continue
        sqnr = _sqnr(right.double(), got.double())
        if sqnr < _WORST_SQNR:
            raise TargetError(
                f"{target} computes something else than the graph it was given: on {call} output {index} is "
                f"{sqnr:.0f} dB from it (at least {_WORST_SQNR:.0f} expected). This is a fault of the target on this "
                "model. Choose another target, or keep layers in float with layer_quantization_settings until it is "
                "right."
            )


def _check_inputs(before: Sequence[Any], by_module: Sequence[Any], by_runtime: Sequence[Any], target: str) -> None:
    for index, (value, right, got) in enumerate(zip(before, by_module, by_runtime, strict=True)):
        if isinstance(value, torch.Tensor) and _are_equal(value, right) and not _are_equal(value, got):
            raise TargetError(
                f"{target} changes input {index} of the graph while it runs. This is a fault of the target on this "
                "model. Choose another target, or keep the layers that read this input in float with "
                "layer_quantization_settings."
            )


_WORST_SQNR = 20.0


def _clones(leaves: Sequence[Any]) -> list[Any]:
    return [leaf.clone() if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]


def _are_equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    return bool(((one == other) | ((one != one) & (other != other))).all())  # NaN differs from itself


def _sqnr(right: torch.Tensor, got: torch.Tensor) -> float:
    """Signal to quantization noise ratio in dB; infinite where both are equal, also where both are infinite or NaN."""
    same = (right == got) | (right.isnan() & got.isnan())
    noise = torch.where(same, 0.0, right - got).square().sum()
    signal = torch.where(right.isfinite(), right, 0.0).square().sum()
    return float("inf") if float(noise) == 0 else float(10 * torch.log10(signal / noise))


def _size_names(program: Program, captured: Captured) -> dict[str, str]:
    """The names of the dynamic sizes by the symbols of ``program``, which may be others than those of the capture."""
    symbols = [_sizes(p) for p in (captured.program, program)]
    return {
        str(now): captured.size_names[str(then)]
        for then, now in zip(*symbols, strict=True)
        if str(then) in captured.size_names
    }


def _sizes(program: Program) -> list[Any]:
    """All sizes of all input tensors, in order."""
    values = {node.name: node.meta.get("val") for node in program.graph.nodes if node.op == "placeholder"}
    inputs = [values.get(name) for name in program.graph_signature.user_inputs if isinstance(name, str)]
    return [size for value in inputs if isinstance(value, torch.Tensor) for size in value.shape]


def flat_samples(samples: Sequence[Sample], calls: CallSpec) -> list[Sample]:
    """The calibration samples as calls of the flat program.

    Raises:
        InputError: one is not of the form of the tracing inputs.
    """
    result = []
    for sample in samples:
        try:
            result.append(Sample(tuple(calls.flatten(sample.args, sample.kwargs)), {}, sample.index))
        except InputError as error:
            raise InputError(f"calibration_inputs[{sample.index}]: {error}") from error
    return result
