"""The state of running tasks: arguments, answers, and the error of a task that kills its processes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from prepbench.jobs import Progress, ProgressCallback, check_cancelled
from prepbench.search.tasks import Folder, packages_here, value_of

DEATHS = 3
"""A task that ends its process this often fails."""


@dataclass
class Work:
    """The state of running tasks.

    Attributes:
        name: of the function.
        payloads: the data of each task.
        names: the display name of each.
        folders: the folders that tasks read.
        needs: the folders of each task by name.
        is_timing: whether they measure time.
        stage: the stage in progress reports.
        progress: called after each task and during waits.
        answers: by the number of the task.
    """

    name: str
    payloads: Sequence[Mapping[str, Any]]
    names: Sequence[str]
    folders: Mapping[str, Folder]
    needs: Sequence[Sequence[str]]
    is_timing: bool
    stage: str
    progress: ProgressCallback
    answers: dict[int, Any] = field(default_factory=dict)

    @property
    def waiting(self) -> list[int]:
        """Return the numbers of the tasks without an answer."""
        return [number for number in range(len(self.payloads)) if number not in self.answers]

    def arguments(self, number: int) -> tuple[str, str, str, str, bool]:
        """Return the arguments of :func:`run_task`, as text alone."""
        folders = json.dumps({key: str(self.folders[key].path) for key in self.needs[number]})
        return self.name, json.dumps(self.payloads[number]), packages_here(), folders, self.is_timing

    def answer(self, number: int, text: str) -> None:
        """Record the answer of a task; raise its error."""
        self.answers[number] = value_of(text, self.names[number])

    def tell(self, name: str = "") -> None:
        """Report progress; raise if cancelled."""
        check_cancelled(self.stage)
        self.progress(Progress(self.stage, len(self.answers), len(self.payloads), name))


def death_message(name: str) -> str:
    """Return the message for a task that kills its processes."""
    return (
        f"The task {name} ended its process {DEATHS} times, so it is not tried again. Often there is too little "
        "memory: give smaller samples, or run fewer processes on a machine. With executor=None it fails here."
    )
