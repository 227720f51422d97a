"""Score several mixtures in sequence, in threads, or in other processes."""

from __future__ import annotations

import concurrent.futures
import contextvars
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

from prepbench.calls.call_spec import CallSpec
from prepbench.compile.float_program import FloatProgram, LayerFacts
from prepbench.compile.simulation import Simulation
from prepbench.errors import ArtifactError
from prepbench.inputs import Sample
from prepbench.jobs import ProgressCallback, check_cancelled
from prepbench.measure.transfer import load_sample, save_sample
from prepbench.quantize import Score
from prepbench.running.tracing import tracing
from prepbench.search.executors import run_tasks
from prepbench.search.tasks import loaded, name_of, task
from prepbench.settings import CompileOptions, QuantizationSettings
from prepbench.storage import temporary_folder, write_file
from prepbench.targets import target_for, target_named
from prepbench.targets.base import Trust
from prepbench.targets.programs import leaf_operators_in, load_program, save_program

T = TypeVar("T")
R = TypeVar("R")

STAGE = "measure layers"

_POLL_S = 0.1


def shares_process(executor: Any) -> bool:
    """Return whether tasks of this executor share the objects of this process."""
    return executor is None or isinstance(executor, concurrent.futures.ThreadPoolExecutor)


def scores_in_processes(
    simulation: Simulation,
    mixtures: Sequence[Mapping[str, QuantizationSettings]],
    names: Sequence[str],
    executor: Any,
    progress: ProgressCallback,
) -> list[Score]:
    """Score mixtures, of which a layer may be quantized alone, in other processes; the model is sent once.

    Raises:
        ArtifactError: parts of the model are leaves, whose code is in this process only.
        ExecutorError: the executor has no workers, or they lack a requirement of the tasks.
    """
    with temporary_folder("sensitivity") as folder:
        candidates = dict.fromkeys(settings for mixture in mixtures for settings in mixture.values())
        save_simulation(simulation, folder / "simulation", candidates)
        found = run_tasks(
            executor,
            name_of(score_task),
            [score_payload(mixture) for mixture in mixtures],
            {"simulation": folder / "simulation"},
            progress,
            names=names,
            stage=STAGE,
        )
    return [Score(*each_found) for each_found in found]


def map_in_order(
    function: Callable[[T], R], items: Sequence[T], executor: Any, tell: Callable[[int, T], None]
) -> list[R]:
    """Map a function over items and return the results in the order of the items.

    Cancelling, by raising from ``tell`` or by :class:`prepbench.Job`, does not wait for items that have not begun.
    """
    if executor is None:
        found = []
        for item in items:
            found.append(function(item))
            tell(len(found), item)
        return found
    futures = [executor.submit(contextvars.copy_context().run, function, item) for item in items]
    try:
        pending, count = set(futures), 0
        while pending:
            check_cancelled()
            done, pending = concurrent.futures.wait(
                pending, timeout=_POLL_S, return_when=concurrent.futures.FIRST_COMPLETED
            )
            for future in done:
                future.result()
                count += 1
                tell(count, items[futures.index(future)])
        return [future.result() for future in futures]
    finally:
        for future in futures:
            future.cancel()


# A simulation as a folder, for another process: program, samples and settings, without pickle.
#
# Ranges and rounded weights are learned again there: they are larger than the samples.


_FACTS = "simulation.json"


def save_simulation(simulation: Simulation, folder: Path, candidates: Iterable[QuantizationSettings] = ()) -> None:
    """Write a simulation to a folder, which is made.

    Raises:
        ArtifactError: parts of the model are leaves, whose code is in this process only.
        InputError: a sample holds something that needs pickle.
        StorageError: the folder cannot be written to.
    """
    source = simulation.source
    if leaves := leaf_operators_in(source.program.graph_module):
        raise ArtifactError(
            f"The model has {len(leaves)} leaves, which run in Python, and other processes lack their code. Give "
            "executor=None, or a concurrent.futures.ThreadPoolExecutor."
        )
    folder.mkdir(parents=True, exist_ok=True)
    with tracing():
        save_program(source.program, folder)
    for name, samples in (("samples", source.samples), ("scored", source.scored)):
        for number, sample in enumerate(samples):
            save_sample(sample, folder / name / f"{number:06}")
    facts = {
        "calls": source.call_spec.to_dict(),
        "target": target_for(source.settings).name,
        "deployment_settings": source.settings.to_dict(),
        "compile_options": source.options.to_dict(),
        "layers": {fqn: asdict(row) for fqn, row in source.layers.items()},
        "name": source.name,
        "candidates": [one.to_dict() for one in candidates],
    }
    write_file(folder / _FACTS, json.dumps(facts))


def load_simulation(folder: Path) -> Simulation:
    """Read what :func:`save_simulation` wrote; the model's class is not needed."""
    facts = json.loads((folder / _FACTS).read_text(encoding="utf-8"))
    with tracing():
        program = load_program(folder, Trust(allow_code=True))
    source = FloatProgram(
        program=program,
        call_spec=CallSpec.from_dict(facts["calls"]),
        settings=target_named(facts["target"]).settings_type.from_dict(facts["deployment_settings"]),
        options=CompileOptions.from_dict(facts["compile_options"]),
        samples=_samples_in(folder / "samples"),
        layers={fqn: LayerFacts(**row) for fqn, row in facts["layers"].items()},
        name=facts["name"],
        scored=_samples_in(folder / "scored"),
    )
    simulation = Simulation(source)
    candidates = (QuantizationSettings.from_dict(fields) for fields in facts["candidates"])
    simulation.learn({str(number): one for number, one in enumerate(candidates)})
    return simulation


def _samples_in(folder: Path) -> tuple[Sample, ...]:
    return tuple(load_sample(place) for place in sorted(folder.iterdir())) if folder.is_dir() else ()


def score_payload(settings: Mapping[str, QuantizationSettings]) -> dict[str, Any]:
    """Return the payload of :func:`score_task` for a mixture."""
    return {fqn: one.to_dict() for fqn, one in settings.items()}


@task
def score_task(payload: dict[str, Any], folders: Mapping[str, Path]) -> Any:
    """Return the SQNR in dB and the divergence of one mixture, of which a layer may be quantized alone."""
    simulation = loaded(folders["simulation"], load_simulation)
    settings = {fqn: QuantizationSettings.from_dict(fields) for fqn, fields in payload.items()}
    found = simulation.score(settings, even_alone=True)
    return [found.sqnr, found.divergence]
