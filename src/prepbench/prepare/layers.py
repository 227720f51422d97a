"""Calls for which torch has a layer: ``F.elu(x, 0.5)`` becomes ``nn.ELU(alpha=0.5)``.

A layer is used only if every argument of the call is one of its settings; anything else keeps the call as it is, in an
:class:`~prepbench.prepare.modules.Operator`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import fx, nn

from prepbench.prepare.arguments import parts
from prepbench.prepare.modules import ByMode
from prepbench.prepare.operations import function_name


@dataclass(frozen=True)
class Layer:
    """One of torch's layers and how a call's arguments become its settings.

    Attributes:
        kind: the layer.
        names: names of the arguments after the input, in the order that all forms of the function share.
        always: settings to give even if the call leaves them out, because the layer has another default.
        follows_training: the layer acts only in training, so the call's ``training`` must be ``self.training``.
    """

    kind: type[nn.Module]
    names: tuple[str, ...] = ()
    always: tuple[tuple[str, Any], ...] = ()
    follows_training: bool = False


def _layer(kind: type[nn.Module], names: str = "", follows_training: bool = False, **always: Any) -> Layer:
    return Layer(kind, tuple(names.split()), tuple(always.items()), follows_training)


LAYERS: dict[str, Layer] = {
    "relu": _layer(nn.ReLU, "inplace"),
    "relu6": _layer(nn.ReLU6, "inplace"),
    "elu": _layer(nn.ELU, "alpha inplace"),
    "selu": _layer(nn.SELU, "inplace"),
    "celu": _layer(nn.CELU, "alpha inplace"),
    "gelu": _layer(nn.GELU, "approximate"),
    "silu": _layer(nn.SiLU, "inplace"),
    "mish": _layer(nn.Mish, "inplace"),
    "sigmoid": _layer(nn.Sigmoid),
    "expit": _layer(nn.Sigmoid),
    "tanh": _layer(nn.Tanh),
    "logsigmoid": _layer(nn.LogSigmoid),
    "log_sigmoid": _layer(nn.LogSigmoid),
    "softplus": _layer(nn.Softplus, "beta threshold"),
    "softshrink": _layer(nn.Softshrink, "lambd"),
    "hardshrink": _layer(nn.Hardshrink, "lambd"),
    "tanhshrink": _layer(nn.Tanhshrink),
    "softsign": _layer(nn.Softsign),
    "threshold": _layer(nn.Threshold, "threshold value inplace"),
    "hardtanh": _layer(nn.Hardtanh, "min_val max_val inplace"),
    "hardswish": _layer(nn.Hardswish, "inplace"),
    "hardsigmoid": _layer(nn.Hardsigmoid, "inplace"),
    "leaky_relu": _layer(nn.LeakyReLU, "negative_slope inplace"),
    "rrelu": _layer(nn.RReLU, "lower upper training inplace", follows_training=True),
    "glu": _layer(nn.GLU, "dim"),
    "softmax": _layer(nn.Softmax, "dim"),
    "log_softmax": _layer(nn.LogSoftmax, "dim"),
    "softmin": _layer(nn.Softmin, "dim"),
    "dropout": _layer(nn.Dropout, "p training inplace", follows_training=True),
    "dropout1d": _layer(nn.Dropout1d, "p training inplace", follows_training=True),
    "dropout2d": _layer(nn.Dropout2d, "p training inplace", follows_training=True),
    "dropout3d": _layer(nn.Dropout3d, "p training inplace", follows_training=True),
    "alpha_dropout": _layer(nn.AlphaDropout, "p training inplace", follows_training=True),
    "feature_alpha_dropout": _layer(nn.FeatureAlphaDropout, "p training inplace", follows_training=True),
    "max_pool1d": _layer(nn.MaxPool1d, "kernel_size stride padding dilation ceil_mode return_indices"),
    "max_pool2d": _layer(nn.MaxPool2d, "kernel_size stride padding dilation ceil_mode return_indices"),
    "max_pool3d": _layer(nn.MaxPool3d, "kernel_size stride padding dilation ceil_mode return_indices"),
    "avg_pool1d": _layer(nn.AvgPool1d, "kernel_size stride padding ceil_mode count_include_pad"),
    "avg_pool2d": _layer(nn.AvgPool2d, "kernel_size stride padding ceil_mode count_include_pad divisor_override"),
    "avg_pool3d": _layer(nn.AvgPool3d, "kernel_size stride padding ceil_mode count_include_pad divisor_override"),
    "adaptive_avg_pool1d": _layer(nn.AdaptiveAvgPool1d, "output_size"),
    "adaptive_avg_pool2d": _layer(nn.AdaptiveAvgPool2d, "output_size"),
    "adaptive_avg_pool3d": _layer(nn.AdaptiveAvgPool3d, "output_size"),
    "adaptive_max_pool1d": _layer(nn.AdaptiveMaxPool1d, "output_size return_indices"),
    "adaptive_max_pool2d": _layer(nn.AdaptiveMaxPool2d, "output_size return_indices"),
    "adaptive_max_pool3d": _layer(nn.AdaptiveMaxPool3d, "output_size return_indices"),
    "lp_pool1d": _layer(nn.LPPool1d, "norm_type kernel_size stride ceil_mode"),
    "lp_pool2d": _layer(nn.LPPool2d, "norm_type kernel_size stride ceil_mode"),
    "lp_pool3d": _layer(nn.LPPool3d, "norm_type kernel_size stride ceil_mode"),
    "local_response_norm": _layer(nn.LocalResponseNorm, "size alpha beta k"),
    "flatten": _layer(nn.Flatten, "start_dim end_dim", start_dim=0),
    "pixel_shuffle": _layer(nn.PixelShuffle, "upscale_factor"),
    "pixel_unshuffle": _layer(nn.PixelUnshuffle, "downscale_factor"),
    "channel_shuffle": _layer(nn.ChannelShuffle, "groups"),
}
"""Torch's layer for a function, by its name without the trailing underscore."""

_WITH_INDICES = "_with_indices"


def layer_for(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> nn.Module | None:
    """Torch's own layer that does what this call does to its first argument, or ``None``.

    Args:
        function: the called function, or the name of a ``Tensor`` method.
        args: the call's positional arguments, the input first; nodes stand for what is computed.
        kwargs: its keyword arguments without those that have their default value.
    """
    name = function_name(function)
    plain = name.removesuffix("_").removesuffix(_WITH_INDICES)
    layer = LAYERS.get(plain)
    if layer is None:
        return None
    settings = _settings(layer, args, kwargs)
    if settings is None:
        return None
    if layer.follows_training and not _is_flag(settings.pop("training", None)):
        return None  # without an argument F.dropout is always on, whatever the mode
    if plain != name and name.endswith("_"):
        settings["inplace"] = True
    if name.endswith(_WITH_INDICES):
        settings["return_indices"] = True
    if "inplace" in settings and "inplace" not in layer.names:
        return None
    if any(isinstance(part, fx.Node | ByMode) for part in parts(settings)):
        return None
    if plain in ("softmax", "log_softmax", "softmin") and settings.get("dim") is None:
        return None
    try:
        return layer.kind(**{**dict(layer.always), **settings})
    except (AssertionError, TypeError, ValueError):  # the layer refuses what the function takes
        return None


def _settings(layer: Layer, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any] | None:
    rest = dict(kwargs)
    given = list(args)
    if not given:
        given = [rest.pop("input", None)]
    if not isinstance(given[0], fx.Node) or len(given) - 1 > len(layer.names):
        return None
    settings = dict(zip(layer.names, given[1:], strict=False))
    if "train" in rest and "training" in layer.names:
        rest["training"] = rest.pop("train")
    if not set(rest) <= set(layer.names) - set(settings):
        return None
    return {**settings, **rest}


def _is_flag(setting: Any) -> bool:
    """Whether a setting is ``self.training`` itself."""
    return isinstance(setting, ByMode) and (setting.train, setting.evaluate) == (True, False)
