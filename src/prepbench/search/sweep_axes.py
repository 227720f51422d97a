"""What a sweep goes over: models, targets and settings by name, and the data of each model."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch

from prepbench.checks import check_table, check_type, described
from prepbench.errors import InputError, SettingsError
from prepbench.settings import (
    CompileOptions,
    DeploymentSettings,
    LayerQuantizationSettings,
    OnnxRuntimeDeployment,
    QuantizationSettings,
)
from prepbench.targets import target_for

AXES = ("model", "target", "settings")
_EXAMPLE = '{"model": {"net": net}, "target": [pb.OnnxRuntimeDeployment()], "settings": {"int8": pb.Quantization...}}'
_KEYWORDS = ("quantization_settings", "layer_quantization_settings", "compile_options")


@dataclass(frozen=True)
class Setting:
    """How to quantize: arguments of :func:`prepbench.compile_model`.

    Attributes:
        quantization: None for float.
        layers: rules for layers.
        options: the algorithms.
    """

    quantization: QuantizationSettings | None = None
    layers: Mapping[str, LayerQuantizationSettings] | None = None
    options: CompileOptions | None = None

    def keywords(self) -> dict[str, Any]:
        """As ``compile_model`` takes them."""
        return dict(zip(_KEYWORDS, (self.quantization, self.layers, self.options), strict=True))

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "quantization_settings": self.quantization and self.quantization.to_dict(),
            "layer_quantization_settings": {key: rule.to_dict() for key, rule in (self.layers or {}).items()},
            "compile_options": (self.options or CompileOptions()).to_dict(),
        }


@dataclass(frozen=True)
class Axes:
    """The axes of a sweep, checked.

    Attributes:
        models: by name.
        targets: their settings by name.
        settings: by name.
    """

    models: Mapping[str, Callable[..., Any]]
    targets: Mapping[str, DeploymentSettings]
    settings: Mapping[str, Setting]

    @classmethod
    def of(cls, given: Any) -> Axes:
        """Check what was given to a sweep.

        Raises:
            SettingsError: an axis is unknown (with the nearest name), empty, or holds something else.
            InputError: a model is none.
        """
        check_table("axes", given, _EXAMPLE)
        for key in given:
            if key not in AXES:
                near = difflib.get_close_matches(key, AXES, n=1, cutoff=0.4)
                hint = f"Did you mean {near[0]!r}? " if near else ""
                raise SettingsError(f"axes has no key {key!r}. {hint}Choose among {', '.join(map(repr, AXES))}.")
        if "model" not in given:
            raise SettingsError(f"axes lacks 'model': a sweep needs at least one. Write axes={_EXAMPLE}.")
        models = _named("model", given["model"], _model_name, one=callable)
        for name, model in models.items():
            if not callable(model) or isinstance(model, type):
                raise InputError(f"axes['model'][{name!r}] must be a module, got {described(model)}. Give a model.")
        targets = _named(
            "target", given.get("target", OnnxRuntimeDeployment()), _target_name,
            one=lambda value: isinstance(value, DeploymentSettings),
        )  # fmt: skip
        for name, target in targets.items():
            target_for(target, f"axes['target'][{name!r}]")
        settings = _named(
            "settings", given.get("settings", {"float32": None}), _setting_name,
            one=lambda value: value is None or isinstance(value, QuantizationSettings),
        )  # fmt: skip
        return cls(models, targets, {name: _setting(name, value) for name, value in settings.items()})


def per_model(argument: str, given: Any, models: Iterable[str], *, optional: bool) -> dict[str, Any]:
    """The data of each model; one for all, or a dict by the names of models. What can be read once only is a list.

    Raises:
        InputError: a model has none, or a name is of no model.
    """
    names = list(models)
    once = given is not None and isinstance(given, Iterable) and iter(given) is given
    by_name = given if isinstance(given, Mapping) else dict.fromkeys(names, list(given) if once else given)
    for name in by_name:
        if name not in names:
            near = difflib.get_close_matches(str(name), names, n=1)
            hint = f"Did you mean {near[0]!r}? " if near else ""
            raise InputError(f"{argument} has a key {described(name)}, which is no model. {hint}Give {_listed(names)}.")
    found: dict[str, Any] = {}
    for name in names:
        value = by_name.get(name)
        if value is None and not optional:
            raise InputError(
                f"{argument} has nothing for the model {name!r}. Give samples for all models, or a dict by their "
                f"names: {_listed(names)}."
            )
        if value is not None and (isinstance(value, torch.Tensor | str) or not isinstance(value, Iterable)):
            raise InputError(f"{argument} of {name!r} must be a list or a loader, got {described(value)}. Give a list.")
        found[name] = list(value) if value is not None and iter(value) is value else value
        if found[name] is not None and hasattr(found[name], "__len__") and not len(found[name]):
            raise InputError(f"{argument} of {name!r} is empty. Give at least one element.")
    return found


def _named(axis: str, given: Any, name_of: Callable[[Any], str], *, one: Callable[[Any], bool]) -> dict[str, Any]:
    """Values by name; those in a list get names of their own, with numbers where these are the same."""
    if isinstance(given, Mapping):
        check_table(f"axes[{axis!r}]", given, _EXAMPLE)
        found = dict(given)
    elif isinstance(given, list | tuple):
        names = [name_of(value) for value in given]
        found = {
            name if names.count(name) == 1 else f"{name} {names[: number + 1].count(name)}": value
            for number, (name, value) in enumerate(zip(names, given, strict=True))
        }
    elif one(given):
        found = {name_of(given): given}
    else:
        raise SettingsError(f"axes[{axis!r}] must be a dict or a list, got {described(given)}. Write axes={_EXAMPLE}.")
    if not found:
        raise SettingsError(f"axes[{axis!r}] is empty: nothing would be measured. Give at least one.")
    return found


def _setting(name: str, value: Any) -> Setting:
    where = f"axes['settings'][{name!r}]"
    if value is None:
        return Setting()
    if isinstance(value, QuantizationSettings):
        return Setting(value)
    wanted = (
        f"{where} must be None for float, a QuantizationSettings, or a dict of {', '.join(_KEYWORDS)}, got "
        f"{described(value)}. Write pb.QuantizationSettings(weights_num_bits=4), for example."
    )
    if not isinstance(value, Mapping):
        raise SettingsError(wanted)
    for key in value:
        if key not in _KEYWORDS:
            near = difflib.get_close_matches(str(key), _KEYWORDS, n=1)
            raise SettingsError(f"{where} has no key {key!r}. {f'Did you mean {near[0]!r}? ' if near else ''}{wanted}")
    kinds: tuple[type, ...] = (QuantizationSettings, Mapping, CompileOptions)
    for key, kind in zip(_KEYWORDS, kinds, strict=True):
        check_type(f"{where}[{key!r}]", value.get(key), kind, f"Give what compile_model takes as {key}.", optional=True)
    for key, rule in (value.get("layer_quantization_settings") or {}).items():
        remedy = "Give pb.LayerQuantizationSettings(...)."
        check_type(f"{where}['layer_quantization_settings'][{key!r}]", rule, LayerQuantizationSettings, remedy)
    return Setting(*(value.get(key) for key in _KEYWORDS))


def _model_name(model: Any) -> str:
    return getattr(model, "__name__", type(model).__name__)


def _target_name(settings: Any) -> str:
    if not isinstance(settings, DeploymentSettings):
        raise SettingsError(
            f"axes['target'] must hold deployment settings, got {described(settings)}. Write "
            "pb.OnnxRuntimeDeployment(), for example."
        )
    changed = [
        f"{field.name}={getattr(settings, field.name)!r}"
        for field in fields(settings)
        if getattr(settings, field.name) != field.default
    ]
    return " ".join([target_for(settings).display_name, *([f"({', '.join(changed)})"] if changed else [])])


def _setting_name(value: Any) -> str:
    if value is None:
        return "float32"
    if not isinstance(value, QuantizationSettings):
        return "settings"
    bits = value.weights_num_bits
    listed = "/".join(map(str, bits)) if isinstance(bits, tuple) else str(bits)
    return f"int{listed}{' weights' if value.prefer_weights_only_quantization else ''}"


def _listed(names: list[str]) -> str:
    return ", ".join(map(repr, names))
