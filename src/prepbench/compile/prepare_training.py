"""``trainable``: a model with the quantizers of a compile, to be trained and then compiled."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx, nn

from prepbench.adapt.recover import weights_of
from prepbench.adapt.trainable_model import (
    ActivationQuantizer,
    ModeGraph,
    State,
    TrainableModel,
    TrainableParts,
    WeightQuantizer,
    adapted_name,
    add_adapters,
    short_name,
    train_adapters_alone,
)
from prepbench.adapt.trained_graph import FoldedNorms, counterparts, insert_quantizers, take_states, use_gradients
from prepbench.calls.call_spec import CallSpec
from prepbench.capture.sizes.dynamic_axes import DynamicAxes
from prepbench.checks import check_progress, check_type, described
from prepbench.compile.captured import captured_task, pruned_program, with_pruned
from prepbench.compile.compile_log import CompileLog, StageTimer
from prepbench.compile.pruned_model import PrunedGraph, PrunedModel, pruned_model
from prepbench.compile.request import CompileRequest, check_weights
from prepbench.compile.samples import flat_samples
from prepbench.compile.task import CompileTask
from prepbench.errors import CaptureError, InputError, SettingsError, sentence
from prepbench.inputs import Sample
from prepbench.jobs import Progress, ProgressCallback, report_nothing
from prepbench.objects.restore import state_bytes
from prepbench.progress_bar import shows_progress
from prepbench.quantize import (
    LayerReport,
    Observed,
    WeightScheme,
    calibrate,
    choose_weight_schemes,
)
from prepbench.quantize.input_hessians import fitting_schemes
from prepbench.quantize.insert import float_graph, insert_observers
from prepbench.quantize.observed import observed_value, observer_of
from prepbench.quantize.plan import Plan
from prepbench.running.callable_module import as_module
from prepbench.running.tracing import tracing
from prepbench.running.transforms import chosen_transform
from prepbench.running.unchanged import numbers_kept
from prepbench.settings import (
    CompileOptions,
    DeploymentSettings,
    ExplainedLayer,
    LayerPruningSettings,
    LayerQuantizationSettings,
    LoraSettings,
    PrunableLayer,
    PruningSettings,
    QuantizationSettings,
    prunable_layers,
)

_OTHERS = ("cross_layer_equalization", "smooth_quant")


@shows_progress("trainable")
def trainable(
    model: nn.Module,
    *,
    tracing_inputs: Iterable[Any] | None = None,
    calibration_inputs: Iterable[Any] | None = None,
    deployment_settings: DeploymentSettings | None = None,
    data_transform_fn: Callable[[Any], Any] | None = None,
    transform: Callable[[Any], Any] | None = None,
    quantization_settings: QuantizationSettings | None = None,
    layer_quantization_settings: Mapping[str, LayerQuantizationSettings] | None = None,
    pruning_settings: PruningSettings | None = None,
    layer_pruning_settings: Mapping[str, LayerPruningSettings] | None = None,
    lora_settings: LoraSettings | None = None,
    compile_options: CompileOptions | None = None,
    dynamic_axes: DynamicAxes | None = None,
    is_model_pretrained: bool = True,
    progress: ProgressCallback = report_nothing,
) -> TrainableModel:
    """Return a copy of a model that is trained as it will be quantized. The model itself is not changed.

    The same layers and values are rounded as by :func:`prepbench.compile_model` with the same arguments, and gradients
    pass the rounding. Train the result as any ``torch.nn.Module`` (or by :func:`prepbench.recover`), then give it to
    :func:`prepbench.compile_model`, which makes the integers of its evaluation mode. Give tracing inputs of two batch
    sizes, as for a compile, so that batches of any size can be trained.

    Weights are rounded to nearest whatever ``weights_algorithm`` says, because training finds what rounds well. No
    layer goes back to float because of its noise, which training removes, unless a
    ``quantization_sensitivity_threshold`` says so.

    Args:
        model: a module that can be captured as one graph, also one that :func:`prepbench.prune` made.
        tracing_inputs: as for ``compile_model``.
        calibration_inputs: as for ``compile_model``.
        deployment_settings: the target that it will be compiled for; ``OnnxRuntimeDeployment()`` when left out and
            nothing is quantized.
        data_transform_fn: as for ``compile_model``.
        transform: as for ``compile_model``.
        quantization_settings: as for ``compile_model``; None trains in float, for adapters alone.
        layer_quantization_settings: as for ``compile_model``.
        pruning_settings: what to remove before training, as for ``compile_model``. Masked weights stay zero whatever
            training does. Removed channels make the model smaller: it is still of the original's class, with smaller
            weights. Where the model's own code counts the channels (heads of attention), its graph is trained.
        layer_pruning_settings: as for ``compile_model``.
        lora_settings: adds low-rank adapters, by PEFT. They are trained in the place of the weights, which stay as they
            are, and are computed in float beside the quantized layers (as in QLoRA).
        compile_options: folding of batch norms, and the percentile of that observer.
        dynamic_axes: as for ``compile_model``.
        is_model_pretrained: False learns the ranges of activations in training, from the first batch on. Nothing is
            learned from the calibration inputs, which may be left out.
        progress: as for ``compile_model``.

    Returns:
        The copy, in evaluation mode.

    Raises:
        SettingsError: as ``compile_model``; an option that changes weights before training; adapters on layers that
            cannot take them, or beside channels that the model's own code counts.
        PreparationError: the model without channels does not compute what it computes with zeros in their place.
        InputError: the samples do not fit the model or each other; the model is no module, or in half precision.
        CaptureError: the model cannot be captured as one graph.
        MissingPackageError: ``peft`` is needed and not installed.

    Example:
        >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        >>> samples = [torch.randn(2, 4), torch.randn(5, 4)]
        >>> prepared = trainable(
        ...     net,
        ...     calibration_inputs=samples,
        ...     deployment_settings=OnnxRuntimeDeployment(),
        ...     quantization_settings=QuantizationSettings(),
        ... )
        >>> list(prepared.state_dict()) == list(net.state_dict())
        True
    """
    learns = quantization_settings is not None and is_model_pretrained is False
    request = CompileRequest(
        model=model,
        tracing_inputs=tracing_inputs,
        # a model without learned quantizers needs none
        calibration_inputs=tracing_inputs if calibration_inputs is None and learns else calibration_inputs,
        deployment_settings=deployment_settings,
        data_transform_fn=chosen_transform(transform, data_transform_fn),
        quantization_settings=quantization_settings,
        layer_quantization_settings=layer_quantization_settings,
        pruning_settings=pruning_settings,
        layer_pruning_settings=layer_pruning_settings,
        lora_settings=lora_settings,
        compile_options=compile_options,
        dynamic_axes=dynamic_axes,
        is_model_pretrained=is_model_pretrained,
    )
    return prepare_training(request, progress)


def prepare_training(request: CompileRequest, progress: ProgressCallback) -> TrainableModel:
    """Prepare a model for training; see :func:`trainable`."""
    check_progress(progress)
    check_trainable(request)
    model = as_module(request.model)
    check_weights(model)
    options = _options(request.compile_options)
    # a pruned graph has no names of arguments; it is called as the model that it was made from
    traced = model.origin.model if isinstance(model, PrunedGraph) else model
    request = replace(request, model=traced, compile_options=options).read()
    request = replace(request, discard_input_model=True, is_dry_run=False, variants=1)
    before = Unprepared.of(model, request, progress)
    pruned, source = before.pruned, before.model
    if pruned is not None:
        _check_adapters(pruned, request.lora_settings)
    no_code = "" if pruned is None else why_no_code(pruned)
    prepared_from = weights_of(model)
    own = _own_copy(source if pruned is None or no_code else pruned.model)
    zeros: Mapping[int, torch.Tensor] = {} if pruned is None or no_code else zeros_of(own, pruned.masks)
    rows = request.layers(own)
    adapters = None if request.lora_settings is None else add_adapters(own, request.lora_settings)
    rows = None if rows is None else tuple(_for_training(row, own, request.lora_settings) for row in rows)
    request = replace(request, model=own, origin=source)
    with numbers_kept():
        captured = functools.partial(_captured, request, progress)
        task = replace(captured(is_training=False), layer_settings=rows)
        if no_code:
            smaller = pruned_as_graph(task, own, before)
            task, own, zeros = smaller.task, smaller.own, smaller.zeros
            captured = functools.partial(_no_code, no_code)
        elif pruned is not None:
            task = replace(task, pruned=pruned.layers, dense_bytes=state_bytes(source))
        parts = _parts(task, own, captured, zeros, progress)
    parts.adapters, parts.original, parts.is_pretrained = adapters, model, request.is_model_pretrained
    parts.prepared_from = prepared_from
    parts.pruned = () if pruned is None else pruned.layers
    parts.no_code = no_code
    return TrainableModel(parts)


def check_trainable(request: CompileRequest) -> None:
    """Raise for arguments that training does not take, of the wrong type, or without a required one."""
    model = request.model
    if isinstance(model, PrunedGraph):
        _check_pruned(request.pruning_settings, request.lora_settings)
    if not isinstance(model, nn.Module) or isinstance(model, TrainableModel):
        raise InputError(
            f"model must be a torch.nn.Module whose weights are trained, got {described(model)}. Give the module, in "
            "float."
        )
    _check_precision(model)
    remedy = "Write lora_settings=pb.LoraSettings()."
    check_type("lora_settings", request.lora_settings, LoraSettings, remedy, optional=True)
    request.check()


def _check_pruned(pruning: object, lora: object) -> None:
    """Raise ``SettingsError`` for options that a pruned graph does not support."""
    for name, value in (("pruning_settings", pruning), ("lora_settings", lora)):
        if value is not None:
            raise SettingsError(
                f"{name} cannot be given with a graph of pb.prune: it was pruned already, and has no modules that an "
                f"adapter could stand in. Leave {name} out, or give the model itself, with the pruning_settings that "
                "pb.prune got."
            )


def _check_precision(model: nn.Module) -> None:
    """Raise ``InputError`` for low-precision weights, in which training steps are often rounded away."""
    for name, parameter in model.named_parameters():
        if parameter.is_floating_point() and parameter.dtype.itemsize < torch.float32.itemsize:
            raise InputError(
                f"{name} is {parameter.dtype}, and steps of training are smaller than what its numbers can tell "
                "apart. Give model.float() and samples in float32, train under torch.autocast if that is to be fast, "
                "and convert what comes out: prepared.float_model().to(dtype)."
            )


def _no_code(why: str, *, is_training: bool) -> CompileTask:
    raise CaptureError(why)


def _check_adapters(pruned: PrunedModel, lora: LoraSettings | None) -> None:
    if lora is not None and pruned.why_graph:
        names = ", ".join(row.fqn for row in pruned.layers if row.removed_channels)
        raise SettingsError(
            "lora_settings put adapters into the model, and pruning_settings remove what its own code counts, so only "
            f"its graph is left: {pruned.why_graph} Pruned were {names}. Leave the layers whose channels it counts "
            '(heads of attention) as they are: layer_pruning_settings={"...": '
            "pb.LayerPruningSettings(skip_pruning=True)}, or leave lora_settings out."
        )


def _parts(
    task: CompileTask,
    own: nn.Module,
    captured: Callable[..., CompileTask],
    zeros: Mapping[int, torch.Tensor],
    progress: ProgressCallback,
) -> TrainableParts:
    task = with_choices(task, own, progress)
    observed = None if task.layer_settings is None else observed_for_training(task, own, progress)
    plan = Plan() if observed is None else observed.plan
    schemes = {fqn: fitting_schemes(plan, fqn)[0][0] for fqn in plan.nodes}
    quantizers = {} if observed is None else _quantizers(observed, schemes)

    def mode_graph(one: CompileTask, evaluated: CompileTask | None) -> ModeGraph | None:
        return _mode_graph(one, own, observed, quantizers, zeros, evaluated)

    evaluation = mode_graph(task, None)
    assert evaluation is not None
    notes: tuple[str, ...] = ()
    training: ModeGraph | None = None
    try:
        trained = replace(captured(is_training=True), layer_settings=task.layer_settings)
        training = mode_graph(trained, task)
        why = "other layers compute in it"
    except CaptureError as error:
        why = str(error).partition("\n")[0]
    if training is None:
        training = mode_graph(task, task)
        assert training is not None
        notes = (f"training mode computes what evaluation mode does, without dropout or statistics of batches: {why}",)
    layers = () if observed is None else tuple(replace(row, fqn=short_name(row.fqn)) for row in observed.layers)
    parameters = own.named_parameters(remove_duplicate=False)
    masked = {name: zeros[id(parameter)] for name, parameter in parameters if id(parameter) in zeros}
    return TrainableParts(own, training, evaluation, quantizers, schemes, layers, notes, zeros=masked, task=task)


def _mode_graph(
    task: CompileTask,
    own: nn.Module,
    observed: Observed | None,
    quantizers: Mapping[str, nn.Module],
    zeros: Mapping[int, torch.Tensor],
    evaluated: CompileTask | None,
) -> ModeGraph | None:
    """Return the graph of one mode; None if training lacks layers that are quantized in evaluation."""
    unfolded = replace(task.options, fold_batch_norm=False)

    def graph_of(one: CompileTask) -> fx.GraphModule:
        return float_graph(one.in_types_of_target().program, unfolded, plain_weights=False)[0]

    graph = graph_of(task)
    if observed is not None:
        reference = graph if evaluated is None else graph_of(evaluated)
        same = counterparts(reference.graph, graph.graph)
        norms = FoldedNorms(reference, observed.graph)
        if insert_quantizers(graph, observed.graph, norms, quantizers, same.get):
            return None
    use_gradients(graph, observed.plan.dynamic if observed is not None and evaluated is None else ())
    graph, places = take_states(graph, own)
    states = [State(holder, name, zeros.get(id(holder._parameters.get(name)))) for holder, name in places]
    spec, out_spec = task.call_spec, task.captured.program.call_spec.out_spec
    return ModeGraph(graph, states, functools.partial(_arranged, spec), functools.partial(_result, spec, out_spec))


def _arranged(spec: CallSpec, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    return spec.checked(spec.flatten(args, kwargs))


def _result(spec: CallSpec, out_spec: Any, outputs: Sequence[Any]) -> Any:
    return spec.result(outputs, out_spec)


def _captured(request: CompileRequest, progress: ProgressCallback, *, is_training: bool) -> CompileTask:
    """Return the graph of a mode, on the tensors of the request's model."""

    def set_mode(model: nn.Module) -> None:
        model.train(is_training)
        if is_training and request.adapters_alone:
            train_adapters_alone(model)

    progress(Progress("capture", int(is_training), 2))
    task = captured_task(replace(request, set_mode=set_mode), progress).task
    assert isinstance(task, CompileTask)  # with fullgraph, what cannot be captured is an error
    return task


def _quantizers(observed: Observed, schemes: Mapping[str, WeightScheme]) -> dict[str, nn.Module]:
    """Return the replacement of each observer, by its name."""
    owners = {edge: layer.fqn for edge, layer in observed.plan.weights.items()}
    found: dict[str, nn.Module] = {}
    for node in observed.graph.graph.nodes:
        observer = observer_of(observed.graph, node)
        if observer is None or str(node.target) in found:
            continue
        if not hasattr(observer, "scheme"):
            found[str(node.target)] = ActivationQuantizer(observer)
            continue
        source = observed_value(observed.graph, node).name
        fqn = next(owners[user.name, source] for user in node.users if (user.name, source) in owners)
        found[str(node.target)] = WeightQuantizer(schemes[fqn], observer.axis)
    return found


def _for_training(row: ExplainedLayer, own: nn.Module, lora: LoraSettings | None) -> ExplainedLayer:
    """Return the settings of a layer, rounded to nearest, by its name where it has adapters."""
    if row.settings is not None and row.settings.cross_layer_equalization:
        raise _changes_weights("QuantizationSettings.cross_layer_equalization")
    settings = None if row.settings is None else replace(row.settings, weights_algorithm="nearest")
    until = tuple(adapted_name(name, own) for name in row.until)
    name = adapted_name(row.fqn, own)
    adapter = f"adapter of rank {lora.rank}" if lora is not None and name != row.fqn else ""
    return replace(row, fqn=name, settings=settings, until=until, adapter=adapter)


def _changes_weights(name: str) -> SettingsError:
    return SettingsError(
        f"{name}=True changes weights before they are quantized, so they would not be those that are trained. Write "
        "False; training finds what suits both."
    )


def _own_copy(model: nn.Module) -> nn.Module:
    try:
        return copy.deepcopy(model)
    except Exception as error:  # the user's class may raise anything
        raise InputError(
            f"model cannot be copied, and training must not change it: {sentence(error)} Give a module that "
            "copy.deepcopy takes, without results of a call in its attributes."
        ) from error


def _options(given: CompileOptions | None) -> CompileOptions:
    options = given or CompileOptions()
    for name in _OTHERS:
        if getattr(options, name):
            raise _changes_weights(f"CompileOptions.{name}")
    return replace(options, keep_ruined_layers_in_float=False, bias_correction=False, smooth_quant=False)


# The plan of a compile for training: observers, and one choice of bits and blocks for each layer.


def observed_for_training(task: CompileTask, own: nn.Module, progress: ProgressCallback) -> Observed:
    """Return the float graph with observers, calibrated if ranges are learned from samples."""
    assert task.layer_settings is not None
    samples = flat_samples(task.calibration, task.call_spec)
    program = task.in_types_of_target().program
    with tracing(progress):
        observed = insert_observers(
            program,
            own,
            task.layer_settings,
            task.target.placement,
            task.captured.leaves,
            options=task.options,
            plain_weights=False,
        )
    return calibrate(observed, samples, progress) if task.is_pretrained else observed


def with_choices(task: CompileTask, own: nn.Module, progress: ProgressCallback) -> CompileTask:
    """Return the task with one choice of bits and block size per layer, where its settings name several."""
    rows = task.layer_settings
    if rows is None or not any(_is_open(row.settings) for row in rows):
        return task
    if not task.is_pretrained:
        raise SettingsError(
            "Bits, blocks and thresholds are chosen by measuring trained weights, which is_model_pretrained=False says "
            "these are not. Name one number of bits and one size of blocks, and no threshold."
        )
    samples = flat_samples(task.calibration, task.call_spec)
    chosen = {
        row.fqn: row
        for row in choose_weight_schemes(observed_for_training(task, own, progress), samples, progress).layers
    }
    return replace(task, layer_settings=tuple(_decided(row, chosen[row.fqn]) for row in rows))


def _is_open(settings: QuantizationSettings | None) -> bool:
    return settings is not None and (
        settings.quantization_sensitivity_threshold is not None or len(list(settings.candidates())) > 1
    )


def _decided(row: ExplainedLayer, report: LayerReport) -> ExplainedLayer:
    if row.settings is None or not _is_open(row.settings):
        return row
    if not report.quantized:
        return replace(row, settings=None)
    single = replace(
        row.settings,
        weights_num_bits=report.weights.asked,
        weights_only_quantization_block_size=report.block_size,
        quantization_sensitivity_threshold=None,
    )
    return replace(row, settings=single)


# Prune a model before training: a smaller model, and masks for weights that stay zero.


@dataclass(frozen=True)
class SmallerModel:
    """A model whose graph was pruned, because its own code does not support fewer channels.

    Attributes:
        task: with the pruned program.
        own: has the tensors of that program under the names of the model; its code does not run.
        zeros: masks of zero weights, by the parameter.
    """

    task: CompileTask
    own: nn.Module
    zeros: Mapping[int, torch.Tensor]


@dataclass(frozen=True)
class Unprepared:
    """A model before it is prepared.

    Attributes:
        model: as it was before it was pruned.
        layers: the decision for each layer; empty where nothing is pruned.
        pruned: the result.
        calibration: samples that decide what goes.
        graph: which was pruned before, and whose weights are trained.
    """

    model: nn.Module
    layers: Sequence[PrunableLayer] = ()
    pruned: PrunedModel | None = None
    calibration: Sequence[Sample] = ()
    graph: PrunedGraph | None = None

    @classmethod
    def of(cls, model: nn.Module, request: CompileRequest, progress: ProgressCallback) -> Unprepared:
        """Prune a model, unless that is done already."""
        if isinstance(model, PrunedGraph):
            origin = model.origin
            return cls(origin.model, origin.rows, origin.pruned, origin.calibration, model)
        if request.pruning_settings is None:
            return cls(model)
        layers = prunable_layers(model, request.pruning_settings, request.layer_pruning_settings)
        return cls(model, layers, pruned_model(request, layers, progress), request.calibration)


@torch.no_grad()
def _take_weights(own: nn.Module, graph: PrunedGraph) -> None:
    """Copy the current weights of its graph into a pruned model."""
    held = {**dict(own.named_parameters(remove_duplicate=False)), **dict(own.named_buffers(remove_duplicate=False))}
    for name, value in graph.body.state_dict(keep_vars=True).items():
        if name in held:
            held[name].copy_(value)


def zeros_of(own: nn.Module, masks: Mapping[str, torch.Tensor]) -> dict[int, torch.Tensor]:
    """Return the masks of zero weights by parameter (layers may share one, and adapters give it another name)."""
    parameters = dict(own.named_parameters(remove_duplicate=False))
    return {id(parameters[name]): mask == 0 for name, mask in masks.items()}


def pruned_as_graph(task: CompileTask, own: nn.Module, before: Unprepared) -> SmallerModel:
    """Prune the graph of a model, which was proven before, and give a copy of the model its tensors."""
    deciding = replace(task, calibration=tuple(before.calibration))
    pruned = pruned_program(
        deciding, before.layers, StageTimer(report_nothing, CompileLog(None, task.name)), is_plan=True
    )
    made = replace(with_pruned(task, pruned), dense_bytes=state_bytes(own))
    smaller = copy.deepcopy(own)
    modules = dict(smaller.named_modules(remove_duplicate=False))
    tensors: dict[int, torch.Tensor] = {}
    for name, tensor in {**pruned.program.state_dict, **pruned.program.constants}.items():
        holder, _, last = name.rpartition(".")
        module = modules.get(holder)
        if module is None or not isinstance(tensor, torch.Tensor):
            continue
        old = module._parameters.get(last)
        if old is not None:
            value = tensors.setdefault(id(tensor), nn.Parameter(tensor.detach().clone(), old.requires_grad))
            module._parameters[last] = value if isinstance(value, nn.Parameter) else nn.Parameter(value)
        elif last in module._buffers:
            module._buffers[last] = tensors.setdefault(id(tensor), tensor.detach().clone())
    if before.graph is not None:
        _take_weights(smaller, before.graph)
    return SmallerModel(made, smaller, zeros_of(smaller, pruned.masks))


def why_no_code(found: PrunedModel) -> str:
    """Return why training runs the graph; empty if the model's own code supports the remaining channels."""
    return (
        f"channels that the model's own code counts are gone, so its graph is trained: {found.why_graph}"
        if (found.why_graph)
        else ""
    )
