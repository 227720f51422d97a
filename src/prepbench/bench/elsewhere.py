"""Runs from elsewhere: other machines, other notebooks, and results of a file."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Sequence
from dataclasses import fields
from pathlib import Path

from torch import nn

from prepbench.bench.state import DISPLAY_NAMES
from prepbench.objects.digest import model_digest, modules_of, structure_of
from prepbench.results.machine import this_machine, this_notebook
from prepbench.results.measurement import Measurement, Result
from prepbench.results.results import load_results
from prepbench.results.run import Run


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
