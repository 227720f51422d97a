"""``compile_model``: joins capture, settings, quantization and targets."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from prepbench._torch_compat.programs import with_contents
from prepbench.adapt.recover import recover
from prepbench.adapt.trainable_model import TrainableModel, without
from prepbench.capture.aten.leaf_operators import chosen_leaves
from prepbench.capture.aten.variants import DEFAULT_VARIANTS
from prepbench.capture.sizes.dynamic_axes import DynamicAxes
from prepbench.checks import check_path, check_progress, check_switch, described
from prepbench.compile.captured import captured_task, pruned_task
from prepbench.compile.compile_log import CompileLog, StageTimer
from prepbench.compile.dry_run import planned
from prepbench.compile.kept_stages import KeptStages
from prepbench.compile.prepare_training import check_trainable, prepare_training
from prepbench.compile.request import CompileRequest, check_weights
from prepbench.compile.stages import compile_task, compile_trained, uncompiled
from prepbench.compile.task import CompileTask
from prepbench.document.model import Failure
from prepbench.errors import InputError, SettingsError
from prepbench.jobs import ProgressCallback, report_nothing
from prepbench.progress_bar import shows_progress
from prepbench.running.callable_module import as_module
from prepbench.running.check_inputs import check_traced
from prepbench.running.given_samples import with_tokenizer
from prepbench.running.transforms import chosen_transform
from prepbench.running.unchanged import numbers_kept
from prepbench.settings import (
    CompileOptions,
    DeploymentSettings,
    LayerPruningSettings,
    LayerQuantizationSettings,
    LoraSettings,
    PruningSettings,
    QuantizationSettings,
    prunable_layers,
)
from prepbench.settings.lora import layers_with_adapters


@shows_progress("compile")
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
    pruning_settings: PruningSettings | None = None,
    layer_pruning_settings: Mapping[str, LayerPruningSettings] | None = None,
    lora_settings: LoraSettings | None = None,
    logs_dir: str | Path | None = None,
    compile_options: CompileOptions | None = None,
    dynamic_axes: DynamicAxes | None = None,
    discard_input_model: bool = True,
    is_model_pretrained: bool = True,
    is_dry_run: bool = False,
    skip_eval_set_mode: bool = False,
    graph_name: str | None = None,
    fullgraph: bool = True,
    leaf_modules: Iterable[Any] = (),
    dynamic: bool = True,
    variants: int = DEFAULT_VARIANTS,
    disable: bool = False,
    progress: ProgressCallback = report_nothing,
    reuse: KeptStages | None = None,
    tokenizer: Callable[..., Any] | None = None,
    transform: Callable[[Any], Any] | None = None,
    **extra_options: Any,
) -> Any:
    """Capture, quantize and lower a model. The model itself is never changed, nor are the Python objects that it keeps.

    Args:
        module_or_func: a module, a function, or a bound method of a module. A model of :func:`prepbench.trainable` is
            compiled as it was trained, so arguments that were settled there are refused.
        tracing_inputs: samples whose sizes differ in the dims to make dynamic; the calibration inputs when omitted.
        calibration_inputs: representative samples, from which the ranges of activations are learned; needed with
            ``quantization_settings``.
        deployment_settings: the target that the model will run on; needed with ``quantization_settings``, else
            ``OnnxRuntimeDeployment()``.
        data_transform_fn: NNCF's name of ``transform``.
        forward_fn: called as ``forward_fn(model, args, kwargs)`` in place of ``model(*args, **kwargs)``, for arguments
            that are always the same: ``lambda model, args, kwargs: model(*args, **kwargs, use_cache=False)``. The
            compiled model is called like the samples.
        quantization_settings: how to quantize; None compiles in float, and
            :meth:`CompiledModel.initialize_algorithms` can quantize later.
        layer_quantization_settings: overrides by FQN, glob, ``re:`` pattern or class name (see
            :func:`prepbench.explain_settings`).
        pruning_settings: what to remove: channels and heads, which makes the model smaller and faster on every target,
            or single weights, which makes it smaller once it is compressed. None prunes nothing.
        layer_pruning_settings: overrides, by the same keys.
        lora_settings: low-rank adapters in float beside layers of the quantized or pruned model, by PEFT. They learn on
            the calibration samples, in at most 200 steps, to make up for what that costs; all other weights stay as
            they are. To train them on data of your own, or to save them as a checkpoint, use
            :func:`prepbench.trainable`.
        logs_dir: a folder for ``compile.log`` (for people) and ``events.jsonl`` (for programs); None writes nothing.
        compile_options: the algorithms of quantization, and the SQNR below which a layer stays in float.
        dynamic_axes: the dynamic dims; inferred from the tracing inputs when omitted.
        discard_input_model: True compiles the model's own tensors, without a second copy of the weights; a result that
            runs in PyTorch shares them with the model. False compiles copies.
        is_model_pretrained: False says that the weights are not trained yet. Layers are then quantized as the settings
            say, without measuring their noise.
        is_dry_run: return the plan as a :class:`CompileReport` and compile nothing: how each layer is quantized, the
            operators that the target does not support, the estimated size.
        skip_eval_set_mode: compile the model in the mode it is in, instead of in eval mode.
        graph_name: a name for the graph in the report, the logs and the files; the model's class name when omitted.
        fullgraph: if False, modules that cannot be captured and operators that the target does not support run in
            PyTorch, and the target runs the rest.
        leaf_modules: modules to keep as leaf modules, which run in PyTorch as they are: names, module objects or
            classes. Targets that cannot call back into Python need ``fullgraph=False`` with them.
        dynamic: if False, every dim is static.
        variants: how many graphs there may be where the sizes of the tracing inputs take both sides of a branch. Each
            call then runs the first one whose conditions its sizes meet: :attr:`CompiledModel.variants`. 1 refuses such
            samples; so do pruning, adapters, chosen leaf modules, and ``fullgraph=False``, which runs the branch in
            Python.
        disable: return ``module_or_func`` as it is.
        progress: receives a :class:`prepbench.Progress` for each step; may raise :class:`prepbench.Cancelled` to stop.
        reuse: what earlier compiles found. Stages that nothing has changed for are taken from it, and what this compile
            finds is added. The result is that of a compile without it.
        tokenizer: makes tensors of texts where samples are texts or lists of them, called as
            ``tokenizer(texts, return_tensors="pt", padding=True)``.
        transform: applied to each sample first, of a data set of torch or Hugging Face ``datasets`` or of any other
            form: makes of it what the model is called with, batch dimension and all,
            e.g. ``lambda row: pixels(row["image"])[None]``, or picks the images of a ``DataLoader``'s batches.
        extra_options: fields of the deployment settings or of :class:`CompileOptions`, to set them one by one.

    Returns:
        A :class:`CompiledModel`; a :class:`CompileReport` for a dry run.

    Raises:
        SettingsError: a needed argument is missing (a ``ValueError``), a key matches no layer, nothing would be
            quantized, the target does not support the bits, an unknown option; or too little memory is available,
            with what would fit.
        InputError: the samples do not fit the model or each other.
        CalibrationError: a sample holds NaN, or values become NaN or infinite on it.
        CaptureError: the model cannot be captured as one graph (``fullgraph=True``); every failing module is listed.
        TargetError: the target cannot lower the model.
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
    check_switch("disable", disable)
    if disable:
        return module_or_func
    check_traced("module_or_func", module_or_func)
    check_progress(progress)
    check_path("logs_dir", logs_dir, optional=True)
    request = CompileRequest(
        model=module_or_func,
        tracing_inputs=tracing_inputs,
        calibration_inputs=calibration_inputs,
        deployment_settings=deployment_settings,
        data_transform_fn=with_tokenizer(tokenizer, chosen_transform(transform, data_transform_fn)),
        forward_fn=forward_fn,
        quantization_settings=quantization_settings,
        layer_quantization_settings=layer_quantization_settings,
        pruning_settings=pruning_settings,
        layer_pruning_settings=layer_pruning_settings,
        lora_settings=lora_settings,
        compile_options=compile_options,
        dynamic_axes=dynamic_axes,
        discard_input_model=discard_input_model,
        is_model_pretrained=is_model_pretrained,
        is_dry_run=is_dry_run,
        skip_eval_set_mode=skip_eval_set_mode,
        graph_name=graph_name,
        fullgraph=fullgraph,
        leaf_modules=leaf_modules,
        dynamic=dynamic,
        variants=variants,
        reuse=reuse,
    )
    if isinstance(module_or_func, TrainableModel):
        task = task_of_trained(module_or_func, request, extra_options)
        return compile_trained(task, logs_dir, graph_name, progress, is_dry_run=is_dry_run)
    # before what is missing is asked for, which may be what a mistyped argument holds
    request.check_names(extra_options, inspect.signature(compile_model).parameters)
    if lora_settings is not None:
        task = adapted_task(request, extra_options, progress)
        return compile_trained(task, logs_dir, graph_name, progress, is_dry_run=is_dry_run)
    request.check()
    return _compiled(request.with_extra_options(extra_options), logs_dir, progress)


_SETTLED = (
    "tracing_inputs",
    "calibration_inputs",
    "data_transform_fn",
    "quantization_settings",
    "layer_quantization_settings",
    "pruning_settings",
    "layer_pruning_settings",
    "lora_settings",
    "compile_options",
    "dynamic_axes",
    "forward_fn",
    "reuse",
)
"""The arguments that are fixed once a model is prepared for training."""


def _compiled(request: CompileRequest, logs_dir: str | Path | None, progress: ProgressCallback) -> Any:
    target, settings, is_plan = request.target, request.settings, request.is_dry_run
    if not is_plan:
        target.check_available()
        check_weights(request.model)
    model = as_module(request.called)
    leaves = chosen_leaves(model, request.leaf_modules)
    if request.fullgraph and not is_plan:
        target.check_leaves(tuple(leaves.values()))
    layers = request.layers(model)
    pruning = request.pruning_settings
    pruned = () if pruning is None else prunable_layers(model, pruning, request.layer_pruning_settings)
    request = replace(request, leaf_modules=tuple(leaves), variants=1 if pruned else request.variants)
    log = CompileLog(logs_dir, request.name)
    log.start(target.name, settings, request.quantization_settings, request.options)
    with log.failures():
        request = request.read()
        timer = StageTimer(log.logged(progress), log)
        with timer("capture"):
            stage = captured_task(request, timer.progress)
            timer.reuse(*(["capture"] if stage.is_reused else []))
        if isinstance(stage.task, Failure):
            sample, why = request.samples[0], stage.task
            result: Any = uncompiled(stage.model, sample, settings, layers, why, timer, request.name)
        else:
            task = replace(stage.task, layer_settings=layers)
            with stage.checked():
                task = pruned_task(task, pruned, timer, is_plan=is_plan) if pruned else task
                kept = None if pruned else stage.kept  # learned values belong to the captured state of the model
                result = planned(task, timer) if is_plan else compile_task(task, timer, kept)
    log.done(result if is_plan else result.report)
    return result


# ``compile_model`` with adapters: they are trained on the calibration samples to recover the loss of quantization and
# pruning.


STEPS = 200
_LEARNING_RATE = 3e-3


def adapted_task(request: CompileRequest, extra: Mapping[str, Any], progress: ProgressCallback) -> CompileTask:
    """Return how to compile a model with trained adapters; in a dry run, with adapters to be trained.

    Raises:
        SettingsError: nothing would be learned, or an argument that adapters do not go with.
        InputError: what is compiled is no module.
    """
    _check_adapted(request)
    request = request.with_extra_options(extra)
    check_trainable(request)
    request = request.read()
    # a compile may be asked for where gradients are off; adapters begin with random numbers
    with torch.inference_mode(False), torch.enable_grad(), numbers_kept(seed=0):
        prepared = prepare_training(replace(request, adapters_alone=True), progress)
        assert request.lora_settings is not None
        count = len(layers_with_adapters(as_module(request.model), request.lora_settings))
        about = f"adapters of rank {request.lora_settings.rank} beside {count} layers"
        if request.is_dry_run:
            remark = f"{about} would learn in at most {STEPS} steps on calibration samples"
        else:
            found = recover(prepared, request.calibration, steps=STEPS, learning_rate=_LEARNING_RATE, progress=progress)
            before, after = (found.scores[step] for step in (0, found.best_step))
            remark = f"{about} learned on calibration samples: outputs at {_decibels(before)} dB from float before, "
            remark += f"{_decibels(after)} dB with them"
    task = task_of_trained(prepared, CompileRequest(model=prepared), {})
    return replace(task, remarks=(*task.remarks, remark))


def _decibels(noise: float) -> str:
    return f"{-10 * math.log10(noise):.1f}" if noise > 0 else "inf"


def _check_adapted(request: CompileRequest) -> None:
    refused = {
        "forward_fn": request.forward_fn is not None,
        "leaf_modules": bool(list(request.leaf_modules)),
        "fullgraph=False": not request.fullgraph,
        "skip_eval_set_mode=True": request.skip_eval_set_mode,
        "reuse": request.reuse is not None,
    }
    if names := [name for name, is_given in refused.items() if is_given]:
        raise SettingsError(
            f"lora_settings do not go with {', '.join(names)}: adapters learn in the whole model, in evaluation mode "
            "and as one graph. Leave one of them out."
        )
    if not isinstance(request.model, nn.Module):
        got = described(request.model)
        raise InputError(f"lora_settings need a torch.nn.Module, whose layers get adapters; got {got}.")
    if request.quantization_settings is None and request.pruning_settings is None:
        raise SettingsError(
            "lora_settings would change nothing: in compile_model adapters learn what quantization or pruning costs, "
            "and neither is asked for. Add quantization_settings or pruning_settings; to train adapters on data of "
            "your own, give lora_settings to pb.trainable."
        )
    if request.calibration_inputs is None:
        raise SettingsError(
            "lora_settings need calibration_inputs: representative samples, on which adapters learn. Give "
            "calibration_inputs=[...]."
        )
    if not request.is_model_pretrained:
        raise SettingsError(
            "lora_settings do not go with is_model_pretrained=False: adapters learn what the float model gives, and "
            "that has learned nothing. Train it with pb.trainable first."
        )


# Compile a model that was trained with quantizers: their learned parameters are used unchanged.


def task_of_trained(model: TrainableModel, request: CompileRequest, extra: Mapping[str, Any]) -> CompileTask:
    """Return how to compile a trained model, with its current weights.

    Args:
        model: trained or not.
        request: for it; another target must quantize in the same places as the one that the model was made for.
        extra: fields of the target's settings.

    Raises:
        SettingsError: an argument that is settled, another target, or ranges that no training has learned.
    """
    if settled := [name for name in _SETTLED if getattr(request, name) is not None]:
        raise SettingsError(
            f"{', '.join(settled)} cannot be given with a model of pb.trainable: it was trained for what was given "
            "there. Leave it out, or call pb.trainable again with it."
        )
    task: CompileTask = model.parts.task
    deployment = request.deployment_settings
    request = replace(request, deployment_settings=task.settings if deployment is None else deployment)
    request = request.with_extra_options(extra)
    settings, options, target = request.settings, request.options, request.target
    if options != CompileOptions():
        raise SettingsError(
            f"{', '.join(extra)}: options of quantization were settled by pb.trainable. Leave them out."
        )
    if task.layer_settings is not None and target.placement != task.target.placement:
        raise SettingsError(
            f"The model was trained for {task.target.display_name}, and {target.display_name} quantizes other values. "
            f"Give deployment_settings={type(settings).__name__}() to pb.trainable and train for that target."
        )
    unlearned = model.unlearned()
    if unlearned and not task.is_pretrained:
        raise SettingsError(
            f"{len(unlearned)} ranges of activations are not learned yet, because the model was made with "
            "is_model_pretrained=False and has not been trained. Run some steps in training mode first."
        )
    trained = model if task.layer_settings is not None else None
    return replace(task, settings=settings, target=target, program=_with_weights_of(model, task), trained=trained)


def _with_weights_of(model: TrainableModel, task: CompileTask) -> torch.export.ExportedProgram:
    """Return the program of evaluation mode with copies of the model's tensors, so further training has no effect."""
    own = model.parts.model
    tensors = {**dict(own.named_parameters(remove_duplicate=False)), **dict(own.named_buffers(remove_duplicate=False))}
    copies: dict[int, torch.Tensor] = {}

    def copied(name: str, old: Any) -> Any:
        now = tensors.get(name)
        if now is None:
            return old
        if id(now) not in copies:
            value = without(now.detach().cpu().clone(), model.parts.zeros.get(name))
            copies[id(now)] = torch.nn.Parameter(value, requires_grad=False) if name in parameters else value
        return copies[id(now)]

    parameters = set(task.program.graph_signature.parameters)
    program = task.program
    state = {name: copied(name, value) for name, value in program.state_dict.items()}
    constants = {name: copied(name, value) for name, value in program.constants.items()}
    return with_contents(program, program.graph_module, state, constants)
