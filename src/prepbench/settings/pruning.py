"""Pruning settings: global ones and overrides for layers."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields, replace
from typing import Any

from prepbench.checks import check_type, described
from prepbench.errors import SettingsError
from prepbench.settings.validation import Settings, check_choice

CHANNELS, SINGLE = "channels", "1:1"
SCORES = ("magnitude", "activations")
_DEFAULT_AMOUNT = 0.5
_LARGEST_GROUP = 64


@dataclass(frozen=True, kw_only=True)
class PruningSettings(Settings):
    """How layers are pruned unless a layer's own settings say otherwise.

    Attributes:
        mask_type: the unit of pruning. ``"1:1"``: single weights, wherever they are. ``"2:4"``, or another ``"n:m"``:
            of each ``m`` inputs that lie side by side, ``n`` weights stay. ``"channels"``: whole channels and heads,
            with the weights that read them, so that the layers become smaller. Default ``"1:1"``.
        amount: the share of a layer's weights (or channels) to remove, between 0 and 1. Default ``None``: 0.5; with
            ``"n:m"`` the two numbers determine it.
        pruning_sensitivity_threshold: how much noise pruning may add to the output of a layer that reads what was
            pruned: a ratio of noise to signal power, 0 or more (0.01 is an SQNR of 20 dB), measured on calibration
            samples. Above it less is pruned: the largest eighth of ``amount`` that stays below it, or with ``"n:m"``
            nothing. 0 prunes only where that adds no noise. Default ``None``: no limit.
        score: what is removed first. ``"magnitude"``: the smallest weights, or the channels with the smallest weights.
            ``"activations"``: the smallest products of a weight and the norm of its input on calibration samples,
            output by output, as Wanda has it. Default ``"magnitude"``.

    Example:
        >>> PruningSettings(mask_type="channels", amount=0.25).share
        0.25
    """

    mask_type: str = SINGLE
    amount: float | None = None
    pruning_sensitivity_threshold: float | None = None
    score: str = "magnitude"

    def __post_init__(self) -> None:
        _check_mask_type(self, optional=False)
        _check_amount(self)
        _check_threshold(self)
        check_choice(self, "score", SCORES)

    @property
    def pattern(self) -> tuple[int, int] | None:
        """The pattern n:m, how many weights stay of how many inputs; None without a pattern."""
        return None if self.mask_type in (SINGLE, CHANNELS) else _pattern(self.mask_type)

    @property
    def share(self) -> float:
        """The largest share that is pruned."""
        if self.pattern is not None:
            return 1 - self.pattern[0] / self.pattern[1]
        return _DEFAULT_AMOUNT if self.amount is None else self.amount

    @property
    def needs_samples(self) -> bool:
        """Whether calibration samples decide what is pruned."""
        return _needs_samples(self)

    @property
    def summary(self) -> str:
        """Return a short text of the settings that apply."""
        if self.pattern is not None:
            return f"{self.share:.0%} pruned ({self.mask_type})"
        return f"{self.share:.0%} of the {'channels' if self.mask_type == CHANNELS else 'weights'} pruned"


@dataclass(frozen=True, kw_only=True)
class LayerPruningSettings(Settings):
    """Overrides for the layers that a key matches; None keeps the global value.

    Attributes:
        skip_pruning: leave the layers as they are. Default False.
        mask_type: ``"1:1"``, ``"n:m"`` or ``"channels"``. Default None.
        amount: between 0 and 1. Default None.
        pruning_sensitivity_threshold: a ratio of noise to signal power. Default None.
        score: ``"magnitude"`` or ``"activations"``. Default None.

    Example:
        >>> LayerPruningSettings(amount=0.25).applied_to(PruningSettings()).share
        0.25
    """

    skip_pruning: bool = False
    mask_type: str | None = None
    amount: float | None = None
    pruning_sensitivity_threshold: float | None = None
    score: str | None = None

    def __post_init__(self) -> None:
        check_choice(self, "skip_pruning", (True, False))
        _check_mask_type(self, optional=True)
        _check_amount(self)
        _check_threshold(self)
        check_choice(self, "score", (*SCORES, None))
        if self.skip_pruning and (stated := self._overrides()):
            raise SettingsError(
                f"LayerPruningSettings contradicts itself: {', '.join(stated)} would change nothing in a layer that is "
                "not pruned. Leave that out, or do not skip the layer."
            )

    def applied_to(self, base: PruningSettings) -> PruningSettings | None:
        """Return the settings of a model with the overrides.

        Args:
            base: the settings of the model.

        Returns:
            The settings of the layer, or None if it is not pruned.
        """
        check_type("base", base, PruningSettings, "Give pb.PruningSettings().")
        if self.skip_pruning:
            return None
        overrides = self._overrides()
        if "mask_type" in overrides and _is_pattern(str(self.mask_type)):
            overrides.setdefault("amount", None)  # the pattern says it
        return replace(base, **overrides)

    @property
    def needs_samples(self) -> bool:
        """Whether calibration samples decide what is pruned."""
        return _needs_samples(self)

    def _overrides(self) -> dict[str, Any]:
        names = [field.name for field in fields(PruningSettings)]
        return {name: value for name in names if (value := getattr(self, name)) is not None}


def _needs_samples(owner: PruningSettings | LayerPruningSettings) -> bool:
    return owner.score == "activations" or owner.pruning_sensitivity_threshold is not None


def _is_pattern(mask_type: str) -> bool:
    return mask_type not in (SINGLE, CHANNELS)


def _pattern(mask_type: str) -> tuple[int, int] | None:
    found = re.fullmatch(r"([0-9]{1,2}):([0-9]{1,2})", mask_type)
    if found is None:
        return None
    kept, group = int(found[1]), int(found[2])
    return (kept, group) if 0 < kept < group <= _LARGEST_GROUP else None


def _check_mask_type(owner: PruningSettings | LayerPruningSettings, *, optional: bool) -> None:
    value = owner.mask_type
    if optional and value is None:
        return
    if not isinstance(value, str) or (_is_pattern(value) and _pattern(value) is None):
        raise SettingsError(
            f'{type(owner).__name__}.mask_type must be "1:1" for single weights, "channels", or "n:m" for n weights '
            f'that stay of m, with 0 < n < m <= {_LARGEST_GROUP}, such as "2:4"; got {described(value)}.'
        )


def _check_amount(owner: PruningSettings | LayerPruningSettings) -> None:
    value = owner.amount
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1:
        raise SettingsError(
            f"{type(owner).__name__}.amount must be a share between 0 and 1, such as 0.5, got {described(value)}. To "
            "prune nothing, leave pruning_settings out, or set skip_pruning=True for layers."
        )
    if isinstance(owner.mask_type, str) and _is_pattern(owner.mask_type):
        raise SettingsError(
            f"{type(owner).__name__}.amount={value} contradicts mask_type={owner.mask_type!r}, whose numbers say how "
            'many weights stay. Leave amount out, or give mask_type="1:1".'
        )


def _check_threshold(owner: PruningSettings | LayerPruningSettings) -> None:
    value = owner.pruning_sensitivity_threshold
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0):
        raise SettingsError(
            f"{type(owner).__name__}.pruning_sensitivity_threshold must be None or a ratio of noise to signal, 0 or "
            f"more (0.01 is 20 dB), got {described(value)}."
        )
