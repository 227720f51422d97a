"""The results of a journal: a sequence, a table, a figure, and subsets by model or machine."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from torch import nn

from prepbench._display import view
from prepbench.checks import check_path, check_text, described
from prepbench.errors import InputError, PrepbenchError, SettingsError, UnknownNameError
from prepbench.objects.digest import model_digest
from prepbench.results.journal import has_content, journal_at
from prepbench.results.measurement import Result
from prepbench.results.speed_up import SpeedUp, speed_ups

if TYPE_CHECKING:
    import pandas
    import plotly.graph_objects


class ResultNumberError(PrepbenchError, IndexError):
    """An index beyond the number of results."""


class Results(Sequence[Result]):
    """Stored results, oldest first; see :func:`prepbench.load_results`.

    Latencies of different machines are never compared: a speed-up is that over the float model on the same runtime and
    machine, or else over PyTorch eager in the same rounds, and tables and figures tell machines apart.

    Args:
        rows: the results.
        path: of the journal that they are from; None where they are from none.

    Example:
        >>> results = pb.load_results("results.sqlite")
        >>> results.table()
        >>> results.only(target=results[0].target)[0].size_bytes > 0
        True
    """

    def __init__(self, rows: Sequence[Result], path: Path | None = None) -> None:
        self.rows = tuple(rows)
        self.path = path

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, index: int) -> Result: ...
    @overload
    def __getitem__(self, index: slice) -> Results: ...
    def __getitem__(self, index: int | slice) -> Result | Results:
        """Return one result by its index, or a slice as results."""
        if isinstance(index, slice):
            return Results(self.rows[index], self.path)
        if isinstance(index, bool) or not hasattr(index, "__index__"):
            raise SettingsError(f"index must be a whole number or a slice, got {described(index)}. Write results[0].")
        if not -len(self) <= index < len(self):
            raise ResultNumberError(f"index: there is no result {index}. Choose one of 0 to {len(self) - 1}.")
        return self.rows[index]

    @property
    def machines(self) -> tuple[str, ...]:
        """The machines of the measurements, in words."""
        return tuple(dict.fromkeys(row.machine for row in self.rows))

    @property
    def models(self) -> tuple[str, ...]:
        """The names of the models; fingerprints for those without a name."""
        return tuple(dict.fromkeys(row.model_name or row.model for row in self.rows))

    @property
    def targets(self) -> tuple[str, ...]:
        """The targets of the compiles."""
        return tuple(dict.fromkeys(row.target for row in self.rows))

    @property
    def speed_ups(self) -> tuple[SpeedUp | None, ...]:
        """How many times faster each result is, in their order; None where there is nothing to compare.

        The baseline is the model in float on the same runtime and machine, where that is among the results, else the
        model in PyTorch eager. ``text`` has the number, its baseline, or why there is none.
        """
        return speed_ups(self.rows, [f"{row.settings_name} on {row.target}" for row in self.rows])

    def only(
        self, *, model: nn.Module | str | None = None, target: str | None = None, machine: str | None = None
    ) -> Results:
        """Return the results of one model, target or machine.

        Args:
            model: the model itself, which is known by its modules and values, or its name or fingerprint.
            target: e.g. ``"onnxruntime"``.
            machine: one of :attr:`machines`.

        Returns:
            Those that fit; :meth:`table` shows them.

        Raises:
            UnknownNameError: there is none of that name; those that there are stand in the message. A model that was
                never measured has no results, which is no error.

        Example:
            >>> load_results("results.sqlite").only(target="onnxruntime").table()
        """
        check_text("target", target, "onnxruntime", optional=True)
        check_text("machine", machine, "x86_64 Linux, laptop", optional=True)
        rows: Sequence[Result] = self.rows
        if isinstance(model, nn.Module):
            known = model_digest(model)
            rows = [row for row in rows if row.model == known]
        elif model is not None:
            check_text("model", model, "resnet")
            _check_known("model", model, [*self.models, *(row.model for row in rows)])
            rows = [row for row in rows if model in (row.model_name, row.model)]
        if target is not None:
            _check_known("target", target, self.targets)
            rows = [row for row in rows if row.target == target]
        if machine is not None:
            _check_known("machine", machine, self.machines)
            rows = [row for row in rows if row.machine == machine]
        return Results(rows, self.path)

    def table(self) -> pandas.DataFrame:
        """Return one row for each result, numbers as numbers: milliseconds, and MB of 10**6 bytes."""
        return view("views.result_charts", "results_table", self)  # type: ignore[no-any-return]

    def figure(self) -> plotly.graph_objects.Figure:
        """Draw scores against latency: a chart for each metric, a colour for each machine, a symbol for each model."""
        return view("views.result_charts", "results_figure", self)

    def __repr__(self) -> str:
        if not self.rows:
            return f"Results(none{f' in {self.path}' if self.path else ''})"
        return view("views.result_charts", "results_text", self)  # type: ignore[no-any-return]

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        return view("views.result_charts", "results_bundle", self)  # type: ignore[no-any-return]


def load_results(path: str | os.PathLike[str]) -> Results:
    """Load the results in a journal, which searches, sweeps and saved benches write; nothing in it is executed.

    A journal that is damaged or of another version is renamed, with a warning; the result is then empty, and the
    next search begins a new journal there.

    Args:
        path: of the journal, as it was given as ``results=``; beside a saved bench it ends in ``.bench.sqlite``.

    Returns:
        The results, oldest first.

    Raises:
        InputError: there is no such file.
        StorageError: it cannot be read.
        ArtifactError: it is the file of another program.

    Example:
        >>> pb.load_results("results.sqlite").table()
    """
    check_path("path", path)
    if not os.path.lexists(path):
        raise InputError(
            f"There is no journal of results at {path}. Give the path that was given as results= to prepbench.search "
            "or prepbench.sweep, or the .bench.sqlite file beside a saved bench."
        )
    journal = journal_at(path)
    rows = journal.results() if has_content(journal.path) else ()
    scored = {row.key: place for place, row in enumerate(rows) if row.score is not None}
    # a candidate of a search is written once it is timed, and again once it is scored
    kept = [row for place, row in enumerate(rows) if row.score is not None or scored.get(row.key, -1) < place]
    return Results(kept, journal.path)


def _check_known(name: str, value: str, known: Sequence[str]) -> None:
    if value not in known:
        listed = ", ".join(map(repr, dict.fromkeys(filter(None, known)))) or "none, as there are no results"
        raise UnknownNameError(f"{name}: no result is of {described(value)}. Choose one of {listed}.")
