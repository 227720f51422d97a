"""Low-rank adapters: their size, and the layers that get one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from prepbench.checks import described
from prepbench.errors import SettingsError
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
