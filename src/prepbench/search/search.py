"""``search``: find the settings of each layer that are best within a budget."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import nn

from prepbench.capture.aten.capture import FullGraphError
from prepbench.capture.sizes.dynamic_axes import DynamicAxes, check_axes
from prepbench.checks import (
    check_count,
    check_function,
    check_path,
    check_progress,
    check_seconds,
    check_switch,
    check_type,
)
from prepbench.compile import KeptStages
from prepbench.compile.request import CompileRequest
from prepbench.compile.simulation import Simulation, scored_on
from prepbench.errors import InputError, SettingsError
from prepbench.inputs import Sample
from prepbench.jobs import ProgressCallback, report_nothing
from prepbench.measure.latency import doubtful_times
from prepbench.measure.metrics import Metric
from prepbench.measure.process import KeptWorkers, load_warning
from prepbench.objects.function_digest import read_function
from prepbench.progress_bar import shows_progress
from prepbench.running.check_inputs import check_runs, twin_with_own_writes
from prepbench.running.transforms import with_transform
from prepbench.search.candidates import (
    Candidate,
    Choices,
    LayerChoice,
    bits_of,
    named_candidates,
    supported_candidates,
    without_pruning,
)
from prepbench.search.executors import check_executor
from prepbench.search.loop import Loop
from prepbench.search.measuring import Subject, Timing
from prepbench.search.mixtures import FLOAT
from prepbench.search.noise import EqualizableCandidates, EqualizedChoices, with_equalised
from prepbench.search.objective import Budget
from prepbench.search.scoring import Scoring, check_data, is_higher_better, read_often
from prepbench.search.search_journal import SearchJournal
from prepbench.search.search_result import SearchCandidate, SearchResult
from prepbench.search.target_job import TargetJob
from prepbench.settings import CompileOptions, DeploymentSettings, OnnxRuntimeDeployment, QuantizationSettings
from prepbench.settings.pruning import CHANNELS
from prepbench.storage import temporary_folder
from prepbench.targets import target_for


@shows_progress("search")
def search(
    model: nn.Module,
    calibration_inputs: Iterable[Any],
    *,
    budget: Budget,
    targets: Sequence[DeploymentSettings] | None = None,
    candidates: Mapping[str, Candidate] | Sequence[Candidate] | None = None,
    data: Iterable[Any] | None = None,
    metric: Metric | None = None,
    higher_is_better: bool | None = None,
    tries: int = 8,
    rounds: int = 20,
    tracing_inputs: Iterable[Any] | None = None,
    dynamic_axes: DynamicAxes | None = None,
    forward_fn: Callable[..., Any] | None = None,
    compile_options: CompileOptions | None = None,
    reuse: KeptStages | None = None,
    executor: Any = None,
    results: str | os.PathLike[str] | None = None,
    timeout: float | None = 600.0,
    progress: ProgressCallback = report_nothing,
    on_candidate: Callable[[SearchCandidate], None] | None = None,
    transform: Callable[[Any], Any] | None = None,
) -> SearchResult:
    """Find the settings of each layer that are best within a budget, and prove them by measuring.

    The model is compiled in float and with each of the candidates in all layers. These are profiled and timed, which
    says what each layer takes; a simulation says what each layer costs in noise at the model's output. An integer
    program finds the best mixture within the budget, layers that the target fuses together and conversions between
    integers and floats included. That is compiled and timed, and scored if it still is the best then. Predictions are
    corrected by it, until nothing that was not measured is expected to be better, doubts included.

    Args:
        model: the model. It is left as it was.
        calibration_inputs: representative samples, as ``compile_model`` takes them.
        budget: the limits, and the objective.
        targets: where the model may run; the best of all is found. ONNX Runtime when omitted.
        candidates: settings that a layer may take instead of staying in float: by name, or a list. When omitted, 8
            bits, also with equalized channels where that is at least 1 dB quieter. :class:`prepbench.PruningSettings`
            prune a layer, and a pair ``(QuantizationSettings(...), PruningSettings(...))`` quantizes the pruned layer;
            layers that make the same channels lose them together. A target that does not support a candidate is
            searched without it, and a note of the result says so.
        data: read once for each measured model: pairs ``(input, target)`` with a ``metric``, inputs alone without one.
            Its first element is timed. The calibration inputs when omitted.
        metric: ``metric(output, target)``, as :func:`prepbench.compare` takes it. None: SQNR in dB against float.
        higher_is_better: False where less is better; by default as known for the metric, False for a loss by its name,
            else True.
        tries: how many mixtures are compiled and measured at most, beyond those of one candidate.
        rounds: interleaved rounds of each timing, at most; fewer where times differ little from round to round.
        tracing_inputs: samples whose sizes differ in the dims to make dynamic; the calibration inputs when omitted.
        dynamic_axes: which dims are dynamic; inferred when omitted.
        forward_fn: called as ``forward_fn(model, args, kwargs)`` in place of the model.
        compile_options: algorithms. ``keep_ruined_layers_in_float`` has no effect: the search decides.
        reuse: the cache of earlier compiles.
        executor: where layers are simulated one by one: a ``concurrent.futures.Executor`` or a
            ``dask.distributed.Client``; None for this process, which also compiles, times and scores.
        results: path of a journal, to which each candidate is written as soon as it is measured, and from which those
            of the same model, settings, target, machine, data and metric are taken; see
            :func:`prepbench.load_results`. A metric is the same if all that it reads is: globals, helpers, attributes.
        timeout: seconds to wait for each answer of a timing process; None waits for ever.
        progress: receives each step; it may raise :class:`prepbench.Cancelled`.
        on_candidate: receives each candidate as soon as it is timed, and again once it is scored.
        transform: applied to each sample and to each element of data first, as for ``compile_model`` and ``compare``.

    Returns:
        The best settings, with all measured and predicted candidates.

    Raises:
        SettingsError: arguments that contradict each other or the budget, or candidates that no layer can take.
        InputError: samples or data do not fit the model, or the data can be read only once.
        MetricError: the metric returned no finite number.
        CaptureError: the model cannot be captured as one graph.
        TargetError: a target cannot lower the model.
        LatencyError: a timing process failed.
        StorageError: temporary files or the journal cannot be written.
        ArtifactError: ``results`` is a file of another program.

    Example:
        >>> result = pb.search(model, samples, budget=pb.Budget(max_drop=0.01), data=pairs, metric=pb.metrics.accuracy)
        >>> compiled = pb.compile_model(model, calibration_inputs=samples, **result.settings)
    """
    check_type("model", model, nn.Module, "Give a torch.nn.Module.")
    check_type("budget", budget, Budget, "Write budget=pb.Budget(max_drop=0.01).")
    deployments = _checked_targets(targets)
    check_function("metric", metric, "metric(output, target)", optional=True)
    if higher_is_better is not None:
        check_switch("higher_is_better", higher_is_better)
    check_count("tries", tries)
    check_count("rounds", rounds, 1)
    check_axes(dynamic_axes)
    check_function("forward_fn", forward_fn, "forward_fn(model, args, kwargs)", optional=True)
    check_type("compile_options", compile_options, CompileOptions, "Write pb.CompileOptions().", optional=True)
    check_type("reuse", reuse, KeptStages, "Write reuse=pb.KeptStages().", optional=True)
    check_path("results", results, optional=True)
    check_seconds("timeout", timeout, optional=True)
    check_progress(progress)
    check_function("on_candidate", on_candidate, "on_candidate(candidate)", optional=True)
    if metric is not None and data is None:
        raise SettingsError(
            "metric needs data: pairs (input, target) that it is computed on. Give data=[...], or leave metric out for "
            "the SQNR against float."
        )
    if calibration_inputs is None:
        raise SettingsError("calibration_inputs must be a list of samples, got None. Give calibration_inputs=[...].")
    check_executor(executor)
    given = EqualizableCandidates(int8=QuantizationSettings()) if candidates is None else candidates
    choices, lacking = choices_by_target(given, deployments)
    kept = KeptStages() if reuse is None else reuse
    request = CompileRequest(
        model=model,
        tracing_inputs=tracing_inputs,
        calibration_inputs=calibration_inputs,
        data_transform_fn=transform,
        forward_fn=forward_fn,
        quantization_settings=QuantizationSettings(),
        compile_options=compile_options,
        dynamic_axes=dynamic_axes,
        reuse=kept,
    ).read()
    tracing, calibration = list(request.samples), list(request.calibration)
    check_runs(request.called, calibration)
    others: dict[str, Any] = {"dynamic_axes": dynamic_axes, "forward_fn": forward_fn}
    if tracing_inputs is not None:
        others["tracing_inputs"] = tracing
    scoring = _scoring(
        request.called, calibration, with_transform(data, transform, "data"), metric, higher_is_better, progress
    )
    scoring.scale.limit(budget)
    timed = scoring.first().sample
    functions = {} if results is None else {"metric": metric, "forward_fn": forward_fn}
    before = {name: read_function(each) for name, each in functions.items()}
    scoring.begin()
    after = {name: read_function(each) for name, each in functions.items()}
    equalises = isinstance(given, EqualizableCandidates)
    jobs = [
        _job(replace(request, deployment_settings=each), named, reasons, scoring, progress, equalises=equalises)
        for each, named, reasons in zip(deployments, choices, lacking, strict=True)
    ]
    with temporary_folder("search") as folder, KeptWorkers(folder, timeout) as workers:
        timing = Timing(timed, folder, rounds, timeout, progress, workers)
        subject = Subject(model, calibration, others, kept, timed, executor)
        how = (
            repr(dynamic_axes),
            *(reading.digest(after[name]) for name, reading in before.items()),
            [(each.args, each.kwargs) for each in (*tracing, *calibration)],
        )
        journal = SearchJournal.at(results, model, scoring.scale, scoring.batches, *how)
        older = [*journal.note_on_other_weights(), *filter(None, (one.note(name) for name, one in before.items()))]
        told = on_candidate if on_candidate is not None else lambda candidate: None
        loop = Loop(subject, jobs, budget, scoring, timing, journal, request.options, progress, told)
        loop.begin()
        loop.simulate_front()
        proven = loop.improve(tries)
    return loop.known([*_notes(scoring, timing, loop.jobs), *older]).searched(budget, proven, tries)


def _checked_targets(targets: Any) -> list[DeploymentSettings]:
    if targets is None:
        return [OnnxRuntimeDeployment()]
    example = "Write targets=[pb.OnnxRuntimeDeployment()]."
    check_type("targets", targets, (list, tuple), example)
    for position, each in enumerate(targets):
        check_type(f"targets[{position}]", each, DeploymentSettings, example)
        target_for(each).check_available()
    if not targets:
        raise SettingsError(f"targets is empty: name where the model may run. {example}")
    return list(targets)


def _scoring(
    called: Any,
    calibration: list[Sample],
    data: Any,
    metric: Metric | None,
    higher_is_better: bool | None,
    progress: ProgressCallback,
) -> Scoring:
    reference = twin_with_own_writes(called, calibration[0]).model
    higher = is_higher_better(metric, higher_is_better)
    return Scoring(reference, read_often(data, calibration), metric, higher, progress)


def _job(
    request: CompileRequest,
    choices: Choices,
    missing: Mapping[str, str],
    scoring: Scoring,
    progress: ProgressCallback,
    *,
    equalises: bool,
) -> TargetJob:
    try:
        simulation = Simulation.captured(request, progress)
    except FullGraphError as error:
        why, _, _ = str(error).rpartition("\nOr capture with fullgraph=False")
        raise FullGraphError(
            f"{why or error}\nA search compiles and times candidates as a whole, in processes of their own, so it "
            "keeps no lines in Python. Change them, for which prepbench.fix has proposals, or search a module that has "
            "none. prepbench.sensitivity(..., fullgraph=False) says what the layers of this model cost.",
            error.failures,
        ) from error
    deployment, label = request.settings, request.target.display_name
    if not simulation.layers:
        raise InputError(
            f"model: it has no layer that {label} can quantize, so there is nothing to search. Give a "
            "model with layers that have a weight matrix, or another target with targets=[...]."
        )
    check_data(simulation, scoring.batches())
    # the metric is predicted on the data, so noise is simulated on it
    simulation = scored_on(simulation, (batch.sample for batch in scoring.batches()))
    lacking, job = dict(missing), TargetJob(deployment, label, simulation, choices)
    for name in choices:
        reasons = [job.refused.get((fqn, name), "") for fqn in simulation.layers]
        if all(reasons):
            lacking[name] = reasons[0]
    taken = {name: choice for name, choice in choices.items() if name not in lacking}
    if not taken:
        why = next(iter(lacking.values()))
        raise SettingsError(
            f"candidates: no layer takes one of {', '.join(map(repr, choices))}: {why}. Give others, or another target."
        )
    offered = with_equalised(simulation, taken) if equalises else EqualizedChoices(taken)
    return TargetJob(deployment, label, simulation, offered.choices, lacking, offered.notes)


def _notes(scoring: Scoring, timing: Timing, jobs: Sequence[TargetJob]) -> list[str]:
    notes = [
        f"{job.label}: no layer takes {name!r}: {why.rstrip('.')}." for job in jobs for name, why in job.lacking.items()
    ]
    notes += [f"{job.label}: {said}." for job in jobs for said in job.notes]
    for job in jobs:
        if doubt := doubtful_times(target_for(job.deployment).name):
            notes.append(f"{job.label}: {doubt}.")
        for name, choice in job.choices.items():
            if choice.pruning is not None and choice.pruning.mask_type != CHANNELS:
                notes.append(
                    f"{job.label}: {name!r} sets weights to zero, which it multiplies like others: neither time nor "
                    'size is gained. mask_type="channels" gains both.'
                )
    if scoring.shuffled:
        notes.append(
            "data begins otherwise each time it is read, so candidates are scored on samples of another order, or on "
            "others, and a journal does not find them again. Give a list, or a DataLoader with shuffle=False and no "
            "random transforms."
        )
    if crowd := load_warning(timing.busy_cores):
        notes.append(f"Times are less certain: {crowd}.")
    return notes


# The choices of a model's layers on each target of a search.


def choices_by_target(
    candidates: Any, deployments: Sequence[DeploymentSettings]
) -> tuple[list[Choices], list[dict[str, str]]]:
    """Return the choices for each target, and the reasons for the candidates that each target lacks.

    Raises:
        SettingsError: a candidate is of another type, or no target supports any.
    """
    bits, pruned = without_pruning(candidates)
    if len(deployments) > 1 and isinstance(bits, Mapping | Sequence) and not isinstance(bits, str):
        found = [_supported_by(bits, pruned, each) for each in deployments]
        every = set.intersection(*(set(missing) for _, missing in found))
        if not every and all(taken for taken, _ in found):
            return [taken for taken, _ in found], [missing for _, missing in found]
    return [_all_for(bits, pruned, each) for each in deployments], [{} for _ in deployments]


def _supported_by(
    bits: Any, pruned: Mapping[str, LayerChoice], deployment: DeploymentSettings
) -> tuple[Choices, dict[str, str]]:
    """Return the candidates that a target supports, and the reasons for the others."""
    taken, lacking = supported_candidates(bits, deployment) if not pruned or bits else ({}, {})
    pairs = bits_of(pruned)
    missing = supported_candidates(pairs, deployment)[1] if pairs else {}
    named = {name: LayerChoice(settings) for name, settings in taken.items()}
    return _checked(named | {name: one for name, one in pruned.items() if name not in missing}), lacking | missing


def _all_for(bits: Any, pruned: Mapping[str, LayerChoice], deployment: DeploymentSettings) -> Choices:
    named = named_candidates(bits, deployment) if not pruned or bits else {}
    if pairs := bits_of(pruned):
        named_candidates(pairs, deployment)
    return _checked({**{name: LayerChoice(settings) for name, settings in named.items()}, **pruned})


def _checked(choices: Choices) -> Choices:
    if FLOAT in choices:
        raise SettingsError(
            f"candidates: {FLOAT!r} is the name of layers that are neither quantized nor pruned, which are always "
            "tried. Give these settings another name."
        )
    return {name: choice.in_full for name, choice in choices.items()}
