"""``CompileRequest``: a model, its samples, and how to compile it; checked, and read once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cached_property
from typing import Any

from torch import nn

from prepbench.capture.sizes.dynamic_axes import DynamicAxes, axes_of, check_axes
from prepbench.checks import check_count, check_function, check_switches, check_text, check_type, did_you_mean
from prepbench.compile.kept_stages import KeptStages
from prepbench.compile.samples import read_samples
from prepbench.errors import InputError, SettingsError
from prepbench.inputs import Sample, check_data
from prepbench.quantize import check_calibration
from prepbench.running.callable_module import as_module, with_forward_fn
from prepbench.settings import (
    CompileOptions,
    DeploymentSettings,
    ExplainedLayer,
    LayerPruningSettings,
    LayerQuantizationSettings,
    LoraSettings,
    OnnxRuntimeDeployment,
    PruningSettings,
    QuantizationSettings,
    explain_settings,
)
from prepbench.settings.explain import check_pruning_settings
from prepbench.settings.rules import check_layer_rules
from prepbench.targets import Target, target_for
from prepbench.targets.base import check_settings

_EXAMPLES: dict[type, type] = {DeploymentSettings: OnnxRuntimeDeployment}


@dataclass(frozen=True, kw_only=True)
class CompileRequest:
    """The arguments of :func:`prepbench.compile_model`, or of a function that captures as it does.

    Fields without a description mean what the arguments of ``compile_model`` do.

    Attributes:
        model: the user's module or function.
        leaf_modules: names, wherever a request is captured: module objects are the user's, and a twin is captured.
        samples_argument: the name of ``tracing_inputs`` in errors.
        samples: the tracing inputs, normalised by :meth:`read`.
        calibration: the calibration inputs, normalised by :meth:`read`.
        origin: the user's model, where ``model`` is a copy of it; it gives the graph its name and remarks.
        set_mode: how the twin that is captured gets its mode.
        adapters_alone: in training mode all but the adapters computes as in evaluation: no dropout, no statistics of
            batches.
    """

    model: Callable[..., Any]
    tracing_inputs: Iterable[Any] | None = None
    calibration_inputs: Iterable[Any] | None = None
    deployment_settings: DeploymentSettings | None = None
    data_transform_fn: Callable[[Any], Any] | None = None
    forward_fn: Callable[..., Any] | None = None
    quantization_settings: QuantizationSettings | None = None
    layer_quantization_settings: Mapping[str, LayerQuantizationSettings] | None = None
    pruning_settings: PruningSettings | None = None
    layer_pruning_settings: Mapping[str, LayerPruningSettings] | None = None
    lora_settings: LoraSettings | None = None
    compile_options: CompileOptions | None = None
    dynamic_axes: DynamicAxes | None = None
    discard_input_model: bool = True
    is_model_pretrained: bool = True
    is_dry_run: bool = False
    skip_eval_set_mode: bool = False
    graph_name: str | None = None
    fullgraph: bool = True
    leaf_modules: Iterable[Any] = ()
    dynamic: bool = True
    variants: int = 1
    reuse: KeptStages | None = None
    samples_argument: str = "tracing_inputs"
    samples: tuple[Sample, ...] = ()
    calibration: tuple[Sample, ...] = ()
    origin: nn.Module | None = None
    set_mode: Callable[[nn.Module], object] = nn.Module.eval
    adapters_alone: bool = False

    def __post_init__(self) -> None:
        check_switches(
            discard_input_model=self.discard_input_model,
            is_model_pretrained=self.is_model_pretrained,
            is_dry_run=self.is_dry_run,
            skip_eval_set_mode=self.skip_eval_set_mode,
            fullgraph=self.fullgraph,
            dynamic=self.dynamic,
        )
        check_function("data_transform_fn", self.data_transform_fn, "data_transform_fn(element)", optional=True)
        check_function("forward_fn", self.forward_fn, "forward_fn(model, args, kwargs)", optional=True)
        check_count("variants", self.variants, 1)
        check_text("graph_name", self.graph_name, "encoder", optional=True)
        check_axes(self.dynamic_axes)
        check_type("reuse", self.reuse, KeptStages, "Write reuse=pb.KeptStages().", optional=True)

    @cached_property
    def called(self) -> Callable[..., Any]:
        """The model, called by ``forward_fn`` if there is one."""
        return self.model if self.forward_fn is None else with_forward_fn(self.model, self.forward_fn)

    @property
    def settings(self) -> DeploymentSettings:
        """The settings of the target."""
        return OnnxRuntimeDeployment() if self.deployment_settings is None else self.deployment_settings

    @property
    def options(self) -> CompileOptions:
        """The algorithms."""
        return CompileOptions() if self.compile_options is None else self.compile_options

    @property
    def target(self) -> Target:
        """The target that the model will run on."""
        return target_for(self.settings)

    @property
    def named_after(self) -> nn.Module:
        """The user's model, as a module."""
        return as_module(self.model) if self.origin is None else self.origin

    @property
    def name(self) -> str:
        """The name of the graph."""
        return type(self.named_after).__name__ if self.graph_name is None else self.graph_name

    def layers(self, model: nn.Module) -> tuple[ExplainedLayer, ...] | None:
        """Return the settings of each layer of the model, or of a copy of it; None for a compile in float.

        Raises:
            SettingsError: the target does not support them.
        """
        quantization, rules = self.quantization_settings, self.layer_quantization_settings
        explained = None if quantization is None else tuple(explain_settings(model, quantization, rules))
        check_settings(self.target, self.settings, explained or ())
        return explained

    def read(self) -> CompileRequest:
        """Return the request with normalised samples and known axes. A request that has them is returned as it is.

        Raises:
            InputError: the samples do not fit the model or each other.
            CalibrationError: layers are quantized, and a sample holds NaN.
        """
        if self.samples:
            return self
        samples, calibration = read_samples(
            self.called, self.tracing_inputs, self.calibration_inputs, self.data_transform_fn, self.samples_argument
        )
        if self.quantization_settings is not None:
            check_calibration(self.called, calibration)
        if not self.is_dry_run:
            check_data(samples, self.called, self.samples_argument)
        axes = axes_of(samples, self.called) if self.dynamic_axes is None else self.dynamic_axes
        for axis in () if self.dynamic else axes.dynamic:
            axes = axes.set(axis.path, axis.dim, False)
        return replace(self, samples=tuple(samples), calibration=tuple(calibration), dynamic_axes=axes)

    def check(self) -> None:
        """Raise ``SettingsError`` for settings of the wrong type, or without an argument that they require."""
        quantization, layers, calibration = (
            self.quantization_settings,
            self.layer_quantization_settings,
            self.calibration_inputs,
        )
        for name, value, kind in (
            ("deployment_settings", self.deployment_settings, DeploymentSettings),
            ("quantization_settings", quantization, QuantizationSettings),
            ("compile_options", self.compile_options, CompileOptions),
        ):
            check_type(name, value, kind, f"Write {name}=pb.{_EXAMPLES.get(kind, kind).__name__}().", optional=True)
        check_layer_rules(layers)
        if quantization is not None and calibration is None:
            raise SettingsError(
                "quantization_settings needs calibration_inputs: a list of representative samples, from which the "
                "ranges of activations are learned. Give calibration_inputs=[...]."
            )
        if quantization is not None and self.deployment_settings is None:
            raise SettingsError(
                "quantization_settings needs deployment_settings, because each target fuses int8 operators in its own "
                "way: deployment_settings=OnnxRuntimeDeployment() or InductorDeployment()."
            )
        if quantization is None and layers:
            raise SettingsError(
                f"layer_quantization_settings were given for {', '.join(map(repr, layers))} without "
                "quantization_settings, so nothing is quantized. "
                "Add quantization_settings=QuantizationSettings()."
            )
        check_pruning(self.pruning_settings, self.layer_pruning_settings, calibration)
        if self.tracing_inputs is None and calibration is None:
            raise SettingsError(
                "Give tracing_inputs (or calibration_inputs): sample inputs whose sizes differ in the dims to make "
                "dynamic."
            )

    def check_names(self, extra: Mapping[str, Any], arguments: Iterable[str] = ()) -> None:
        """Raise ``SettingsError`` with the nearest names if no settings have a field for a keyword argument;
        ``arguments`` are other known names.
        """
        of_target, of_compile = (
            {field.name for field in fields(each)} if is_dataclass(each) else set()
            for each in (self.settings, self.options)
        )
        for name in extra:
            if name not in of_target | of_compile:
                hint = did_you_mean(name, sorted({*of_target, *of_compile, *arguments} - {"extra_options"}))
                hint = hint or "Samples are given as tracing_inputs=[...], the target as deployment_settings=. "
                raise SettingsError(
                    f"compile_model has no argument {name!r}. {hint}Extra options are fields of "
                    f"{type(self.settings).__name__} ({', '.join(sorted(of_target)) or 'none'}) or of CompileOptions "
                    f"({', '.join(sorted(of_compile))})."
                )

    def with_extra_options(self, extra: Mapping[str, Any]) -> CompileRequest:
        """Return the request with further keyword arguments, each a field of the target's settings or of the options.

        Raises:
            SettingsError: neither has such a field, or the value is not allowed.
        """
        self.check_names(extra)
        deployment, options = self.settings, self.options
        of_target = {field.name for field in fields(deployment)}
        return replace(
            self,
            deployment_settings=replace(deployment, **{name: extra[name] for name in extra if name in of_target}),
            compile_options=replace(options, **{name: extra[name] for name in extra if name not in of_target}),
        )


def check_pruning(pruning: Any, layers: Any, calibration: Any) -> None:
    """Raise ``SettingsError`` for pruning settings of the wrong type, or without an argument that they require."""
    check_pruning_settings(pruning, layers)
    rules = [rule for rule in (layers or {}).values() if isinstance(rule, LayerPruningSettings)]
    if calibration is None and pruning is not None and any(each.needs_samples for each in (pruning, *rules)):
        raise SettingsError(
            'score="activations" and pruning_sensitivity_threshold need calibration_inputs: representative samples, on '
            "which layers are run. Give calibration_inputs=[...]."
        )


def check_weights(model: Any) -> None:
    """Raise ``InputError`` for a model without data, which allows a dry run only."""
    if isinstance(model, nn.Module) and any(parameter.is_meta for parameter in model.parameters()):
        raise InputError(
            "module_or_func has weights on meta, which have no data, so the compiled model could not run. Load the "
            "weights first (model.to_empty(device='cpu') makes room for them), or give is_dry_run=True for the plan."
        )
