"""The required exactness of a quantized model and its layers, which depends on the requested bits.

Users who name fewer bits accept less: a 4-bit layer is left in float only where it is ruined. Models that predict
tokens are judged by their predictions (``quantize/predictions``): their logits may be far from float and predict the
same, above all where they are nearly uniform, as with random weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from prepbench.objects.compare import decibels_text
from prepbench.settings import CompileOptions, QuantizationSettings, activation_format, weight_formats

# by the fewest bits: SQNR of a layer and of the model in dB, divergence of predictions in nats
_LAYER = {4: 5.0, 8: 10.0}
_MODEL = {4: 10.0, 8: 20.0}
_DIVERGENCE = {4: 0.5, 8: 0.05}

# dB that a few measured samples must lie above the floor for the whole model, so that others do too
MARGIN = 1.0


@dataclass(frozen=True)
class Score:
    """The distance of a model from float on a few samples.

    Attributes:
        sqnr: of its worst output, in dB.
        divergence: of the distributions that it predicts from those in float, in nats; None if it predicts none.
        outputs: the SQNR of each floating-point output, by its place, in dB. What predicts tokens comes first, and else
            they are in order.
        remark: how it was measured, where that is not at the outputs; else empty.
    """

    sqnr: float
    divergence: float | None = None
    outputs: tuple[tuple[int, float], ...] = field(default=(), compare=False)
    remark: str = field(default="", compare=False)

    def __str__(self) -> str:
        far = f"{decibels_text(self.sqnr)} dB"
        return far if self.divergence is None else f"a divergence of {self.divergence:.3g} nats"


@dataclass(frozen=True)
class InFloat:
    """The results in float on the measured samples, which those of the lowered program are compared with.

    Attributes:
        outputs: the results for each sample.
        logits: the outputs that predict tokens.
    """

    outputs: tuple[tuple[Any, ...], ...]
    logits: tuple[int, ...] = ()


@dataclass(frozen=True)
class Floors:
    """The requirements.

    Attributes:
        options: the user's options.
        bits: the fewest bits that were named for a layer.
        corrected: the places of judged values that the model adds to its input, and are no outputs.
    """

    options: CompileOptions
    bits: int = 8
    corrected: frozenset[int] = frozenset()

    @classmethod
    def of(
        cls,
        options: CompileOptions,
        settings: Sequence[QuantizationSettings],
        corrected: frozenset[int] = frozenset(),
    ) -> Floors:
        """Return the floors of a model whose layers have these settings."""
        return cls(options, min(map(named_bits, settings), default=8), corrected)

    def layer(self, settings: QuantizationSettings) -> float:
        """Return the SQNR in dB below which a layer stays in float."""
        floor = self.options.layer_sqnr_floor
        return _LAYER[named_bits(settings)] if floor is None else floor

    def is_enough(self, score: Score) -> bool:
        """Return whether a model is exact enough, also on samples that were not measured."""
        if self.judges_predictions(score):
            return score.divergence is not None and score.divergence <= _DIVERGENCE[self.bits]
        return score.sqnr >= self._model + MARGIN

    def judges_predictions(self, score: Score) -> bool:
        """Return whether the divergence of predictions decides, and not the SQNR."""
        return score.divergence is not None and self.options.model_sqnr_floor is None

    def exceeded(self, score: Score) -> float:
        """Return a model's noise as a multiple of the allowed one: 1 at the floor, infinite where no signal remains."""
        if self.judges_predictions(score):
            assert score.divergence is not None
            return score.divergence / _DIVERGENCE[self.bits]
        return float(10 ** (-score.sqnr / 10)) / self.noise_allowed(score)

    def noise_allowed(self, score: Score) -> float:
        """Return the most noise at the floor: the divergence in nats, or noise relative to the signal."""
        if self.judges_predictions(score):
            return _DIVERGENCE[self.bits]
        return float(10 ** (-(self._model + MARGIN) / 10))

    def why_not(self, before: Score, after: Score) -> str:
        """Return why layers went to float, in words."""
        if self.judges_predictions(before):
            return (
                f"the model's predictions would be at {before} from float, above the limit of "
                f"{_DIVERGENCE[self.bits]:g}; with this layer and others in float they are at {after}"
            )
        worst = min(before.outputs, key=lambda output: output[1], default=(0, 0.0))[0]
        judged = "what the model adds to its input" if worst in self.corrected else "the model's output"
        return (
            f"{judged} would be at {before.sqnr:.1f} dB, below the floor of {self._model:g} dB with "
            f"{MARGIN:g} to spare; with this layer and others in float it is at {after.sqnr:.1f} dB"
        )

    @property
    def _model(self) -> float:
        floor = self.options.model_sqnr_floor
        return _MODEL[self.bits] if floor is None else floor


def named_bits(settings: QuantizationSettings) -> int:
    """Return the fewest bits that the settings name, of weights or activations; of several candidates the most."""
    return min(max(one.bits for one in weight_formats(settings)), activation_format(settings).bits)
