"""The samples on which a candidate differs most from the first one, as values, text and table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from prepbench._display import view
from prepbench.measure.kept_samples import KEPT, SampleInput, WorstSample

if TYPE_CHECKING:
    import pandas

_TEXT = 60


@dataclass(frozen=True, repr=False)
class WorstSamples:
    """The samples on which a candidate differs most from the first one: the result of :meth:`Comparison.worst`.

    Attributes:
        first: the first candidate's name.
        candidate: the other one's.
        measure: how far they are apart, with its unit; the distances are in it.
        samples: how many samples were compared.
        rows: the farthest first; empty where both candidates have equal outputs for all samples.
        decode: makes text of token numbers.

    Example:
        >>> WorstSamples("float32", "int8", "SQNR dB", 64, ()).rows
        ()
    """

    first: str
    candidate: str
    measure: str
    samples: int
    rows: tuple[WorstSample, ...]
    decode: Callable[[list[int]], str] | None = field(default=None, repr=False)

    @property
    def caption(self) -> str:
        """Describe the rows in one sentence."""
        if not self.rows:
            return f"{self.candidate} gives what {self.first} gives on all of {self.samples} samples."
        count = len(self.rows)
        return (
            f"{'The sample' if count == 1 else f'The {count} samples'} of {self.samples} on which {self.candidate} is "
            f"farthest from {self.first}, by {self.measure}."
        )

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes on samples that are not among the rows."""
        return (f"{KEPT} rows are kept for each candidate.",) if len(self.rows) == KEPT < self.samples else ()

    def table(self) -> pandas.DataFrame:
        """Return one row for each sample: its place in the data, the distance of outputs, and a short text of both."""
        import pandas

        columns: dict[str, list[Any]] = {
            "batch": [row.batch for row in self.rows],
            "row": [row.row for row in self.rows],
            self.measure: [row.distance for row in self.rows],
            self.first: [self.output_texts(row)[0] for row in self.rows],
            f"{self.candidate} " if self.candidate == self.measure else self.candidate: [
                self.output_texts(row)[1] for row in self.rows
            ],
            "target": [row.target for row in self.rows],
            "input": ["; ".join(self.input_text(one) for one in row.inputs) for row in self.rows],
        }
        if not any(row.target for row in self.rows):
            del columns["target"]
        return pandas.DataFrame(columns).astype({"row": "Int64", self.measure: float})

    def input_text(self, one: SampleInput) -> str:
        """Return a text of an input: decoded tokens where possible, else a summary of the tensor."""
        values = one.values
        if self.decode is None or values is None or values.dim() != 1 or not _holds_tokens(one):
            return f"{one.name} {one.text}"
        return str(self.decode(values.tolist()))

    def output_texts(self, row: WorstSample) -> tuple[str, str]:
        """Return short texts of both outputs, the first candidate's first."""
        if self.decode is None or row.tokens is None:
            return row.expected, row.found
        expected, found = (str(self.decode(list(tokens))) for tokens in row.tokens)
        return expected, found

    def __repr__(self) -> str:
        header = ["batch", "row", self.measure, self.first, self.candidate, "target"]
        body = [
            [
                str(row.batch),
                "–" if row.row is None else str(row.row),
                distance_text(row.distance),
                *map(_short, self.output_texts(row)),
                _short(row.target),
            ]
            for row in self.rows
        ]
        lines = [header, *body] if body else []
        if not any(row.target for row in self.rows):
            lines = [line[:-1] for line in lines]
        widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))] if lines else []
        texts = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in lines]
        return "\n".join([*(text.rstrip() for text in texts), self.caption, *self.notes])

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        return view("views.samples", "worst_bundle", self)  # type: ignore[no-any-return]


def distance_text(value: float) -> str:
    """Format a distance with three significant digits.

    Example:
        >>> distance_text(12.345), distance_text(float("-inf"))
        ('12.3', '−∞')
    """
    if value in (float("inf"), float("-inf")):
        return "∞" if value > 0 else "−∞"
    return f"{value:.3g}".replace("-", "−")


def _holds_tokens(one: SampleInput) -> bool:
    values = one.values
    if values is None or values.is_floating_point() or values.is_complex() or str(values.dtype) == "torch.bool":
        return False
    return "mask" not in one.name and "position" not in one.name


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _TEXT else line[: _TEXT - 1] + "…"
