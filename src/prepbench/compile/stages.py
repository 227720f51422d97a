"""Compile a captured model: quantize, lower, check, report."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path, PurePath
from typing import Any

import torch
from torch import fx, nn

from prepbench._torch_compat.programs import input_placeholders
from prepbench.calls.asserted_errors import with_errors_asserted
from prepbench.calls.call_spec import CallSpec, runtime_and_calls
from prepbench.calls.checked_conditions import with_assertions_returned
from prepbench.calls.variant_calls import VariantChoice
from prepbench.capture.aten.captured import Captured, document_of_program
from prepbench.capture.aten.verification import condition_lines
from prepbench.capture.failures.describe import failure_line
from prepbench.capture.failures.findings import (
    findings_of_tries,
    remark_of,
    returned_arguments,
    written_arguments,
)
from prepbench.capture.sizes.conditions import SizeCondition
from prepbench.compile.captured import size_remarks
from prepbench.compile.check_lowered import LoweredCheck
from prepbench.compile.compile_log import CompileLog, StageTimer
from prepbench.compile.dry_run import check_memory, planned
from prepbench.compile.kept_stages import KeptCapture
from prepbench.compile.lowering import alike_nodes, can_be_cut, lower, lowering_of
from prepbench.compile.measured_score import measured_score, sqnr_from_unpruned
from prepbench.compile.quantize_program import Quantized, accounted, quantize
from prepbench.compile.request import CompileRequest
from prepbench.compile.samples import flat_samples, of_different_sizes, with_other_sizes
from prepbench.compile.task import CompileTask
from prepbench.compile.wrong_operator import Blame
from prepbench.document.model import Failure
from prepbench.errors import TargetError
from prepbench.freed_memory import give_back
from prepbench.inputs import Sample
from prepbench.internal_errors import raise_if_internal
from prepbench.jobs import ProgressCallback
from prepbench.objects.restore import state_bytes
from prepbench.package.compiled import (
    CompiledModel,
    NothingCompiledError,
    Origin,
    UncompiledModel,
    lowering_of_compiled,
    measured_size,
)
from prepbench.package.leaves.model_leaves import ModelLeaves
from prepbench.package.report import CompileReport, bits_per_weight, names_of, with_stored_bits
from prepbench.package.variants import Variant, joined_report, joined_runtime, joined_spec
from prepbench.quantize.insert import NothingQuantizedError
from prepbench.running.first_calls import changed_arguments
from prepbench.running.source_lines import place_in_stack_trace
from prepbench.running.tracing import tracing
from prepbench.running.unchanged import numbers_kept
from prepbench.settings import DeploymentSettings, ExplainedLayer
from prepbench.settings.numbers import INT8
from prepbench.storage import nothing_left
from prepbench.targets import Lowering, Runtime, Target, target_for

Program = torch.export.ExportedProgram


def uncompiled(
    model: nn.Module,
    sample: Sample,
    settings: DeploymentSettings,
    layers: tuple[ExplainedLayer, ...] | None,
    why: Failure,
    timer: StageTimer,
    name: str,
) -> CompiledModel:
    """Return the model in Python, because all of it is one leaf module."""
    remark = f"nothing is compiled: the whole model is one leaf module and runs in Python, {failure_line(why)}"
    if layers is not None:
        text = (
            f"Nothing would be quantized, and {remark}. {why.remedy} Or compile in float: quantization_settings=None."
        )
        raise NothingCompiledError(text, why)
    seconds, target = dict(timer.seconds), target_for(settings).name
    report = CompileReport(target, seconds, (), state_bytes(model), None, ("",), name=name, remarks=(remark,))
    return UncompiledModel(model, sample, settings, report)


def compile_trained(
    task: CompileTask, logs_dir: str | Path | None, name: str | None, progress: ProgressCallback, *, is_dry_run: bool
) -> Any:
    """Compile a model that was trained with quantizers."""
    task = task if name is None else replace(task, name=name)
    log = CompileLog(logs_dir, task.name)
    log.start(task.target.name, task.settings, None, task.options)
    with log.failures():
        timer = StageTimer(log.logged(progress), log)
        if is_dry_run:
            report = planned(task, timer)
            log.done(report)
            return report
        task.target.check_available()
        result = compile_task(task, timer)
    log.done(result.report)
    return result


@nothing_left()
@numbers_kept()
def compile_task(task: CompileTask, timer: StageTimer, kept: KeptCapture | None = None) -> CompiledModel:
    """Quantize if there are settings for it, lower, check, report; for each variant, if there are several."""
    return _compiled_variants(task, timer) if task.variants else _compiled_graph(task, timer, kept)


def _compiled_variants(task: CompileTask, timer: StageTimer) -> CompiledModel:
    """Return one model of all variants' graphs; a variant without quantized layers is in float."""
    parts: list[CompiledModel] = []
    problems: list[NothingQuantizedError] = []
    for one in task.of_variants():
        try:
            parts.append(_compiled_graph(one, timer))
        except NothingQuantizedError as error:
            problems.append(error)
            if len(problems) == len(task.variants):
                raise
            parts.append(_compiled_graph(replace(one, layer_settings=None), timer))
    calls = [runtime_and_calls(part) for part in parts]
    spec = joined_spec([spec for _, spec in calls])
    runtime = joined_runtime([runtime for runtime, _ in calls], spec)
    _check_choice(task, spec)
    variants = [
        Variant(
            of_part.conditions,
            tuple(sample.index for sample in one.captured.samples),
            part.report,
            lowering_of_compiled(part),
        )
        for one, part, (_, of_part) in zip(task.variants, parts, calls, strict=True)
    ]
    report = joined_report(
        [part.report for part in parts],
        list(map(str, variants)),
        seconds=dict(timer.seconds),
        size_bytes=measured_size(runtime),
        conditions=(*condition_lines(spec.conditions), *map(str, spec.assertions)),
    )
    quantize_later = functools.partial(_quantize_later, task) if task.layer_settings is None else None
    lowering = lowering_of_compiled(parts[0])
    assert lowering is not None
    origin = Origin(lowering, quantize_later)
    return CompiledModel(
        runtime,
        spec,
        task.settings,
        report,
        task.captured.program.call_spec.out_spec,
        parts[0].document(),
        origin,
        configuration=task.configuration,
        variants=tuple(variants),
    )


def _check_choice(task: CompileTask, spec: CallSpec) -> None:
    """Check that each tracing input finds its variant, whatever conditions were dropped as the target is right."""
    choice = VariantChoice(spec.variants, spec.paths)
    for index, variant in enumerate(task.variants):
        for sample in flat_samples(variant.captured.samples, task.call_spec):
            if (found := choice.find(sample.args)) != index:
                raise TargetError(
                    f"The conditions on sizes do not tell the variants apart: tracing_inputs[{sample.index}] is for "
                    f"variant {index}, and finds {'none' if found is None else f'variant {found}'}. Compile the model "
                    "once for each side of the branch."
                )


def _compiled_graph(task: CompileTask, timer: StageTimer, kept: KeptCapture | None = None) -> CompiledModel:
    target, captured, call_spec = task.target, task.captured, task.call_spec
    if task.fullgraph:
        target.check_leaves(captured.leaves)
    leaves = _leaves(task)  # with the model's state before any run
    check_memory(task)
    task = task.in_types_of_target()
    quantized = None if task.layer_settings is None else quantize(task, timer, kept)

    def asserted(program: torch.export.ExportedProgram) -> Any:
        return with_assertions_returned(with_errors_asserted(program, target.unraised_errors))

    exact = None if quantized is None else asserted(task.program)[0]
    program, assertions = asserted(task.program if quantized is None else quantized.program)
    written = () if target.keeps_writes else written_arguments(captured.program)
    places = tuple(i for i, name in enumerate(input_placeholders(captured.program)) if name in written)
    call_spec = replace(call_spec, assertions=assertions, written=places)
    with timer("lower"), tracing(timer.progress):
        lowering = lowering_of(program, captured, call_spec, timer.progress, None if kept is None else kept.programs)
        before = 0 if kept is None else kept.programs.taken
        runtime, fallbacks, call_spec, noise = _lowered(task, lowering, call_spec, exact)
        score, measured_on = None, ""
        if quantized is not None:
            score, measured_on = measured_score(task, quantized, runtime, call_spec, program)
        unpruned_sqnr = sqnr_from_unpruned(task, quantized, runtime, call_spec, program)
        timer.reuse(*(["lower: graph"] if kept is not None and kept.programs.taken > before else []))
    size, bits = measured_size(runtime, leaves), runtime.stored_bits()
    tensors = quantized.tensors if quantized else accounted(task, None)
    report = CompileReport(
        target.name,
        dict(timer.seconds),
        with_stored_bits(quantized.layers, quantized.stored, bits) if quantized else (),
        task.float_bytes,
        size,
        names_of(captured.leaves),
        name=task.name,
        model_sqnr=score.sqnr if score else None,
        simulated_sqnr=quantized.score.sqnr if quantized and quantized.score else None,
        measured_on=measured_on,
        unpruned_sqnr=unpruned_sqnr,
        model_divergence=score.divergence if score else None,
        output_sqnrs={
            call_spec.output_names[index]: sqnr
            for index, sqnr in (score.outputs if score else ())
            if index < len(call_spec.output_names)  # further values stand for outputs that cannot be compared
        },
        fallbacks=fallbacks,
        remarks=(
            *task.remarks,
            *_remarks(target, quantized),
            *_writes(target, captured, call_spec),
            *map(remark_of, findings_of_tries(captured.program)),
            *_suppression(target, program, fallbacks),
            *integer_remarks(target, captured.program),
            *size_remarks(task, quantized.layers if quantized else ()),
            *noise,
            *(leaves.remarks if leaves is not None else ()),
        ),
        pruned=task.pruned,
        tensors=tensors,
        bits_per_weight=bits_per_weight(tensors, bits, size),
        reused=tuple(timer.reused),
        conditions=(
            *condition_lines(call_spec.conditions),
            *map(str, (*call_spec.assertions, *call_spec.of_tensors)),
        ),
    )
    document = document_of_program(
        program,
        captured.model,
        captured.leaves,
        task.name,
        size_names=lowering.dimension_names,
        axes=captured.axes.dynamic,
    )
    quantize_later = functools.partial(_quantize_later, task) if quantized is None else None
    origin = Origin(lowering, quantize_later)
    out_spec = captured.program.call_spec.out_spec
    return CompiledModel(
        runtime, call_spec, task.settings, report, out_spec, document, origin, leaves, task.configuration
    )


_ROUNDS = 8
"""Operators that a target fails at, one after the other, before a compile with ``fullgraph=False`` gives up."""


def _lowered(
    task: CompileTask, lowering: Lowering, call_spec: CallSpec, exact: Program | None
) -> tuple[Runtime, tuple[str, ...], CallSpec, tuple[str, ...]]:
    """Lower a graph and check the result; with ``fullgraph=False``, PyTorch runs the operators that the target turns
    out to fail at, whether it lowers or runs them, or computes something else.

    Returns:
        The runtime, the operators that PyTorch runs, the specification of its calls with all conditions, and remarks
        of the check.
    """
    parts, in_pytorch = replace(task, fullgraph=False), set[str]()
    failed: TargetError | None = None
    for rest in reversed(range(_ROUNDS)):
        again = functools.partial(_lowered_in_parts, parts, in_pytorch=frozenset(in_pytorch))
        blame = Blame(
            task.target, task.settings, lowering, None if task.fullgraph else again, is_quantized=exact is not None
        )
        runtime: Runtime | None = None
        try:
            runtime, fallbacks = lower(task, lowering, in_pytorch)
            give_back(task.float_bytes)
            return runtime, fallbacks, *_checked(task, runtime, lowering, call_spec, exact, blame, fallbacks)
        except TargetError as error:
            can_cut, cause = can_be_cut(task, lowering.program), error.__cause__
            if task.fullgraph or not can_cut:
                more = [] if runtime is not None else [_place(error, task, blame, call_spec)]
                if can_cut:
                    more.append(_remedy_of_cutting(error, task.target, blame, is_lowered=runtime is not None))
                if not any(more):
                    raise
                raise TargetError(" ".join(filter(None, (str(error), *more)))) from cause or error
            if runtime is None:
                blame.of_lowering()
            found = set() if blame.found is None else alike_nodes(lowering.program, blame.found)
            if found <= in_pytorch or not rest:
                raise
            in_pytorch |= found
            failed = error
        except Exception as error:  # torch may not export the parts of a graph that was cut
            if failed is None:
                raise
            raise_if_internal(error)
            raise failed from error
    raise AssertionError("the last round returns or raises")


def _place(error: TargetError, task: CompileTask, blame: Blame, call_spec: CallSpec) -> str:
    """Return a sentence on the operator of PyTorch at which lowering fails, where the words are a runtime's own, which
    name none.
    """
    samples = flat_samples(task.captured.samples[:1], call_spec)
    is_own = error.__cause__ is None or isinstance(error.__cause__, TargetError)
    return "" if is_own or not samples else blame.of_failure(samples[0])


def _lowered_in_parts(task: CompileTask, lowering: Lowering, in_pytorch: frozenset[str]) -> Runtime:
    return lower(task, lowering, in_pytorch)[0]


def _remedy_of_cutting(error: TargetError, target: Target, blame: Blame, *, is_lowered: bool) -> str:
    """Return what ``fullgraph=False`` would do about an error; "" where it says so, or nothing is known of it."""
    if "fullgraph=False" in str(error) or (is_lowered and blame.found is None):
        return ""
    what = "it" if blame.found is not None else f"what {target.display_name} fails at"
    return f"With fullgraph=False {what} runs in PyTorch, if the rest can be compiled without it."


def _checked(
    task: CompileTask,
    runtime: Runtime,
    lowering: Lowering,
    call_spec: CallSpec,
    exact: Program | None,
    blame: Blame,
    fallbacks: Sequence[str],
) -> tuple[CallSpec, tuple[str, ...]]:
    """Compare a lowered graph with PyTorch; return the specification of its calls with the conditions on sizes, and
    remarks.
    """
    captured = task.captured
    check = LoweredCheck(
        runtime,
        lowering.program,
        task.target.display_name,
        exact,
        asserted=len(call_spec.assertions),
        precision=getattr(task.settings, "inference_precision", None),
        blame=blame,
        has_leaves=bool(fallbacks and captured.leaves),
    )
    samples = flat_samples(of_different_sizes(captured.samples), call_spec)
    check.check_samples(samples)
    check.check_others(flat_samples(with_other_sizes(captured), call_spec))
    call_spec = replace(call_spec, conditions=_conditions(task, check))
    tried = captured.holds_where.right_calls(call_spec.conditions)
    check.check_edges([*samples, *flat_samples(tried, call_spec)])
    return call_spec, check.remarks


def _conditions(task: CompileTask, check: LoweredCheck) -> tuple[SizeCondition, ...]:
    """Return the conditions on sizes, decided by the runtime's results on the trial calls of the capture."""

    def are_right(samples: Sequence[Sample]) -> bool:
        flat = flat_samples(samples, task.call_spec)
        # an empty tensor may crash a runtime
        filled = [one for one in flat if all(leaf.numel() for leaf in one.args if isinstance(leaf, torch.Tensor))]
        return all(map(check.is_right, filled))

    return task.captured.holds_where.conditions(are_right)


def _leaves(task: CompileTask) -> ModelLeaves | None:
    """Return the parts that stay in Python."""
    if not task.captured.leaves:
        return None
    texts = [value for value in task.call_spec.input_constants.values() if isinstance(value, str)]
    return ModelLeaves.of(task.captured, task.program, texts)


def _remarks(target: Target, quantized: Quantized | None) -> tuple[str, ...]:
    reason = target.placement.reduce_range
    bits = [{row.weights_bits, row.activations_bits} for row in quantized.layers] if quantized else []
    remarks = [f"8-bit weights use 7 bits, because {reason}"] if reason and {INT8.bits} in bits else []
    if any(row.quantized and row.activations_bits <= INT8.bits for row in (quantized.layers if quantized else ())):
        remarks.append(_NOT_FINITE)
    if quantized and quantized.score and quantized.score.remark:
        remarks.append(quantized.score.remark)
    return tuple(remarks)


def _writes(target: Target, captured: Captured, call_spec: CallSpec) -> Iterator[str]:
    """Yield what is not as in PyTorch where forward changes arguments that it does not return."""
    remedy = "let forward return the new values, if they are needed"
    if changed := changed_arguments(captured.model, captured.samples[0]):
        yield f"forward changes {', '.join(changed)}, and compiled models leave the caller's object as it is: {remedy}"
    if not call_spec.written:
        return
    returned, placeholders = returned_arguments(captured.program), input_placeholders(captured.program)
    lost = [call_spec.paths[place] for place in call_spec.written if placeholders[place] not in returned]
    if lost:
        yield (
            f"forward writes into {', '.join(lost)}, and {target.display_name} leaves the caller's tensor as it is: "
            f"{remedy}"
        )


def _suppression(target: Target, program: Any, fallbacks: Sequence[str]) -> tuple[str, ...]:
    """Return where torchvision's suppression of boxes runs, in words; nothing for models without it."""
    name = "torchvision.nms"
    if not any(str(node.target).startswith(name) for node in program.graph.nodes):
        return ()
    if any(name in each for each in fallbacks):
        return (f"boxes are suppressed in PyTorch, outside the parts that {target.display_name} runs",)
    return (f"boxes are suppressed inside the graph, by {target.display_name}",)


_NOT_FINITE = (
    "integers have no NaN and no infinity: a layer that quantizes its input reads NaN as some number, and infinity as "
    "the end of its range"
)


def _quantize_later(task: CompileTask, progress: ProgressCallback, **arguments: Any) -> CompiledModel:
    """Quantize a float model without capturing it again; ``arguments`` are fields of a :class:`CompileRequest`."""
    model = task.captured.model
    request = CompileRequest(model=model, data_transform_fn=task.data_transform_fn, **arguments)
    request.check()
    request.target.check_available()
    later = replace(
        task,
        target=request.target,
        settings=request.settings,
        options=task.options if request.compile_options is None else request.compile_options,
        layer_settings=request.layers(model),
        calibration=request.read().calibration,
    )
    return compile_task(later, StageTimer(progress, CompileLog(None, task.name)))


# Arithmetic on integers of the call, on targets that compute it in floating-point numbers.


# results that grow, or whose low digits matter; sums and comparisons of ids and positions stay far below the limit
_GROWING = frozenset(
    {"mul", "mul_", "pow", "pow_", "prod", "matmul", "mm", "bmm", "dot", "cumprod", "remainder", "remainder_", "fmod",
     "floor_divide", "div", "bitwise_left_shift", "__lshift__", "bitwise_right_shift", "__rshift__"}
)  # fmt: skip


def integer_remarks(target: Target, program: torch.export.ExportedProgram) -> tuple[str, ...]:
    """Return a remark where a target rounds integers that a model computes from those of the call."""
    if not target.largest_integer:
        return ()
    inputs = set(program.graph_signature.user_inputs)
    known: set[fx.Node] = set()
    for node in program.graph.nodes:
        value = node.meta.get("val")
        if not isinstance(value, torch.Tensor) or value.dtype.is_floating_point or value.dtype.is_complex:
            continue
        if value.dtype is torch.bool:
            continue
        if node.name in inputs or known.intersection(node.all_input_nodes):
            known.add(node)
            name = str(node.target).removeprefix("aten.").partition(".")[0]
            if node.op == "call_function" and name in _GROWING and value.dtype.itemsize > 1:
                place = place_in_stack_trace(node.meta.get("stack_trace"))
                where = f" ({PurePath(place[0]).name}:{place[1]})" if place else ""
                return (
                    f"{target.display_name} computes integers as float32: {name}{where} is exact up to "
                    f"{target.largest_integer:,} only. Choose ONNX Runtime for larger ones, such as hashes",
                )
    return ()
