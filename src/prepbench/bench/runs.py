"""The runs of a bench, and the actions on them."""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import torch

from prepbench.bench.cards import RunOutcome
from prepbench.bench.choices import Changes, Choices
from prepbench.bench.history import KeptJournal, comparison_of, runs_of_file, speed_ups_of, where
from prepbench.bench.layer_summaries import base_label, default_pruning, pruning_rule_summaries, settings_label
from prepbench.bench.run_summaries import card_of, difference_of, outcome_of
from prepbench.bench.state import EVERYTHING, BenchState
from prepbench.bench.summary import DifferenceRow, RunDifference
from prepbench.bench.variables import float_name
from prepbench.capture.sizes.axis import Axis
from prepbench.checks import check_path, check_switch, described
from prepbench.errors import PrepbenchError, SettingsError, UnknownNameError
from prepbench.measure.comparison import Comparison
from prepbench.objects.digest import value_mark
from prepbench.package import CompiledModel
from prepbench.results.measurement import Run
from prepbench.results.speed_up import SpeedUp
from prepbench.settings import DeploymentSettings, ExplainedLayer, QuantizationSettings

OTHER_VALUES = "the model had other values"


class Runs:
    """The runs and results of a bench, and which of them are shown; see :class:`prepbench.Bench`.

    Several threads may change them: those of a compile, of the page, and of the reader of the journal.

    Args:
        choices: the current choices, which runs are compared with and restored to.
        changed: called after each change.

    Attributes:
        compiled: the compiled models of this process, by the id of their run.
        elsewhere_shown: whether runs from elsewhere are listed.
        results_path: the journal whose results are listed beside the runs; None for none.
        difference: the newest difference of two runs.
        comparison: the newest comparison; None before the first.
    """

    def __init__(self, choices: Choices, changed: Changes) -> None:
        self._choices, self._changed = choices, changed
        self._lock = threading.RLock()
        self._runs: tuple[Run, ...] = ()
        self.compiled: dict[str, CompiledModel] = {}
        self._journal: KeptJournal | None = None  # takes each run that is added or changed; None for a deleted one
        self._shown = ("", 0)  # its id, and how often something had been chosen: new choices show their own result
        self.elsewhere_shown = True
        self.results_path: Path | None = None
        self._of_file: tuple[Run, ...] = ()
        self.difference = RunDifference()
        self.comparison: Comparison | None = None
        self._kinds: dict[QuantizationSettings | None, int] = {}
        self._states_of_runs: dict[str, BenchState] = {}
        self._values_of_runs: dict[str, Hashable] = {}
        self._plans: dict[tuple[Any, ...], torch.Tensor] = {}
        self._plans_of_runs: dict[str, torch.Tensor] = {}

    @property
    def float_name(self) -> str:
        """The float model's name in comparisons, e.g. ``"float32"``."""
        return float_name(self._choices.model)

    @property
    def results(self) -> dict[str, CompiledModel]:
        """The compiled models of this process by the name of their run, oldest first."""
        return {run.name: self.compiled[run.id] for run in self.runs if run.id in self.compiled}

    @property
    def runs(self) -> tuple[Run, ...]:
        """Every compile so far, with its choices and results, oldest first."""
        return self._runs

    @property
    def live_runs(self) -> frozenset[str]:
        """The ids of runs whose compiled model is in this process."""
        return frozenset(self.compiled)

    @property
    def value_mark(self) -> Hashable:
        """Return a value that changes when the model's tensors are written to."""
        return value_mark(self._choices.model)

    @property
    def speed_ups(self) -> dict[str, SpeedUp | None]:
        """How many times faster each run is, by its id: the numbers of the page, the chart and the report."""
        return speed_ups_of(tuple(run for run in (*self._of_file, *self.runs) if not run.error))

    @property
    def listed_runs(self) -> tuple[Run, ...]:
        """The runs that a front end lists: the history and a file's results, those from elsewhere only if chosen."""
        if self.elsewhere_shown:
            return (*self._of_file, *self.runs)
        return tuple(run for run in self.runs if not where(run))

    @property
    def elsewhere(self) -> int:
        """Return the number of runs from elsewhere: from other machines and notebooks, or of a file."""
        return len(self._of_file) + sum(bool(where(run)) for run in self.runs)

    def show_elsewhere(self, shown: bool) -> None:
        """List or hide runs of other machines and notebooks, and those of a file.

        Args:
            shown: False to list them no longer.
        """
        check_switch("shown", shown)
        self.elsewhere_shown = shown
        self._changed()

    def show_results(self, path: str | os.PathLike[str] | None) -> int:
        """List the results of a journal beside the runs, such as those of a search or of another bench.

        Only results of models with the structure of this one are listed. They are for viewing, and change nothing.

        Args:
            path: of the journal, read now; None for no journal.

        Returns:
            How many of its results are listed.

        Raises:
            InputError: there is no such file.
            StorageError: it cannot be read.
            ArtifactError: it is the file of another program.
        """
        if path is None:
            self.results_path, self._of_file = None, ()
        else:
            check_path("path", path)
            names = [self.float_name, *(run.name for run in self.runs)]
            self.results_path, self._of_file = runs_of_file(path, self._choices.model, names)
            self.elsewhere_shown = True
        self._changed()
        return len(self._of_file)

    def rename_run(self, id: str, name: str) -> None:
        """Give a run another name.

        Args:
            id: of the run.
            name: the new one.

        Raises:
            UnknownNameError: there is no such run.
            SettingsError: another run has the name.
        """
        if not isinstance(name, str) or not name.strip():
            raise SettingsError(f"name must be a text that is not empty, got {described(name)}.")
        other = self.named(name.strip())
        if other is not None and other.id != id:
            raise SettingsError(
                f"Another run is called {name.strip()!r}. Choose another name, or rename that one first."
            )
        self.replace(id, name=name.strip())
        self._changed()

    def pin_run(self, id: str, pinned: bool) -> None:
        """Pin a run to the top of the history, or unpin it.

        Args:
            id: of the run.
            pinned: False to let it go.
        """
        check_switch("pinned", pinned)
        self.replace(id, pinned=pinned)
        self._changed()

    def delete_run(self, id: str) -> None:
        """Remove a run and its compiled model.

        Args:
            id: of the run.
        """
        self._delete(id)
        self._changed()

    def keep_runs(self, runs: Iterable[Run], journal: KeptJournal) -> None:
        """Set the history, and write each later change of it to the journal.

        Args:
            runs: oldest first. Those whose choices do not fit the model are left out, with a warning.
            journal: where to.
        """
        self._runs, self._journal = self._fitting(runs), journal
        self._changed()

    def mark_runs(self, marked: Iterable[Run], journal: KeptJournal) -> None:
        """Record the fingerprint of each run's model, as in ``marked``, and write each later change of a run.

        Args:
            marked: the same runs, with their model.
            journal: where changes are written.
        """
        self._journal = journal
        known = {run.id: run for run in marked}
        found = [(run, known[run.id]) for run in self.runs if run.id in known]
        named = [replace(run, model=mark.model, model_name=mark.model_name) for run, mark in found]
        self._take_in(named, ())
        self._changed()

    @property
    def journal_path(self) -> Path | None:
        """The journal of the runs; None before the bench was saved or loaded."""
        return None if self._journal is None else self._journal.path

    def update_runs(self) -> bool:
        """Merge the runs that others wrote to the journal; a shown bench does so by itself.

        Returns:
            Whether the history has changed by it.

        Raises:
            StorageError: the journal cannot be read.
            ArtifactError: it is damaged.
        """
        if self._journal is None:
            return False
        news = self._journal.news()
        changed = self._take_in(self._fitting(news.runs), news.deleted)
        if changed:
            self._changed()
        return changed

    def show_run(self, id: str) -> None:
        """Show the layers of a run.

        Args:
            id: of the run.
        """
        self._show(self.get(id))
        self._changed()

    def restore_run(self, id: str) -> None:
        """Restore the choices of a run, with all targets of its compile; this can be undone.

        Args:
            id: of the run.

        Raises:
            UnknownNameError: there is no such run.
            SettingsError: the run was of a model with other layers or inputs.
        """
        run = self.get(id)
        state = self.state_of(run)
        self._check_fit(state)
        self._choices.history.choose(**vars(replace(state, targets=self._targets_of(run))))
        self._show(run)
        self._changed()

    def compare_runs(self, first: str, second: str) -> RunDifference:
        """Return the differences between two runs: results, choices, layers.

        Args:
            first: id of a run.
            second: id of the other.

        Returns:
            The difference, also kept in ``difference``.
        """
        one, other = self.get(first, "first"), self.get(second, "second")
        self.difference = difference_of(
            one, other, setting_rows(self.state_of(one), self.state_of(other)), self.speed_ups
        )
        self._changed()
        return self.difference

    def end_comparison(self) -> None:
        """Stop showing the difference of two runs."""
        self.difference = RunDifference()
        self._changed()

    def all_results(self) -> Comparison | None:
        """Return all scored runs as one comparison with the float model; None before the first.

        Times are as each run measured them; those of the float model are the latest. Compare runs by their speed-up:
        over the float model on the same runtime and machine, or else over PyTorch eager in the same rounds.
        """
        if not any(run.score is not None and not run.error for run in self.runs):
            return None
        runs = [run for run in self.listed_runs if not run.error and run.score is not None]
        return comparison_of(runs, self.comparison, self.float_name) if runs else None

    def outcome(self) -> str:
        """Describe the newest result in one sentence: score, latency and size against the float model; "" before the
        first.
        """
        run = next((run for run in reversed(self.runs) if not run.error and run.score is not None), None)
        return "" if run is None else outcome_of(run, self.speed_ups.get(run.id))

    def made_since(self, known: Collection[str]) -> list[Run]:
        """Return the runs that succeeded after those of these ids."""
        return [run for run in self.runs if run.id not in known and not run.error]

    def outcomes_of(self, runs: Iterable[Run]) -> tuple[RunOutcome, ...]:
        """Return what runs came to."""
        return tuple(card_of(run, self.speed_ups.get(run.id)) for run in runs)

    @property
    def without_float(self) -> frozenset[str]:
        """The ids of runs of this process that were timed, and the float model not yet on their runtime."""
        return frozenset(run.id for run in self.runs if run.id in self.compiled and self._lacks_float(run))

    def _lacks_float(self, run: Run) -> bool:
        found = self.speed_ups.get(run.id)
        if found is None or run.reference is None or run.is_float:
            return False
        return found.baseline == run.reference.name != run.target_name

    def export_onnx(self, path: str | Path, run: str | None = None) -> Path:
        """Write a compiled run as one ONNX file, by its id; the shown one, or else the newest one, if left out.

        Args:
            path: of the file.
            run: the id.

        Returns:
            The path.

        Raises:
            SettingsError: nothing was compiled in this process, or the run was not.
        """
        check_path("path", path)
        written: Path = self.compiled_of(run).export(path)
        return written

    def save_model(self, path: str | Path, run: str | None = None) -> Path:
        """Write a compiled run as a folder, by its id; :func:`prepbench.load_compiled` reads it.

        Args:
            path: of the folder.
            run: the id; the shown run, or else the newest one, if left out.

        Returns:
            The path.

        Raises:
            SettingsError: nothing was compiled in this process, or the run was not.
            TargetError: a leaf of the model cannot be written to a file; see ``CompiledModel.save``.
        """
        check_path("path", path)
        self.compiled_of(run).save(path)
        return Path(path)

    def add(self, run: Run, compiled: CompiledModel | None = None, values: Hashable = ()) -> None:
        """Add a run as the newest one, in place of one of its name; ``values`` is :attr:`value_mark` before it."""
        same = self.named(run.name)
        if same is not None:
            self._delete(same.id)
        with self._lock:
            self._runs = (*self._runs, run)
            if compiled is not None:
                self.compiled[run.id], self._values_of_runs[run.id] = compiled, values
        self._write(run.id, run)
        self._changed()

    def replace(self, run_id: str, **changes: Any) -> None:
        """Replace fields of a run in place; who does this tells of the change."""
        with self._lock:
            changed = replace(self.get(run_id), **changes)
            self._runs = tuple(changed if run.id == run_id else run for run in self._runs)
        self._write(run_id, changed)

    def get(self, run_id: str, argument: str = "id") -> Run:
        """Return the run of an id, which was given under the name ``argument``.

        Raises:
            UnknownNameError: there is none.
        """
        for run in self.runs:
            if run.id == run_id:
                return run
        known = ", ".join(run.id for run in self.runs[-5:]) or "none yet"
        raise UnknownNameError(
            f"{argument}: there is no run {described(run_id)}. Give an id of bench.runs; the newest are: {known}."
        )

    def named(self, name: str) -> Run | None:
        """Return the run of this name."""
        return next((run for run in self.runs if run.name == name), None)

    def free_name(self, label: str, state: Mapping[str, Any]) -> str:
        """Return an unused name for a run with these choices: the label, with a number where other choices have it."""
        name, number = label, 1
        while (other := self.named(name)) is not None and (other.state != state or other.error):
            number += 1
            name = f"{label} ({number})"
        return name

    # -- inside --------------------------------------------------------------------------------------------------------

    def compiled_of(self, run: str | None) -> CompiledModel:
        """Return the compiled model of a run; by default that of the shown run, or else of the newest."""
        compiled = self.compiled
        if run is not None:
            run = self.get(run, "run").id
        elif (shown := self.shown_run()) is not None and shown.id in compiled:
            run = shown.id
        else:
            run = next((each.id for each in reversed(self.runs) if each.id in compiled), None)
        if run is None or run not in compiled:
            raise SettingsError("There is no compiled model to export: compile first, or restore the run and compile.")
        return compiled[run]

    def shown_run(self) -> Run | None:
        """Return the run whose results are shown: the chosen one, else that of the current choices, else the newest."""
        worked = [run for run in self.runs if not run.error]
        chosen = [run for run in worked if (run.id, self._choices.history.count) == self._shown]
        current = [self._choices.state.for_target(target).to_json() for target in self._choices.state.targets]
        same = [run for run in worked if run.state in current]
        return next(iter([*chosen, *same[-1:], *reversed(worked)]), None)

    def differences_of(self, run: Run, values: Hashable) -> tuple[str, ...]:
        """Return, in words, how a run's choices and model differ from the current ones.

        The float model is what others are compared with: it is not old because layers are quantized now.
        """
        state, current = self.state_of(run), self._choices.state
        changed = 0
        if run.is_float:
            state, current = state.in_float, current.in_float
        else:
            changed = _changed(self._current_plan(), self._plan_of(run.id, state))
        found = current.differences(state, changed)
        return (*found, OTHER_VALUES) if self._values_of_runs.get(run.id, values) != values else tuple(found)

    def _delete(self, run_id: str) -> None:
        gone = self.get(run_id).id
        self._forget({gone})
        self._write(gone, None)

    def _take_in(self, runs: Sequence[Run], deleted: Collection[str]) -> bool:
        """Merge the changes that others wrote to the journal.

        Args:
            runs: new and changed runs.
            deleted: the ids of those that are gone.

        Returns:
            Whether the history has changed by it.
        """
        with self._lock:
            before = self._runs
            self._forget(set(deleted))
            news = {run.id: run for run in runs}
            known = [news.pop(run.id, run) for run in self._runs]
            self._runs = tuple(sorted([*known, *news.values()], key=lambda run: (run.made, run.id)))
            return self._runs != before

    def _forget(self, gone: Collection[str]) -> None:
        with self._lock:
            self._runs = tuple(run for run in self._runs if run.id not in gone)
            for run_id in gone:
                self.compiled.pop(run_id, None)

    def _write(self, run_id: str, run: Run | None) -> None:
        if self._journal is not None:
            self._journal(run_id, run)

    def _show(self, run: Run) -> None:
        self._shown = run.id, self._choices.history.count

    def state_of(self, run: Run) -> BenchState:
        """Return the choices of a run, for its one target."""
        if run.id not in self._states_of_runs:
            self._states_of_runs[run.id] = BenchState.from_json(run.state, self._choices.inferred_axes)
        return self._states_of_runs[run.id]

    def _fitting(self, runs: Iterable[Run]) -> tuple[Run, ...]:
        """Return the runs whose choices fit the model; warn about the others."""
        found = []
        for run in runs:
            try:
                state = self.state_of(run)
                self._check_fit(state)
                found.append(run)
            except PrepbenchError as error:
                warnings.warn(f"The run {run.name!r} is left out: {error}", stacklevel=3)
        return tuple(found)

    def _check_fit(self, state: BenchState) -> None:
        """Raise if choices do not fit the model."""
        self._choices.layer_rules.explained(state.quantization, state.rules)
        self._choices.pruning_of(state)

    def _targets_of(self, run: Run) -> tuple[DeploymentSettings, ...]:
        """Return all targets of the compile that a run was part of."""
        state = {**run.state, "targets": list(run.targets or run.state["targets"])}
        return BenchState.from_json(state, self._choices.inferred_axes).targets

    def _current_plan(self) -> torch.Tensor:
        return self._plan_for(self._choices.state, self._choices.explained)

    def _plan_of(self, run_id: str, state: BenchState) -> torch.Tensor:
        if run_id not in self._plans_of_runs:
            self._plans_of_runs[run_id] = self._plan_for(state)
        return self._plans_of_runs[run_id]

    def _plan_for(self, state: BenchState, explained: Sequence[ExplainedLayer] | None = None) -> torch.Tensor:
        """Return a number for each layer that identifies its settings; cached, because a history can be long.

        Args:
            state: the choices.
            explained: the decisions for layers, if known.
        """
        key = (state.quantization, tuple(state.rules.items()))
        if key not in self._plans:
            explained = explained or self._choices.layer_rules.explained(state.quantization, state.rules)
            explained = self._choices.layer_rules.completed(explained)
            numbers: dict[int, int] = {}  # layers with one rule share one object
            for layer in explained:
                if id(layer.settings) not in numbers:
                    numbers[id(layer.settings)] = self._kinds.setdefault(layer.settings, len(self._kinds))
            self._plans[key] = torch.tensor([numbers[id(layer.settings)] for layer in explained], dtype=torch.int32)
        return self._plans[key]


def _changed(one: torch.Tensor, other: torch.Tensor) -> int:
    return int((one != other).sum())


# In what the choices of two runs differ, setting by setting.


_NONE = "–"


def setting_rows(first: BenchState, second: BenchState) -> tuple[DifferenceRow, ...]:
    """Return the choices that differ, with both values; the target is left out.

    Example:
        >>> row = setting_rows(state, state_with_a_rule)[0]  # doctest: +SKIP
        >>> row.what, row.first, row.second  # doctest: +SKIP
        ('layers.*.q_proj', '–', 'int4 weights')
    """
    found = [
        ("All layers", *(base_label(state.quantization, state.rules) for state in (first, second))),
        *_pairs(_rules(first), _rules(second)),
        *_pairs(_axes(first), _axes(second)),
        *_pairs(_fields(first.options), _fields(second.options)),
        *_target_options(first, second),
        ("Leaves", _leaves(first), _leaves(second)),
        ("Fixes", _listed(first.fixes), _listed(second.fixes)),
        ("Pruning", *(default_pruning(state.pruning, state.pruning_rules) or _NONE for state in (first, second))),
        *_pairs(_pruning_rules(first), _pruning_rules(second)),
        ("Training back", _training(first), _training(second)),
    ]
    return tuple(DifferenceRow(what, one, other) for what, one, other in found if one != other)


def _pairs(first: Mapping[str, str], second: Mapping[str, str]) -> list[tuple[str, str, str]]:
    return [(key, first.get(key, _NONE), second.get(key, _NONE)) for key in {**first, **second}]


def _rules(state: BenchState) -> dict[str, str]:
    base = state.quantization
    return {key: settings_label(rule.applied_to(base)) for key, rule in state.rules.items() if key != EVERYTHING}


def _pruning_rules(state: BenchState) -> dict[str, str]:
    rules = pruning_rule_summaries(state.pruning, state.pruning_rules, {})
    return {f"{rule.pattern} (pruning)": rule.label for rule in rules}


def _training(state: BenchState) -> str:
    return _NONE if state.recovery is None else state.recovery.summary


def _axes(state: BenchState) -> dict[str, str]:
    return {f"{axis.path} dim {axis.dim}": _axis(axis) for axis in state.axes.axes}


def _axis(axis: Axis) -> str:
    if not axis.dynamic:
        return "static"
    return f"dynamic, {axis.limits}" if axis.limits else "dynamic"


def _target_options(first: BenchState, second: BenchState) -> list[tuple[str, str, str]]:
    one, other = first.targets[0], second.targets[0]
    return _pairs(_fields(one), _fields(other)) if type(one) is type(other) else []


def _fields(settings: Any) -> dict[str, str]:
    names = [each.name for each in fields(settings)]
    return {name.replace("_", " "): str(getattr(settings, name)) for name in names}


def _leaves(state: BenchState) -> str:
    if state.fullgraph:
        return "off"
    return f"on: {', '.join(state.leaves)}" if state.leaves else "on"


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(name or "the model" for name in names) or _NONE
