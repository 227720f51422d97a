"""``sensitivity``: measure how much quantizing each layer alone costs, for each candidate."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from prepbench._display import view
from prepbench.capture.sizes.dynamic_axes import DynamicAxes
from prepbench.checks import check_count, check_progress, check_switch, check_text, described, nearest_are
from prepbench.compile import KeptStages
from prepbench.compile.request import CompileRequest
from prepbench.compile.simulation import Simulation
from prepbench.errors import InputError, SettingsError, UnknownNameError
from prepbench.jobs import Progress, ProgressCallback, check_cancelled, report_nothing
from prepbench.measure.batches import read_batches
from prepbench.measure.language_metrics import kl_divergence
from prepbench.measure.metrics import Metric
from prepbench.measure.scores import Scores
from prepbench.objects.compare import Powers
from prepbench.progress_bar import shows_progress
from prepbench.quantize import Score
from prepbench.quantize.layer_noise import bounded_decibels
from prepbench.running.metric_scores import metric_name, takes_targets
from prepbench.running.transforms import chosen_transform, with_transform
from prepbench.search.candidates import Candidate, LayerChoice, PrunedTrials, bits_of, named_candidates, without_pruning
from prepbench.search.executors import check_executor
from prepbench.search.parallel_scores import STAGE, map_in_order, scores_in_processes, shares_process
from prepbench.search.scoring import check_data, is_higher_better, read_often
from prepbench.settings import (
    CompileOptions,
    DeploymentSettings,
    OnnxRuntimeDeployment,
    PruningSettings,
    QuantizationSettings,
)

if TYPE_CHECKING:
    import pandas
    import plotly.graph_objects


Pair = tuple[str, str]
"""A layer and the name of a candidate."""

# of "auto": at least so many pairs are measured, and further ones while there is time
_LEAST, _SECONDS = 24, 30.0
# in other processes, which take a while to begin
_ELSEWHERE = 96


@shows_progress("sensitivity")
def sensitivity(
    model: Callable[..., Any],
    calibration_inputs: Iterable[Any],
    *,
    candidates: Mapping[str, Candidate] | Sequence[Candidate] | None = None,
    deployment_settings: DeploymentSettings | None = None,
    data: Any = None,
    metric: Metric | None = None,
    higher_is_better: bool | None = None,
    exact: bool | int | str = "auto",
    tracing_inputs: Iterable[Any] | None = None,
    compile_options: CompileOptions | None = None,
    dynamic_axes: DynamicAxes | None = None,
    forward_fn: Callable[..., Any] | None = None,
    data_transform_fn: Callable[[Any], Any] | None = None,
    fullgraph: bool = True,
    reuse: KeptStages | None = None,
    executor: Any = None,
    progress: ProgressCallback = report_nothing,
    transform: Callable[[Any], Any] | None = None,
) -> Sensitivity:
    """Measure how much quantizing each layer alone costs the model, for each candidate.

    The model is captured once and simulated in PyTorch. The effect of each layer on the model's output is estimated for
    all layers at once, and measured for the worst ones, one layer at a time. Models that predict tokens are judged by
    the divergence of their predictions, others by the SQNR of their output.

    Args:
        model: a module, a function, or a bound method of a module. It is left as it was.
        calibration_inputs: representative samples, as for ``compile_model``.
        candidates: settings by name, or a list of settings. By default the target's 8-bit settings, weight-only ones
            with 8 bits, and weight-only ones with 4 bits in blocks of 32. :class:`prepbench.PruningSettings` prune the
            layer, and a pair ``(QuantizationSettings(...), PruningSettings(...))`` quantizes the pruned layer. Layers
            that must have the same channels lose them together. Pruning is measured, not estimated.
        deployment_settings: the target; ``OnnxRuntimeDeployment()`` by default. Nothing is compiled for it, so its
            packages are not needed.
        data: the data of the exact values: pairs ``(input, target)`` with a metric, else inputs, as for ``compare``. By
            default a few calibration samples.
        metric: ``metric(output, target)`` giving one finite number for a batch; needs ``data``. It runs in this
            process, also with an executor.
        higher_is_better: False where less is better; by default as known for the metric, False for a loss by its name,
            else True.
        exact: which pairs of a layer and a candidate are measured: True for all, False for none, a number for so many
            of those that are worst by estimate, ``"auto"`` for 24 of these and as many more as half a minute allows.
        tracing_inputs: as for ``compile_model``.
        compile_options: the algorithms around quantization; floors play no part.
        dynamic_axes: as for ``compile_model``.
        forward_fn: as for ``compile_model``.
        data_transform_fn: as for ``compile_model``, for the samples alone.
        fullgraph: as for ``compile_model``.
        reuse: captures of earlier compiles, which are not made again.
        executor: measures several layers at once: None, any ``concurrent.futures.Executor``, or a
            ``dask.distributed.Client``. Other processes get the captured program and the calibration samples as files,
            and measure up to 96 pairs with ``exact="auto"``; they do not have ``data``.
        progress: receives each step; it may raise :class:`prepbench.Cancelled`.
        transform: applied to each sample and to each element of data first, as for ``compile_model`` and ``compare``.

    Returns:
        A :class:`Sensitivity`: a table, a bar chart, and values to colour a diagram with.

    Raises:
        SettingsError: no candidates, one that the target lacks, no layer that can be quantized, or an argument of
            another type.
        InputError: samples or data that the model does not take, or without a metric a model that returns no
            floating-point tensor.
        CalibrationError: a sample holds NaN, or values become NaN or infinite on it.
        CaptureError: the model cannot be captured as one graph.
        MetricError: the metric returned no finite number.

    Example:
        >>> found = pb.sensitivity(model, samples, data=batches, metric=pb.metrics.accuracy)
        >>> found.worst(3)
        >>> diagram.overlay(found.table(), "int8 drop")
    """
    _check(data, metric, higher_is_better, exact, executor)
    check_progress(progress)
    settings = OnnxRuntimeDeployment() if deployment_settings is None else deployment_settings
    bits, pruned = without_pruning(candidates)
    named = {} if pruned and not bits else named_candidates(bits, settings)
    if pairs := bits_of(pruned):
        named_candidates(pairs, settings)
    if pruned and exact is False:
        raise SettingsError("What pruning costs is measured, and exact=False measures nothing. Leave exact out.")
    scored = with_transform(data, transform, "data")
    if scored is not None:
        read_often(scored, [])
        next(read_batches([model], scored, with_targets=takes_targets(metric)))  # most mistakes show in the first
    request = CompileRequest(
        model=model,
        calibration_inputs=calibration_inputs,
        tracing_inputs=tracing_inputs,
        deployment_settings=settings,
        compile_options=compile_options,
        dynamic_axes=dynamic_axes,
        forward_fn=forward_fn,
        data_transform_fn=chosen_transform(transform, data_transform_fn),
        fullgraph=fullgraph,
        reuse=reuse,
    )
    simulation = Simulation.captured(request, progress)
    if not simulation.layers:
        raise SettingsError(
            f"model has no layer that {simulation.target} can quantize: none has a weight matrix that it takes. Give "
            "another model, or another target with deployment_settings."
        )
    if metric is None:
        _check_outputs(simulation)
    if scored is not None and exact is not False:
        check_data(simulation, read_batches([model], scored, with_targets=takes_targets(metric)))
    found = _Found(simulation, named, pruned, metric, model, scored, progress)
    found.estimate()
    if exact is not False:
        found.measure(exact, executor)
    return found.result(is_higher_better(metric, higher_is_better))


def _check(data: Any, metric: Any, higher_is_better: Any, exact: Any, executor: Any) -> None:
    if metric is not None and not callable(metric):
        raise SettingsError(
            f"metric must be a function, got {described(metric)}. Give one that can be called as metric(output, "
            "target), such as prepbench.metrics.accuracy, or leave it out."
        )
    if metric is not None and data is None:
        raise SettingsError(
            "metric needs data to be measured on. Give data=[(input, target), ...], or leave metric out."
        )
    if metric is not None and exact is False:
        raise SettingsError("metric would never be called, because exact=False. Leave one of the two out.")
    if higher_is_better is not None:
        check_switch("higher_is_better", higher_is_better)
    is_count = type(exact) is int and exact > 0
    if not (isinstance(exact, bool) or is_count or (isinstance(exact, str) and exact == "auto")):
        raise SettingsError(
            f"exact must be True, False, a whole number above 0 or 'auto', got {described(exact)}. Write exact='auto'."
        )
    check_executor(executor)
    if data is not None and metric is None and not shares_process(executor):
        raise SettingsError(
            f"executor: {type(executor).__name__} runs other processes, which do not have your data. Give a "
            "concurrent.futures.ThreadPoolExecutor or None, or leave data out."
        )


def _check_outputs(simulation: Simulation) -> None:
    """Raise ``InputError`` for a model without a floating-point output, in which noise could be measured."""
    program = simulation.source.program
    returned = set(program.graph_signature.user_outputs)
    values = [node.meta["val"] for node in program.graph.output_node().all_input_nodes if node.name in returned]
    if not any(isinstance(value, torch.Tensor) and value.is_floating_point() for value in values):
        raise InputError(
            "model returns no floating-point tensor, and rounding integers causes no noise. Give "
            "metric=metric(output, target) with data=[(input, target), ...], or a model that returns what the integers "
            "are computed from, such as logits."
        )


class _Found:
    """The effects found so far."""

    def __init__(
        self,
        simulation: Simulation,
        candidates: dict[str, QuantizationSettings],
        pruned: dict[str, LayerChoice],
        metric: Metric | None,
        model: Callable[..., Any],
        data: Any,
        progress: ProgressCallback,
    ) -> None:
        self._simulation = simulation
        self._candidates = candidates
        self._pruned = pruned
        self._trials = PrunedTrials(simulation, pruned)
        self._metric = metric
        self._model = model
        self._data = data
        self._progress = progress
        self._score = kl_divergence if metric is None and simulation.predicts_tokens else metric
        self.unit = "nats" if simulation.predicts_tokens else "dB"
        self._refusals = {
            (fqn, name): simulation.refusal(fqn, settings)
            for fqn in simulation.layers
            for name, settings in candidates.items()
        }
        self._own: dict[Pair, float] = {}
        self._estimated: dict[Pair, float] = {}
        self._exact: dict[Pair, float] = {}
        self._metrics: dict[Pair, float] = {}
        self._in_float: float | None = None
        self._spread = 0.0

    def estimate(self) -> None:
        """Estimate all pairs at once."""
        possible = {pair for pair, refusal in self._refusals.items() if not refusal}
        noise = self._simulation.noise(self._candidates, self._progress)
        self._own = {pair: bounded_decibels(powers) for pair, powers in noise.items() if pair in possible}
        estimated = self._simulation.estimate(self._candidates, self._progress)
        self._estimated = {
            pair: value if self._simulation.predicts_tokens else bounded_decibels(Powers(1.0, value))
            for pair, value in estimated.items()
            if pair in possible
        }

    def measure(self, exact: bool | int | str, executor: Any) -> None:
        """Measure the pairs with the worst estimates, one after the other."""
        worst = sorted(self._estimated, key=self._estimated.__getitem__, reverse=self.unit == "nats")
        self._simulation.score({})  # the outputs in float, once for all threads
        if self._metric is not None:
            first, second = (self._scored({}) for _ in range(2))
            self._in_float, self._spread = (first + second) / 2, abs(first - second)
        least = _LEAST if shares_process(executor) else _ELSEWHERE
        count = exact if type(exact) is int else len(worst) if exact is True else least
        self._measure(worst[:count], executor)
        self._prune(self._trials.pairs[: count if type(exact) is int else None], executor)
        if exact == "auto" and shares_process(executor):
            start = time.monotonic()
            for place in range(count, len(worst), _LEAST):
                if time.monotonic() - start > _SECONDS:
                    break
                self._measure(worst[place : place + _LEAST], executor)

    def _measure(self, pairs: Sequence[Pair], executor: Any) -> None:
        if not pairs:
            return
        done = len(self._exact)
        total = done + len(pairs)

        def tell(count: int, pair: Pair) -> None:
            self._progress(Progress(STAGE, done + count, total, f"{pair[0]}: {pair[1]}"))

        if shares_process(executor) or self._is_compared:
            self._exact.update(zip(pairs, map_in_order(self._effect, pairs, executor, tell), strict=True))
        else:
            names = [f"{fqn}: {name}" for fqn, name in pairs]
            mixtures = [self._mixture(pair) for pair in pairs]
            found = scores_in_processes(self._simulation, mixtures, names, executor, self._progress)
            self._exact.update(zip(pairs, map(self._in_unit, found), strict=True))
        if self._metric is not None:
            threads = executor if shares_process(executor) else None
            found_metrics = map_in_order(lambda pair: self._scored(self._mixture(pair)), pairs, threads, tell)
            self._metrics.update(zip(pairs, found_metrics, strict=True))

    def _prune(self, pairs: Sequence[Pair], executor: Any) -> None:
        """Measure pruned layers, in this process."""

        def measured(pair: Pair) -> tuple[float | None, float | None]:
            check_cancelled(STAGE)
            pruned, mixture = self._trials.simulation(pair), self._trials.mixture(pair)
            if pruned is None:
                return None, None
            scored = self._scored(mixture, pruned) if self._metric is not None or self._is_compared else None
            if self._is_compared:
                return scored, None
            return self._in_unit(pruned.score(mixture, even_alone=True)), scored

        def tell(count: int, pair: Pair) -> None:
            self._progress(Progress("prune layers", count, len(pairs), f"{pair[0]}: {pair[1]}"))

        threads = executor if shares_process(executor) else None
        for pair, (effect, scored) in zip(pairs, map_in_order(measured, pairs, threads, tell), strict=True):
            if effect is not None:
                self._exact[pair] = effect
            if scored is not None:
                self._metrics[pair] = scored

    @property
    def _is_compared(self) -> bool:
        """Return whether effects are measured on data and not on calibration samples."""
        return self._data is not None and self._metric is None

    def _mixture(self, pair: Pair) -> dict[str, QuantizationSettings]:
        return {pair[0]: self._candidates[pair[1]]}

    def _effect(self, pair: Pair) -> float:
        """Return the effect of one pair, in the unit of the result."""
        check_cancelled(STAGE)
        if self._is_compared:
            return self._scored(self._mixture(pair))
        return self._in_unit(self._simulation.score(self._mixture(pair), even_alone=True))

    def _in_unit(self, score: Score) -> float:
        value = score.divergence if self.unit == "nats" else score.sqnr
        assert value is not None
        return value

    def _scored(self, mixture: Mapping[str, QuantizationSettings], pruned: Simulation | None = None) -> float:
        """Return the metric over all data; without a metric, the distance of the outputs from float."""
        called = {"quantized": (pruned or self._simulation).function(mixture, even_alone=True)}
        if not takes_targets(self._score):
            called = {"float": self._simulation.function({}), **called}
        scores = Scores(called, self._score)
        for batch in read_batches([self._model], self._data, with_targets=takes_targets(self._score)):
            check_cancelled(STAGE)
            scores.add(batch)
        return scores.values()["quantized"]

    def _weight_bytes(self, fqn: str, name: str) -> int | None:
        if name in self._pruned:
            return self._trials.bytes.get((fqn, name))
        return self._simulation.weight_bytes(fqn, self._candidates[name])

    def result(self, higher_is_better: bool) -> Sensitivity:
        """Return the result with all rows."""
        simulation, sign = self._simulation, 1.0 if higher_is_better else -1.0
        rows = []
        refusals = self._refusals | self._trials.refusals
        order = {name: place for place, name in enumerate((*self._candidates, *self._pruned))}
        layers = {fqn: place for place, fqn in enumerate(simulation.layers)}
        for fqn, name in sorted(refusals, key=lambda pair: (layers[pair[0]], order[pair[1]])):
            refusal = refusals[fqn, name]
            pair, scored = (fqn, name), self._metrics.get((fqn, name))
            is_known = scored is not None and self._in_float is not None
            rows.append(
                SensitivityRow(
                    fqn=fqn,
                    type=simulation.types[fqn],
                    candidate=name,
                    estimated=self._estimated.get(pair),
                    exact=self._exact.get(pair),
                    metric=scored,
                    drop=sign * (self._in_float - scored) if is_known else None,  # type: ignore[operator]
                    own_sqnr=self._own.get(pair),
                    multiplications=simulation.multiplications[fqn],
                    parameters=simulation.parameters[fqn],
                    weights_bytes=None if refusal else self._weight_bytes(fqn, name),
                    refusal=refusal,
                )
            )
        return Sensitivity(
            tuple(rows),
            {**self._candidates, **{name: choice.given for name, choice in self._pruned.items()}},
            simulation.target,
            self.unit,
            metric="" if self._metric is None else metric_name(self._metric),
            higher_is_better=higher_is_better,
            in_float=self._in_float,
            spread=self._spread,
        )


# The result of ``pb.sensitivity``: the cost of quantizing each layer, for each candidate.


@dataclass(frozen=True)
class SensitivityRow:
    """One layer with one candidate, all other layers in float.

    Attributes:
        fqn: the layer.
        type: its class name.
        candidate: the name of the settings.
        estimated: the effect on the model's output, estimated from the layer's noise; in the unit of the result. None
            where the target does not support it.
        exact: the same, measured; None where it was not.
        metric: of the model; None where it was not measured.
        drop: by how much the metric is worse than in float; negative where it is better.
        own_sqnr: of the layer's own output, in dB.
        multiplications: of the layer for the first calibration sample.
        parameters: of the layer.
        weights_bytes: of its weights so; None where the target refuses it.
        refusal: why the target cannot take the layer so; empty if it can.
    """

    fqn: str
    type: str
    candidate: str
    estimated: float | None
    exact: float | None
    metric: float | None
    drop: float | None
    own_sqnr: float | None
    multiplications: int
    parameters: int
    weights_bytes: int | None
    refusal: str

    @property
    def effect(self) -> float | None:
        """The effect on the model's output: measured, or else estimated."""
        return self.estimated if self.exact is None else self.exact


@dataclass(frozen=True, repr=False)
class Sensitivity:
    """The result of :func:`prepbench.sensitivity`: the effect of quantizing each layer alone.

    Attributes:
        rows: one for each layer and candidate, layers in execution order.
        candidates: settings by name; of those that prune, settings of pruning or a pair with those of quantization.
        target: the deployment target as people call it.
        unit: of ``estimated`` and ``exact``: ``"dB"``, an SQNR of the model's output of which more is better, or
            ``"nats"``, the divergence of the predicted distributions of which less is better.
        metric: the name of the metric; empty without one.
        higher_is_better: whether more of the metric is better.
        in_float: the metric of the model in float; None without one.
        spread: how far apart two scores of the model in float were: 0 for a metric that is deterministic.

    Example:
        >>> found = pb.sensitivity(model, samples)
        >>> diagram.overlay(found.table(), "int8 SQNR")
        >>> [row.fqn for row in found.worst(3)]
    """

    rows: tuple[SensitivityRow, ...]
    candidates: Mapping[str, Any]
    target: str
    unit: str
    metric: str = ""
    higher_is_better: bool = True
    in_float: float | None = None
    spread: float = 0.0

    def __getitem__(self, fqn: str) -> tuple[SensitivityRow, ...]:
        """Return the rows of a layer, one for each candidate."""
        found = tuple(row for row in self.rows if row.fqn == fqn)
        if found:
            return found
        names = list(dict.fromkeys(row.fqn for row in self.rows))
        problem = f"fqn: {described(fqn)} is not a layer that can be quantized"
        raise UnknownNameError(f"{problem}. {nearest_are(fqn, names)}")

    def worst(self, n: int = 5) -> tuple[SensitivityRow, ...]:
        """Return the rows with the highest cost: by the measured drop of the metric, then by the effect.

        Args:
            n: how many.

        Returns:
            The rows, the worst first.

        Raises:
            SettingsError: ``n`` is no whole number above 0.
        """
        check_count("n", n, 1)
        return tuple(sorted((row for row in self.rows if not row.refusal), key=self._badness, reverse=True)[:n])

    def _badness(self, row: SensitivityRow) -> tuple[float, float]:
        effect = row.effect
        bad = -math.inf if effect is None else -effect if self.unit == "dB" else effect
        if row.drop is None:
            return -math.inf, bad
        return row.drop if abs(row.drop) > self.spread else 0.0, bad  # less than the metric's own spread says nothing

    def _change(self) -> str:
        """Return what becomes of a layer with these candidates."""
        given = [part for each in self.candidates.values() for part in (each if isinstance(each, tuple) else (each,))]
        is_pruned = any(isinstance(part, PruningSettings) for part in given)
        is_quantized = any(isinstance(part, QuantizationSettings) for part in given)
        return "quantized" if not is_pruned else "quantized or pruned" if is_quantized else "pruned"

    @property
    def caption(self) -> str:
        """Return one or two sentences that describe the measurement."""
        measured = sum(row.exact is not None for row in self.rows)
        possible = sum(not row.refusal for row in self.rows)
        what = "SQNR of the model's output" if self.unit == "dB" else "divergence of the model's predictions in nats"
        text = f"{self.target}: {what} with one layer {self._change()}; {measured} of {possible} measured"
        text += ", others estimated." if measured < possible else "."
        if self.metric and self.in_float is not None:
            text += f" {self.metric} in float is {self.in_float:.4g}"
            text += (
                f", ±{self.spread:.2g} from one run to the next: smaller drops are not significant."
                if self.spread
                else "."
            )
        return text

    def table(self, candidate: str | None = None) -> pandas.DataFrame:
        """Return one row for each layer: with each candidate's effect (and drop), or with all columns of one candidate.

        Args:
            candidate: a name of :attr:`candidates`.

        Returns:
            A table whose index is the layers' names.

        Raises:
            UnknownNameError: there is no such candidate.
        """
        check_text("candidate", candidate, "int8", optional=True)
        if candidate is not None:
            self._check_candidate(candidate)
        return view("views.layer_charts", "sensitivity_table", self, candidate)  # type: ignore[no-any-return]

    def figure(self) -> plotly.graph_objects.Figure:
        """Draw the layers with the highest cost as bars, one for each candidate; estimated ones are paler."""
        return view("views.layer_charts", "sensitivity_figure", self)

    def _check_candidate(self, name: str) -> None:
        if name not in self.candidates:
            known = ", ".join(map(repr, self.candidates))
            raise UnknownNameError(f"candidate: there is no candidate {described(name)}. There are {known}.")

    def __repr__(self) -> str:
        return view("views.layer_charts", "sensitivity_text", self)  # type: ignore[no-any-return]

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        return view("views.layer_charts", "sensitivity_bundle", self)  # type: ignore[no-any-return]
