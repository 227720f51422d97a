"""``sweep``: many models on many targets with many settings; results in the journal are not measured again."""

from __future__ import annotations

import math
import time
import uuid
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import torch

from prepbench.checks import (
    check_count,
    check_function,
    check_path,
    check_progress,
    check_seconds,
    check_switch,
    check_table,
    check_text,
    check_type,
    described,
    did_you_mean,
)
from prepbench.compile import KeptStages, compile_model
from prepbench.document.codec import plain, read_object
from prepbench.errors import InputError, PrepbenchError, PrepbenchWarning, SettingsError, UnknownNameError
from prepbench.inputs import Sample
from prepbench.internal_errors import internal_error
from prepbench.jobs import Cancelled, Progress, ProgressCallback, report_nothing
from prepbench.measure import metrics
from prepbench.measure.batches import read_batches
from prepbench.measure.run import compare
from prepbench.measure.transfer import load_sample, save_sample
from prepbench.objects.digest import data_digest, model_digest, program_form
from prepbench.objects.function_digest import read_function
from prepbench.package.compiled import CompiledModel, program_of
from prepbench.progress_bar import shows_progress
from prepbench.results.journal import Journal, journal_at
from prepbench.results.measurement import Result, this_machine, this_notebook
from prepbench.results.results import Results
from prepbench.results.speed_up import Reference
from prepbench.running.callable_module import as_module
from prepbench.running.given_samples import Reader
from prepbench.running.metric_scores import takes_targets
from prepbench.running.transforms import length_of, with_transform
from prepbench.search.executors import check_executor, run_tasks
from prepbench.search.scoring import REFERENCE
from prepbench.search.tasks import computing_lock, name_of, task, timing_lock
from prepbench.settings import (
    CompileOptions,
    DeploymentSettings,
    EagerDeployment,
    LayerQuantizationSettings,
    OnnxRuntimeDeployment,
    QuantizationSettings,
    activation_format,
    weight_formats,
)
from prepbench.storage import temporary_folder
from prepbench.targets import target_for


@shows_progress("sweep")
def sweep(
    axes: Mapping[str, Any],
    calibration_inputs: Any = None,
    data: Any = None,
    *,
    metric: Callable[[Any, Any], Any] | None = None,
    higher_is_better: bool | None = None,
    rounds: int = 20,
    timeout: float | None = 600.0,
    results: str | Path | None = None,
    executor: Any = None,
    progress: ProgressCallback = report_nothing,
    transform: Callable[[Any], Any] | None = None,
) -> SweepResult:
    """Compile and measure many models, on many targets, with many settings.

    The candidates of one model on one target are timed side by side, together with the model in PyTorch, as
    :func:`prepbench.compare` does; that one has a row of its own, with the target ``"eager"``. A combination that fails
    is a row with its error. Nothing is measured twice: results that the journal has for this model, data, settings,
    target and machine are taken from there, also after a crash, in another notebook, and when axes grow.

    Models are captured and compiled in this process. With an executor, its workers score and time them; they get
    programs and data as files.

    Args:
        axes: ``"model"``: a dict of models by name, or a list; ``"target"``: a list of deployment settings, or a dict
            by name (``OnnxRuntimeDeployment()`` when omitted); ``"settings"``: a dict of what ``compile_model`` takes
            as ``quantization_settings``, None for float, or a dict of its ``quantization_settings``,
            ``layer_quantization_settings`` and ``compile_options`` (float alone when omitted).
        calibration_inputs: samples that models are captured and calibrated with, for all models or by their names.
        data: batches to score and time on, as ``pb.compare`` takes them, for all models or by their names; the
            calibration inputs when omitted.
        metric: ``metric(output, target)``; None for an SQNR in dB against the model in PyTorch.
        higher_is_better: False where less is better; by default as known for the metric, False for a loss by its name,
            else True.
        rounds: interleaved rounds of timing; 0 leaves latency out.
        timeout: seconds to wait for each answer of a timing process; None waits for ever.
        results: path of a journal, to which each result is written at once. A metric is known again if all that it
            reads is the same: globals, helpers, attributes.
        executor: None for this process, a ``concurrent.futures.Executor``, or a ``dask.distributed.Client``. A metric
            of your own is computed here.
        progress: receives each step; it may raise :class:`prepbench.Cancelled`. What was measured is in the journal.
        transform: applied to each sample and to each element of data first, as for ``compile_model`` and ``compare``.

    Returns:
        The results of all combinations, with those that failed.

    Raises:
        SettingsError: an axis is unknown, empty or holds something else; an argument is of another type.
        InputError: a model has no samples or data.
        ExecutorError: the executor cannot run tasks.
        StorageError: the journal cannot be written.

    Example:
        >>> axes = {"model": {"net": net}, "settings": {"float": None, "int8": pb.QuantizationSettings()}}
        >>> pb.sweep(axes, samples, results="results.sqlite").table()
    """
    found = Axes.of(axes)
    check_function("metric", metric, "metric(output, target)", optional=True)
    if higher_is_better is not None:
        check_switch("higher_is_better", higher_is_better)
    check_count("rounds", rounds)
    check_seconds("timeout", timeout, optional=True)
    check_path("results", results, optional=True)
    check_executor(executor)
    check_progress(progress)
    calibrations = per_model("calibration_inputs", calibration_inputs, found.models, transform, optional=False)
    batches = per_model("data", data, found.models, transform, optional=metric is None)
    for name, model in found.models.items():  # before anything slow
        if batches[name] is not None:
            next(read_batches([model], batches[name], with_targets=takes_targets(metric)))
    how = How(metric, higher_is_better, rounds, timeout)
    journal = None if results is None else journal_at(results)
    reading = read_function(None if journal is None else metric)
    if note := reading.note("metric"):
        warnings.warn(note, PrepbenchWarning, stacklevel=3)
    made = _Sweep(found, how, reading.digest(), journal, executor, progress)
    for name in found.models:
        made.model(name, calibrations[name], calibrations[name] if batches[name] is None else batches[name])
    return SweepResult(made.rows, None if journal is None else journal.path, made.measured)


@dataclass(frozen=True)
class _Cell:
    """One combination: its result before measuring, or the known result."""

    settings: str
    setting: Setting | None
    blank: Result


@dataclass
class _Sweep:
    """A running sweep."""

    axes: Axes
    how: How
    metric: str
    journal: Journal | None
    executor: Any
    progress: ProgressCallback
    rows: list[Result] = field(default_factory=list)
    measured: int = 0

    def model(self, name: str, calibration: Iterable[Any], data: Iterable[Any]) -> None:
        """Measure the unknown cells of a model and yield its rows in the order of the axes."""
        model, kept = self.axes.models[name], KeptStages()
        began = time.monotonic()
        try:
            reference: Any = self._reference(model, calibration, kept)
            form = _form_of(reference)
        except PrepbenchError as error:
            if isinstance(error, Cancelled):
                raise
            reference, form = error, ""
        plan = {
            "program": form,
            "calibration": data_digest(calibration),
            "data": data_digest(data) if data is not calibration else "",
            "metric": self.metric,
            "timed": self.how.rounds > 0,
        }
        facts: dict[str, Any] = {
            "model": model_digest(as_module(model)),
            "model_name": name,
            "workload": "one call of the first batch" if self.how.rounds else "",
        }
        base = self._cell(REFERENCE, None, EagerDeployment(), plan, facts, time.monotonic() - began)
        known = self._known(base)
        place = len(self.rows)
        for number, (target_name, target) in enumerate(self.axes.targets.items()):
            self._step(name, number, target_name)
            cells = [self._cell(key, one, target, plan, facts) for key, one in self.axes.settings.items()]
            if isinstance(reference, Exception):
                self.rows += [self._failed(cell, str(reference)) for cell in cells]
                continue
            # the model in PyTorch has its row, of that name
            others = [cell for cell in cells if not (cell.settings == REFERENCE and _is_reference(cell))]
            first = self._group(name, model, reference, base, others, calibration, data, kept)
            known = known or first
        if not isinstance(reference, Exception):
            if known is None:  # all else was known, and it alone was lost
                fields_of = self._measure(name, model, {REFERENCE: reference}, data)
                known = self._keep(replace(base.blank, **_fields(fields_of[REFERENCE])))
            self.rows.insert(place, known)

    def _group(
        self,
        name: str,
        model: Any,
        reference: CompiledModel,
        base: _Cell,
        cells: list[_Cell],
        calibration: Iterable[Any],
        data: Iterable[Any],
        kept: KeptStages,
    ) -> Result | None:
        """Yield the rows of a model on a target, and the result of the reference where that is unknown."""
        finished = {cell.settings: row for cell in cells if (row := self._known(cell)) is not None}
        candidates: dict[str, Any] = {}
        seconds: dict[str, dict[str, Any]] = {}
        for cell in cells:
            if cell.settings in finished:
                continue
            assert cell.setting is not None
            began = time.monotonic()
            try:
                with computing_lock(self.progress):
                    compiled = self._compiled(model, cell, calibration, kept)
            except (Cancelled, KeyboardInterrupt):
                raise
            except Exception as error:
                told = internal_error(error, of_libraries=True) or error
                finished[cell.settings] = self._failed(cell, str(told), time.monotonic() - began)
                continue
            candidates[cell.settings] = compiled
            report = compiled.report
            seconds[cell.settings] = {
                "seconds": time.monotonic() - began,
                "report": report.layers,
                "stages": dict(report.seconds),
                "reused": report.reused,
            }
        first = None
        if candidates:
            unique = REFERENCE if REFERENCE not in candidates else f"{REFERENCE} in PyTorch"
            found = self._measure(name, model, {unique: reference, **candidates}, data)
            if "error" not in found[unique] and self._known(base) is None:
                first = self._keep(replace(base.blank, **_fields(found[unique])))
            for cell in cells:
                if cell.settings in candidates:
                    values = {**seconds[cell.settings], **_fields(found[cell.settings])}
                    finished[cell.settings] = self._keep(replace(cell.blank, made=time.time(), **values))
        self.rows += [finished[cell.settings] for cell in cells]
        return first

    def _reference(self, model: Any, calibration: Iterable[Any], kept: KeptStages) -> CompiledModel:
        with computing_lock(self.progress):
            return compile_model(  # type: ignore[no-any-return]
                model,
                tracing_inputs=calibration,
                deployment_settings=EagerDeployment(),
                reuse=kept,
                progress=self.progress,
            )

    def _compiled(self, model: Any, cell: _Cell, calibration: Iterable[Any], kept: KeptStages) -> CompiledModel:
        assert cell.setting is not None
        return compile_model(  # type: ignore[no-any-return]
            model,
            tracing_inputs=calibration,
            calibration_inputs=None if cell.setting.quantization is None else calibration,
            deployment_settings=cell.blank.deployment,
            reuse=kept,
            progress=self.progress,
            **cell.setting.keywords(),
        )

    def _measure(
        self, name: str, model: Any, candidates: Mapping[str, CompiledModel], data: Iterable[Any]
    ) -> dict[str, dict[str, Any]]:
        if self.executor is None or not can_travel(self.how):
            return measured_group(candidates, data, self.how, self.progress)
        with temporary_folder("sweep") as folder:
            places = {f"candidate {number}": folder / str(number) for number in range(len(candidates))}
            for place, compiled in zip(places.values(), candidates.values(), strict=True):
                compiled.save(place)
            save_data(data, model, self.how, folder / "data")
            [found] = run_tasks(
                self.executor,
                name_of(measure_task),
                [payload_of(list(candidates), self.how)],
                {**places, "data": folder / "data"},
                self.progress,
                names=[f"measuring {name}"],
                is_timing=self.how.rounds > 0,
                stage="measure",
            )
            return dict(found)

    def _cell(
        self,
        settings: str,
        setting: Setting | None,
        target: DeploymentSettings,
        plan: Mapping[str, Any],
        facts: Mapping[str, Any],
        seconds: float = 0.0,
    ) -> _Cell:
        own = {"reference": True} if setting is None else setting.to_json()
        blank = Result(
            plan={**plan, **own},
            target=target_for(target).name,
            target_options=target.to_dict(),
            settings_name=settings,
            made=time.time(),
            seconds=seconds,
            machine=this_machine(),
            notebook=this_notebook(),
            **facts,
        )
        return _Cell(settings, setting, blank)

    def _known(self, cell: _Cell) -> Result | None:
        """Return the journal's result for this cell; on an executor, of any machine that its workers run on."""
        if self.journal is None or not cell.blank.plan["program"]:
            return None
        found = self.journal.results(cell.blank.key) if self.executor is None else self._elsewhere(cell.blank)
        worked = [row for row in found if not row.error]
        if not worked:
            return None
        return replace(worked[-1], model_name=cell.blank.model_name, settings_name=cell.settings)

    def _elsewhere(self, blank: Result) -> list[Result]:
        assert self.journal is not None
        return [row for row in self.journal.results() if replace(row, machine=blank.machine).key == blank.key]

    def _failed(self, cell: _Cell, error: str, seconds: float = 0.0) -> Result:
        return self._keep(replace(cell.blank, error=error, seconds=seconds))

    def _keep(self, row: Result) -> Result:
        self.measured += 1
        if self.journal is not None:
            self.journal.record(row, uuid.uuid4().hex[:16])
        return row

    def _step(self, model: str, number: int, target: str) -> None:
        done = list(self.axes.models).index(model) * len(self.axes.targets) + number
        self.progress(Progress("sweep", done, len(self.axes.models) * len(self.axes.targets), f"{model} on {target}"))


def _is_reference(cell: _Cell) -> bool:
    return isinstance(cell.blank.deployment, EagerDeployment) and cell.setting == Setting()


def _fields(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return measured values as fields of a result; pairs that JSON turned into lists are tuples again."""
    known = {one.name for one in fields(Result)}
    values = {key: value for key, value in found.items() if key in known}
    for key in ("spread", "interval_ms"):
        if values.get(key) is not None:
            values[key] = tuple(values[key])
    if values.get("reference") is not None:
        values["reference"] = read_object(values["reference"], Reference, "reference", measured=True)
    return values


def _form_of(compiled: CompiledModel) -> str:
    program = program_of(compiled)
    return "" if program is None else program_form(program)


# The axes of a sweep: models, targets and settings by name, and the data of each model.


AXES = ("model", "target", "settings")
_EXAMPLE = '{"model": {"net": net}, "target": [pb.OnnxRuntimeDeployment()], "settings": {"int8": pb.Quantization...}}'
_KEYWORDS = ("quantization_settings", "layer_quantization_settings", "compile_options")


@dataclass(frozen=True)
class Setting:
    """One entry of the settings axis: arguments of :func:`prepbench.compile_model`; no ``quantization`` for float."""

    quantization: QuantizationSettings | None = None
    layers: Mapping[str, LayerQuantizationSettings] | None = None
    options: CompileOptions | None = None

    def keywords(self) -> dict[str, Any]:
        """Return the settings as keyword arguments of ``compile_model``."""
        return dict(zip(_KEYWORDS, (self.quantization, self.layers, self.options), strict=True))

    def to_json(self) -> dict[str, Any]:
        """Return the settings as plain data."""
        return {
            "quantization_settings": self.quantization and self.quantization.to_dict(),
            "layer_quantization_settings": {key: rule.to_dict() for key, rule in (self.layers or {}).items()},
            "compile_options": (self.options or CompileOptions()).to_dict(),
        }


@dataclass(frozen=True)
class Axes:
    """The checked axes of a sweep, each by name."""

    models: Mapping[str, Callable[..., Any]]
    targets: Mapping[str, DeploymentSettings]
    settings: Mapping[str, Setting]

    @classmethod
    def of(cls, given: Any) -> Axes:
        """Check the axes that a user gave.

        Raises:
            SettingsError: an axis is unknown (with the nearest name), empty, or holds something else.
            InputError: a model is none.
        """
        check_table("axes", given, _EXAMPLE)
        for key in given:
            if key not in AXES:
                hint = did_you_mean(key, AXES, 0.4)
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
            "settings", given.get("settings", {REFERENCE: None}), _setting_name,
            one=lambda value: value is None or isinstance(value, QuantizationSettings),
        )  # fmt: skip
        return cls(models, targets, {name: _setting(name, value) for name, value in settings.items()})


def per_model(
    argument: str,
    given: Any,
    models: Iterable[str],
    transform: Callable[[Any], Any] | None = None,
    *,
    optional: bool,
) -> dict[str, Any]:
    """Return the data of each model: one for all, or a dict by model name. Iterators become lists.

    Raises:
        InputError: a model has none, or a name is of no model.
    """
    names = list(models)
    given = given if isinstance(given, Mapping) else with_transform(given, transform, argument)
    once = given is not None and isinstance(given, Iterable) and iter(given) is given
    by_name = given if isinstance(given, Mapping) else dict.fromkeys(names, list(given) if once else given)
    for name in by_name:
        if name not in names:
            hint = did_you_mean(name, names)
            raise InputError(
                f"{argument} has a key {described(name)}, which is not a model. {hint}Give {_listed(names)}."
            )
    found: dict[str, Any] = {}
    for name in names:
        value = with_transform(by_name.get(name), transform if by_name is given else None, argument)
        if value is None and not optional:
            raise InputError(
                f"{argument} has nothing for the model {name!r}. Give samples for all models, or a dict by their "
                f"names: {_listed(names)}."
            )
        if value is not None and (isinstance(value, torch.Tensor | str) or not isinstance(value, Iterable)):
            raise InputError(f"{argument} of {name!r} must be a list or a loader, got {described(value)}. Give a list.")
        found[name] = list(value) if value is not None and iter(value) is value else value
        if length_of(found[name]) == 0:
            raise InputError(f"{argument} of {name!r} is empty. Give at least one element.")
    return found


def _named(axis: str, given: Any, name_of: Callable[[Any], str], *, one: Callable[[Any], bool]) -> dict[str, Any]:
    """Return values by name; those in a list are named here, with numbers where names repeat."""
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
            raise SettingsError(f"{where} has no key {key!r}. {did_you_mean(key, _KEYWORDS)}{wanted}")
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
        return REFERENCE
    if not isinstance(value, QuantizationSettings):
        return "settings"
    first, *others = weight_formats(value)
    listed = "/".join([first.name, *(str(one.bits) for one in others)])
    return f"{listed} weights" if activation_format(value).is_float else listed


def _listed(names: list[str]) -> str:
    return ", ".join(map(repr, names))


# Scores, sizes and latencies of the candidates of one model on one target: side by side, here or in a worker.


@dataclass(frozen=True)
class How:
    """How to measure candidates: without a metric by SQNR, without rounds no times, with a timeout in seconds."""

    metric: Callable[..., Any] | None
    higher_is_better: bool | None
    rounds: int
    timeout: float | None


def measured_group(
    candidates: Mapping[str, Any], data: Iterable[Any], how: How, progress: ProgressCallback = report_nothing
) -> dict[str, dict[str, Any]]:
    """Measure candidates, the reference first; return fields of a ``Result`` for each, or its error alone."""
    try:
        return _compared(candidates, data, how, progress)
    except (Cancelled, KeyboardInterrupt):
        raise
    except Exception as error:
        first, *others = candidates
        if len(others) < 2:
            told = internal_error(error, of_libraries=True) or error
            return {name: {"error": str(told)} for name in candidates}
    found: dict[str, dict[str, Any]] = {}  # one of them fails, the others need not
    for name in others:
        one = measured_group({first: candidates[first], name: candidates[name]}, data, how, progress)
        found = {**one, **found}
    return {name: found[name] for name in candidates}


def _compared(
    candidates: Mapping[str, Any], data: Iterable[Any], how: How, progress: ProgressCallback
) -> dict[str, dict[str, Any]]:
    with timing_lock(progress) if how.rounds else computing_lock(progress):
        comparison = compare(
            candidates,
            data,
            metric=how.metric,
            higher_is_better=how.higher_is_better,
            rounds=how.rounds,
            timeout=how.timeout,
            progress=progress,
        )
    whole = {
        "metric": comparison.metric,
        "unit": comparison.unit,
        "higher_is_better": comparison.higher_is_better,
        "machine": this_machine(),
        "notebook": this_notebook(),
    }
    return {
        row.name: {
            **whole,
            "score": row.metric if not math.isnan(row.metric) else None,
            "change": row.change,
            "spread": row.spread,
            "p50_ms": row.p50_ms,
            "p90_ms": row.p90_ms,
            "interval_ms": row.interval_ms,
            "reference": plain(row.reference),
            "busy": row.busy,
            "size_bytes": row.size_bytes,
            "why": row.note,
        }
        for row in comparison.rows
    }


def can_travel(how: How) -> bool:
    """Return whether the metric has a name that every process knows."""
    return how.metric is None or getattr(metrics, getattr(how.metric, "__name__", ""), None) is how.metric


def save_data(data: Iterable[Any], model: Any, how: How, folder: Path) -> None:
    """Write batches to a folder that :func:`measure_task` reads.

    Raises:
        InputError: a batch holds something that needs pickle.
    """
    with_targets = takes_targets(how.metric)
    reader = Reader(model, "data", source=data, with_targets=with_targets)
    for number, element in reader.elements():
        sample, target = reader.read(element, number)
        save_sample(sample, folder / f"{number:06}" / "input")
        if with_targets:
            save_sample(Sample((target,), {}), folder / f"{number:06}" / "target")


def payload_of(names: Sequence[str], how: How) -> dict[str, Any]:
    """Return the payload of :func:`measure_task`."""
    return {
        "names": list(names),
        "metric": None if how.metric is None else getattr(how.metric, "__name__", ""),
        "higher_is_better": how.higher_is_better,
        "rounds": how.rounds,
        "timeout": how.timeout,
    }


@task
def measure_task(payload: dict[str, Any], folders: Mapping[str, Path]) -> Any:
    """Run :func:`measured_group` in a worker: candidates and data are folders, ordered as the names of candidates."""
    from prepbench.package import load_compiled

    metric = None if payload["metric"] is None else getattr(metrics, payload["metric"])
    how = How(metric, payload["higher_is_better"], payload["rounds"], payload["timeout"])
    candidates = {
        name: load_compiled(folders[f"candidate {number}"], allow_code=True)
        for number, name in enumerate(payload["names"])
    }
    return measured_group(candidates, list(_saved_data(folders["data"])), how)


def _saved_data(folder: Path) -> Iterable[Any]:
    for place in sorted(folder.iterdir()):
        sample = load_sample(place / "input")
        given = (*sample.args, dict(sample.kwargs)) if sample.kwargs else tuple(sample.args)
        yield (given, load_sample(place / "target").args[0]) if (place / "target").is_dir() else given


# The result of a sweep: one row for each model, target and settings; failures are rows, too.


class SweepResult(Results):
    """The result of :func:`prepbench.sweep`: results in the order of the axes, including the models in PyTorch.

    Args:
        rows: the results.
        path: of the journal that they are in; None where none was given.
        measured: how many of them were measured now; the others were in the journal.

    Attributes:
        measured: see above.

    Example:
        >>> swept = pb.sweep({"model": {"net": net}}, samples, results="results.sqlite")
        >>> [result.target for result in swept]
        ['eager', 'onnxruntime']
    """

    def __init__(self, rows: Sequence[Result], path: Path | None = None, measured: int = 0) -> None:
        super().__init__(rows, path)
        self.measured = measured

    @property
    def failed(self) -> Results:
        """The results that have an error instead of numbers."""
        return Results([row for row in self.rows if row.error], self.path)

    def find(self, model: str, target: str, settings: str) -> Result:
        """Return one result by the names that the sweep gave.

        Args:
            model: as in the axes.
            target: e.g. ``"onnxruntime"``; ``"eager"`` for the model in PyTorch.
            settings: as in the axes; ``"float32"`` for the model in PyTorch.

        Returns:
            What was measured.

        Raises:
            UnknownNameError: there is none.

        Example:
            >>> swept.find("net", "onnxruntime", "float32").p50_ms > 0
            True
        """
        for name, value in (("model", model), ("target", target), ("settings", settings)):
            check_text(name, value, "int8")
        for row in self.rows:
            if (row.model_name, row.settings_name) == (model, settings) and row.target == target:
                return row
        known = sorted({f"{row.model_name}, {row.target}, {row.settings_name}" for row in self.rows})
        raise UnknownNameError(
            f"model, target, settings: no result is of {model!r}, {target!r} and {settings!r}. Choose one of "
            f"{'; '.join(known[:12])}."
        )
