"""The algorithms that improve quantization, and the limit at which a layer stays in float."""

from __future__ import annotations

from dataclasses import dataclass

from prepbench.settings.validation import Settings, check_choice, check_range


@dataclass(frozen=True, kw_only=True)
class CompileOptions(Settings):
    """The algorithms that a compile applies; each can be switched on and off.

    Attributes:
        fold_batch_norm: fold batch norms into the convolutions and linear layers before them. Default True.
        cross_layer_equalization: scale the channels between neighbouring layers, also along residual streams, so that
            those of activations and weights have like ranges. Helps where they differ much. Default False.
        smooth_quant: move outlier channels of activations into the weights of the linear layers that read them. Default
            None: where activations are quantized, the estimated noise halves, and nothing is computed in addition when
            the model runs.
        smooth_quant_strength: how far they are moved, from 0 (not at all) to 1 (all of their range). Default None: as
            far as leaves the least estimated noise.
        bias_correction: subtract from each bias what quantization adds to the mean of the layer's output, but for
            layers whose settings switch that off. Default True.
        percentile: how much of the activations the observer ``"percentile"`` keeps in range, in percent, from 50 to
            100. Default 99.99.
        keep_ruined_layers_in_float: leave a layer in float where quantization would bring its output, or the output of
            the model, below a floor. Default True.
        layer_sqnr_floor: the floor for the output of one layer: an SQNR in dB, from -300 to 300. Default None: 10 for 8
            bits, 5 for 4 bits.
        model_sqnr_floor: the floor for the outputs of the whole model: an SQNR in dB, from -300 to 300. Below it,
            layers take their most exact candidate and then go back to float, as few of them as reach the floor. It is
            measured on calibration samples. They must lie 1 dB above the floor, because other samples differ. Default
            None: 20 for 8 bits, and where bits are to be chosen; 10 for 4 bits. Language models are then judged by the
            distributions that they predict instead, which may diverge from those in float by 0.05 nats (0.5 with 4
            bits).

    Example:
        >>> CompileOptions(smooth_quant=True).bias_correction
        True
    """

    fold_batch_norm: bool = True
    cross_layer_equalization: bool = False
    smooth_quant: bool | None = None
    smooth_quant_strength: float | None = None
    bias_correction: bool = True
    percentile: float = 99.99
    keep_ruined_layers_in_float: bool = True
    layer_sqnr_floor: float | None = None
    model_sqnr_floor: float | None = None

    def __post_init__(self) -> None:
        for field in (
            "fold_batch_norm",
            "cross_layer_equalization",
            "bias_correction",
            "keep_ruined_layers_in_float",
        ):
            check_choice(self, field, (True, False))
        check_choice(self, "smooth_quant", (True, False, None))
        if self.smooth_quant_strength is not None:
            check_range(self, "smooth_quant_strength", 0, 1)
        check_range(self, "percentile", 50, 100)
        for field in ("layer_sqnr_floor", "model_sqnr_floor"):
            if getattr(self, field) is not None:
                check_range(self, field, -300, 300)
