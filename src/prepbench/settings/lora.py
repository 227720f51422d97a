"""Low-rank adapters: their size, and the layers that get one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from prepbench.checks import described
from prepbench.errors import SettingsError
from prepbench.settings.quantization import LayerQuantizationSettings
from prepbench.settings.rules import LayerNames
from prepbench.settings.validation import Settings, check_range


@dataclass(frozen=True, kw_only=True)
class LoraSettings(Settings):
    """Low-rank adapters (LoRA) beside layers, trained instead of their weights.

    A layer with weight ``W`` then computes ``W x + (alpha / rank) B A x``, where ``A`` has ``rank`` rows and ``B``
    as many columns.

    Source: Hu, Shen, Wallis, Allen-Zhu, Li, Wang, Wang, Chen, "LoRA: Low-Rank Adaptation of Large Language Models",
    2021.

    Attributes:
        rank: how many directions an adapter has, 1 or more. Default 8.
        alpha: the weight of the adapter: its product is multiplied by ``alpha / rank``. Above 0. Default 16.
        dropout_rate: the share of an adapter's inputs that is dropped in training, from 0 to below 1. Default 0.
        target_modules: the layers that get one: FQNs, globs, ``re:`` patterns or class names, as the keys of
            ``layer_quantization_settings``. Default none: every linear layer and every convolution.

    Example:
        >>> LoraSettings(rank=4, target_modules=["blocks.*.attention"]).to_dict()["rank"]
        4
    """

    rank: int = 8
    alpha: float = 16.0
    dropout_rate: float = 0.0
    target_modules: Sequence[str] = ()

    def __post_init__(self) -> None:
        if type(self.rank) is not int or self.rank < 1:
            raise SettingsError(f"LoraSettings.rank must be a whole number of 1 or more, got {described(self.rank)}.")
        check_range(self, "alpha", 0, 1e6)
        check_range(self, "dropout_rate", 0, 1)
        if not self.alpha > 0:
            raise SettingsError(f"LoraSettings.alpha must be above 0, got {self.alpha}.")
        if not self.dropout_rate < 1:
            raise SettingsError(f"LoraSettings.dropout_rate must be below 1, got {self.dropout_rate}.")
        names = self.target_modules
        listed = (names,) if isinstance(names, str) else tuple(names) if isinstance(names, list | tuple) else (None,)
        if not all(isinstance(name, str) and name for name in listed):
            raise SettingsError(
                f"LoraSettings.target_modules must be a list of names of modules, got {described(names)}. Write "
                'target_modules=["blocks.*.attention"].'
            )
        object.__setattr__(self, "target_modules", listed)


# Select the layers that get a low-rank adapter.


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
