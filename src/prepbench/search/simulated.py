"""Scores of mixtures of settings, wherever an executor runs: the simulation is written once, and read once a worker."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Mapping, Sequence
from typing import Any, Self

from prepbench.compile.simulation import Simulation
from prepbench.jobs import ProgressCallback, report_nothing
from prepbench.quantize import Score
from prepbench.search.executors import check_executor, run_tasks
from prepbench.search.simulation_folder import save_simulation, score_payload, score_task
from prepbench.search.tasks import name_of
from prepbench.settings import QuantizationSettings
from prepbench.storage import KeptFolder

Mixture = Mapping[str, QuantizationSettings]


def is_elsewhere(executor: Any) -> bool:
    """Whether an executor runs other processes, which have no captured model."""
    check_executor(executor)
    return executor is not None and not isinstance(executor, concurrent.futures.ThreadPoolExecutor)


class Simulated:
    """Scores mixtures in the processes of an executor; a context manager, because it keeps a folder meanwhile.

    Args:
        simulation: of the model.
        executor: a ``concurrent.futures.Executor`` of other processes, or a ``dask.distributed.Client``.

    Example:
        >>> with Simulated(simulation, client) as simulated:
        ...     simulated.scores([{"head": pb.QuantizationSettings()}])[0].sqnr
        31.4
    """

    def __init__(self, simulation: Simulation, executor: Any) -> None:
        self._simulation = simulation
        self._executor = executor
        self._folder: KeptFolder | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._folder is not None:
            self._folder.remove()

    def scores(
        self,
        mixtures: Sequence[Mixture],
        names: Sequence[str] = (),
        progress: ProgressCallback = report_nothing,
        *,
        stage: str = "measure layers",
    ) -> list[Score]:
        """The score of each mixture, of which layers may stand alone, in their order.

        Args:
            mixtures: the settings of what is quantized.
            names: what each is called in messages.
            progress: told after each; it may raise to cancel.
            stage: what progress calls this.

        Raises:
            ArtifactError: parts of the model are leaves, which other processes lack.
            ExecutorError: the executor cannot run tasks.
            TaskError: a task failed.
        """
        if self._folder is None:
            self._folder = KeptFolder("simulation")
            save_simulation(self._simulation, self._folder.path)
        found = run_tasks(
            self._executor,
            name_of(score_task),
            [score_payload(mixture) for mixture in mixtures],
            {"simulation": self._folder.path},
            progress,
            names=names,
            stage=stage,
        )
        return [Score(sqnr, divergence) for sqnr, divergence in found]
