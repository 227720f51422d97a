"""The choices of a bench: who hears of changes, undo and redo, and the methods that change the choices."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from prepbench.bench.layer_rules import (
    STAYS,
    LayerRulesOf,
    all_in_float,
    changed_pruning,
    planned_pruning,
    with_pruning_field,
)
from prepbench.bench.layer_summaries import layer_facts
from prepbench.bench.state import (
    DISPLAY_NAMES,
    EVERYTHING,
    FLOAT,
    PRECISIONS,
    TARGETS,
    BenchState,
    Precision,
    RecoverySettings,
    check_steps,
    display_name,
    layer_settings_of,
    precision_of,
)
from prepbench.bench.summary import ExpectedSize
from prepbench.capture.sizes.axis import Axis
from prepbench.capture.sizes.dynamic_axes import DynamicAxes
from prepbench.checks import (
    check_all_of,
    check_function,
    check_switch,
    check_table,
    check_text,
    check_texts,
    check_type,
    described,
)
from prepbench.compile.simulation import stored_bytes
from prepbench.errors import InputError, SettingsError
from prepbench.objects.restore import state_bytes
from prepbench.quantize.input_hessians import fitted
from prepbench.quantize.placement import Placement
from prepbench.quantize.weights import WeightScheme
from prepbench.settings import (
    CompileOptions,
    DeploymentSettings,
    ExplainedLayer,
    LayerPruningSettings,
    LayerQuantizationSettings,
    PrunableLayer,
    PruningSettings,
    QuantizationSettings,
)
from prepbench.settings.rules import layer_named
from prepbench.targets import target_for
from prepbench.targets.base import unsupported

_PLAIN = (bool, int, float, str, list, tuple)
_NOT_CALIBRATED = (
    "Quantization needs calibration inputs: Bench(model, calibration_inputs=[...]) with representative samples."
)
_OF_PRUNING = ("mask_type", "amount", "score", "pruning_sensitivity_threshold")


class Changes:
    """Tells listeners that choices or results have changed; the parts of a bench call it after each change.

    Attributes:
        count: how many changes there were, by which a cached value knows that it is old.
    """

    def __init__(self) -> None:
        self.count = 0
        self._listeners: list[Callable[[], None]] = []

    def __call__(self) -> None:
        self.count += 1
        self.tell()

    def tell(self) -> None:
        """Call the listeners, also for what leaves every cached value true, such as another selection."""
        for listener in list(self._listeners):
            listener()

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


class History:
    """The choices, with undo and redo: each change adds a value, and none is ever changed.

    Args:
        state: the first choices.
        changed: called after each change.
    """

    def __init__(self, state: BenchState, changed: Changes) -> None:
        self._states, self._position, self._changed = [state], 0, changed
        self.count = 0
        """How often something was chosen, also where that changed nothing."""

    @property
    def state(self) -> BenchState:
        """The current choices."""
        return self._states[self._position]

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

    def choose(self, **changes: Any) -> None:
        """Make choices with other values of some fields the current ones; what was undone is forgotten."""
        self.count += 1
        state = replace(self.state, **changes)
        if state == self.state:
            return
        self._states = [*self._states[: self._position + 1], state]
        self._position += 1
        self._changed()

    def undo(self) -> None:
        """Go back to the choices before the last change; does nothing at the first choices."""
        self._move(-1)

    def redo(self) -> None:
        """Take back the last undo; does nothing at the newest choices."""
        self._move(+1)

    def take_over(self, states: Sequence[BenchState], position: int) -> None:
        """Set the states, as :attr:`steps` returns them."""
        self._states, self._position = list(states), position
        self._changed()

    def _move(self, step: int) -> None:
        position = min(max(self._position + step, 0), len(self._states) - 1)
        if position != self._position:
            self._position = position
            self._changed()


class Choices:
    """What the current choices mean for a model, and the methods that change them; see :class:`prepbench.Bench`.

    Args:
        model: the model; its modules and layers are what choices are about.
        axes: of its inputs, as inferred from the samples.
        changed: called after each change.
        calibrated: whether there are calibration inputs.
    """

    def __init__(self, model: nn.Module, axes: DynamicAxes, changed: Changes, *, calibrated: bool) -> None:
        self.model = model
        self.inferred_axes = axes
        self.is_calibrated = calibrated
        self.layer_rules = LayerRulesOf(model)
        self.facts = layer_facts(model, self.layer_rules.layers)
        self._sizes = Sizes(model, self.layer_rules.layers)
        self.selected = ""
        rules = {} if calibrated or not self.layer_rules.has_others else {EVERYTHING: FLOAT}
        self.history = History(BenchState(axes, rules=rules), changed)
        self._changed = changed
        self._modules = frozenset(name for name, _ in model.named_modules(remove_duplicate=False))
        self._explained: tuple[BenchState, tuple[ExplainedLayer, ...]] | None = None
        self._planned_pruning: tuple[BenchState, Mapping[str, PrunableLayer]] | None = None

    # -- reading -------------------------------------------------------------------------------------------------------

    @property
    def state(self) -> BenchState:
        """The current choices."""
        return self.history.state

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
    def planned(self) -> tuple[ExplainedLayer, ...]:
        """The same for all layers that a page lists: also for embeddings that these settings keep in float."""
        return self.layer_rules.completed(self.explained)

    @property
    def precisions(self) -> Mapping[str, Precision]:
        """The precision chosen for each quantizable layer, by FQN."""
        return {layer.fqn: precision_of(layer.settings) for layer in self.explained}

    @property
    def pruning(self) -> Mapping[str, PrunableLayer]:
        """The plan for each layer that can be pruned, by FQN; empty without pruning."""
        state = self.state
        if self._planned_pruning is None or self._planned_pruning[0] is not state:
            self._planned_pruning = state, self.pruning_of(state)
        return self._planned_pruning[1]

    @property
    def expected_size(self) -> ExpectedSize:
        """The size of the model with the current choices, before it is compiled."""
        state = self.state
        return self._sizes.expected(state.targets[0], self.explained, is_pruned=state.pruning is not None)

    def pruning_of(self, state: BenchState) -> Mapping[str, PrunableLayer]:
        """Return the plan of other choices for each layer that can be pruned.

        Args:
            state: the choices.

        Returns:
            The decision for each layer, by FQN; none where nothing is pruned.

        Raises:
            SettingsError: rules that do not fit the model.
        """
        return {row.fqn: row for row in planned_pruning(self.model, state.pruning, state.pruning_rules)}

    def has_module(self, fqn: str) -> bool:
        """Return whether the model has a module of this name.

        Args:
            fqn: the name.

        Returns:
            False where there is none.
        """
        check_text("fqn", fqn, "encoder.0")
        return fqn in self._modules

    # -- inputs --------------------------------------------------------------------------------------------------------

    def set_axis(self, path: str | Iterable[str], dim: int, dynamic: bool, *, linked: bool = False) -> None:
        """Make a dim of an input dynamic or static.

        Args:
            path: the input; ``[*]`` in it stands for every index, and ``past.*`` for every tensor of ``past``. Several
                are changed in one step.
            dim: the dim.
            dynamic: whether other sizes must work.
            linked: do the same to the dims of :meth:`linked_axes`.

        Raises:
            InputError: there is no such input or dim.
        """
        check_switch("linked", linked)
        axes = self.axes
        for each in _paths(path):
            axes = axes.set(each, dim, dynamic)
            for axis in self.linked_axes(each, dim) if linked else ():
                axes = axes.set(axis.path, axis.dim, dynamic)
        self.history.choose(axes=axes)

    def name_axis(self, path: str, dim: int, name: str) -> None:
        """Name the size of a dim, and of all dims of the same size; this makes them dynamic.

        Args:
            path: the input, e.g. ``"input_ids"``.
            dim: the dim.
            name: an identifier, e.g. ``"batch"``.

        Raises:
            InputError: there is no such dim, or the name is no identifier or another size's.
        """
        self.history.choose(axes=self.axes.rename(path, dim, name))

    def limit_axis(
        self,
        path: str | Iterable[str],
        dim: int,
        min: int | None = None,
        max: int | None = None,
        *,
        linked: bool = False,
    ) -> None:
        """Make a dim dynamic between two sizes, both included; None for no limit. See :meth:`set_axis`.

        Args:
            path: the input, or several.
            dim: the dim.
            min: the smallest size.
            max: the largest size.
            linked: do the same to the dims of :meth:`linked_axes`.

        Raises:
            InputError: there is no such dim, the range is empty, or a sample lies outside.
        """
        check_switch("linked", linked)
        axes = self.axes
        for each in _paths(path):
            axes = axes.limit(each, dim, min=min, max=max)
            for axis in self.linked_axes(each, dim) if linked else ():
                axes = axes.limit(axis.path, axis.dim, min=min, max=max)
        self.history.choose(axes=axes)

    def linked_axes(self, path: str, dim: int) -> tuple[Axis, ...]:
        """Return the other dims that vary together with a dim.

        Args:
            path: the input.
            dim: the dim.

        Returns:
            The dims whose sizes are equal on all samples. A size that is the same in all samples proves little: of such
            dims, only first ones with a size above 1 are linked, because they are the batch.
        """
        first = self.axes.set(path, dim)._found(path, dim)[0]
        return tuple(
            axis
            for axis in self.axes.axes
            if (axis.path, axis.dim) != (first.path, first.dim)
            and axis.sizes == first.sizes
            and (len(set(axis.sizes)) > 1 or _is_batch(axis, first) or (axis.dynamic and axis.symbol == first.symbol))
        )

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
        settings = layer_settings_of(precision)
        if self.state.quantization.cross_layer_equalization and not settings.skips:
            settings = replace(settings, cross_layer_equalization=False)  # a precision stands for all its settings
        self.set_rules(dict.fromkeys(patterns, settings))

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
        self._choose_layers(rules=dict(found))

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
        self._choose_layers(rules=rules)

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
        self._choose_layers(rules=rules)

    def set_quantization(self, settings: QuantizationSettings | None) -> None:
        """Set how layers without a rule are quantized; None leaves all layers in float and drops the rules.

        Args:
            settings: of all these layers.

        Raises:
            SettingsError: there is no calibration data, or a rule contradicts the settings.
        """
        check_type("settings", settings, QuantizationSettings, "Give pb.QuantizationSettings().", optional=True)
        if settings is None:
            self._choose_layers(rules=all_in_float({}) if self.layer_rules.has_others else {})
            return
        if not self.is_calibrated:
            raise SettingsError(_NOT_CALIBRATED)
        rules = {key: rule for key, rule in self.state.rules.items() if (key, rule) != (EVERYTHING, FLOAT)}
        self.layer_rules.explained(settings, rules)  # raises what contradicts
        self._choose_layers(quantization=settings, rules=rules)

    def set_options(self, options: CompileOptions) -> None:
        """Choose the algorithms of quantization.

        Args:
            options: which algorithms run, and how.
        """
        check_type("options", options, CompileOptions, "Give pb.CompileOptions().")
        self.history.choose(options=options, by_search=False)

    def _choose_layers(self, **changes: Any) -> None:
        """Choose by hand: nobody has measured that, so ruined layers are left in float again after a search."""
        if self.state.by_search:
            options = replace(self.state.options, keep_ruined_layers_in_float=True)
            changes.update(by_search=False, options=options)
        self.history.choose(**changes)

    # -- pruning and training ------------------------------------------------------------------------------------------

    def set_pruning(
        self, settings: PruningSettings | None, rules: Mapping[str, LayerPruningSettings] | None = None
    ) -> None:
        """Set the pruning, as ``pruning_settings`` and ``layer_pruning_settings`` of ``compile_model``.

        Args:
            settings: for all layers that no rule is for; None prunes nothing.
            rules: overrides by FQN, glob, ``re:`` pattern or class name; those that there are now are dropped.

        Raises:
            SettingsError: a rule that does not fit the model, or settings that need calibration inputs without any.

        Example:
            >>> bench = pb.Bench(nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2)), tracing_inputs=[torch.ones(2, 4)])
            >>> bench.set_pruning(PruningSettings(mask_type="channels", amount=0.5))
        """
        check_table("rules", rules, '{"head": pb.LayerPruningSettings(skip_pruning=True)}', optional=True)
        check_type("settings", settings, PruningSettings, "Give pb.PruningSettings().", optional=True)
        if settings is None and rules:
            raise SettingsError("rules override settings, and there are none. Give pb.PruningSettings(), too.")
        if settings is not None:
            planned_pruning(self.model, settings, rules or {})  # raises what does not fit
        self._choose_pruning(settings, dict(rules or {}))

    def prune_layers(self, patterns: Iterable[str], settings: PruningSettings | None) -> None:
        """Prune the layers that patterns match, and leave all others as they are; None ends their pruning.

        Args:
            patterns: FQNs, globs, ``re:`` patterns or class names.
            settings: the pruning of these layers; None for none.

        Raises:
            SettingsError: no such layers, or another way of pruning a weight that they share.
        """
        check_texts("patterns", patterns, "encoder.*")
        check_type("settings", settings, PruningSettings, "Give pb.PruningSettings().", optional=True)
        self._change_pruning(patterns, lambda now: settings)

    def change_pruning(self, patterns: Iterable[str], field: str, value: Any) -> None:
        """Change one pruning setting of the layers that patterns match, and keep their other settings.

        Args:
            patterns: FQNs, globs, ``re:`` patterns or class names.
            field: a field of :class:`prepbench.PruningSettings`.
            value: its new value; ``"none"`` as ``mask_type`` prunes nothing there.

        Raises:
            SettingsError: no such layers, no such field, or a value that is not allowed.
        """
        check_texts("patterns", patterns, "encoder.*")
        check_text("field", field, "amount")
        if field not in _OF_PRUNING:
            raise SettingsError(f"field must be one of {', '.join(_OF_PRUNING)}, got {described(field)}.")
        self._change_pruning(patterns, lambda now: with_pruning_field(now, field, value))

    def clear_pruning_rules(self, patterns: Iterable[str]) -> None:
        """Remove pruning rules by their keys, so that more general ones decide again.

        Args:
            patterns: the keys, as :attr:`state` has them.

        Raises:
            SettingsError: there is no such rule.
        """
        check_texts("patterns", patterns, "encoder.*")
        gone = set(patterns)
        unknown = [key for key in gone if key not in self.state.pruning_rules]
        if unknown:
            known = ", ".join(map(repr, self.state.pruning_rules)) or "none"
            raise SettingsError(f"There is no pruning rule {unknown[0]!r}; there are: {known}.")
        rules = {key: rule for key, rule in self.state.pruning_rules.items() if key not in gone}
        left = None if rules == {EVERYTHING: STAYS} else self.state.pruning
        self._choose_pruning(left, rules if left is not None else {})

    def set_recovery(self, settings: RecoverySettings | None) -> None:
        """Train the model for some steps between preparing and compiling it; None compiles it as it is.

        Args:
            settings: of the training, from ``prepbench.bench.RecoverySettings``.

        Example:
            >>> bench = pb.Bench(nn.Sequential(nn.Linear(4, 2)), calibration_inputs=[torch.ones(2, 4)])
            >>> bench.set_recovery(RecoverySettings(steps=100))
        """
        check_type("settings", settings, RecoverySettings, "Give RecoverySettings(steps=300).", optional=True)
        self.history.choose(recovery=settings)

    def _change_pruning(self, patterns: Iterable[str], change: Any) -> None:
        state, meant = self.state, {pattern: self.layer_rules.matched(pattern) for pattern in patterns}
        self._choose_pruning(*changed_pruning(self.model, state.pruning, state.pruning_rules, meant, change))

    def _choose_pruning(self, settings: PruningSettings | None, rules: Mapping[str, LayerPruningSettings]) -> None:
        needs_samples = settings is not None and (
            settings.needs_samples or any(rule.needs_samples for rule in rules.values())
        )
        if needs_samples and not self.is_calibrated:
            raise SettingsError(
                "Scores and thresholds that samples decide need calibration inputs: Bench(model, "
                "calibration_inputs=[...]). The magnitude of weights needs none."
            )
        self.history.choose(pruning=settings, pruning_rules=rules)

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
        self.history.choose(targets=listed)

    def set_leaf_wrap(self, leaf_wrap: bool) -> None:
        """Choose whether lines that cannot be captured become leaves (``fullgraph=False``).

        Args:
            leaf_wrap: True for leaves, False for an error.
        """
        check_switch("leaf_wrap", leaf_wrap)
        self.history.choose(leaf_wrap=leaf_wrap)

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
        self.history.choose(leaves=tuple([*others, fqn] if leaf else others))

    def select(self, fqn: str | None) -> None:
        """Select a module in all views, or a layer that is a tensor of one; None or "" selects nothing.

        Args:
            fqn: the module or layer.

        Raises:
            InputError: there is no such module.
        """
        if fqn is not None and not (isinstance(fqn, str) and (fqn in self._modules or fqn in self.layer_rules.layers)):
            raise InputError(
                f"fqn must name a module of the model, got {described(fqn)}. Give a name of model.named_modules()."
            )
        if (fqn or "") != self.selected:
            self.selected = fqn or ""
            self._changed.tell()

    # -- steps ---------------------------------------------------------------------------------------------------------

    def take_over(self, states: Sequence[BenchState], position: int) -> None:
        """Set the states of undo and redo, as :attr:`steps` returns them.

        Args:
            states: the choices, oldest first.
            position: which of them are the current ones.

        Raises:
            SettingsError: choices that do not fit the model, or a position beyond them.
        """
        check_steps(states, position)
        for state in states:
            self.pruning_of(state)  # raises what does not fit
        for state in states:
            self.layer_rules.explained(state.quantization, state.rules)  # raises what does not fit
            unknown = [name for name in state.leaves if name not in self._modules]
            if unknown:
                raise SettingsError(f"leaves names {unknown[0]!r}, which is not a module of the model.")
            if not state.targets:
                raise SettingsError("targets is empty: a bench has at least one.")
        self.history.take_over(states, position)


def _is_batch(axis: Axis, other: Axis) -> bool:
    """Return whether two dims of one size are both first dims; size 1 does not count, since it broadcasts."""
    return axis.dim == other.dim == 0 and axis.sizes[0] > 1


def _paths(path: Any) -> list[Any]:
    """Return a path or several paths as a list; a wrong type is reported later, where paths are looked up."""
    if isinstance(path, str | bytes) or not isinstance(path, Iterable):
        return [path]
    paths = list(path)
    check_texts("path", paths, "input_ids")
    return paths


_MEGA = 10**6
_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
"""Convolutions whose weights count output channels in their second dim."""


class Sizes:
    """The bytes of a model's weights in any precision.

    Args:
        model: whose shapes are read; shared tensors count once.
        layers: FQNs of the quantizable layers.

    Example:
        >>> from prepbench.bench.state import TARGETS
        >>> model = torch.nn.Linear(1000, 100, bias=False)
        >>> Sizes(model, [""]).expected(TARGETS["ONNX Runtime"](), []).megabytes
        0.4
    """

    def __init__(self, model: nn.Module, layers: Sequence[str]) -> None:
        self._whole = state_bytes(model)
        self._weights: dict[str, tuple[list[torch.Size], int, int]] = {}
        seen: set[int] = set()
        for fqn in layers:
            layer = layer_named(model, fqn)
            found = [tensor for tensor in _weights_of(layer) if id(tensor) not in seen]
            seen.update(map(id, found))
            count = sum(tensor.numel() * tensor.element_size() for tensor in found)
            axis = int(isinstance(layer, _TRANSPOSED) and layer.groups == 1)
            self._weights[fqn] = [tensor.shape for tensor in found], axis, count
        self._known: dict[tuple[str, QuantizationSettings, bool, bool], int] = {}

    def expected(
        self, target: DeploymentSettings, explained: Iterable[ExplainedLayer], *, is_pruned: bool = False
    ) -> ExpectedSize:
        """Return the size of the model: integers, scales and zero points of quantized layers, and all else in float.

        Args:
            target: where it will run; layers whose settings it lacks count in float.
            explained: how layers are quantized.
            is_pruned: whether weights will be removed, which is not counted.
        """
        placement = target_for(target).placement
        count = self._whole
        for layer in explained:
            if layer.settings is None or layer.fqn not in self._weights or unsupported(layer.settings, placement):
                continue
            count -= self._weights[layer.fqn][2] - self._bytes(layer.fqn, layer.settings, placement)
        note = "without what pruning removes" if is_pruned else ""
        return ExpectedSize(count / _MEGA, self._whole / _MEGA, note)

    def _bytes(self, fqn: str, settings: QuantizationSettings, placement: Placement) -> int:
        reduce_range = bool(placement.reduce_range)
        key = fqn, settings, reduce_range, placement.packs_weights
        if key not in self._known:
            shapes, axis, _ = self._weights[fqn]
            weights = [torch.empty(shape, device="meta") for shape in shapes]
            wanted = WeightScheme.of(next(settings.candidates()), reduce_range=reduce_range)
            scheme = fitted(wanted, weights, axis)
            bits = placement.stored_bits(scheme.bits, weights_only=settings.prefer_weights_only_quantization)
            self._known[key] = sum(stored_bytes(weight, axis, scheme, bits) for weight in weights)
        return self._known[key]


def _weights_of(module: nn.Module | torch.Tensor) -> list[torch.Tensor]:
    """Return the tensors of a layer that are quantized: its own matrices, and those that a parametrization is of."""
    if isinstance(module, torch.Tensor):
        return [module]
    own = list(module.parameters(recurse=False))
    if "parametrizations" in module._modules:
        own += module.get_submodule("parametrizations").parameters()
    return [tensor for tensor in own if tensor.ndim >= 2]
