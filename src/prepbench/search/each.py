"""Scores of several mixtures: one after the other or in threads of this process, or in other processes."""

from __future__ import annotations

import concurrent.futures
import contextvars
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from prepbench.compile.simulation import Simulation
from prepbench.jobs import ProgressCallback, check_cancelled
from prepbench.quantize import Score
from prepbench.search.executors import run_tasks
from prepbench.search.simulation_folder import save_simulation, score_payload, score_task
from prepbench.search.tasks import name_of
from prepbench.settings import QuantizationSettings
from prepbench.storage import temporary_folder

T = TypeVar("T")
R = TypeVar("R")

STAGE = "measure layers"

_POLL_S = 0.1


def is_here(executor: Any) -> bool:
    """Whether what an executor runs shares the objects of this process."""
    return executor is None or isinstance(executor, concurrent.futures.ThreadPoolExecutor)


def scores_elsewhere(
    simulation: Simulation,
    mixtures: Sequence[Mapping[str, QuantizationSettings]],
    names: Sequence[str],
    executor: Any,
    progress: ProgressCallback,
) -> list[Score]:
    """The score of each mixture, of which layers may stand alone, from other processes; the model travels once.

    Args:
        simulation: of the model.
        mixtures: settings of layers by FQN.
        names: what each is called for people.
        executor: as ``run_tasks`` takes it.
        progress: told after each task; it may raise to cancel.

    Raises:
        ArtifactError: parts of the model are leaves, whose code is in this process only.
        ExecutorError: the executor has no workers, or they lack what tasks need.
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


def each(function: Callable[[T], R], items: Sequence[T], executor: Any, tell: Callable[[int, T], None]) -> list[R]:
    """What a function gives for each item, in their order.

    Who cancels, by raising from ``tell`` or by :class:`prepbench.Job`, does not wait for items that have not begun.

    Args:
        function: called once for each item.
        items: any values.
        executor: a ``ThreadPoolExecutor``, or None.
        tell: called after each item, with how many are done.
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
