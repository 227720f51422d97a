"""Select the layers that get a low-rank adapter."""

from __future__ import annotations

from typing import Any

from torch import nn

from prepbench.errors import SettingsError
from prepbench.settings.lora import LoraSettings
from prepbench.settings.quantization import LayerQuantizationSettings
from prepbench.settings.rules import LayerNames

_TAKES = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


def layers_with_adapters(model: nn.Module, settings: LoraSettings) -> list[str]:
    """Return the layers that get an adapter.

    Raises:
        SettingsError: a name matches nothing, or a module that cannot take one.
    """
    names = LayerNames(model)
    able = [fqn for fqn, module in model.named_modules() if _why_not(fqn, module, names) == ""]
    if not settings.target_modules:
        if not able:
            raise SettingsError("The model has no linear layer and no convolution, so no layer can take an adapter.")
        return able
    found: dict[str, None] = {}
    for key in settings.target_modules:
        rules = {key: LayerQuantizationSettings()}
        within = [fqn for fqn in able if names.matching(fqn, rules)]
        if not within:
            raise SettingsError(_matches_none(key, rules, names, able))
        found.update(dict.fromkeys(within))
    return list(found)


def _matches_none(key: str, rules: Any, names: LayerNames, able: list[str]) -> str:
    matched = [fqn for fqn in names.modules if fqn and names.matching(fqn, rules)]
    able_text = f"Layers that can: {', '.join(able[:8])}." if able else "No layer of this model can."
    if not matched:
        return f"LoraSettings.target_modules: {key!r} matches no module. {able_text}"
    first = matched[0]
    return (
        f"LoraSettings.target_modules: {key!r} matches {first!r}, which cannot take an adapter: "
        f"{_why_not(first, names.modules[first], names)}. {able_text}"
    )


def _why_not(fqn: str, module: nn.Module, names: LayerNames) -> str:
    """Return why a module cannot take an adapter; empty if it can."""
    if not isinstance(module, _TAKES):
        return f"it is a {type(module).__name__}, and only linear layers and convolutions can"
    if not fqn:
        return "it is the whole model"
    around = names.modules[fqn.rpartition(".")[0]]
    if isinstance(around, nn.MultiheadAttention):
        return "torch's attention reads its weight and does not call it"
    if len(names.aliases(fqn)) > 1:
        return "it is shared under several names, of which only one would get it"
    return ""
