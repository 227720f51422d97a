"""The result of a comparison: one row for each candidate, as values, text, table and chart."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch

from prepbench._display import view
from prepbench.checks import check_count, check_function, described
from prepbench.errors import InputError, UnknownNameError
from prepbench.measure.artifacts import PARAMETERS
from prepbench.measure.generation import GenerationResult
from prepbench.measure.kept_samples import KeptSamples, WorstSamples
from prepbench.measure.modality import SAMPLING_RATE, Modality, check_modality
from prepbench.measure.process import load_warning
from prepbench.results.speed_up import EAGER, Reference, SpeedUp, speed_up_over_reference, speed_up_text, speed_ups

_GENERATED = ("first token ms", "tokens per second", "peak MB")
_TIMES = ("p50 ms", "p50 low", "p50 high", "p90 ms", "speed-up", "speed-up low", "speed-up high")
_NUMERIC = ("low", "high", "change", *_TIMES, "size MB", *_GENERATED)
_EAGER_TARGET = "eager"

if TYPE_CHECKING:
    import pandas
    import plotly.graph_objects


@dataclass(frozen=True)
class CandidateResult:
    """The measurements of one candidate.

    Attributes:
        name: the candidate's key.
        metric: its score; ``inf`` for outputs equal to the reference when the score is an SQNR in dB.
        change: its score minus the first candidate's; None where that is no finite number.
        p50_ms: median latency of one call in milliseconds; None when latency was not measured.
        p90_ms: 90th percentile of the latency in milliseconds.
        interval_ms: the interval of that median, from how rounds differ; None where fewer than two calls were timed.
        size_bytes: see ``size_of``; None for a plain function that cannot be saved.
        size_of: ``"saved artifact"``, or ``"parameters and buffers"`` of a model that cannot be saved.
        target: name of the deployment target.
        timed_in: ``"own process"``, ``"this process"`` or ``"not timed"``.
        note: why the candidate could not be saved or timed on its own; else empty.
        times_ms: every timed call in milliseconds, in order.
        spread: between which scores 95 % of other draws of as many batches would lie; None for fewer than 8 batches.
        generation: times of the first and of further tokens, and memory, where the candidates generated text. The
            times above are those of one further token then.
        is_float: whether it is the model as it was, neither quantized nor pruned.
        busy: the share of all cores that other programs kept busy while it was timed, 0 to 1.
        reference: the time of the float model in PyTorch eager, or else of the first candidate, in the same rounds.
        group: the work and the machine, where rows were measured at several places; see :attr:`runtime`.
    """

    name: str
    metric: float
    change: float | None
    p50_ms: float | None
    p90_ms: float | None
    interval_ms: tuple[float, float] | None
    size_bytes: int | None
    size_of: str
    target: str
    timed_in: str
    note: str = ""
    times_ms: tuple[float, ...] = field(default=(), repr=False)
    spread: tuple[float, float] | None = None
    generation: GenerationResult | None = None
    is_float: bool = False
    busy: float = 0.0
    reference: Reference | None = None
    group: str = ""

    @property
    def speedup(self) -> float | None:
        """How many times faster than the model it was timed beside, as the medians say; see ``speed_ups``, which has
        the float model of the same runtime as the baseline, and the interval.
        """
        return speed_up_over_reference(self)

    @property
    def runtime(self) -> str:
        """An identity of target, machine and work: equal where times can be compared."""
        return self.group or self.target


def with_references(rows: Sequence[CandidateResult]) -> tuple[CandidateResult, ...]:
    """Return rows that were timed in the same rounds, each with the time of the float model in PyTorch eager.

    Where no candidate is that, it is the time of the first candidate.
    """
    timed = [row for row in rows if row.p50_ms is not None]
    if not timed:
        return tuple(rows)
    base = next((row for row in timed if row.is_float and row.target == _EAGER_TARGET), timed[0])
    is_eager = base.is_float and base.target == _EAGER_TARGET
    assert base.p50_ms is not None
    reference = Reference(EAGER if is_eager else base.name, base.p50_ms, base.interval_ms)
    return tuple(row if row is base else replace(row, reference=reference) for row in rows)


@dataclass(frozen=True, repr=False)
class Comparison:
    """Accuracy, latency and size of several candidates: the result of :func:`prepbench.compare`.

    Attributes:
        rows: one result for each candidate, in the order given; the others are compared with the first one.
        metric: the metric's name.
        unit: ``"dB"`` for SQNR, else empty.
        higher_is_better: direction of the metric.
        samples: number of samples scored.
        batch_size: samples in one timed call.
        rounds: number of interleaved rounds.
        threads: number of threads of PyTorch and OpenMP in each timing process; a target may set its own.
        workload: the generation in words; empty where single calls were measured.
        busy_cores: how many cores other programs used while latency was measured, on average; the caption has a warning
            where that was more than a tenth of all, and then there are no speed-ups.
        kept: the samples on which candidates differ most from the first one, for :meth:`worst` and :meth:`confusion`.
        bounds: the least and the largest possible value of the metric.

    Example:
        >>> saved = 4_000_000, "saved artifact", "eager", "own process"
        >>> row = CandidateResult("fp32", 0.9, 0.0, 2.0, 2.5, (1.9, 2.1), *saved)
        >>> Comparison((row,), "accuracy", "", True, samples=64, batch_size=8, rounds=10, threads=2).rows[0].p50_ms
        2.0
    """

    rows: tuple[CandidateResult, ...]
    metric: str
    unit: str
    higher_is_better: bool
    samples: int
    batch_size: int
    rounds: int
    threads: int
    workload: str = ""
    busy_cores: float = 0.0
    kept: KeptSamples = field(default_factory=KeptSamples, repr=False, compare=False)
    bounds: tuple[float, float] = field(default=(-math.inf, math.inf), repr=False)

    def __getitem__(self, name: str) -> CandidateResult:
        """Return the result of the candidate called ``name``."""
        for row in self.rows:
            if row.name == name:
                return row
        known = ", ".join(repr(row.name) for row in self.rows)
        raise UnknownNameError(f"name: no candidate is called {described(name)}. Choose one of {known}.")

    @property
    def metric_label(self) -> str:
        """The metric with its unit, e.g. ``"SQNR (dB)"``."""
        return f"{self.metric} ({self.unit})" if self.unit else self.metric

    @property
    def speed_ups(self) -> tuple[SpeedUp | None, ...]:
        """How many times faster each candidate is, in the order of the rows; None where there is nothing to compare.

        The baseline is the float model compiled for the same runtime, where it is among the candidates, else the
        model in PyTorch eager, else the first candidate. ``text`` has the number, its baseline, or why there is none.
        """
        return speed_ups(self.rows, [row.name for row in self.rows])

    def speed_up(self, name: str) -> SpeedUp | None:
        """Return how many times faster a candidate is; see :attr:`speed_ups`.

        Args:
            name: of the candidate.

        Returns:
            The ratio with its interval and its baseline; None where there is nothing to compare with.
        """
        return self.speed_ups[self.rows.index(self[name])]

    @property
    def caption(self) -> str:
        """Describe the conditions of the measurement in one sentence."""
        scored = f"{self.metric} over {_count(self.samples, 'sample')}" + (
            f" against {self.rows[0].name}" if self.unit else ""
        )
        scored += "" if self.higher_is_better else ", lower is better"
        if not self.rounds:
            return f"{scored}; latency not measured."
        crowded_by = load_warning(self.busy_cores)
        if self.workload:
            return (
                f"{scored} against {self.rows[0].name}; {self.workload}, ms per token, batch of {self.batch_size}, "
                f"{_count(self.threads, 'PyTorch thread')}, {_count(self.rounds, 'interleaved round')}"
                f"{'; ' * bool(crowded_by)}{crowded_by}."
            )
        calls = max(len(row.times_ms) for row in self.rows)
        return (
            f"{scored}; ms per call on a batch of {self.batch_size}, {_count(self.threads, 'PyTorch thread')}, "
            f"{calls} calls in {_count(self.rounds, 'interleaved round')}"
            f"{'; ' * bool(crowded_by)}{crowded_by}."
        )

    @property
    def notes(self) -> tuple[str, ...]:
        """Remarks, e.g. why a candidate was timed in this process."""
        marked = any(row.size_of == PARAMETERS and row.size_bytes is not None for row in self.rows)
        legend = (f"* size of {PARAMETERS}, as it could not be saved",) if marked else ()
        return (*legend, *(f"{row.name}: {row.note}" for row in self.rows if row.note))

    def table(self) -> pandas.DataFrame:
        """Return one row for each candidate, numbers as numbers; sizes in MB (10**6 bytes)."""
        import pandas

        ratios = [found or SpeedUp(None, None, None, "") for found in self.speed_ups]
        columns = {
            "candidate": [row.name for row in self.rows],
            self.metric_label: [row.metric for row in self.rows],
            "low": [row.spread[0] if row.spread else None for row in self.rows],
            "high": [row.spread[1] if row.spread else None for row in self.rows],
            "change": [row.change for row in self.rows],
            "p50 ms": [row.p50_ms for row in self.rows],
            "p50 low": [row.interval_ms[0] if row.interval_ms else None for row in self.rows],
            "p50 high": [row.interval_ms[1] if row.interval_ms else None for row in self.rows],
            "p90 ms": [row.p90_ms for row in self.rows],
            "speed-up": [found.value for found in ratios],
            "speed-up low": [found.low for found in ratios],
            "speed-up high": [found.high for found in ratios],
            "speed-up of": [found.baseline for found in ratios],
            "size MB": [None if row.size_bytes is None else row.size_bytes / 1e6 for row in self.rows],
            "size of": [row.size_of for row in self.rows],
            "target": [row.target for row in self.rows],
            "timed in": [row.timed_in for row in self.rows],
            "note": [row.note for row in self.rows],
        }
        generated = [row.generation for row in self.rows if row.generation is not None]
        if generated:
            columns["first token ms"] = [one.first_token_ms for one in generated]
            columns["tokens per second"] = [one.tokens_per_second for one in generated]
            columns["peak MB"] = [None if one.peak_bytes is None else one.peak_bytes / 1e6 for one in generated]
        numeric = [name for name in _NUMERIC if name in columns]
        return pandas.DataFrame(columns).astype(dict.fromkeys(numeric, float))

    def generated(self, decode: Callable[[list[int]], str] | None = None) -> pandas.DataFrame:
        """Return the generated texts side by side: one row for each prompt, one column for each candidate.

        Args:
            decode: makes text of token numbers, such as ``tokenizer.decode``; the numbers themselves when omitted.

        Returns:
            The table; its index counts the prompts.

        Raises:
            InputError: single calls were measured, and nothing was generated.

        Example:
            >>> pb.compare({"float32": model, "int8": compiled}, pb.Generation(prompts)).generated(tokenizer.decode)
        """
        check_function("decode", decode, "decode(tokens)", optional=True)
        if not self.workload:
            raise InputError(
                "Nothing was generated: this comparison measured single calls. Give prepbench.Generation(prompts) in "
                "place of the data."
            )
        return view("views.display", "generated_table", self.rows, decode)  # type: ignore[no-any-return]

    def worst(
        self,
        n: int = 5,
        candidate: str | None = None,
        *,
        decode: Callable[[list[int]], str] | None = None,
        modality: Modality | Mapping[str, Modality] | None = None,
        sampling_rate: int = SAMPLING_RATE,
    ) -> WorstSamples:
        """Return the inputs on which a candidate differs most from the first one, the largest distance first.

        The distance is the SQNR of each row, the divergence of its predictions where the metric is one of
        predictions, or the number of equal tokens before two generated texts differ. NaN where the first candidate
        has none is the largest distance. Up to 16 rows are kept of each candidate while it is scored. A notebook
        shows images as images, audio as waveforms that can be played, and boxes of a detector on its image.

        The modality is read off each row: images are bytes or floats with 1 or 3 channels and 4 pixels or more at each
        side; audio is 800 floats or more of one or two channels, between -1 and 1 and of both signs; text is integers
        of one dimension; all else is numbers.

        Args:
            n: how many rows.
            candidate: whose; None for the one with the worst score.
            decode: makes text of token numbers, such as ``tokenizer.decode``.
            modality: ``"image"``, ``"audio"``, ``"text"`` or ``"numbers"`` for all inputs and outputs, or a table of
                them by name, where what the rule above says is wrong.
            sampling_rate: of audio, in values a second.

        Returns:
            The rows, with inputs and outputs.

        Raises:
            SettingsError: an unknown modality.
            InputError: there is one candidate only, or its outputs could not be compared row by row.
            UnknownNameError: no candidate has this name.

        Example:
            >>> pb.compare({"float32": model, "int8": compiled}, images, rounds=0).worst(3)
        """
        check_count("n", n, 1)
        check_function("decode", decode, "decode(tokens)", optional=True)
        check_modality(modality)
        check_count("sampling_rate", sampling_rate, 1)
        name = self._other(candidate).name
        if name not in self.kept.worst or name in self.kept.reasons:
            why = self.kept.reasons.get(name, "this comparison did not run it")
            raise InputError(
                f"No samples were kept for {name!r}: {why}. Compare candidates with outputs of one structure with "
                "prepbench.compare, and call worst on what it returns."
            )
        rows = self.kept.worst[name][:n]
        about = self.rows[0].name, name, self.kept.measure, self.samples
        return WorstSamples(*about, rows, decode, modality, sampling_rate)

    def confusion(self, candidate: str | None = None) -> Confusion:
        """Return how often each class was predicted for each other one, where the metric is accuracy.

        Args:
            candidate: whose; None for the one with the worst score.

        Returns:
            The counts, beside the first candidate's.

        Raises:
            InputError: the metric is another one, or there are too many classes.
            UnknownNameError: no candidate has this name.

        Example:
            >>> compared = pb.compare({"float32": model}, pairs, metric=pb.metrics.accuracy, rounds=0)
            >>> compared.confusion("float32").table()
        """
        name = self[candidate].name if candidate is not None else self._worst_row(self.rows).name
        if name not in self.kept.counts:
            raise InputError(
                f"No confusion of classes was counted for {name!r}: "
                f"{self.kept.no_counts or 'this comparison did not run it'}. Give prepbench.compare "
                "metric=prepbench.metrics.accuracy and (input, class numbers) as data."
            )
        first = self.rows[0].name
        base = None if name == first else self.kept.counts.get(first)
        return Confusion(name, self.kept.counts[name], first if base is not None else "", base)

    def _other(self, candidate: str | None) -> CandidateResult:
        first, *others = self.rows
        if candidate is not None and self[candidate] is not first:
            return self[candidate]
        if not others or candidate is not None:
            raise InputError(
                f"candidate: {first.name!r} is what the others are compared with. "
                + (
                    f"Choose one of {', '.join(repr(row.name) for row in others)}."
                    if others
                    else 'Give a second candidate, e.g. prepbench.compare({"float32": model, "int8": compiled}, data).'
                )
            )
        return self._worst_row(tuple(others))

    def _worst_row(self, rows: tuple[CandidateResult, ...]) -> CandidateResult:
        return (min if self.higher_is_better else max)(rows, key=lambda row: row.metric)

    def figure(self) -> plotly.graph_objects.Figure:
        """Draw the metric against latency, with the size as marker area."""
        return view("views.charts", "comparison_figure", self)

    def __repr__(self) -> str:
        header, *body = self.cells()
        widths = [max(len(row[i]) for row in (header, *body)) for i in range(len(header))]
        numbers = range(1, len(header) - 2)
        lines = [
            "  ".join(
                c.rjust(w) if i in numbers else c.ljust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))
            )
            for row in (header, ["-" * w for w in widths], *body)
        ]
        return "\n".join([*(line.rstrip() for line in lines), self.caption, *self.notes])

    def cells(self) -> list[list[str]]:
        """Return header and rows as text: a name first, two texts last, numbers in between."""
        header = [
            "candidate",
            self.metric_label,
            "change",
            "p50 ms",
            "p90 ms",
            "speed-up",
            "size MB",
            *(("first ms", "tokens/s", "peak MB") if self.workload else ()),
            "target",
            "timed in",
        ]
        pairs = zip(self.rows, self.speed_ups, strict=True)
        return [header, *(self._cells(row, found) for row, found in pairs)]

    def _cells(self, row: CandidateResult, found: SpeedUp | None) -> list[str]:
        metric = "reference" if self.unit and row is self.rows[0] else number(row.metric, self.unit)
        change = "–" if row.change is None or row is self.rows[0] else number(row.change, self.unit, signed=True)
        return [
            row.name,
            metric,
            change,
            milliseconds(row.p50_ms, row.interval_ms),
            milliseconds(row.p90_ms),
            speed_up_text(found),
            megabytes(row.size_bytes) + "*" * (row.size_bytes is not None and row.size_of == PARAMETERS),
            *_generated_cells(row.generation),
            row.target,
            row.timed_in,
        ]

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        return view("views.charts", "comparison_bundle", self)  # type: ignore[no-any-return]


def _generated_cells(result: GenerationResult | None) -> list[str]:
    if result is None:
        return []
    rate = result.tokens_per_second
    return [milliseconds(result.first_token_ms), milliseconds(rate), megabytes(result.peak_bytes)]


def number(value: float, unit: str = "", *, signed: bool = False) -> str:
    """Format a score: one decimal in dB, four elsewhere or four significant digits; ``∞`` for infinity."""
    sign = "+" if signed else ""
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    digits = ".1f" if unit == "dB" else ".4f" if abs(value) < 10 else ".4g"
    return format(value, sign + digits).replace("-", "−")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"


def milliseconds(value: float | None, interval: tuple[float, float] | None = None) -> str:
    """Format milliseconds with three significant digits, and their interval if given; ``–`` when not measured.

    Example:
        >>> milliseconds(1.3712, (1.3, 1.52))
        '1.37 (1.30 to 1.52)'
    """
    if value is None:
        return "–"
    if interval is not None:
        return f"{milliseconds(value)} ({milliseconds(interval[0])} to {milliseconds(interval[1])})"
    return (
        f"{value:.0f}"
        if value >= 100
        else f"{value:.1f}"
        if value >= 10
        else f"{value:.2f}"
        if value >= 1
        else f"{value:.3f}"
    )


def megabytes(size: int | None) -> str:
    """Format bytes as MB (10**6); ``–`` when unknown."""
    return "–" if size is None else f"{size / 1e6:.2g}" if size < 10_000 else milliseconds(size / 1e6)


_PAIRS = 10


@dataclass(frozen=True, repr=False, eq=False)
class Confusion:
    """How often each class was predicted for each other: the result of :meth:`Comparison.confusion`.

    Attributes:
        candidate: whose predictions these are.
        counts: int64 of shape (classes, classes): row is the target's class, column the predicted one.
        first: the first candidate's name; empty where these are its own counts.
        first_counts: its counts of the same data.

    Example:
        >>> Confusion("int8", torch.tensor([[3, 1], [0, 4]])).accuracy
        0.875
    """

    candidate: str
    counts: torch.Tensor
    first: str = ""
    first_counts: torch.Tensor | None = None

    @property
    def accuracy(self) -> float:
        """The share of predictions that are the target's class."""
        return float(self.counts.diagonal().sum()) / max(int(self.counts.sum()), 1)

    @property
    def caption(self) -> str:
        """Describe the counts in one sentence."""
        total, wrong = int(self.counts.sum()), int(self.counts.sum() - self.counts.diagonal().sum())
        return f"{self.candidate}: {wrong} of {total} predictions are another class than the target's."

    def table(self) -> pandas.DataFrame:
        """Return one row for each target class, one column for each predicted class."""
        import pandas

        names = range(len(self.counts))
        table = pandas.DataFrame(self.counts.tolist(), index=list(names), columns=list(names))
        table.index.name, table.columns.name = "target", "predicted"
        return table

    def pairs(self, n: int = _PAIRS) -> pandas.DataFrame:
        """Return the ``n`` pairs of classes that are confused most often, with the counts of the first candidate."""
        import pandas

        check_count("n", n, 1)
        wrong = self.counts - self.counts.diagonal().diag()
        counts, places = wrong.flatten().topk(min(n, wrong.numel()))
        found = [(place, count) for place, count in zip(places.tolist(), counts.tolist(), strict=True) if count]
        rows = [(place // len(wrong), place % len(wrong), count) for place, count in found]
        table = pandas.DataFrame(rows, columns=["target", "predicted", self.candidate])
        base = self.first_counts
        if base is not None:
            inside = [(a, b) if max(a, b) < len(base) else None for a, b, _ in rows]
            table[self.first] = [0 if place is None else int(base[place]) for place in inside]
        return table

    def figure(self) -> plotly.graph_objects.Figure:
        """Draw a heat map of the counts; pairs that never occur are left empty."""
        return view("views.samples", "confusion_figure", self)

    def __repr__(self) -> str:
        pairs = self.pairs()
        return f"{pairs.to_string(index=False)}\n{self.caption}" if len(pairs) else self.caption

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        return view("views.samples", "confusion_bundle", self)  # type: ignore[no-any-return]
