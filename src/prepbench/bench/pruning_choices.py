"""The choices of a bench about pruning and recovery training."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from prepbench.bench.choices import Choices
from prepbench.bench.pruning_rules import STAYS, changed_pruning, planned_pruning, with_field
from prepbench.bench.recovery_settings import RecoverySettings
from prepbench.bench.state import EVERYTHING, BenchState
from prepbench.checks import check_table, check_text, check_texts, check_type, described
from prepbench.errors import SettingsError
from prepbench.settings import LayerPruningSettings, PrunableLayer, PruningSettings

_FIELDS = ("mask_type", "amount", "score", "pruning_sensitivity_threshold")


class PruningChoices(Choices):
    """The choices of pruning and of training before compiling; see :class:`prepbench.Bench`."""

    _planned_pruning: tuple[BenchState, Mapping[str, PrunableLayer]] | None = None

    @property
    def pruning(self) -> Mapping[str, PrunableLayer]:
        """The plan for each layer that can be pruned, by FQN; empty without pruning."""
        state = self.state
        if self._planned_pruning is None or self._planned_pruning[0] is not state:
            self._planned_pruning = state, self._pruning_of(state)
        return self._planned_pruning[1]

    def _pruning_of(self, state: BenchState) -> Mapping[str, PrunableLayer]:
        """Return the plan of other choices for each layer that can be pruned.

        Args:
            state: the choices.

        Returns:
            The decision for each layer, by FQN; none where nothing is pruned.

        Raises:
            SettingsError: rules that do not fit the model.
        """
        return {row.fqn: row for row in planned_pruning(self.model, state.pruning, state.pruning_rules)}

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
        if field not in _FIELDS:
            raise SettingsError(f"field must be one of {', '.join(_FIELDS)}, got {described(field)}.")
        self._change_pruning(patterns, lambda now: with_field(now, field, value))

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
        self._choose(recovery=settings)

    def take_over(self, states: Sequence[BenchState], position: int) -> None:
        """Set the states of undo and redo, as :attr:`steps` returns them.

        Args:
            states: the choices, oldest first.
            position: which of them are the current ones.

        Raises:
            SettingsError: choices that do not fit the model, or a position beyond them.
        """
        for state in states:
            if isinstance(state, BenchState):  # other types raise below
                self._pruning_of(state)
        super().take_over(states, position)

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
        self._choose(pruning=settings, pruning_rules=rules)
