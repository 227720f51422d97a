"""``compile_model``: the only place that joins capture, settings, quantization and targets."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from prepbench.capture.aten.capture import capture
from prepbench.capture.aten.documents import document_of_program
from prepbench.capture.sizes.dynamic_axes import DynamicAxes
from prepbench.compile.arguments import check_arguments, read_samples, with_extra_options
from prepbench.compile.compile_log import Journal
from prepbench.compile.compiled import CompiledModel, Origin, measured_size
from prepbench.compile.dry_run import planned
from prepbench.compile.report import CompileReport
from prepbench.compile.request import Request, Stages, float_bytes
from prepbench.compile.stages import agreeing, check_lowered, flat_samples, lower, lowering, quantize
from prepbench.inputs import Sample
from prepbench.jobs import ProgressCallback, report_nothing
from prepbench.quantize import check_calibration
from prepbench.running.callable_module import as_module, with_forward_fn
from prepbench.settings import (
    CompileOptions,
    DeploymentSettings,
    LayerQuantizationSettings,
    OnnxRuntimeDeployment,
    QuantizationSettings,
    explain_settings,
)
from prepbench.targets import target_for
from prepbench.targets.capabilities import check_settings


def compile_model(
    module_or_func: Callable[..., Any],
    *,
    tracing_inputs: Iterable[Any] | None = None,
    calibration_inputs: Iterable[Any] | None = None,
    deployment_settings: DeploymentSettings | None = None,
    data_transform_fn: Callable[[Any], Any] | None = None,
    forward_fn: Callable[..., Any] | None = None,
    quantization_settings: QuantizationSettings | None = None,
    layer_quantization_settings: Mapping[str, LayerQuantizationSettings] | None = None,
    logs_dir: str | Path | None = None,
    compile_options: CompileOptions | None = None,
    dynamic_axes: DynamicAxes | None = None,
    discard_input_model: bool = True,
    is_model_pretrained: bool = True,
    is_dry_run: bool = False,
    skip_eval_set_mode: bool = False,
    graph_name: str | None = None,
    fullgraph: bool = True,
    dynamic: bool = True,
    disable: bool = False,
    progress: ProgressCallback = report_nothing,
    **extra_options: Any,
) -> Any:
    """Capture, quantize and lower a model. The model itself is never changed.

    Args:
        module_or_func: a module, a function, or a bound method of a module.
        tracing_inputs: samples of different sizes along the dims that shall be dynamic; the calibration inputs
            when omitted.
        calibration_inputs: representative samples for the ranges of activations; needed with ``quantization_settings``.
        deployment_settings: where it shall run; needed with ``quantization_settings``, else
            ``OnnxRuntimeDeployment()``.
        data_transform_fn: applied to each sample first, e.g. to pick the images of a ``DataLoader``'s batches.
        forward_fn: called as ``forward_fn(model, args, kwargs)`` in place of ``model(*args, **kwargs)``, for arguments
            that are always the same: ``lambda model, args, kwargs: model(*args, **kwargs, use_cache=False)``. The
            compiled model is called like the samples.
        quantization_settings: how to quantize; None compiles in float, and
            :meth:`CompiledModel.initialize_algorithms` can quantize later.
        layer_quantization_settings: overrides by FQN, glob, ``re:`` pattern or class name (see
            :func:`prepbench.explain_settings`).
        logs_dir: a folder for ``compile.log`` (for people) and ``events.jsonl`` (for programs); None writes nothing.
        compile_options: the algorithms around quantization, and when a layer is given up.
        dynamic_axes: which dims are dynamic; inferred from the tracing inputs when omitted.
        discard_input_model: the compile, and a result that runs in PyTorch, use the model's own tensors, so that no
            second copy of the weights is made. False works on a copy, so that nothing is shared with the model.
        is_model_pretrained: False says that the weights mean nothing yet: layers are then quantized as the settings
            say, without measuring what that costs.
        is_dry_run: return the plan as a :class:`CompileReport` and compile nothing: what becomes of each layer, the
            operators that the target lacks, the estimated size.
        skip_eval_set_mode: compile the model in the mode it is in, instead of in eval mode.
        graph_name: a name for the graph in the report, the logs and the files; the model's class name when omitted.
        fullgraph: if False, modules that cannot be captured, and operators that the target does not have, run in
            PyTorch between the parts that are compiled.
        dynamic: if False, every dim is static.
        disable: return ``module_or_func`` as it is.
        progress: receives a :class:`prepbench.Progress` for each step; may raise :class:`prepbench.Cancelled` to stop.
        extra_options: fields of the deployment settings or of :class:`CompileOptions`, to set them one by one.

    Returns:
        A :class:`CompiledModel`; a :class:`CompileReport` for a dry run.

    Raises:
        SettingsError: a needed argument is missing (a ``ValueError``), a key matches no layer, nothing would be
            quantized, the target lacks the bits that are asked for, an unknown option.
        InputError: the samples do not fit the model or each other.
        CalibrationError: a sample holds NaN, or values become NaN or infinite on it.
        CaptureError: the model is no single graph (``fullgraph=True``); every failing module is listed.
        TargetError: the target cannot take the model.
        MissingPackageError: a package or compiler that the target needs is missing.
        ArtifactError: ``logs_dir`` cannot be written.

    Example:
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
        >>> samples = [torch.randn(2, 4), torch.randn(5, 4)]
        >>> compiled = compile_model(
        ...     model,
        ...     calibration_inputs=samples,
        ...     deployment_settings=OnnxRuntimeDeployment(),
        ...     quantization_settings=QuantizationSettings(),
        ... )
        >>> compiled(torch.randn(9, 4)).shape
        torch.Size([9, 2])
    """
    if disable:
        return module_or_func
    check_arguments(
        tracing_inputs,
        calibration_inputs,
        deployment_settings,
        quantization_settings,
        layer_quantization_settings,
        compile_options,
    )
    settings = deployment_settings if deployment_settings is not None else OnnxRuntimeDeployment()
    target = target_for(settings)
    settings, options = with_extra_options(
        settings, compile_options or CompileOptions(), extra_options, inspect.signature(compile_model).parameters
    )
    if not is_dry_run:
        target.check_available()
    function = module_or_func if forward_fn is None else with_forward_fn(module_or_func, forward_fn)
    model = as_module(function)
    explained = None
    if quantization_settings is not None:
        explained = tuple(explain_settings(model, quantization_settings, layer_quantization_settings))
    check_settings(target, settings, explained or ())
    name = graph_name if graph_name is not None else type(as_module(module_or_func)).__name__
    journal = Journal(logs_dir, name)
    journal.write(
        "start",
        f"compiling for {target.name}, {'float' if explained is None else 'int'}",
        target=target.name,
        deployment_settings=settings.to_dict(),
        quantization_settings=None if quantization_settings is None else quantization_settings.to_dict(),
        compile_options=options.to_dict(),
    )
    try:
        tracing, calibration = read_samples(function, tracing_inputs, calibration_inputs, data_transform_fn)
        if quantization_settings is not None:
            check_calibration(function, calibration)
        stages = Stages(journal.watching(progress), journal)
        with _mode(model, skip_eval_set_mode):
            with stages("capture"):
                axes = _axes(function, tracing, dynamic_axes, dynamic)
                captured = capture(
                    function,
                    agreeing(tracing, axes, function),
                    dynamic_axes=axes,
                    fullgraph=fullgraph and not is_dry_run,
                )
            own_weights = not discard_input_model
            request = replace(
                Request.of(function, captured, target, settings, options, name, own_weights=own_weights),
                explained=explained,
                calibration=tuple(calibration),
                measured=is_model_pretrained,
                fullgraph=fullgraph,
                data_transform_fn=data_transform_fn,
            )
            result: Any = planned(request, stages) if is_dry_run else _compile(request, stages)
    except BaseException as error:
        with contextlib.suppress(Exception):  # what went wrong matters more than that it cannot be logged
            journal.write("failed", f"failed: {type(error).__name__}: {error}", error=type(error).__name__)
        raise
    report = result if is_dry_run else result.report
    journal.write("done", repr(report), report=report.to_dict())
    return result


def _compile(request: Request, stages: Stages) -> CompiledModel:
    """Quantize if that is asked for, lower, check, report."""
    target, captured = request.target, request.captured
    if request.fullgraph:
        target.check_leaves(captured.leaves)
    program, quantized = request.program, None
    if request.explained is not None:
        quantized = quantize(request, stages)
        program = quantized.program
    with stages("lower"):
        lowered = lowering(program, captured, request.calls, stages.progress)
        runtime, fallbacks = lower(request, lowered)
        check_lowered(runtime, program, target.name, flat_samples(captured.samples[:2], request.calls))
    report = CompileReport(
        target.name,
        dict(stages.seconds),
        quantized.layers if quantized else (),
        float_bytes(captured.model),
        None if captured.leaves else measured_size(runtime),
        tuple(leaf.fqn for leaf in captured.leaves),
        name=request.name,
        model_sqnr=quantized.model_sqnr if quantized else None,
        fallbacks=fallbacks,
    )
    document = document_of_program(
        program, captured.model, captured.leaves, request.name, size_names=captured.size_names
    )
    origin = Origin(lowered, None if request.explained is not None else functools.partial(_quantize_later, request))
    spec = captured.program.call_spec.out_spec
    return CompiledModel(runtime, request.calls, request.settings, report, spec, document, origin)


def _quantize_later(
    request: Request,
    calibration_inputs: Iterable[Any],
    deployment_settings: DeploymentSettings | None,
    quantization_settings: QuantizationSettings,
    layer_quantization_settings: Mapping[str, LayerQuantizationSettings] | None,
    compile_options: CompileOptions | None,
    progress: ProgressCallback,
) -> CompiledModel:
    """Go on where a float compile ended: the graph is captured already."""
    check_arguments(
        None,
        calibration_inputs,
        deployment_settings or request.settings,
        quantization_settings,
        layer_quantization_settings,
        compile_options,
    )
    settings = deployment_settings or request.settings
    target = target_for(settings)
    target.check_available()
    model = request.captured.model
    explained = explain_settings(model, quantization_settings, layer_quantization_settings)
    check_settings(target, settings, explained)
    _, calibration = read_samples(model, None, calibration_inputs, request.data_transform_fn)
    check_calibration(model, calibration)
    stages = Stages(progress, Journal(None, request.name))
    later = replace(
        request,
        target=target,
        settings=settings,
        options=compile_options or request.options,
        explained=tuple(explained),
        calibration=tuple(calibration),
    )
    return _compile(later, stages)


def _axes(function: Callable[..., Any], tracing: list[Sample], axes: DynamicAxes | None, dynamic: bool) -> DynamicAxes:
    axes = DynamicAxes.infer(tracing, function) if axes is None else axes
    if not dynamic:
        for axis in axes.dynamic:
            axes = axes.set(axis.path, axis.dim, False)
    return axes


@contextlib.contextmanager
def _mode(model: nn.Module, skip: bool) -> Iterator[None]:
    """Eval mode for the time of the compile; each module's own flag is put back."""
    flags = {module: module.training for module in model.modules()}
    if not skip:
        model.eval()
    try:
        yield
    finally:
        for module, training in flags.items():
            module.training = training
