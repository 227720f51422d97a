"""Quantizable layers, and the keys of rules for them: which layers they match, and which rule wins."""

from __future__ import annotations

import difflib
import fnmatch
import re
from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any

import torch
from torch import nn
from torch.nn.utils import parametrize

from prepbench.checks import check_table
from prepbench.errors import SettingsError
from prepbench.prepare.modules import Operator
from prepbench.settings.quantization import LayerQuantizationSettings

LayerRules = Mapping[str, LayerQuantizationSettings]
"""Settings by key: an FQN, a glob, a regular expression with the prefix ``re:``, or a class name."""

QUANTIZATION = "layer_quantization_settings"


def check_layer_rules(rules: object) -> None:
    """Raise ``SettingsError`` unless the value is None or a dict of settings by key."""
    example = '{"encoder.*": pb.LayerQuantizationSettings(skip_quantization=True)}'
    check_table(QUANTIZATION, rules, example, optional=True)


def check_rule(key: str, rule: object, names: LayerNames, kind: type = LayerQuantizationSettings) -> None:
    """Raise ``SettingsError`` unless the key matches a module and the rule is of a class and fits the model."""
    if not isinstance(rule, kind):
        article = "an" if kind.__name__[0] in "AEIOU" else "a"
        raise SettingsError(
            f"{names.argument}[{key!r}] must be {article} {kind.__name__}, got {type(rule).__name__}. "
            f"Write {kind.__name__}(...) with the settings to override."
        )
    _check_matches(key, names)
    if isinstance(rule, LayerQuantizationSettings):
        _check_until(key, rule, names.modules)


class LayerNames:
    """The names of a model's modules, indexed to resolve many rules for many layers.

    Example:
        >>> names = LayerNames(nn.Sequential(nn.Linear(2, 2)))
        >>> names.matching("0", {"*": LayerQuantizationSettings(skip_quantization=True)})
        ['*']
    """

    def __init__(self, model: nn.Module, argument: str = QUANTIZATION) -> None:
        self.argument = argument
        # a shared layer answers to each of its names
        self.modules: dict[str, Any] = dict(model.named_modules(remove_duplicate=False))
        # tensors that are layers by themselves have names and rules like modules
        self.modules.update(other_weights(model))
        # the class of the module that a layer of several belongs to
        self.recurrent = {
            f"{fqn}.{name}" if fqn else name: type(module).__name__
            for fqn, module in model.named_modules()
            for name in recurrent_parts(module)
        }
        self._aliases: dict[int, list[str]] = {}
        for name, module in self.modules.items():
            self._aliases.setdefault(id(module), []).append(name)
        self.types = frozenset(type(module).__name__ for module in self.modules.values())
        self._around: dict[str, tuple[dict[str, int], dict[str, int]]] = {}
        self._matched: dict[str, frozenset[str]] = {}

    def type_of(self, fqn: str) -> str:
        """Return the class name of a layer; for one layer of a recurrent module that of the module."""
        return self.recurrent.get(fqn) or type(self.modules[fqn]).__name__

    def aliases(self, fqn: str) -> list[str]:
        """Return all names of a module."""
        return self._aliases[id(self.modules[fqn])]

    def patterns(self, rules: Mapping[str, Any]) -> list[str]:
        """Return the keys that are globs or regular expressions, the last one first."""
        return [key for key in reversed(list(rules)) if _is_pattern(key) and key not in self.modules]

    def matching(self, fqn: str, rules: Mapping[str, Any], patterns: Sequence[str] | None = None) -> list[str]:
        """Return the keys that match a layer; the first one wins. ``patterns`` need not be computed for each layer."""
        above, types = self._distances(fqn)
        by_name = {name: distance for name, distance in above.items() if name in rules}
        by_type = {kind: types[kind] for kind in types if kind in rules and kind not in self.modules}
        patterns = self.patterns(rules) if patterns is None else patterns
        matching = [key for key in patterns if not self.matched_by(key).isdisjoint(above)]
        return [*self._nearest_first(fqn, by_name, rules), *matching, *self._nearest_first(fqn, by_type, rules)]

    def matched_by(self, pattern: str) -> frozenset[str]:
        """Return the names of modules that a glob or a regular expression matches."""
        if pattern not in self._matched:
            self._matched[pattern] = frozenset(name for name in self.modules if _pattern_matches(pattern, name))
        return self._matched[pattern]

    def _distances(self, fqn: str) -> tuple[dict[str, int], dict[str, int]]:
        """Return a layer's distance to each module around it, by name and class; a shared layer has several parents."""
        if fqn not in self._around:
            above: dict[str, int] = {}
            types: dict[str, int] = {}
            for alias in self.aliases(fqn):
                for distance, name in enumerate((alias, *_ancestors(alias))):
                    if name not in self.modules:
                        continue  # a name with a dot of its own, which capture refuses
                    above[name] = min(distance, above.get(name, distance))
                    kind = type(self.modules[name]).__name__
                    types[kind] = min(distance, types.get(kind, distance))
            self._around[fqn] = above, types
        return self._around[fqn]

    def _nearest_first(self, fqn: str, distances: Mapping[str, int], rules: Mapping[str, Any]) -> list[str]:
        """Return the keys in order of distance; raise if the nearest ones contradict each other, which can only
        happen for a shared layer.

        Raises:
            SettingsError: they do.
        """
        keys = sorted(distances, key=distances.__getitem__)
        for other in keys[1:]:
            if distances[other] == distances[keys[0]] and rules[other] != rules[keys[0]]:
                raise SettingsError(
                    f"{self.argument}[{keys[0]!r}] and [{other!r}] contradict each other: both are for the "
                    f"layer {fqn!r}, which is shared, and neither is nearer. Keep one of the two."
                )
        return keys


def is_within(fqn: str, ancestor: str) -> bool:
    """Return whether a module is ``ancestor`` or inside it."""
    return fqn == ancestor or ancestor == "" or fqn.startswith(ancestor + ".")


def _ancestors(fqn: str) -> list[str]:
    parts = fqn.split(".")
    return [".".join(parts[:i]) for i in range(len(parts) - 1, -1, -1)] if fqn else []


def _is_pattern(key: str) -> bool:
    return key.startswith("re:") or any(c in key for c in "*?[")


def _pattern_matches(key: str, fqn: str) -> bool:
    if key.startswith("re:"):
        return re.fullmatch(key[3:], fqn) is not None
    return _is_pattern(key) and fnmatch.fnmatchcase(fqn, key)


def _check_matches(key: str, names: LayerNames) -> None:
    modules = names.modules
    if key.startswith("re:"):
        try:
            re.compile(key[3:])
        except re.error as error:
            raise SettingsError(
                f"{names.argument}[{key!r}] is not a valid regular expression: {error}. "
                "Correct it; for a glob, leave out 're:'."
            ) from error
    if key in modules or key in names.types or (_is_pattern(key) and names.matched_by(key)):
        return
    types = names.types
    near = difflib.get_close_matches(key, [*filter(None, modules), *sorted(types)], n=3, cutoff=0.4)
    layers = [fqn for fqn, one in modules.items() if isinstance(one, torch.Tensor) or is_quantizable(one)]
    hint = f"Nearest: {', '.join(map(repr, near))}." if near else f"Layers: {', '.join(layers[:8])}."
    raise SettingsError(
        f"{names.argument}[{key!r}] matches no module. {hint} "
        "A key is a module name, a glob such as 'blocks.*', 're:' and a regular expression, or a class name."
    )


def _check_until(key: str, rule: LayerQuantizationSettings, modules: Mapping[str, object]) -> None:
    for name in rule.skip_quantization_until:
        if name not in modules:
            near = difflib.get_close_matches(name, list(filter(None, modules)), n=3, cutoff=0.4)
            hint = f"Nearest: {', '.join(map(repr, near))}." if near else "Names are those of named_modules()."
            raise SettingsError(
                f"layer_quantization_settings[{key!r}].skip_quantization_until names {name!r}, which the model does "
                f"not have. {hint}"
            )


# Find the modules and tensors of a model that are quantizable layers.


_TABLES = (nn.Embedding, nn.EmbeddingBag)
# prepared functions that take a weight, which is a parameter of the module around them
_FUNCTIONS = ("conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "linear")


def quantizable_layers(model: nn.Module, *, tables: bool = False, whole: bool = False) -> list[str]:
    """Return the FQNs of the quantizable layers, in the order of ``named_modules()``; a shared layer once.

    The layers of an LSTM, GRU or RNN that has several go by the name of their first weight.

    Args:
        model: the model.
        tables: include embeddings, which weight-only settings can quantize.
        whole: give recurrent modules of several layers as one.

    Example:
        >>> quantizable_layers(nn.Sequential(nn.Linear(2, 2), nn.ReLU()))
        ['0']
    """
    found: list[str] = []
    for fqn, module in model.named_modules():
        if is_quantizable(module) or (tables and is_table(module)):
            parts = [] if whole else recurrent_parts(module)
            found += [_joined(fqn, name) for name in parts] or [fqn]
    return found


def recurrent_parts(module: object) -> list[str]:
    """Return the names of the first weight of each layer of an LSTM, GRU or RNN with several layers; else none.

    Example:
        >>> recurrent_parts(nn.LSTM(2, 3, num_layers=2))
        ['weight_ih_l0', 'weight_ih_l1']
    """
    if not isinstance(module, nn.RNNBase) or module.num_layers < 2 or parametrize.is_parametrized(module):
        return []
    names = [f"weight_ih_l{layer}" for layer in range(module.num_layers)]
    return names if all(name in module._parameters for name in names) else []


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def is_quantizable(module: nn.Module) -> bool:
    """Return whether a module has a weight of two dims or more, under a name such as ``weight`` or
    ``in_proj_weight``.

    Users' own linear layers, attention and LSTMs have one; embeddings only look rows up in theirs.
    """
    if isinstance(module, _TABLES):
        return False
    if isinstance(module, Operator):
        return module.operation is not None and module.operation.name in _FUNCTIONS
    if isinstance(module, parametrize.ParametrizationList):
        return False  # its tensors are parts of a weight of the module around it
    if parametrize.is_parametrized(module):
        parts = getattr(module, "parametrizations", {})
        if any(_is_weights_name(name) and _has_matrix(parts[name]) for name in parts):
            return True
    return any(
        value is not None and value.ndim >= 2 and _is_weights_name(name) for name, value in module._parameters.items()
    )


def _is_weights_name(name: str) -> bool:
    return name.startswith("weight") or name.endswith("_weight")


def _has_matrix(module: nn.Module) -> bool:
    return any(value.ndim >= 2 for value in module.parameters())


def other_weights(model: nn.Module) -> dict[str, nn.Module | torch.Tensor]:
    """Return further possible layers beside :func:`quantizable_layers`, by FQN, in the order of ``named_modules()``.

    These are the layers of recurrent modules with several, and tensors of two dims or more, under any name, in lists
    and dicts of parameters, and in buffers. The only
    such tensor of a module without submodules is named like that module, others by their own FQN. Only the graph
    shows whether anything multiplies by them.

    Example:
        >>> model = nn.Module()
        >>> model.kernels = nn.ParameterList([torch.ones(4, 2), torch.ones(2, 2)])
        >>> list(other_weights(model))
        ['kernels.0', 'kernels.1']
    """
    found: dict[str, nn.Module | torch.Tensor] = {}
    seen: set[int] = set()
    for module in model.modules():
        known = is_quantizable(module) or isinstance(module, _TABLES)
        if known or isinstance(module, parametrize.ParametrizationList):
            seen.update(id(value) for value in module.parameters())
    # in a prepared model the functions that take these tensors are modules, and these are the layers
    functions = [
        fqn for fqn, module in model.named_modules() if isinstance(module, Operator) and is_quantizable(module)
    ]
    around = {fqn.rpartition(".")[0] for fqn in functions}
    for fqn, module in model.named_modules():
        if fqn in around:
            continue
        found.update({_joined(fqn, name): getattr(module, name) for name in recurrent_parts(module)})
        tensors = {name: value for name, value in _matrices(module) if id(value) not in seen}
        seen.update(map(id, tensors.values()))
        is_container = isinstance(module, nn.ParameterList | nn.ParameterDict)
        if len(tensors) == 1 and fqn and not is_container and next(module.children(), None) is None:
            found[fqn] = module
        else:
            found.update({_joined(fqn, name): value for name, value in tensors.items()})
    return found


def _matrices(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield a module's own tensors that have two or more dims of size above 1."""
    for name, value in (*module._parameters.items(), *module._buffers.items()):
        if value is not None and value.is_floating_point() and sum(size > 1 for size in value.shape) > 1:
            yield name, value


def layer_named(model: nn.Module, fqn: str) -> nn.Module | torch.Tensor:
    """Return the module, or the tensor that is a layer by itself."""
    path, _, name = fqn.rpartition(".")
    owner = module_named(model, path)
    tensors = {**dict(owner.named_buffers(recurse=False)), **dict(owner.named_parameters(recurse=False))}
    return module_named(model, fqn) if tensors.get(name) is None else tensors[name]


def module_named(model: nn.Module, fqn: str) -> nn.Module:
    """Return a module by its name, also of a scripted model, which has no ``get_submodule``."""
    module: nn.Module = attrgetter(fqn)(model) if fqn else model
    return module


def tensors_of_layer(model: nn.Module, fqn: str) -> list[torch.Tensor]:
    """Return the tensors of a layer: a module's own ones, and the parts of those that are parametrized."""
    layer = layer_named(model, fqn)
    if isinstance(layer, torch.Tensor):
        owner, _, name = fqn.rpartition(".")
        module = module_named(model, owner)
        if name not in recurrent_parts(module):
            return [layer]
        number = name.removeprefix("weight_ih")
        return [value for key, value in module.named_parameters() if key.removesuffix("_reverse").endswith(number)]
    inner = getattr(layer, "parametrizations", None)
    parts = inner.parameters() if isinstance(inner, nn.Module) else ()
    return [*layer.parameters(recurse=isinstance(layer, Operator)), *parts]


def module_of_layer(model: nn.Module, fqn: str) -> str:
    """Return the FQN of the module that computes a layer: its own, or that of the recurrent module it is a part of."""
    owner, _, name = fqn.rpartition(".")
    layer = layer_named(model, fqn)
    is_part = isinstance(layer, torch.Tensor) and name in recurrent_parts(module_named(model, owner))
    return owner if is_part else fqn


def layers_to_quantize(model: nn.Module) -> list[str]:
    """Return the FQNs of all layers that settings may name: modules with weights, embeddings, :func:`other_weights`."""
    others = other_weights(model)
    found: list[str] = []
    for fqn, module in model.named_modules():
        if (fqn in others or is_quantizable(module) or is_table(module)) and not recurrent_parts(module):
            found.append(fqn)
        found += [name for name, value in others.items() if value is not module and name.rpartition(".")[0] == fqn]
    return list(dict.fromkeys(found))


def is_table(module: object) -> bool:
    """Return whether it is an embedding whose weights can be quantized: one that does not write to them."""
    return isinstance(module, nn.Embedding) and module.max_norm is None
