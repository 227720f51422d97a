"""The choices of a bench, and the methods that change them; each change can be undone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import nn

from prepbench.bench.axis_choices import AxisChoices
from prepbench.bench.layer_rules import LayerRulesOf, all_in_float
from prepbench.bench.state import (
    DISPLAY_NAMES,
    EVERYTHING,
    FLOAT,
    PRECISIONS,
    TARGETS,
    BenchState,
    Precision,
    check_steps,
    display_name,
    layer_settings_of,
    precision_of,
)
from prepbench.capture.sizes.dynamic_axes import DynamicAxes
from prepbench.checks import check_all_of, check_function, check_switch, check_text, check_texts, check_type, described
from prepbench.errors import InputError, SettingsError
from prepbench.settings import (
    CompileOptions,
    DeploymentSettings,
    ExplainedLayer,
    LayerQuantizationSettings,
    QuantizationSettings,
)
from prepbench.targets import target_for

_PLAIN = (bool, int, float, str, list, tuple)
_NOT_CALIBRATED = (
    "Quantization needs calibration inputs: Bench(model, calibration_inputs=[...]) with representative samples."
)


class Choices(AxisChoices):
    """The current choices of a bench; see :class:`prepbench.Bench`."""

    def __init__(self, model: nn.Module, axes: DynamicAxes, *, calibrated: bool) -> None:
        self.model = model
        self.inferred_axes = axes
        self.is_calibrated = calibrated
        self.layer_rules = LayerRulesOf(model)
        self._modules = frozenset(name for name, _ in model.named_modules(remove_duplicate=False))
        rules = {} if calibrated or not self.layer_rules.has_others else {EVERYTHING: FLOAT}
        self._states = [BenchState(axes, rules=rules)]
        self._position = 0
        self._explained: tuple[BenchState, tuple[ExplainedLayer, ...]] | None = None
        self.selected = ""
        self._listeners: list[Callable[[], None]] = []

    # -- reading -------------------------------------------------------------------------------------------------------

    @property
    def state(self) -> BenchState:
        """The current choices."""
        return self._states[self._position]

    @property
    def axes(self) -> DynamicAxes:
        """The current dynamic axes."""
        return self.state.axes

    @property
    def explained(self) -> tuple[ExplainedLayer, ...]:
        """The planned settings of each quantizable layer, and the rule that decides them."""
        state = self.state
        if self._explained is None or self._explained[0] is not state:
            self._explained = state, self.layer_rules.explained(state.quantization, state.rules)
        return self._explained[1]

    @property
    def precisions(self) -> Mapping[str, Precision]:
        """The precision chosen for each quantizable layer, by FQN."""
        return {layer.fqn: precision_of(layer.settings) for layer in self.explained}

    @property
    def can_undo(self) -> bool:
        """Whether there is a change to undo."""
        return self._position > 0

    @property
    def can_redo(self) -> bool:
        """Whether there is an undo to take back."""
        return self._position < len(self._states) - 1

    @property
    def steps(self) -> tuple[tuple[BenchState, ...], int]:
        """All states of undo and redo, oldest first, and the index of the current one."""
        return tuple(self._states), self._position

    # -- precision -----------------------------------------------------------------------------------------------------

    def set_precision(self, pattern: str | Iterable[str], precision: Precision) -> None:
        """Choose the precision of layers.

        Args:
            pattern: an FQN, a glob over FQNs (``"encoder.*"``), ``re:`` and a regular expression, a class name, or
                several of them.
            precision: ``"int8"`` (weights and activations), ``"int8 weights"``, ``"int4 weights"`` or ``"float32"``.

        Raises:
            SettingsError: an unknown precision, a pattern that matches no quantizable layer, or quantization without
                calibration inputs.
        """
        if precision not in PRECISIONS:
            raise SettingsError(
                f"precision must be one of {', '.join(map(repr, PRECISIONS))}, got {described(precision)}."
            )
        patterns = [pattern] if isinstance(pattern, str) else pattern
        check_texts("pattern", patterns, "encoder.*")
        self.set_rules(dict.fromkeys(patterns, layer_settings_of(precision)))

    def set_rule(self, pattern: str, settings: LayerQuantizationSettings) -> None:
        """Set how the layers that a pattern matches are quantized; rules that this makes obsolete are dropped.

        Args:
            pattern: as for :meth:`set_precision`.
            settings: of these layers.

        Raises:
            SettingsError: the pattern matches no quantizable layer, or the settings contradict the global ones.
        """
        check_text("pattern", pattern, "encoder.*")
        check_type("settings", settings, LayerQuantizationSettings, "Give pb.LayerQuantizationSettings(...).")
        self.set_rules({pattern: settings})

    def set_rules(self, rules: Mapping[str, LayerQuantizationSettings]) -> None:
        """:meth:`set_rule` for several patterns, in one step.

        Args:
            rules: settings by pattern.

        Raises:
            SettingsError: as :meth:`set_rule`, or rules is no dict.
        """
        if not isinstance(rules, Mapping):
            raise SettingsError(f'rules must be a dict, got {described(rules)}. Give {{"encoder.*": settings}}.')
        state, found = self.state, self.state.rules
        for pattern, settings in rules.items():
            check_type(
                f"rules[{pattern!r}]", settings, LayerQuantizationSettings, "Give pb.LayerQuantizationSettings(...)."
            )
            if not settings.skips and not self.is_calibrated:
                raise SettingsError(_NOT_CALIBRATED)
            found = self.layer_rules.with_rule(state.quantization, found, pattern, settings)
        self._choose(rules=dict(found))

    def set_layers(self, patterns: Iterable[str], field: str, value: Any) -> None:
        """Change one setting of the layers that patterns match, and keep their other settings.

        Args:
            patterns: FQNs, globs, ``re:`` patterns or class names.
            field: a field of :class:`prepbench.QuantizationSettings`, or ``"skip_quantization"``.
            value: its new value.

        Raises:
            SettingsError: no such layers, no such field, or a value that is not allowed.
        """
        check_texts("patterns", patterns, "encoder.*")
        check_text("field", field, "weights_num_bits")
        check_type("value", value, _PLAIN, "Give what QuantizationSettings takes for this field.", optional=True)
        base, rules = self.state.quantization, dict(self.state.rules)
        if field != "skip_quantization" and field not in base.to_dict():
            raise SettingsError(f"field must be a field of QuantizationSettings, got {described(field)}.")
        if not (field == "skip_quantization" and value) and not self.is_calibrated:
            raise SettingsError(_NOT_CALIBRATED)
        for pattern in patterns:
            rules = self.layer_rules.with_change(base, rules, pattern, field, value)
        self._choose(rules=rules)

    def clear_rules(self, patterns: Iterable[str]) -> None:
        """Remove rules by their keys, so that more general ones decide again.

        Args:
            patterns: keys of rules, as they were set.

        Raises:
            SettingsError: there is no such rule.
        """
        check_texts("patterns", patterns, "encoder.*")
        unknown = [key for key in patterns if key not in self.state.rules]
        if unknown:
            known = ", ".join(map(repr, self.state.rules)) or "none"
            raise SettingsError(f"There is no rule {unknown[0]!r}; there are: {known}.")
        rules = {key: rule for key, rule in self.state.rules.items() if key not in set(patterns)}
        if not self.is_calibrated and any(
            layer.settings is not None for layer in self.layer_rules.explained(self.state.quantization, rules)
        ):
            raise SettingsError(_NOT_CALIBRATED)
        self._choose(rules=rules)

    def set_quantization(self, settings: QuantizationSettings | None) -> None:
        """Set how layers without a rule are quantized; None leaves all layers in float and drops the rules.

        Args:
            settings: of all these layers.

        Raises:
            SettingsError: there is no calibration data, or a rule contradicts the settings.
        """
        check_type("settings", settings, QuantizationSettings, "Give pb.QuantizationSettings().", optional=True)
        if settings is None:
            self._choose(rules=all_in_float({}) if self.layer_rules.has_others else {})
            return
        if not self.is_calibrated:
            raise SettingsError(_NOT_CALIBRATED)
        rules = {key: rule for key, rule in self.state.rules.items() if (key, rule) != (EVERYTHING, FLOAT)}
        self.layer_rules.explained(settings, rules)  # raises what contradicts
        self._choose(quantization=settings, rules=rules)

    def set_options(self, options: CompileOptions) -> None:
        """Choose the algorithms of quantization.

        Args:
            options: which algorithms run, and how.
        """
        check_type("options", options, CompileOptions, "Give pb.CompileOptions().")
        self._choose(options=options)

    # -- where and how -------------------------------------------------------------------------------------------------

    def set_target(self, target: str) -> None:
        """Choose one deployment target by name, e.g. ``"ONNX Runtime"``, or as ``compiled.target`` has it.

        Args:
            target: its name.

        Raises:
            SettingsError: there is no such target.
        """
        if not isinstance(target, str):
            raise SettingsError(
                f'target must be one name, got {described(target)}. Write target="ONNX Runtime", or give several, and '
                "settings of your own, to bench.set_targets([...])."
            )
        name = DISPLAY_NAMES.get(target, target)
        if name not in TARGETS:
            raise SettingsError(f"target must be one of {', '.join(map(repr, TARGETS))}, got {target!r}.")
        self.set_targets([next((s for s in self.state.targets if display_name(s) == name), TARGETS[name]())])

    def set_targets(self, targets: Iterable[DeploymentSettings]) -> None:
        """Choose the deployment targets, each with its options; each is one compile.

        Args:
            targets: settings of each, e.g. ``[pb.OnnxRuntimeDeployment()]``.

        Raises:
            SettingsError: none, or one of them twice.
        """
        if isinstance(targets, DeploymentSettings | str | bytes) or not isinstance(targets, Iterable):
            raise SettingsError(f"targets must be a list, got {described(targets)}. Give [pb.OnnxRuntimeDeployment()].")
        listed = tuple(targets)
        check_all_of("targets", listed, DeploymentSettings, "Give [pb.OnnxRuntimeDeployment()].")
        names = [target_for(settings, "targets").display_name for settings in listed]
        if not listed:
            raise SettingsError("targets is empty. Give at least one, such as [pb.OnnxRuntimeDeployment()].")
        if len(set(names)) < len(names):
            raise SettingsError(f"targets names one target twice: {', '.join(names)}. Give each once.")
        self._choose(targets=listed)

    def set_leaf_wrap(self, leaf_wrap: bool) -> None:
        """Choose whether lines that cannot be captured become leaves (``fullgraph=False``).

        Args:
            leaf_wrap: True for leaves, False for an error.
        """
        check_switch("leaf_wrap", leaf_wrap)
        self._choose(leaf_wrap=leaf_wrap)

    def set_leaf(self, fqn: str, leaf: bool) -> None:
        """Keep a module as a leaf module, which runs in PyTorch, or undo this.

        Args:
            fqn: the module.
            leaf: False to trace into it again.

        Raises:
            InputError: there is no such module.
        """
        check_switch("leaf", leaf)
        if not isinstance(fqn, str) or fqn not in self._modules:
            raise InputError(
                f"fqn must name a module of the model, got {described(fqn)}. Give a name of model.named_modules()."
            )
        others = [name for name in self.state.leaves if name != fqn]
        self._choose(leaves=tuple([*others, fqn] if leaf else others))

    def select(self, fqn: str | None) -> None:
        """Select a module in all views; None or "" selects nothing.

        Args:
            fqn: the module.

        Raises:
            InputError: there is no such module.
        """
        if fqn is not None and (not isinstance(fqn, str) or fqn not in self._modules):
            raise InputError(
                f"fqn must name a module of the model, got {described(fqn)}. Give a name of model.named_modules()."
            )
        if (fqn or "") != self.selected:
            self.selected = fqn or ""
            self._selected()

    # -- steps ---------------------------------------------------------------------------------------------------------

    def has_module(self, fqn: str) -> bool:
        """Return whether the model has a module of this name.

        Args:
            fqn: the name.

        Returns:
            False where there is none.
        """
        check_text("fqn", fqn, "encoder.0")
        return fqn in self._modules

    def undo(self) -> None:
        """Go back to the choices before the last change; does nothing at the first choices."""
        self._move(-1)

    def redo(self) -> None:
        """Take back the last undo; does nothing at the newest choices."""
        self._move(+1)

    def take_over(self, states: Sequence[BenchState], position: int) -> None:
        """Set the states of undo and redo, as :attr:`steps` returns them.

        Raises:
            SettingsError: choices that do not fit the model, or a position beyond them.
        """
        check_steps(states, position)
        for state in states:
            self.layer_rules.explained(state.quantization, state.rules)  # raises what does not fit
            unknown = [name for name in state.leaves if name not in self._modules]
            if unknown:
                raise SettingsError(f"leaves names {unknown[0]!r}, which is not a module of the model.")
            if not state.targets:
                raise SettingsError("targets is empty: a bench has at least one.")
        self._states, self._position = list(states), position
        self._changed()

    def on_change(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call a function after every change of choices or results.

        Args:
            listener: takes nothing.

        Returns:
            A function that ends this.
        """
        check_function("listener", listener, "listener()")
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def _choose(self, **changes: Any) -> None:
        state = replace(self.state, **changes)
        if state == self.state:
            return
        self._states = [*self._states[: self._position + 1], state]
        self._position += 1
        self._changed()

    def _move(self, step: int) -> None:
        position = min(max(self._position + step, 0), len(self._states) - 1)
        if position != self._position:
            self._position = position
            self._changed()

    def _selected(self) -> None:
        self._changed()

    def _changed(self) -> None:
        for listener in list(self._listeners):
            listener()
