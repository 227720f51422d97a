"""A choice for a layer: quantization settings, pruning settings, or both."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from prepbench.search.candidates import name_of_settings
from prepbench.settings import PruningSettings, QuantizationSettings

Candidate = QuantizationSettings | PruningSettings | tuple[QuantizationSettings, PruningSettings]
"""One choice for a layer, as the caller gives it."""


@dataclass(frozen=True)
class LayerChoice:
    """A choice for a layer: quantization settings, pruning settings, or both.

    Attributes:
        quantization: of the layer, or of what pruning leaves of it; None for float.
        pruning: of the layer; None for none.
    """

    quantization: QuantizationSettings | None = None
    pruning: PruningSettings | None = None

    @property
    def given(self) -> Any:
        """Return the choice in the form in which users give candidates."""
        if self.pruning is None:
            return self.quantization
        return self.pruning if self.quantization is None else (self.quantization, self.pruning)

    @property
    def in_full(self) -> LayerChoice:
        """Return a copy whose pruning amount is explicit, so that rules of layers can override it and be overridden."""
        if self.pruning is None or self.pruning.pattern is not None:
            return self
        return replace(self, pruning=replace(self.pruning, amount=self.pruning.share))

    @property
    def name(self) -> str:
        """Return a short name of the choice."""
        bits = [] if self.quantization is None else [name_of_settings(self.quantization)]
        return ", ".join([*bits, *([] if self.pruning is None else [self.pruning.summary])])


Choices = Mapping[str, LayerChoice]
"""Choices of layers, by name, beside staying as they are."""
