"""The result of a sweep: one row for each model, target and settings; failures are rows, too."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from prepbench.checks import check_text
from prepbench.errors import UnknownNameError
from prepbench.results.measurement import Result
from prepbench.results.results import Results


class SweepResult(Results):
    """The result of :func:`prepbench.sweep`: results in the order of the axes, including the models in PyTorch.

    Args:
        rows: the results.
        path: of the journal that they are in; None where none was given.
        measured: how many of them were measured now; the others were in the journal.

    Attributes:
        measured: see above.

    Example:
        >>> swept = pb.sweep({"model": {"net": net}}, samples, results="results.sqlite")
        >>> [result.target for result in swept]
        ['eager', 'onnxruntime']
    """

    def __init__(self, rows: Sequence[Result], path: Path | None = None, measured: int = 0) -> None:
        super().__init__(rows, path)
        self.measured = measured

    @property
    def failed(self) -> Results:
        """The results that have an error instead of numbers."""
        return Results([row for row in self.rows if row.error], self.path)

    def find(self, model: str, target: str, settings: str) -> Result:
        """Return one result by the names that the sweep gave.

        Args:
            model: as in the axes.
            target: e.g. ``"onnxruntime"``; ``"eager"`` for the model in PyTorch.
            settings: as in the axes; ``"float32"`` for the model in PyTorch.

        Returns:
            What was measured.

        Raises:
            UnknownNameError: there is none.

        Example:
            >>> swept.find("net", "onnxruntime", "float32").speedup > 0
            True
        """
        for name, value in (("model", model), ("target", target), ("settings", settings)):
            check_text(name, value, "int8")
        for row in self.rows:
            if (row.model_name, row.settings_name) == (model, settings) and row.target == target:
                return row
        known = sorted({f"{row.model_name}, {row.target}, {row.settings_name}" for row in self.rows})
        raise UnknownNameError(
            f"model, target, settings: no result is of {model!r}, {target!r} and {settings!r}. Choose one of "
            f"{'; '.join(known[:12])}."
        )
