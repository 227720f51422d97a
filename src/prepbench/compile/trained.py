"""Compiling a model that was trained with quantizers: what they have learned is taken as it is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from prepbench._torch_compat.programs import with_contents
from prepbench.adapt.trainable_model import TrainableModel, without
from prepbench.compile.arguments import with_extra_options
from prepbench.compile.task import CompileTask
from prepbench.errors import SettingsError
from prepbench.settings import CompileOptions, DeploymentSettings
from prepbench.targets import target_for


def task_of_trained(
    model: TrainableModel, deployment: DeploymentSettings | None, given: dict[str, Any], extra: dict[str, Any]
) -> CompileTask:
    """How to compile a trained model, with the weights that it has now.

    Args:
        model: trained or not.
        deployment: a target that quantizes in the same places; that which the model was made for when left out.
        given: arguments of ``compile_model`` that were settled before training, by name; refused unless None.
        extra: fields of the target's settings.

    Raises:
        SettingsError: an argument that is settled, another target, or ranges that no training has learned.
    """
    settled = [name for name, value in given.items() if value is not None]
    if settled:
        raise SettingsError(
            f"{', '.join(settled)} cannot be given with a model of pb.trainable: it was trained for what was given "
            "there. Leave it out, or call pb.trainable again with it."
        )
    task: CompileTask = model.parts.task
    settings = task.settings if deployment is None else deployment
    settings, options = with_extra_options(settings, CompileOptions(), extra, ())
    if options != CompileOptions():
        raise SettingsError(
            f"{', '.join(extra)}: options of quantization were settled by pb.trainable. Leave them out."
        )
    target = target_for(settings)
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
    """The program of evaluation mode with copies of what the model holds, so that training on changes nothing."""
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
