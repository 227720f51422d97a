"""Budgets of a comparison: bounds that turn measured numbers into checks."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from prepbench.command_line.outcomes import Outcome

if TYPE_CHECKING:
    from prepbench.measure.comparison import CandidateResult, Comparison


@dataclass(frozen=True)
class Budget:
    """One bound.

    Attributes:
        option: as it is written, e.g. ``"--max-ms"``.
        what: what is bounded, e.g. ``"latency"``.
        unit: of the number.
        help: for ``--help``.
        is_upper: whether more is worse.
    """

    option: str
    what: str
    unit: str
    help: str
    is_upper: bool

    @property
    def name(self) -> str:
        """Under which the parser keeps it."""
        return self.option.removeprefix("--").replace("-", "_")

    def outcome(self, candidate: str, value: float | None, bound: float) -> Outcome:
        """Whether a value keeps the bound; one that was not measured, or that is NaN, does not."""
        words = f"at {'most' if self.is_upper else 'least'} {bound:g} {self.unit}".rstrip()
        title = f"{self.what} of {candidate}"
        if value is None:
            return Outcome(title, False, f"not measured, {words} expected")
        kept = value <= bound if self.is_upper else value >= bound
        found = f"{value:.4g} {self.unit}".rstrip()
        return Outcome(title, kept, f"{found}, {words}" + ("" if kept else " expected"))


SIZE = Budget("--max-size-mb", "size", "MB", "size of the saved model (1 MB is 10**6 bytes)", True)
SQNR = Budget("--min-sqnr", "SQNR", "dB", "signal-to-noise ratio of the outputs against the first candidate's", False)
DROP = Budget("--max-drop", "drop", "", "how much worse the metric may be than the first candidate's", True)
LATENCY = Budget("--max-ms", "latency", "ms", "median time of one call", True)
SPEED = Budget("--min-speedup", "speed-up", "×", "how many times faster than the first candidate", False)
BUDGETS = (SIZE, SQNR, DROP, LATENCY, SPEED)


def add_budgets(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    group = parser.add_argument_group("budgets", "for each candidate but the first, or for the only one")
    for budget in BUDGETS:
        group.add_argument(budget.option, type=float, metavar=budget.unit or "X", help=budget.help)


def given(options: argparse.Namespace) -> dict[Budget, float]:
    """The budgets that the call sets."""
    values = {budget: getattr(options, budget.name) for budget in BUDGETS}
    return {budget: value for budget, value in values.items() if value is not None}


def size_outcomes(sizes: dict[str, int], bounds: dict[Budget, float]) -> Iterator[Outcome]:
    """The checks of sizes in bytes."""
    if SIZE in bounds:
        for name in _judged(list(sizes)):
            yield SIZE.outcome(name, sizes[name] / 1e6, bounds[SIZE])


def outcomes(comparison: Comparison, noise: Comparison | None, bounds: dict[Budget, float]) -> Iterator[Outcome]:
    """The checks of a comparison.

    Args:
        comparison: with the metric.
        noise: with SQNR, where the metric is another one.
        bounds: those that the call sets.
    """
    for name in _judged([row.name for row in comparison.rows]):
        row = comparison[name]
        for budget, bound in bounds.items():
            yield budget.outcome(name, _measured(budget, row, comparison, noise), bound)


def _judged(names: list[str]) -> list[str]:
    return names[1:] or names


def _measured(budget: Budget, row: CandidateResult, comparison: Comparison, noise: Comparison | None) -> float | None:
    if budget is SIZE:
        return None if row.size_bytes is None else row.size_bytes / 1e6
    if budget is SQNR:
        return row.metric if noise is None else noise[row.name].metric
    if budget is DROP:
        if row.change is None:
            return None
        return -row.change if comparison.higher_is_better else row.change
    return row.p50_ms if budget is LATENCY else row.speedup
