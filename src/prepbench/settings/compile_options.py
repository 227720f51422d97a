"""How a compile goes about it: the algorithms around quantization, and when a layer is given up."""

from __future__ import annotations

from dataclasses import dataclass

from prepbench.settings.validation import Settings, check_choice, check_range


@dataclass(frozen=True, kw_only=True)
class CompileOptions(Settings):
    """The algorithms that a compile applies; each can be switched on and off.

    Attributes:
        fold_batch_norm: fold batch norms into the convolutions and linear layers before them.
        cross_layer_equalization: scale the channels of neighbouring layers so that their weights have like ranges;
            helps where one scale must do for a whole weight (``per_channel=False``).
        smooth_quant: move outlier channels of activations into the weights of the linear layers that read them.
        smooth_quant_strength: how much of them, 0 to 1.
        bias_correction: subtract from each bias what quantization adds to the mean of the layer's output.
        percentile: how much of the activations the observer ``"percentile"`` keeps within range, in percent.
        keep_ruined_layers_in_float: give up quantizing layers whose quality falls below a floor.
        layer_sqnr_floor: that floor for the output of one layer, in dB.
        model_sqnr_floor: that floor for the outputs of the whole model, in dB: layers take their most exact candidate,
            and then are given up, as few as reach it. It is measured on calibration samples, which must lie 1 dB above
            it, because other samples differ.

    Example:
        >>> CompileOptions(smooth_quant=True).bias_correction
        True
    """

    fold_batch_norm: bool = True
    cross_layer_equalization: bool = False
    smooth_quant: bool = False
    smooth_quant_strength: float = 0.5
    bias_correction: bool = True
    percentile: float = 99.99
    keep_ruined_layers_in_float: bool = True
    layer_sqnr_floor: float = 10.0
    model_sqnr_floor: float = 20.0

    def __post_init__(self) -> None:
        for field in (
            "fold_batch_norm",
            "cross_layer_equalization",
            "smooth_quant",
            "bias_correction",
            "keep_ruined_layers_in_float",
        ):
            check_choice(self, field, (True, False))
        check_range(self, "smooth_quant_strength", 0, 1)
        check_range(self, "percentile", 50, 100)
        check_range(self, "layer_sqnr_floor", -300, 300)
        check_range(self, "model_sqnr_floor", -300, 300)
