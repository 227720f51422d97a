"""Low-rank adapters beside layers, by PEFT: added, saved as PEFT's own checkpoint, merged."""

from __future__ import annotations

import copy
import re
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import nn

from prepbench.errors import SettingsError, sentence
from prepbench.packages import imported
from prepbench.patching import logs_dropped_here, warnings_ignored_here
from prepbench.settings import LoraSettings
from prepbench.settings.lora_layers import layers_with_adapters

_BASE = "base_layer"
_NAME = "default"


def add_adapters(model: nn.Module, settings: LoraSettings) -> Any:
    """Add adapters beside layers of a model, in place, and freeze all other parameters. Return PEFT's settings.

    Raises:
        SettingsError: a name matches nothing, or a layer that cannot take an adapter.
        MissingPackageError: ``peft`` is not installed, or does not import.
    """
    peft = peft_package()
    layers = layers_with_adapters(model, settings)
    config = peft.LoraConfig(
        r=settings.rank,
        lora_alpha=settings.alpha,
        lora_dropout=settings.dropout_rate,
        target_modules="|".join(map(re.escape, layers)),
    )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what PEFT thinks of a model's configuration
            peft.inject_adapter_in_model(config, model, adapter_name=_NAME)
    except (ValueError, TypeError, NotImplementedError, KeyError) as error:
        raise SettingsError(
            f"PEFT cannot put adapters of rank {settings.rank} beside {', '.join(layers[:6])}: {sentence(error)} Name "
            "other layers in LoraSettings.target_modules, or change the rank."
        ) from error
    return config


def train_adapters_alone(model: nn.Module) -> None:
    """Set evaluation mode for all of a model but its adapters, which get training mode."""
    model.eval()
    for module in model.modules():
        dropout = getattr(module, "lora_dropout", None)
        if isinstance(getattr(module, _BASE, None), nn.Module) and isinstance(dropout, nn.Module):
            dropout.train()


def adapted_name(fqn: str, model: nn.Module) -> str:
    """Return the name of a layer inside the module that joins it with its adapter; its own name without an adapter."""
    module: Any = model
    for part in fqn.split(".") if fqn else ():
        module = getattr(module, part, None)
    return f"{fqn}.{_BASE}" if fqn and isinstance(getattr(module, _BASE, None), nn.Module) else fqn


def short_name(fqn: str) -> str:
    """Return the name of a layer in the original, given its name in a model with adapters."""
    return fqn.removesuffix(f".{_BASE}")


def save_adapters(model: nn.Module, config: Any, folder: Path) -> Path:
    """Write a checkpoint of PEFT: its settings as JSON, and the adapters as safetensors."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    found = peft_package().get_peft_model_state_dict(model, adapter_name=_NAME)
    state = {f"base_model.model.{name}": value.detach().cpu().contiguous() for name, value in found.items()}
    save_file(state, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    config.save_pretrained(str(folder))
    return folder


@torch.no_grad()
def merged(model: nn.Module) -> nn.Module:
    """Return a copy of a model whose weights include the adapters' products, without adapters."""
    own = copy.deepcopy(model)
    for path, module in list(own.named_modules()):
        layer: Any = module
        if isinstance(getattr(layer, _BASE, None), nn.Module) and hasattr(layer, "get_base_layer"):
            layer.merge(safe_merge=True)
            parent, _, name = path.rpartition(".")
            setattr(own.get_submodule(parent), name, layer.get_base_layer())
    own.__dict__.pop("peft_config", None)
    return own.requires_grad_(True)


def peft_package() -> Any:
    """Import PEFT and return it.

    Raises:
        MissingPackageError: it is not installed, or does not import.
    """
    # it imports torchao, which tells of what it lacks
    with logs_dropped_here(), warnings_ignored_here():
        return imported("peft", "LoraSettings", "'prepbench[peft]'")
