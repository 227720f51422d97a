"""The history of runs as text, and the differences between two runs."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime

from prepbench.adapt.recover import is_better
from prepbench.bench.cards import CardFact, RunOutcome, size_words
from prepbench.bench.history import is_far, where
from prepbench.bench.summary import DifferenceRow, LayerColours, RunDifference, RunSummary, Staleness
from prepbench.bench.written import WrittenBy
from prepbench.measure.comparison import megabytes, milliseconds, number
from prepbench.quantize.report import LayerReport
from prepbench.results.measurement import Run, RunGeneration, WrittenText
from prepbench.results.speed_up import SpeedUp, speed_up_text

_LAYERS = 500  # rows of a comparison of layers
_WRITTEN = 5  # runs whose texts are shown


def in_order(runs: Sequence[Run]) -> list[Run]:
    """Pinned runs first, then the newest."""
    newest_first = runs[::-1]
    return sorted(newest_first, key=lambda run: not run.pinned)


def run_summaries(
    runs: Sequence[Run],
    live: Collection[str],
    own: Collection[str],
    found: Mapping[str, SpeedUp | None],
    alone: Collection[str] = (),
) -> tuple[RunSummary, ...]:
    """Return the history as front ends show it.

    Args:
        runs: the runs, in the order in which they are shown.
        live: ids of runs whose compiled model is in this process.
        own: ids of runs of the history.
        found: how many times faster each is, by its id.
        alone: ids of runs of this process that lack the float model on their runtime.
    """
    trained = any(run.recovered for run in runs)
    untrained = {_identity(run): run for run in runs if trained and not run.recovered and not run.error}
    return tuple(
        _summary(
            run,
            found.get(run.id),
            _training_text(run, untrained),
            is_live=run.id in live,
            is_own=run.id in own,
            lacks_float=run.id in alone,
        )
        for run in runs
    )


def _identity(run: Run) -> str:
    """Return what two runs have in common that differ in training alone, and were scored on the same data."""
    state = {name: value for name, value in run.state.items() if name != "recovery"}
    return json.dumps([state, run.target, run.metric, run.unit, run.workload], sort_keys=True)


def _training_text(run: Run, untrained: Mapping[str, Run]) -> str:
    """Return what training back came to, also beside the run without it; "" without training."""
    if not run.recovered:
        return ""
    other = untrained.get(_identity(run))
    if other is None or run.score is None or other.score is None:
        return f"Trained back: {run.recovered}."
    if is_better(run.score, other.score, run.higher_is_better):
        return f"Trained back: {run.recovered}."
    return f"Trained back, and not better than {other.name} on the data of the comparison: {run.recovered}."


def staleness_of(
    runs: Sequence[Run], differences: Callable[[Run], tuple[str, ...]]
) -> tuple[tuple[Staleness, ...], tuple[int, ...]]:
    """Return the distinct differences of runs' choices from the current ones, and the index for each run."""
    kinds: dict[Staleness, int] = {}
    found = tuple(kinds.setdefault(Staleness(differences(run)), len(kinds)) for run in runs)
    return tuple(kinds), found


def _summary(run: Run, speed: SpeedUp | None, trained: str, **known: bool) -> RunSummary:
    texts = result_texts(run, speed)
    return RunSummary(
        id=run.id,
        name=run.name,
        target=run.target_name,
        made=datetime.fromtimestamp(run.made).astimezone().isoformat(timespec="seconds"),
        pinned=run.pinned,
        score=texts["score"],
        spread=texts["spread"],
        change=texts["change"],
        p50=texts["p50"],
        p90=texts["p90"],
        speed=texts["speed"],
        size=texts["size"],
        eager=eager_words(run),
        slower=speed is not None and speed.is_slower,
        why=" ".join(filter(None, (trained, run.why))),
        error=run.error,
        first=texts["first"],
        rate=texts["rate"],
        peak=texts["peak"],
        beside=_beside(run),
        where=where(run),
        is_far=is_far(run),
        model=run.model_name,
        **known,
    )


def eager_words(run: Run) -> str:
    """Return the time of the float model in PyTorch eager that a run was timed beside; "" where it is not known."""
    base = run.reference
    return "" if base is None else f"{base.name} {milliseconds(base.p50_ms, base.interval_ms)} ms"


def result_texts(run: Run, speed: SpeedUp | None = None) -> dict[str, str]:
    """Return the numbers of a run and its speed-up as text; ``–`` for unknown ones."""
    unit = f" {run.unit}" if run.unit else ""
    return {
        "score": "–" if run.score is None else number(run.score, run.unit) + unit,
        "spread": "" if run.spread is None else " to ".join(number(value, run.unit) for value in run.spread),
        "change": "–" if run.change is None else number(run.change, run.unit, signed=True),
        "p50": milliseconds(run.p50_ms, run.interval_ms),
        "p90": milliseconds(run.p90_ms),
        "speed": speed_up_text(speed),
        "eager": eager_words(run) or "–",
        "size": megabytes(run.size_bytes),
        **_generation_texts(run.generation),
    }


def _generation_texts(found: RunGeneration | None) -> dict[str, str]:
    if found is None:
        return {"first": "", "rate": "", "peak": ""}
    return _cost(found.first_token_ms, found.tokens_per_second, found.peak_bytes)


def _cost(first: float | None, rate: float | None, peak: int | None) -> dict[str, str]:
    return {"first": milliseconds(first), "rate": milliseconds(rate), "peak": megabytes(peak)}


def _beside(run: Run) -> str:
    """Return the cost of generating with the float model in the same rounds."""
    found = run.generation
    if found is None:
        return ""
    texts = _cost(found.float_first_token_ms, found.float_tokens_per_second, found.float_peak_bytes)
    return _numbers({"p50": milliseconds(float_ms(run)), **texts})


def _numbers(texts: Mapping[str, str]) -> str:
    units = {"first": "{} ms to the first token", "p50": "{} ms a token", "rate": "{} tokens/s", "peak": "{} MB peak"}
    known = [unit.format(texts[key]) for key, unit in units.items() if texts[key] not in ("", "–")]
    return " · ".join(known)


def float_ms(run: Run) -> float | None:
    """Return the latency of the float model in the rounds of a run."""
    return None if run.reference is None else run.reference.p50_ms


def written_by(runs: Sequence[Run], base: str, given: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[WrittenBy, ...]]:
    """Return the prompts and the generated texts of the float model and the newest runs; empty without any.

    Args:
        runs: the history, oldest first.
        base: the display name of the float model.
        given: the prompts of now; none where single calls are compared.
    """
    wrote = [run for run in runs if run.generation is not None and not run.error]
    wrote = [run for run in wrote if run.generation is not None and given in ((), run.generation.prompts)]
    if not wrote or (last := wrote[-1].generation) is None:
        return given, ()
    alike = [
        (run, found)
        for run in wrote
        if (found := run.generation) is not None
        and (found.prompts, found.float_texts) == (last.prompts, last.float_texts)
    ]
    reference = WrittenBy(base, tuple(map(WrittenText, last.float_texts)), _beside(wrote[-1]))
    others = [WrittenBy(run.name, found.texts, _numbers(result_texts(run))) for run, found in alike[-_WRITTEN:]]
    return last.prompts, (reference, *others)


def outcome_of(run: Run, speed_up: SpeedUp | None) -> str:
    """Describe a run in one sentence: score, latency, speed-up and size."""
    texts = result_texts(run, speed_up)
    label = f"{run.metric} ({run.unit})" if run.unit else run.metric
    score = "–" if run.score is None else number(run.score, run.unit)
    change = "" if run.change is None else f" ({texts['change']})"
    per = "batch" if run.generation is None else "token"
    beside = "; ".join(filter(None, ["" if speed_up is None else texts["speed"], eager_words(run)]))
    speed = f"{texts['p50']} ms per {per}" + (f", {beside}" if beside else "")
    if run.generation is not None:
        speed += f", {texts['first']} ms to the first, {texts['rate']} tokens/s, {texts['peak']} MB of memory at most"
    latency = "latency not measured" if run.p50_ms is None else speed
    size = size_words(texts["size"], note=run.why)
    return f"{run.name}: {label} {score}{change}, {latency}, {size}. {run.why}".rstrip()


def card_of(run: Run, speed_up: SpeedUp | None) -> RunOutcome:
    """Return what a run came to, in at most three numbers: speed, score, size."""
    texts = result_texts(run, speed_up)
    facts = []
    if run.p50_ms is not None:
        per = "batch" if run.generation is None else "token"
        time = f"{texts['p50']} ms a {per}"
        if speed_up is not None and speed_up.ratio:
            facts.append(CardFact("Speed", f"{speed_up.ratio} as fast", f"as {speed_up.baseline}; {time}"))
        else:
            facts.append(CardFact("Speed", time, eager_words(run) if speed_up is None else speed_up.text))
    if run.score is not None:
        change = "" if run.change is None else f"{texts['change']} against float"
        facts.append(CardFact(_title_of(run.metric), texts["score"], change))
    facts.append(CardFact("Size", size_words(texts["size"], note=run.why)))
    doubtful = speed_up is not None and bool(speed_up.remark)
    return RunOutcome(run.name, tuple(facts), run.why, doubtful)


def _title_of(metric: str) -> str:
    """Return a metric's name as a title: ``token_agreement`` is "Token agreement"; "SQNR" stays."""
    words = metric.replace("_", " ")
    return words[:1].upper() + words[1:]


_TITLES = {
    "score": "Score",
    "spread": "95 % interval",
    "change": "Change against float",
    "p50": "Median ms",
    "p90": "90th percentile ms",
    "speed": "Speed-up",
    "eager": "Timed beside",
    "size": "Size in MB",
    "first": "Ms to the first token",
    "rate": "Tokens a second",
    "peak": "Peak memory in MB",
}


def difference_of(
    first: Run, second: Run, settings: tuple[DifferenceRow, ...], found: Mapping[str, SpeedUp | None]
) -> RunDifference:
    """Return the differences between two runs; ``found`` has the speed-ups by id."""
    texts = result_texts(first, found.get(first.id)), result_texts(second, found.get(second.id))
    known = [key for key in _TITLES if any(text[key] for text in texts)]
    results = [DifferenceRow(_TITLES[key], texts[0][key], texts[1][key]) for key in known]
    results.insert(0, DifferenceRow("Target", first.target_name, second.target_name))
    layers = _layers(first.report, second.report)
    alike = len({row.fqn for row in (*first.report, *second.report)}) - len(layers)
    note = f"{len(layers)} layers differ; the first {_LAYERS} are listed. " if len(layers) > _LAYERS else ""
    if not layers and alike:
        note = "All layers are quantized alike."
    elif alike:
        note += f"{alike} other layer{'s are' if alike > 1 else ' is'} equal in both."
    colours = layer_colours(first, second)
    return RunDifference(first.name, second.name, tuple(results), settings, tuple(layers[:_LAYERS]), note, colours)


def layer_colours(first: Run, second: Run) -> LayerColours:
    """Return what the layers of the second run lose, as that has the colour of warnings: SQNR, or else bits."""
    one, other = ({row.fqn: row for row in run.report} for run in (first, second))
    both = [fqn for fqn in one if fqn and fqn in other]
    for what, unit, value in (("SQNR", "dB", "sqnr"), ("bits of weights", "bits", "weights_bits")):
        pairs = {fqn: (getattr(one[fqn], value), getattr(other[fqn], value)) for fqn in both}
        found = {
            fqn: round(float(a - b), 3)
            for fqn, (a, b) in pairs.items()
            if a is not None and b is not None and math.isfinite(a) and math.isfinite(b)
        }
        if any(found.values()):
            title = f"{what} lost from {first.name} to {second.name}; below 0 is gained"
            return LayerColours(title, unit, tuple(found), tuple(found.values()))
    return LayerColours()


def _layers(first: Sequence[LayerReport], second: Sequence[LayerReport]) -> list[DifferenceRow]:
    """Return the layers that are quantized differently, those with the largest difference in SQNR first."""
    one, other = ({row.fqn: row for row in rows} for rows in (first, second))
    found = []
    for fqn in dict.fromkeys([*one, *other]):
        texts = [_text(rows.get(fqn)) for rows in (one, other)]
        if texts[0] != texts[1]:
            found.append((_distance(one.get(fqn), other.get(fqn)), DifferenceRow(fqn or "(the model)", *texts)))
    return [row for _, row in sorted(found, key=lambda pair: -pair[0])]


def _text(row: LayerReport | None) -> str:
    if row is None:
        return "–"
    sqnr = "" if row.sqnr is None else f", {number(row.sqnr, 'dB')} dB"
    return f"{row.summary}{sqnr}"


def _distance(one: LayerReport | None, other: LayerReport | None) -> float:
    if one is None or other is None or one.sqnr is None or other.sqnr is None:
        return 0.0
    difference = abs(one.sqnr - other.sqnr)
    return difference if difference == difference else 0.0  # infinite SQNRs have no difference
