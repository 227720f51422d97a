"""Quantization settings: global ones and overrides for layers."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from prepbench.checks import check_type, described
from prepbench.errors import SettingsError
from prepbench.settings.numbers import FLOAT32, INT4, INT8, INT16, NumberFormat, format_named, format_of_bits
from prepbench.settings.validation import Settings, check_candidates, check_choice, check_range

WEIGHT_FORMATS = (INT4, INT8)
ACTIVATION_FORMATS = (INT4, INT8, INT16)
BITS = tuple(one.asked for one in WEIGHT_FORMATS)
ACTIVATION_BITS = tuple(one.bits for one in ACTIVATION_FORMATS)
BLOCK_SIZES = (0, 16, 32, 64, 128, 256)
OBSERVERS = ("minmax", "percentile", "mse")
WEIGHT_ALGORITHMS = ("auto", "nearest", "gptq", "awq", "hqq", "adaround")
_SWITCHES = (
    "prefer_weights_only_quantization",
    "weights_utilize_full_int_range",
    "weights_symmetric",
    "activations_symmetric",
    "per_channel",
    "cross_layer_equalization",
    "bias_correction",
)


@dataclass(frozen=True, kw_only=True)
class QuantizationSettings(Settings):
    """How layers are quantized unless a rule for a layer says otherwise.

    Attributes:
        weights_num_bits: bits of the weights, 8 or 4. A list names candidates: each layer takes the smallest that its
            sensitivity allows. Default 8.
        activations_num_bits: bits of the activations that enter and leave a layer, 4, 8 or 16. Targets have no kernels
            for 4 bits: they compute with the 16 values of 4 bits in integers of 8, so that results are those of 4 bits
            and times are not. Most models need training for it (:func:`prepbench.trainable`). Default 8.
        prefer_weights_only_quantization: quantize weights and leave activations in float. Embeddings are then
            quantized, too. Fewer bits cost them more than other layers, so they get 8, with a scale for each row,
            unless a rule names theirs: ``{"Embedding": LayerQuantizationSettings(weights_num_bits=4)}``. A table that
            a layer multiplies by, too, is stored once, in the bits of that layer. Default False.
        quantization_sensitivity_threshold: how much noise quantization may add to a layer's output: a ratio of noise to
            signal power, 0 or more (0.01 is an SQNR of 20 dB). A layer above it stays in float; 0 quantizes nothing.
            Default None: only the floors of :class:`prepbench.CompileOptions` apply.
        weights_only_quantization_block_size: for layers quantized in their weights only, how many inputs share a scale:
            16, 32, 64, 128 or 256, or 0 for one scale for each output channel. A list names candidates. Default 0.
        weights_utilize_full_int_range: let symmetric weights use the lowest integer, -128 (or -8), as well. Default
            True.
        weights_symmetric: weights have no zero point. False needs ``prefer_weights_only_quantization``. Default True.
        activations_symmetric: activations have no zero point. Default False.
        observer: how the range of activations is learned: ``"minmax"`` keeps every value in range, ``"percentile"`` all
            but the outermost (``CompileOptions.percentile``), ``"mse"`` takes the range with the least squared error.
            With ``"mse"``, and with fewer than 8 bits, weights take the range with the least squared error, too.
            Default ``"minmax"``.
        per_channel: each output channel of a weight has a scale of its own; False gives the whole weight one scale.
            Default True.
        weights_algorithm: how the integers of weights are found. ``"nearest"`` rounds each weight to the nearest one.
            ``"gptq"`` compensates the error of each input by the weights of later ones, ``"awq"`` weights errors by the
            power of the inputs on calibration samples, ``"hqq"`` takes the range that suits most weights and not the
            outliers. ``"adaround"`` learns on calibration samples for each weight whether it is rounded up or down,
            also in convolutions; it is the most exact and the slowest. ``"auto"`` takes ``"gptq"`` for fewer than 8
            bits, which was best in our benchmark, and else ``"nearest"``. Convolutions are rounded to nearest where an
            algorithm is for matrices. Default ``"auto"``.
        cross_layer_equalization: scale the channels between this layer and its neighbours, as the switch of
            :class:`prepbench.CompileOptions` does for all layers. Channels are scaled where every layer that makes or
            reads them wants it or stays in float, which the scales do not change. Default False.
        bias_correction: subtract from this layer's bias what quantization adds to the mean of its output, unless
            :class:`prepbench.CompileOptions` switches that off for all layers. Default True.

    Example:
        >>> settings = QuantizationSettings(weights_num_bits=[8, 4], quantization_sensitivity_threshold=0.01)
        >>> [(candidate.weights_num_bits) for candidate in settings.candidates()]
        [4, 8]
    """

    weights_num_bits: int | str | Sequence[int | str] = 8
    activations_num_bits: int = 8
    prefer_weights_only_quantization: bool = False
    quantization_sensitivity_threshold: float | None = None
    weights_only_quantization_block_size: int | Sequence[int] = 0
    weights_utilize_full_int_range: bool = True
    weights_symmetric: bool = True
    activations_symmetric: bool = False
    observer: str = "minmax"
    per_channel: bool = True
    weights_algorithm: str = "auto"
    cross_layer_equalization: bool = False
    bias_correction: bool = True

    def __post_init__(self) -> None:
        check_candidates(self, "weights_num_bits", BITS)
        check_choice(self, "activations_num_bits", ACTIVATION_BITS)
        check_candidates(self, "weights_only_quantization_block_size", BLOCK_SIZES)
        check_choice(self, "observer", OBSERVERS)
        check_choice(self, "weights_algorithm", WEIGHT_ALGORITHMS)
        _check_threshold(self)
        for field in _SWITCHES:
            check_choice(self, field, (True, False))
        if not self.weights_symmetric and not self.prefer_weights_only_quantization:
            raise SettingsError(
                f"{type(self).__name__}: weights_symmetric=False needs prefer_weights_only_quantization=True: integer "
                "kernels multiply by weights without a zero point. Set both, or leave weights_symmetric=True."
            )

    def candidates(self) -> Iterator[QuantizationSettings]:
        """Yield the settings with a single number of bits and block size each; the smallest in memory first."""
        formats = sorted(weight_formats(self), key=lambda one: one.bits)
        blocks = _listed(self.weights_only_quantization_block_size) if self.prefer_weights_only_quantization else (0,)
        # the fewer scales, the smaller: one for each channel, then one for each block, the largest blocks first
        blocks = tuple(sorted(blocks, key=lambda size: (size != 0, -size)))
        for kind, block in itertools.product(formats, blocks):
            yield replace(self, weights_num_bits=kind.asked, weights_only_quantization_block_size=block)


@dataclass(frozen=True, kw_only=True)
class LayerQuantizationSettings(Settings):
    """Overrides for the layers that a key of ``layer_quantization_settings`` matches; ``None`` keeps the global value.

    Attributes:
        skip_quantization: leave the layer in float. Default False.
        skip_quantization_until: FQNs of layers. Leave the layer in float, and the layers that its output reaches before
            these, which are quantized again. Default none.
        skip_quantization_downstream: leave the layer in float, and all layers that its output reaches. Default False.
        weights_num_bits: 8, 4, or a list of them; see :class:`QuantizationSettings`. Default None.
        activations_num_bits: 4, 8 or 16. Default None.
        prefer_weights_only_quantization: True or False. Default None.
        quantization_sensitivity_threshold: a ratio of noise to signal power, 0 or more. Default None.
        weights_only_quantization_block_size: 0, 16, 32, 64, 128, 256, or a list of them. Default None.
        weights_utilize_full_int_range: True or False. Default None.
        weights_symmetric: True or False. Default None.
        activations_symmetric: True or False. Default None.
        observer: ``"minmax"``, ``"percentile"`` or ``"mse"``. Default None.
        per_channel: True or False. Default None.
        weights_algorithm: ``"auto"``, ``"nearest"``, ``"gptq"``, ``"awq"``, ``"hqq"`` or ``"adaround"``. Default
            None.
        cross_layer_equalization: True or False. Default None.
        bias_correction: True or False. Default None.

    Example:
        >>> LayerQuantizationSettings(skip_quantization=True).applied_to(QuantizationSettings()) is None
        True
    """

    skip_quantization: bool = False
    skip_quantization_until: Sequence[str] = ()
    skip_quantization_downstream: bool = False
    weights_num_bits: int | str | Sequence[int | str] | None = None
    activations_num_bits: int | None = None
    prefer_weights_only_quantization: bool | None = None
    quantization_sensitivity_threshold: float | None = None
    weights_only_quantization_block_size: int | Sequence[int] | None = None
    weights_utilize_full_int_range: bool | None = None
    weights_symmetric: bool | None = None
    activations_symmetric: bool | None = None
    observer: str | None = None
    per_channel: bool | None = None
    weights_algorithm: str | None = None
    cross_layer_equalization: bool | None = None
    bias_correction: bool | None = None

    def __post_init__(self) -> None:
        for field in ("skip_quantization", "skip_quantization_downstream"):
            check_choice(self, field, (True, False))
        for field in _SWITCHES:
            check_choice(self, field, (True, False, None))
        check_candidates(self, "weights_num_bits", BITS, optional=True)
        check_choice(self, "activations_num_bits", (*ACTIVATION_BITS, None))
        check_candidates(self, "weights_only_quantization_block_size", BLOCK_SIZES, optional=True)
        check_choice(self, "observer", (*OBSERVERS, None))
        check_choice(self, "weights_algorithm", (*WEIGHT_ALGORITHMS, None))
        _check_threshold(self)
        until = self.skip_quantization_until
        is_list = isinstance(until, Iterable) and not isinstance(until, bytes)
        names = (until,) if isinstance(until, str) else tuple(until) if is_list else (None,)
        if not all(isinstance(name, str) for name in names):
            raise SettingsError(
                f"LayerQuantizationSettings.skip_quantization_until must be a list of FQNs of layers, got "
                f"{described(until)}. Give the names of layers."
            )
        object.__setattr__(self, "skip_quantization_until", names)
        if self.skips and (stated := self._overrides()):
            raise SettingsError(
                f"LayerQuantizationSettings contradicts itself: {', '.join(stated)} would change nothing in a layer "
                "that is not quantized. Leave that out, or do not skip the layer."
            )

    @property
    def skips(self) -> bool:
        """Whether the layer stays in float."""
        return self.skip_quantization or bool(self.skip_quantization_until) or self.skip_quantization_downstream

    def applied_to(self, base: QuantizationSettings) -> QuantizationSettings | None:
        """Return the settings of a model with the overrides.

        Args:
            base: the settings of the model.

        Returns:
            The settings of the layer, or None if it stays in float.
        """
        check_type("base", base, QuantizationSettings, "Give pb.QuantizationSettings().")
        return None if self.skips else replace(base, **self._overrides())

    def _overrides(self) -> dict[str, Any]:
        shared = {field.name for field in fields(QuantizationSettings)}
        return {name: value for name in sorted(shared) if (value := getattr(self, name)) is not None}


def weight_formats(settings: QuantizationSettings) -> tuple[NumberFormat, ...]:
    """Return the formats of the candidates for the weights, in the order of the settings."""
    listed = settings.weights_num_bits
    listed = (listed,) if isinstance(listed, int | str) else listed
    return tuple(kind for one in listed if (kind := format_named(str(one))) is not None)


def activation_format(settings: QuantizationSettings) -> NumberFormat:
    """Return the format in which layers read activations; float32 where weights alone are quantized."""
    return FLOAT32 if settings.prefer_weights_only_quantization else format_of_bits(settings.activations_num_bits)


def _listed(value: int | Sequence[int]) -> tuple[int, ...]:
    return (value,) if isinstance(value, int) else tuple(value)


def _check_threshold(owner: QuantizationSettings | LayerQuantizationSettings) -> None:
    value = owner.quantization_sensitivity_threshold
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0):
        raise SettingsError(
            f"{type(owner).__name__}.quantization_sensitivity_threshold must be None or a ratio of noise to signal, 0 "
            f"or more (0.01 is 20 dB), got {described(value)}."
        )


# The algorithms that improve quantization, and the limit at which a layer stays in float.


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
        model_sqnr_floor: the floor for the outputs of the whole model, and for what it adds to its input where an
            output is such a sum: an SQNR in dB, from -300 to 300. Below it, layers take their most exact candidate and
            then go back to float, as few of them as reach the floor. It is measured on calibration samples. They must
            lie 1 dB above the floor, because other samples differ. Default None: 20 for 8 bits, and where bits are to
            be chosen; 10 for 4 bits. Language models are then judged by the distributions that they predict instead,
            which may diverge from those in float by 0.05 nats (0.5 with 4 bits).

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
