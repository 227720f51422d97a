"""The choices made on the bench as one frozen value, so that undo only keeps the old one."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, Literal, TypeVar, get_args

from prepbench.capture.sizes.axis import Axis
from prepbench.capture.sizes.dynamic_axes import DynamicAxes
from prepbench.checks import check_all_of, check_count, described
from prepbench.errors import PrepbenchError, SettingsError
from prepbench.settings import (
    CompileOptions,
    DeploymentSettings,
    ExplainedLayer,
    LayerPruningSettings,
    LayerQuantizationSettings,
    PruningSettings,
    QuantizationSettings,
    activation_format,
    weight_formats,
)
from prepbench.settings.numbers import FLOAT32, INT4, format_named
from prepbench.settings.validation import Settings, check_choice
from prepbench.targets import TARGETS as ALL_TARGETS
from prepbench.targets import target_for

T = TypeVar("T")

Precision = Literal["int8", "int8 weights", "int4 weights", "float32"]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)
LABELS: dict[Precision, str] = {
    "int8": "int8",
    "int8 weights": "int8 weights",
    "int4 weights": "int4 weights",
    "float32": "float",
}
"""Short names, for buttons."""
EXPLANATIONS: dict[Precision, str] = {
    "int8": "weights and activations in 8 bits",
    "int8 weights": "weights in 8 bits, activations in float",
    "int4 weights": "weights in 4 bits, activations in float",
    "float32": "left in float",
}
_LATER = frozenset(("pruning", "pruning_rules", "recovery", "by_search"))
"""The fields that older files lack."""
EVERYTHING = "*"
"""The rule that stands for all layers."""
FLOAT = LayerQuantizationSettings(skip_quantization=True)
_MOST_STEPS = 10**6

TARGETS: dict[str, type[DeploymentSettings]] = {target.display_name: target.settings_type for target in ALL_TARGETS}
"""The settings of every target, by its display name."""

DISPLAY_NAMES: dict[str, str] = {target.name: target.display_name for target in ALL_TARGETS}
"""The display name of every target, by the name that ``compiled.target`` has."""


def display_name(settings: DeploymentSettings) -> str:
    """Return the target's display name."""
    return target_for(settings).display_name


def unavailable(settings: DeploymentSettings) -> str:
    """Return why the target cannot be compiled for here; "" where it can."""
    try:
        target_for(settings).check_available(by_import=False)
    except PrepbenchError as error:
        return str(error).partition(" Or choose ")[0]  # the other targets stand beside it
    return ""


def other_targets(state: BenchState, error: BaseException) -> list[str]:
    """Return the names of the targets that are not chosen and run here on their own hardware; those that an error
    advises come first.
    """
    chosen = set(map(display_name, state.targets))
    others = {name: kind() for name, kind in TARGETS.items() if name not in chosen}
    here = [name for name, one in others.items() if not target_for(one).runs_elsewhere() and not unavailable(one)]
    return sorted(here, key=lambda name: type(others[name]).__name__ not in str(error))


def layer_settings_of(precision: Precision) -> LayerQuantizationSettings:
    """Return the settings that a precision stands for."""
    name, _, only_weights = precision.partition(" ")
    kind = format_named(name)
    if kind is None or kind.is_float:
        return FLOAT
    return LayerQuantizationSettings(weights_num_bits=kind.bits, prefer_weights_only_quantization=bool(only_weights))


def precision_of(settings: QuantizationSettings | None) -> Precision:
    """Return the nearest precision for the settings of a layer; bits to be chosen count as the smallest."""
    if settings is None:
        return "float32"
    if not activation_format(settings).is_float:
        return "int8"
    return "int4 weights" if INT4 in weight_formats(settings) else "int8 weights"


@dataclass(frozen=True, kw_only=True)
class RecoverySettings(Settings):
    """A short training between preparing and compiling, as :func:`prepbench.recover` does it.

    Attributes:
        steps: how many batches, at most. Default 300.
        distill: whether to learn the outputs of the float model, too. Default True.
        by_metric: whether the metric of the bench decides which weights are kept, where there is one; else the loss.
            Default True.
        learning_rate: of AdamW at its highest. Default 0.001.

    Example:
        >>> RecoverySettings(steps=50).summary
        '50 steps, learning from the float model'
    """

    steps: int = 300
    distill: bool = True
    by_metric: bool = True
    learning_rate: float = 1e-3

    def __post_init__(self) -> None:
        if type(self.steps) is not int or not 1 <= self.steps <= _MOST_STEPS:
            raise SettingsError(
                f"Steps must be a whole number from 1 to {_MOST_STEPS}, got {described(self.steps)}. Give one "
                f"such as {type(self).steps}."
            )
        check_choice(self, "distill", (True, False))
        check_choice(self, "by_metric", (True, False))
        rate = self.learning_rate
        if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 < rate < math.inf:
            raise SettingsError(
                f"The learning rate must be a number above 0, got {described(rate)}. Give one such as "
                f"{type(self).learning_rate}."
            )

    @property
    def summary(self) -> str:
        """Return a short text that describes the training."""
        said = [f"{self.steps} step{'s' * (self.steps != 1)}"]
        said += ["learning from the float model"] if self.distill else []
        said += [] if self.learning_rate == type(self).learning_rate else [f"learning rate {self.learning_rate:g}"]
        return ", ".join(said)


@dataclass(frozen=True)
class BenchState:
    """The choices made on the bench.

    Attributes:
        axes: which input dims are dynamic.
        quantization: how layers are quantized that no rule is for.
        rules: settings by FQN, glob, ``re:`` pattern or class name, as ``layer_quantization_settings`` takes them.
        targets: where to compile for; each is one compile.
        options: the algorithms of quantization.
        leaf_wrap: whether lines that cannot be captured become leaves instead of stopping the compile.
        leaves: modules that are kept as leaf modules, by FQN.
        fixes: failures whose fix is applied, by FQN.
        pruning: the pruning of layers without a rule; None for no pruning at all.
        pruning_rules: other settings by the same kinds of keys, as ``layer_pruning_settings`` takes them.
        recovery: the training between preparing and compiling; None for none.
        by_search: whether a search chose the layers and so switched ``keep_ruined_layers_in_float`` off.
    """

    axes: DynamicAxes
    quantization: QuantizationSettings = field(default_factory=QuantizationSettings)
    rules: Mapping[str, LayerQuantizationSettings] = field(default_factory=dict)
    targets: tuple[DeploymentSettings, ...] = field(default_factory=lambda: (ALL_TARGETS[0].settings_type(),))
    options: CompileOptions = field(default_factory=CompileOptions)
    leaf_wrap: bool = False
    leaves: tuple[str, ...] = ()
    fixes: tuple[str, ...] = ()
    pruning: PruningSettings | None = None
    pruning_rules: Mapping[str, LayerPruningSettings] = field(default_factory=dict)
    recovery: RecoverySettings | None = None
    by_search: bool = False

    @property
    def target(self) -> str:
        """The display name of the first target."""
        return display_name(self.targets[0])

    @property
    def fullgraph(self) -> bool:
        """Whether the whole model must become one graph."""
        return not self.leaf_wrap and not self.leaves

    @property
    def pruning_needs_samples(self) -> bool:
        """Whether calibration samples decide what is pruned."""
        return self.pruning is not None and (
            self.pruning.needs_samples or any(rule.needs_samples for rule in self.pruning_rules.values())
        )

    def __eq__(self, other: object) -> bool:
        """Return whether all choices are equal; the order of rules counts, because the last matching glob decides."""
        if not isinstance(other, BenchState):
            return NotImplemented
        return self._values == other._values

    def __hash__(self) -> int:
        return hash((self.axes.axes, self.targets, self.leaf_wrap, self.leaves, self.fixes, tuple(self.rules)))

    @cached_property
    def _values(self) -> tuple[Any, ...]:
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        ordered = {name: tuple(values[name].items()) for name in ("rules", "pruning_rules")}
        return tuple({**values, **ordered}.values())

    def for_target(self, settings: DeploymentSettings) -> BenchState:
        """Return the same choices for one target."""
        return replace(self, targets=(settings,))

    @property
    def in_float(self) -> BenchState:
        """The same choices with the model as it was: nothing is quantized, pruned or trained."""
        return replace(self, rules={EVERYTHING: FLOAT}, pruning=None, pruning_rules={}, recovery=None)

    def to_json(self) -> dict[str, Any]:
        """Return the choices as plain values.

        Axes go without their samples. Choices of pruning, training and a search are omitted at their defaults, so that
        the values equal those of older files.
        """
        found = {
            "axes": [{each.name: _plain(getattr(axis, each.name)) for each in fields(Axis)} for axis in self.axes.axes],
            "quantization": _plain(self.quantization.to_dict()),
            "rules": [[key, _plain(rule.to_dict())] for key, rule in self.rules.items()],
            "targets": [{"target": target_for(each).name, "settings": _plain(each.to_dict())} for each in self.targets],
            "options": _plain(self.options.to_dict()),
            "leaf_wrap": self.leaf_wrap,
            "leaves": list(self.leaves),
            "fixes": list(self.fixes),
        }
        if self.pruning is not None:
            found["pruning"] = _plain(self.pruning.to_dict())
            found["pruning_rules"] = [[key, _plain(rule.to_dict())] for key, rule in self.pruning_rules.items()]
        if self.recovery is not None:
            found["recovery"] = _plain(self.recovery.to_dict())
        if self.by_search:
            found["by_search"] = True
        return found

    @classmethod
    def from_json(cls, data: Mapping[str, Any], axes: DynamicAxes) -> BenchState:
        """Read what :meth:`to_json` wrote.

        Args:
            data: the choices.
            axes: the axes as inferred from samples of today; which are dynamic, names and limits come from ``data``.

        Raises:
            SettingsError: a field that is missing or unknown, or a value that is not allowed.
            InputError: axes that the model's inputs do not have.
        """
        known = {each.name for each in fields(cls)}
        if not isinstance(data, Mapping) or not known - _LATER <= set(data) <= known:
            raise SettingsError(f"The choices of a bench must have the fields {', '.join(sorted(known))}.")
        try:
            return cls(
                _axes_from(data["axes"], axes),
                QuantizationSettings.from_dict(data["quantization"]),
                {_of(str, key): LayerQuantizationSettings.from_dict(rule) for key, rule in data["rules"]},
                tuple(_target_from(each) for each in data["targets"]),
                CompileOptions.from_dict(data["options"]),
                _of(bool, data["leaf_wrap"]),
                tuple(_of(str, name) for name in _of(list, data["leaves"])),
                tuple(_of(str, name) for name in _of(list, data["fixes"])),
                PruningSettings.from_dict(data["pruning"]) if "pruning" in data else None,
                {_of(str, key): LayerPruningSettings.from_dict(rule) for key, rule in data.get("pruning_rules", ())},
                RecoverySettings.from_dict(data["recovery"]) if "recovery" in data else None,
                _of(bool, data.get("by_search", False)),
            )
        except (TypeError, KeyError, ValueError) as error:
            if isinstance(error, SettingsError):
                raise
            raise SettingsError(f"Not a valid bench state: {error}. Save the bench again.") from error

    def differences(self, other: BenchState, changed: int = 0) -> tuple[str, ...]:
        """Return the differences of other choices, with that many changed layers, from these, in words."""
        axes = [
            f"{old.path} dim {old.dim} was {'dynamic' if old.dynamic else 'static'}"
            for new, old in zip(self.axes.axes, other.axes.axes, strict=False)
            if new.dynamic != old.dynamic
        ]
        said = [f"{changed} layer{'s' * (changed != 1)} had another precision"] if changed else []
        if not any(target in self.targets for target in other.targets):
            names = ", ".join(display_name(target) for target in other.targets)
            same = names in {display_name(target) for target in self.targets}
            said.append(f"{names} had other options" if same else f"the target was {names}")
        said += axes[:3] + ([f"and {len(axes) - 3} more dims"] if len(axes) > 3 else [])
        if other.fullgraph != self.fullgraph or other.leaves != self.leaves:
            listed = f": {', '.join(other.leaves)}" if other.leaves else ""
            said.append("leaves were " + ("off" if other.fullgraph else f"on{listed}"))
        said += ["the algorithms were others"] if other.options != self.options else []
        said += ["other fixes were applied"] if other.fixes != self.fixes else []
        said += [_other_pruning(self, other), _other_recovery(self, other)]
        return tuple(filter(None, said))


def _other_pruning(one: BenchState, other: BenchState) -> str:
    if (one.pruning, tuple(one.pruning_rules.items())) == (other.pruning, tuple(other.pruning_rules.items())):
        return ""
    return "nothing was pruned" if other.pruning is None else "other parts were pruned"


def _other_recovery(one: BenchState, other: BenchState) -> str:
    if one.recovery == other.recovery:
        return ""
    return "nothing was trained" if other.recovery is None else f"it was trained for {other.recovery.summary}"


def check_steps(states: Any, position: Any) -> None:
    """Raise ``SettingsError`` unless these are states, and an index of one of them."""
    check_all_of("states", states, BenchState, "Give the states that bench.steps returned.")
    check_count("position", position)
    if position >= len(states):
        raise SettingsError(
            f"position must be less than {len(states)}, the number of states, got {position}. "
            "Give states and position of one bench."
        )


def label_of(state: BenchState, explained: Sequence[ExplainedLayer], target: DeploymentSettings, base: str) -> str:
    """Return a short name for a result, e.g. ``"mixed int4 weights pruned trained back OpenVINO"``."""
    return f"{plan_label(state, explained, base)} {display_name(target)}"


def plan_label(state: BenchState, explained: Sequence[ExplainedLayer], base: str) -> str:
    """Return the precision of most layers and the other changes, e.g. ``"int8 pruned trained back"``."""
    said = [precision_label(explained, base)]
    said += ["pruned"] if state.pruning is not None else []
    said += ["trained back"] if state.recovery is not None else []
    return " ".join(said)


def precision_label(explained: Sequence[ExplainedLayer], base: str) -> str:
    """Return most layers' precision, e.g. ``"int8"``, ``"mixed int8"`` where others differ, ``base`` without any."""
    kinds = [_word(layer.settings) for layer in explained]
    quantized = [kind for kind in kinds if kind != FLOAT32.name]
    most_common = base if not quantized else max((*PRECISIONS, INT4.name), key=quantized.count)
    return f"{'mixed ' if len(set(kinds)) > 1 else ''}{most_common}"


def _word(settings: QuantizationSettings | None) -> str:
    """Return the precision as part of a name; 4-bit weights with quantized activations have a name but no button."""
    precision = precision_of(settings)
    few = precision == "int8" and settings is not None and weight_formats(settings) == (INT4,)
    return INT4.name if few else precision


def precision_words(explained: Sequence[ExplainedLayer]) -> str:
    """Return how many layers have which precision, e.g. ``"41 int8 · 3 float"``."""
    counts = Counter(_word(layer.settings) for layer in explained)
    words = {FLOAT32.name: "float"}
    return " · ".join(f"{count} {words.get(kind, kind)}" for kind, count in counts.most_common()) or "no layers"


def axes_words(axes: DynamicAxes) -> str:
    """Return which sizes are dynamic, e.g. ``"batch, seq dynamic"``."""
    names = list(dict.fromkeys(axis.symbol for axis in axes.dynamic))
    return f"{', '.join(names)} dynamic" if names else "all sizes static"


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def _target_from(data: Mapping[str, Any]) -> DeploymentSettings:
    name = data["target"]
    for target in ALL_TARGETS:
        if target.name == name:
            return target.settings_type.from_dict(data["settings"])
    raise SettingsError(f"There is no target {name!r}; there are: {', '.join(DISPLAY_NAMES)}.")


def _of(kind: type[T], value: Any) -> T:
    if type(value) is not kind:
        raise TypeError(f"{value!r} should be of type {kind.__name__}")
    return value


def _axes_from(data: Sequence[Mapping[str, Any]], axes: DynamicAxes) -> DynamicAxes:
    for axis in data:
        axes = axes.set(axis["path"], axis["dim"], axis["dynamic"])
    for axis in data:
        if axis["dynamic"] and axis["named"]:
            axes = axes.rename(axis["path"], axis["dim"], axis["symbol"])
        if axis["dynamic"] and (axis["minimum"] is not None or axis["maximum"] is not None):
            axes = axes.limit(axis["path"], axis["dim"], min=axis["minimum"], max=axis["maximum"])
    return axes
