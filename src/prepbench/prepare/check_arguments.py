"""Check the arguments of ``prepare_model`` and ``run_passes``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from prepbench.checks import check_function, described
from prepbench.errors import InputError
from prepbench.prepare.model import PreparedModel
from prepbench.running.check_inputs import check_names


def check_arguments(model: Any, modules: Any, classes: Any, passes: Any) -> None:
    """Check the arguments of ``prepare_model``.

    Raises:
        InputError: one of them is of another kind, or is not part of the model.
    """
    check_excluded("prepare_model", model, modules, classes)
    if isinstance(model, torch.jit.ScriptModule):
        raise InputError(
            "model is a scripted module, whose code torch runs outside Python, so that nothing in it can be replaced. "
            "Give prepare_model the module that it was made from, before torch.jit.script or torch.jit.trace."
        )
    check_names(model)
    check_passes("extra_passes", passes)


def check_excluded(function: str, model: Any, modules: Any, classes: Any) -> None:
    """Check the model and the excluded modules.

    Raises:
        InputError: one of them is of another kind, or is not part of the model.
    """
    if not isinstance(model, torch.nn.Module):
        raise InputError(f"model must be a torch.nn.Module, got {described(model)}. Give {function} the module itself.")
    for name, given in (("modules_to_exclude", modules), ("module_classes_to_exclude", classes)):
        if given is not None and not isinstance(given, list | tuple | set):
            raise InputError(f"{name} is a list, got {described(given)}: write {name}=[...].")
    _check_modules(model, list(modules or ()))
    _check_classes(model, list(classes or ()))


def _check_modules(model: torch.nn.Module, modules: Sequence[Any]) -> None:
    own = {id(module) for module in model.modules()}
    for index, module in enumerate(modules):
        if not isinstance(module, torch.nn.Module):
            raise InputError(
                f"modules_to_exclude[{index}] is {described(module)}; give the submodules themselves, such as "
                "[model.get_submodule('layer1')], or classes in module_classes_to_exclude."
            )
        if id(module) not in own:
            raise InputError(
                f"modules_to_exclude[{index}], a {type(module).__name__}, is not part of this "
                f"{type(model).__name__}: give one of its own submodules, e.g. model.get_submodule('layer1')."
            )


def _check_classes(model: torch.nn.Module, classes: Sequence[Any]) -> None:
    own = {type(module) for module in model.modules()}
    for index, kind in enumerate(classes):
        if not isinstance(kind, type):
            raise InputError(
                f"module_classes_to_exclude[{index}] is {described(kind)}, not a class; modules go into "
                "modules_to_exclude."
            )
        if kind not in own:
            raise InputError(
                f"module_classes_to_exclude[{index}], {kind.__name__}, is the class of no submodule of this "
                f"{type(model).__name__}."
            )


def check_run(prepared: Any, passes: Any) -> None:
    """Check the arguments of ``run_passes``.

    Raises:
        InputError: the model is not a prepared one, or ``passes`` is not a list.
    """
    if not isinstance(prepared, PreparedModel):
        raise InputError(
            f"run_passes takes what prepare_model returns, got {type(prepared).__name__}: call "
            "prepare_model(model, inputs=[...]) first."
        )
    check_passes("passes", passes)


def check_passes(name: str, passes: Any) -> None:
    """Raise ``InputError`` unless the value is a list of functions."""
    if not isinstance(passes, list | tuple):
        raise InputError(f"{name} is a list, got {described(passes)}: write {name}=[fold_batch_norm_].")
    for index, each in enumerate(passes):
        check_function(f"{name}[{index}]", each, "fold_batch_norm_(prepared)")
