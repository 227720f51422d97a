"""``compile_model``: the only place that joins capture, settings, quantization and targets."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from prepbench.capture.callable_module import as_module
from prepbench.capture.dynamic_axes import DynamicAxes
from prepbench.capture.export import Captured, capture
from prepbench.capture.to_document import document_of_program
from prepbench.compile.calls import CallSpec
from prepbench.compile.compiled import CompiledModel, measured_size
from prepbench.compile.report import CompileReport
from prepbench.compile.stages import agreeing, check_lowered, flatten, lowering, quantize
from prepbench.errors import SettingsError
from prepbench.inputs import Sample, normalize_samples
from prepbench.jobs import Progress, ProgressCallback, report_nothing
from prepbench.quantize import LayerReport, check_calibration
from prepbench.settings import (
    DeploymentSettings,
    LayerQuantizationSettings,
    OnnxRuntimeDeployment,
    QuantizationSettings,
    explain_settings,
)
from prepbench.targets import target_for


def compile_model(
    module_or_func: Callable[..., Any],
    *,
    tracing_inputs: Iterable[Any] | None = None,
    calibration_inputs: Iterable[Any] | None = None,
    deployment_settings: DeploymentSettings | None = None,
    data_transform_fn: Callable[[Any], Any] | None = None,
    quantization_settings: QuantizationSettings | None = None,
    layer_quantization_settings: Mapping[str, LayerQuantizationSettings] | None = None,
    dynamic_axes: DynamicAxes | None = None,
    skip_eval_set_mode: bool = False,
    fullgraph: bool = True,
    dynamic: bool = True,
    disable: bool = False,
    progress: ProgressCallback = report_nothing,
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
        quantization_settings: how to quantize; None compiles in float.
        layer_quantization_settings: overrides by FQN, glob, ``re:`` pattern or class name (see
            :func:`prepbench.explain_settings`).
        dynamic_axes: which dims are dynamic; inferred from the tracing inputs when omitted.
        skip_eval_set_mode: compile the model in the mode it is in, instead of in eval mode.
        fullgraph: if False, modules that cannot be captured become opaque operators (for targets that can run these).
        dynamic: if False, every dim is static.
        disable: return ``module_or_func`` as it is.
        progress: receives a :class:`prepbench.Progress` for each step; may raise :class:`prepbench.Cancelled` to stop.

    Returns:
        A :class:`CompiledModel`.

    Raises:
        SettingsError: a needed argument is missing (a ``ValueError``), a key matches no layer, nothing would be
            quantized.
        InputError: the samples do not fit the model or each other.
        CalibrationError: a sample holds NaN, or a range is not finite.
        CaptureError: the model is no single graph (``fullgraph=True``); every failing module is listed.
        TargetError: the target cannot take the model.
        MissingPackageError: a package or compiler that the target needs is missing.

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
    _check_arguments(
        tracing_inputs, calibration_inputs, deployment_settings, quantization_settings, layer_quantization_settings
    )
    settings = deployment_settings if deployment_settings is not None else OnnxRuntimeDeployment()
    target = target_for(settings)
    target.check_available()
    tracing, calibration = _samples(module_or_func, tracing_inputs, calibration_inputs, data_transform_fn)
    model = as_module(module_or_func)
    explained = (
        explain_settings(model, quantization_settings, layer_quantization_settings)
        if quantization_settings is not None
        else []
    )
    if quantization_settings is not None:
        check_calibration(module_or_func, calibration)
    stages = _Stages(progress)
    with _mode(model, skip_eval_set_mode):
        with stages("capture"):
            axes = _axes(module_or_func, tracing, dynamic_axes, dynamic)
            captured = capture(
                module_or_func, agreeing(tracing, axes, module_or_func), dynamic_axes=axes, fullgraph=fullgraph
            )
            target.check_leaves(captured.leaves)
        calls = _calls(module_or_func, captured)
        program = flatten(captured, calls)
        layers: tuple[LayerReport, ...] = ()
        if quantization_settings is not None:
            with stages("quantize"):
                program, layers = quantize(program, captured, explained, calibration, calls, target.placement, progress)
        with stages("lower"):
            runtime = target.lower(lowering(program, captured, calls, progress), settings)
            check_lowered(runtime, program, target.name)
    report = CompileReport(
        target.name,
        stages.seconds,
        layers,
        _bytes(model),
        None if captured.leaves else measured_size(runtime),
        tuple(leaf.fqn for leaf in captured.leaves),
    )
    document = document_of_program(program, model, captured.leaves, size_names=captured.size_names)
    return CompiledModel(runtime, calls, settings, report, captured.program.call_spec.out_spec, document)


def _check_arguments(
    tracing: Any,
    calibration: Any,
    deployment: Any,
    quantization: Any,
    layers: Mapping[str, LayerQuantizationSettings] | None,
) -> None:
    if quantization is not None and calibration is None:
        raise SettingsError(
            "quantization_settings needs calibration_inputs: a list of representative samples, from which the "
            "ranges of activations are learned."
        )
    if quantization is not None and deployment is None:
        raise SettingsError(
            "quantization_settings needs deployment_settings, because each target fuses int8 operators in its own way: "
            "deployment_settings=OnnxRuntimeDeployment() or InductorDeployment()."
        )
    if quantization is None and layers:
        raise SettingsError(
            f"layer_quantization_settings were given for {', '.join(map(repr, layers))} without "
            "quantization_settings, so nothing is quantized. "
            "Add quantization_settings=QuantizationSettings()."
        )
    if quantization is not None and not isinstance(quantization, QuantizationSettings):
        raise SettingsError(f"quantization_settings must be a QuantizationSettings, got {type(quantization).__name__}.")
    if tracing is None and calibration is None:
        raise SettingsError(
            "Give tracing_inputs (or calibration_inputs): sample inputs that differ along the dims that shall be "
            "dynamic."
        )


def _samples(
    function: Callable[..., Any], tracing: Any, calibration: Any, transform: Callable[[Any], Any] | None
) -> tuple[list[Sample], list[Sample]]:
    """Tracing and calibration samples; an iterable given once, or given for both, is read once."""
    calibrating = (
        []
        if calibration is None
        else normalize_samples(function, calibration, name="calibration_inputs", data_transform_fn=transform)
    )
    if tracing is None or tracing is calibration:
        return calibrating, calibrating
    return normalize_samples(function, tracing, name="tracing_inputs", data_transform_fn=transform), calibrating


def _axes(function: Callable[..., Any], tracing: list[Sample], axes: DynamicAxes | None, dynamic: bool) -> DynamicAxes:
    axes = DynamicAxes.infer(tracing, function) if axes is None else axes
    if not dynamic:
        for axis in axes.dynamic:
            axes = axes.set(axis.path, axis.dim, False)
    return axes


def _calls(function: Callable[..., Any], captured: Captured) -> CallSpec:
    assert captured.program.example_inputs is not None
    args, kwargs = captured.program.example_inputs
    return CallSpec.of(function, Sample(tuple(args), dict(kwargs)), captured.program)


class _Stages:
    """Reports each stage and keeps its seconds."""

    def __init__(self, progress: ProgressCallback) -> None:
        self._progress = progress
        self.seconds: dict[str, float] = {}

    @contextlib.contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        self._progress(Progress(name, 0, 1))
        start = time.perf_counter()
        yield
        self.seconds[name] = time.perf_counter() - start
        self._progress(Progress(name, 1, 1))


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


def _bytes(model: nn.Module) -> int:
    tensors: Iterable[torch.Tensor] = itertools.chain(model.parameters(), model.buffers())
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
