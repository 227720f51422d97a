"""Replace functions, methods and operators by modules that keep every argument."""

from __future__ import annotations

import builtins
import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import fx, nn

from prepbench.prepare import modules
from prepbench.prepare.kept import function_of, numbers_of, operation_text, reason_to_stay
from prepbench.prepare.model import PreparedModel
from prepbench.prepare.modules import INPUT, ByMode, Operator
from prepbench.prepare.operations import function_name, is_in_place, operation_of
from prepbench.prepare.passes.graph_edits import Names, call_module, called, mapped, owner_of, parts, remove_module
from prepbench.prepare.report import Change
from prepbench.prepare.steps import with_modes


def operations_to_modules_(model: PreparedModel) -> list[Change]:
    """Replace every operation that has a module by a call of that module."""
    names, numbers = Names(model), numbers_of(model.graph)
    changes = []
    for node in list(model.graph.nodes):
        if node.op not in ("call_function", "call_method"):
            continue
        if reason_to_stay(node, numbers) and "by_mode" not in node.meta:
            continue
        module, inputs = module_for(node)
        name = names.add(owner_of(node), _name(node), module)
        was = operation_text(node)
        new = call_module(model, node, name, tuple(inputs))
        kind, why = type(module).__name__, "each operation is a module of its own"
        changes.append(Change("operation to module", new.name, name, kind, was, why, new.meta.get("source")))
    return changes


def module_for(node: fx.Node) -> tuple[torch.nn.Module, list[fx.Node]]:
    """Return the module for a node's operation, and its input nodes."""
    function = function_of(node)
    args, kwargs = with_modes((node.args, node.kwargs), node.meta.get("by_mode"))
    kwargs = _without_defaults(node.target, kwargs)
    inputs: list[fx.Node] = []
    made = layer_for(function, args, kwargs)
    if made is not None:
        fx.node.map_arg((tuple(args), dict(kwargs)), inputs.append)
        return made.train(_training(node)), inputs
    row = operation_of(function)
    # operations that otherwise stay calls become modules if their settings follow the mode
    kind = modules.CLASSES[row.class_name] if row is not None and row.class_name else Operator
    if node.target is builtins.getattr:
        read = modules.READ[function]
        return kind(function=read).train(_training(node)), list(node.all_input_nodes)
    called: Callable[..., Any] = getattr(torch.Tensor, node.target) if isinstance(node.target, str) else node.target
    if issubclass(kind, modules.Concat) and "by_mode" not in node.meta:
        args, kwargs = _joined(args, kwargs)
    template = _template(tuple(args), inputs), _template(dict(kwargs), inputs)
    takes_inputs_by_name = any(part is INPUT for part in parts(template[1]))
    settings: tuple[Any, ...] = () if _are_inputs(template[0]) and not takes_inputs_by_name else template[0]
    if issubclass(kind, modules.Concat) and len(settings) == 1 and _is_list_of_inputs(settings[0]):
        settings = ()
    made = kind(*settings, function=None if called in kind.functions[:1] else called, **template[1])
    return made.train(_training(node)), inputs


def _training(node: fx.Node) -> bool:
    model = node.graph.owning_module
    return model is None or bool(model.training)


def _joined(args: Any, kwargs: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of ``cat`` and ``stack``: the tensors by position, the dim by name."""
    rest = dict(kwargs)
    given = list(args)
    if not given and "tensors" in rest:
        given = [rest.pop("tensors")]
    if len(given) == 2:
        rest["dim"] = given.pop()
    return tuple(given), rest


def _are_inputs(args: Any) -> bool:
    return all(part is INPUT for part in args)


def _is_list_of_inputs(part: Any) -> bool:
    return isinstance(part, tuple | list) and _are_inputs(part)


def _template(value: Any, inputs: list[fx.Node]) -> Any:
    """Return ``value`` with :data:`INPUT` for each node; the nodes are added to ``inputs`` in order."""

    def place(part: Any) -> Any:
        if not isinstance(part, fx.Node):
            return part
        inputs.append(part)
        return INPUT

    return mapped(value, place)


def _without_defaults(function: Any, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return keyword arguments without those at their default; torch's Python functions pass all of them."""
    defaults = _defaults(function) if callable(function) else {}
    return {
        name: value
        for name, value in kwargs.items()
        if name not in defaults or type(value) is not type(defaults[name]) or value != defaults[name]
    }


@cache
def _defaults(function: Callable[..., Any]) -> dict[str, Any]:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # a builtin
        return {}
    plain = (bool, int, float, str, type(None))
    return {p.name: p.default for p in parameters if isinstance(p.default, plain)}


def _name(node: fx.Node) -> str:
    name = function_name(function_of(node))
    if is_in_place(function_of(node)):
        name = name[1:] if not name.endswith("_") else name.rstrip("_")
    return name


# Calls for which torch has a layer: ``F.elu(x, 0.5)`` becomes ``nn.ELU(alpha=0.5)``.
#
# A layer is used only if every argument of the call is one of its settings; anything else keeps the call as it is, in
# an :class:`~prepbench.prepare.modules.Operator`.


@dataclass(frozen=True)
class Layer:
    """One of torch's layers, and how a call's arguments become its settings.

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
    """Return torch's own layer for this call on its first argument, or ``None``.

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
    except (AssertionError, TypeError, ValueError):  # the layer refuses arguments that the function takes
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
    """Return whether a setting is ``self.training`` itself."""
    return isinstance(setting, ByMode) and (setting.train, setting.evaluate) == (True, False)


# Remove modules that return their input in evaluation.


_IDENTITIES = (
    nn.Identity,
    nn.Dropout,
    nn.Dropout1d,
    nn.Dropout2d,
    nn.Dropout3d,
    nn.AlphaDropout,
    nn.FeatureAlphaDropout,
)


def remove_identity_(model: PreparedModel) -> list[Change]:
    """Remove ``Identity`` and dropout modules; afterwards the model has no dropout in training either."""
    changes = []
    for node in list(model.graph.nodes):
        if node.op != "call_module" or type(model.get_submodule(str(node.target))) not in _IDENTITIES:
            continue
        source = node.all_input_nodes[0] if len(node.all_input_nodes) == 1 else None
        if source is None or not _hookless(model.get_submodule(str(node.target))):
            continue
        name, kind = str(node.target), type(model.get_submodule(str(node.target))).__name__
        why = "it returns its input" if kind == "Identity" else "it returns its input in evaluation"
        changes.append(Change("module removed", node.name, "", "", name, f"{kind}: {why}", node.meta.get("source")))
        node.replace_all_uses_with(source)
        model.graph.erase_node(node)
        remove_module(model, name)
    return changes


def _hookless(module: nn.Module) -> bool:
    return not module._forward_hooks and not module._forward_pre_hooks


# SiLU and Hardswish as primitives, for targets without kernels for them.


def decompose_activations_(model: PreparedModel) -> list[Change]:
    """Replace ``SiLU`` by ``x * sigmoid(x)`` and ``Hardswish`` by ``x * hardsigmoid(x)``, as modules.

    Values change by rounding: the fused activations compute in one step.
    """
    names, changes = Names(model), []
    for node in list(model.graph.nodes):
        module = called(model, node)
        if type(module) not in (nn.SiLU, nn.Hardswish) or not isinstance(node.args[0], fx.Node):
            continue
        kind, was, scope = type(module).__name__, str(node.target), str(node.target).rpartition(".")[0]
        gate = nn.Sigmoid() if kind == "SiLU" else nn.Hardsigmoid()
        product: nn.Module = modules.CLASSES["Multiply"]()
        first = names.add(scope, type(gate).__name__.lower(), gate.train(model.training))
        second = names.add(scope, "mul", product.train(model.training))
        result = _gated(model, node, first, second)
        remove_module(model, was)
        why, source = f"{kind} is x * {first}(x) now", result.meta.get("source")
        changes.append(Change("activation decomposed", result.name, second, "Multiply", was, why, source))
    return changes


def _gated(model: PreparedModel, node: fx.Node, gate: str, product: str) -> fx.Node:
    """Replace ``node`` by ``product(x, gate(x))``."""
    with model.graph.inserting_before(node):
        gated = model.graph.call_module(gate, (node.args[0],))
        result = model.graph.call_module(product, (node.args[0], gated))
    gated.meta, result.meta = {**node.meta, "fqn": gate, "origin": None}, {**node.meta, "fqn": product}
    node.replace_all_uses_with(result)
    model.graph.erase_node(node)
    return result


def unroll_reused_(model: PreparedModel) -> list[Change]:
    """Give every further call of a module an instance of its own.

    Instances of modules with parameters or buffers share them with the first one: their state stays one state, also
    when the model is moved, cast or loaded.
    """
    names, seen, changes = Names(model), set[int](), []
    for node in list(model.graph.nodes):
        if node.op != "call_module":
            continue
        target = str(node.target)
        module = model.get_submodule(target)
        if id(module) not in seen:
            seen.add(id(module))
            continue
        if isinstance(module, torch.jit.ScriptModule):
            continue  # its code cannot be copied without its state; validate_model names it
        made = instance_of(module)
        scope, _, last = target.rpartition(".")
        name = names.add(scope, last, made, first=1)
        stateful = any(part._parameters or part._buffers for part in made.modules())
        why = "called again; shares parameters and buffers with " if stateful else "called again; independent of "
        node = call_module(model, node, name, node.args, dict(node.kwargs))
        kind, source = type(module).__name__, node.meta.get("source")
        changes.append(Change("reused module", node.name, name, kind, target, why + target, source))
    return changes


def instance_of(module: torch.nn.Module) -> torch.nn.Module:
    """Return another module of the same kind and state: it shares the tables of parameters and buffers."""
    made: torch.nn.Module = object.__new__(type(module))
    for name, value in vars(module).items():
        if name == "_modules":
            value = {key: None if child is None else instance_of(child) for key, child in value.items()}
        elif name not in ("_parameters", "_buffers"):
            value = _own(name, value)
        vars(made)[name] = value
    return made


def _own(name: str, value: object) -> object:
    if isinstance(value, dict) and name.startswith("_"):
        return copy.copy(value)  # the same hooks, in a separate table
    return value
