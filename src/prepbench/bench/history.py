"""One run of a bench: what a compile and a comparison make of it, and runs from elsewhere."""

from __future__ import annotations

import hashlib
import math
import os
import time
import uuid
from collections.abc import Collection, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Protocol

from torch import nn

from prepbench.bench.cards import slower_because
from prepbench.bench.state import DISPLAY_NAMES, BenchState, display_name
from prepbench.document.checks import cleaned_value
from prepbench.errors import printable
from prepbench.measure.comparison import CandidateResult, Comparison
from prepbench.measure.generation import GenerationResult
from prepbench.objects.digest import model_digest, modules_of, structure_of
from prepbench.package import CompiledModel
from prepbench.results.journal import Changes
from prepbench.results.measurement import Measurement, Result, Run, RunGeneration, this_machine, this_notebook
from prepbench.results.results import load_results
from prepbench.results.speed_up import SpeedUp, speed_ups
from prepbench.targets import target_for


def speed_ups_of(runs: Sequence[Run]) -> dict[str, SpeedUp | None]:
    """Return how many times faster each run is, by its id; the oldest float run of a runtime is its baseline."""
    in_order = sorted(runs, key=lambda run: (run.made, run.id))
    return dict(zip([run.id for run in in_order], speed_ups(in_order, [run.name for run in in_order]), strict=True))


class KeptJournal(Protocol):
    """The storage of a history."""

    @property
    def path(self) -> Path:
        """The path of the file."""

    def __call__(self, run_id: str, run: Run | None) -> None:
        """Write a run that was added or changed, or remove one."""

    def news(self) -> Changes:
        """Return the changes to the runs of this model since the last call; all runs at the first call."""


def new_run(state: BenchState, name: str, began: float, together: BenchState | None = None, **known: Any) -> Run:
    """Create a run of one target.

    Args:
        state: the choices, for one target.
        name: the display name.
        began: when its compile began, as ``time.monotonic()`` tells.
        together: the choices for all targets that are compiled for together, ``state`` where it is the only one.
        known: further fields.
    """
    settings = state.targets[0]
    run = Run(
        id=uuid.uuid4().hex[:12],
        name=name,
        settings_name=name,
        state=state.to_json(),
        targets=tuple((together or state).to_json()["targets"]),
        target=target_for(settings).name,
        target_name=display_name(settings),
        target_options=settings.to_dict(),
        made=time.time(),
        seconds=time.monotonic() - began,
        machine=this_machine(),
        notebook=this_notebook(),
        **known,
    )
    result: Run = cleaned_value(run)  # journals and files hold printable texts alone
    return replace(result, pruned={printable(fqn): told for fqn, told in run.pruned.items()})


def measured(
    run: Run,
    compiled: CompiledModel,
    comparison: Comparison,
    row: CandidateResult,
    generation: RunGeneration | None = None,
) -> dict[str, Any]:
    """Return the fields of a run from a comparison; ``generation`` is its generated text."""
    report = compiled.report
    (beside,) = speed_ups([row], [row.name])
    slower = slower_because(
        beside,
        fallbacks=report.fallbacks,
        leaves=report.leaves,
        quantized=any(layer.quantized for layer in report.layers),
    )
    return {
        "score": row.metric,
        "metric": comparison.metric,
        "unit": comparison.unit,
        "higher_is_better": comparison.higher_is_better,
        "change": row.change,
        "spread": row.spread,
        "p50_ms": row.p50_ms,
        "p90_ms": row.p90_ms,
        "interval_ms": row.interval_ms,
        "reference": row.reference,
        "busy": row.busy,
        "size_bytes": row.size_bytes,
        "why": slower or row.note,
        "workload": comparison.workload or f"{comparison.samples} samples, {comparison.batch_size} in a timed call",
        "generation": generation,
    }


def comparison_of(runs: Sequence[Run], newest: Comparison | None, base: str) -> Comparison:
    """Return scored runs as one comparison with the float model: those of the newest metric, of calls or of a
    generation.

    Args:
        runs: the runs; at least one. Their speed-ups are those of :func:`speed_ups_of`.
        newest: the newest comparison, whose float model they are compared with; worked out from the runs without one.
        base: the display name of the float model.
    """
    last = runs[-1]
    if newest is None:
        score = math.inf if last.unit else (last.score or 0.0) - (last.change or 0.0)
        p50, interval = (last.reference.p50_ms, last.reference.interval_ms) if last.reference else (None, None)
        first = CandidateResult(
            base, score, 0.0, p50, p50, interval, None, "", "eager", "own process",
            generation=float_generation(last), is_float=True,
        )  # fmt: skip
        newest = Comparison(
            (first,),
            last.metric,
            last.unit,
            last.higher_is_better,
            samples=0,
            batch_size=0,
            rounds=0,
            threads=0,
            workload=last.workload if last.generation else "",
        )
    first, wrote = newest.rows[0], bool(newest.workload)
    alike = [run for run in runs if (run.metric, run.unit, run.generation is not None) == (*_of(newest), wrote)]
    return replace(newest, rows=(first, *map(_row, alike)))


def _of(comparison: Comparison) -> tuple[str, str]:
    return comparison.metric, comparison.unit


def float_generation(run: Run) -> GenerationResult | None:
    """Return the float model's generation results beside a run; None where nothing was generated."""
    found = run.generation
    if found is None:
        return None
    base = found.float_first_token_ms, None, found.float_tokens_per_second, found.float_peak_bytes
    return GenerationResult(*base, tokens=())


def _generation(run: Run) -> GenerationResult | None:
    found = run.generation
    if found is None:
        return None
    return GenerationResult(found.first_token_ms, run.p50_ms, found.tokens_per_second, found.peak_bytes, tokens=())


def _row(run: Run) -> CandidateResult:
    return CandidateResult(
        run.name,
        run.score if run.score is not None else math.nan,
        run.change,
        run.p50_ms,
        run.p90_ms,
        run.interval_ms,
        run.size_bytes,
        "saved artifact",
        run.target_name,
        "own process",
        run.why,
        spread=run.spread,
        generation=_generation(run),
        is_float=run.is_float,
        busy=run.busy,
        reference=run.reference,
        group=run.runtime,
    )


# Runs from elsewhere: other machines, other notebooks, and results of a file.


def is_far(run: Run) -> bool:
    """Return whether a run is from another machine, so that its latency cannot be compared with those of this one."""
    return run.machine not in ("", this_machine())


def where(run: Run) -> str:
    """Return the machine and notebook of a run where they differ from this one's; "" for a run of this notebook."""
    notebook = this_notebook()
    is_other = bool(run.notebook and notebook and run.notebook != notebook)
    parts = [run.machine.rpartition(", ")[2] or run.machine if is_far(run) else ""]
    parts.append(run.notebook if is_other or (is_far(run) and run.notebook) else "")
    return " · ".join(filter(None, parts))


def runs_of_file(
    path: str | os.PathLike[str], model: nn.Module, names: Collection[str]
) -> tuple[Path, tuple[Run, ...]]:
    """Return the path of a journal, and as runs its results of models with the structure of this one.

    Args:
        path: of the journal.
        model: the model of the bench.
        names: names that are taken.

    Raises:
        InputError: there is no such file.
        StorageError: it cannot be read.
        ArtifactError: it is the file of another program.
    """
    structure, known = structure_of(modules_of(model)), model_digest(model)
    results = [each for each in load_results(path) if each.model.partition("-")[0] == structure]
    return Path(path), _named(results, names, known)


def _named(results: Sequence[Result], names: Collection[str], model: str) -> tuple[Run, ...]:
    """Return results as uniquely named runs; of those that differ only in time, the newest.

    The name tells which results are of other weights, by the model's fingerprint.
    """
    taken = set(names)
    runs = []
    for result in {each.key: each for each in results}.values():
        target = DISPLAY_NAMES.get(result.target, result.target)
        label = result.settings_name or f"{_label(result)} {target}"
        label += "" if result.model == model else ", other weights"
        name, number = label, 1
        while name in taken:
            number += 1
            name = f"{label} ({number})"
        taken.add(name)
        values = {one.name: getattr(result, one.name) for one in fields(Measurement)}
        id = hashlib.sha256(f"{result.key} {result.made}".encode()).hexdigest()[:12]
        runs.append(Run(id=id, name=name, state={}, target_name=target, **values))
    return tuple(sorted(runs, key=lambda run: (run.made, run.id)))


def _label(result: Result) -> str:
    """Return a label from what became of the layers, for a result without a name."""
    kinds = [row.summary for row in result.report if row.quantized]
    if not kinds:
        return "float"
    most = max(dict.fromkeys(kinds), key=kinds.count)
    return most if len(kinds) == len(result.report) and len(set(kinds)) == 1 else f"mixed {most}"
