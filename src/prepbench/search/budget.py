"""``Budget``: the limits of a search and the objective that it minimizes."""

from __future__ import annotations

import math
from dataclasses import dataclass

from prepbench.checks import described
from prepbench.errors import SettingsError
from prepbench.search.objective import OBJECTIVES, costs_besides_drop
from prepbench.settings.validation import Settings, check_choice


@dataclass(frozen=True, kw_only=True)
class Budget(Settings):
    """The limits that :func:`prepbench.search` must keep, and the objective that it minimizes within them.

    Attributes:
        max_drop: by how much the metric may be worse than in float, 0 or more, in the metric's own unit: 0.01 is a
            point of accuracy. Needs a ``metric``. Default None: any.
        min_metric: the worst metric that will do: the least where higher is better, else the most. Without a
            ``metric`` it is the SQNR in dB against float. Default None: any.
        max_latency_ms: the most milliseconds that one call may take. Default None: any.
        max_size_mb: the most that the saved model may take, in MB (10**6 bytes). Default None: any.
        minimize: ``"latency"``, ``"size"`` or ``"drop"``; none that is bounded. Default ``"latency"``.

    Raises:
        SettingsError: nothing is bounded, the objective is bounded as well, both ``max_drop`` and ``min_metric`` are
            given, or a value is no positive number.

    Example:
        >>> Budget(max_drop=0.01).minimize
        'latency'
        >>> str(Budget(max_latency_ms=5, minimize="drop"))
        'the least drop with at most 5 ms a call'
    """

    max_drop: float | None = None
    min_metric: float | None = None
    max_latency_ms: float | None = None
    max_size_mb: float | None = None
    minimize: str = "latency"

    def __post_init__(self) -> None:
        check_choice(self, "minimize", tuple(OBJECTIVES))
        _check_number(self, "max_drop", "0 or more, such as 0.01", lambda value: value >= 0)
        _check_number(self, "min_metric", "such as 0.75, or 20 for an SQNR in dB", lambda value: True)
        _check_number(self, "max_latency_ms", "above 0, such as 5.0", lambda value: value > 0)
        _check_number(self, "max_size_mb", "above 0, such as 10.0", lambda value: value > 0)
        if self.max_drop is not None and self.min_metric is not None:
            raise SettingsError(
                "Budget: max_drop and min_metric contradict each other: both say how bad the metric may be. Give one "
                "of the two."
            )
        for field in OBJECTIVES[self.minimize].bounds:
            if getattr(self, field) is not None:
                others = " or ".join(repr(goal) for goal in OBJECTIVES if goal != self.minimize)
                raise SettingsError(
                    f"Budget: minimize={self.minimize!r} and {field}={getattr(self, field):g} contradict each other: "
                    f"a bounded quantity is not minimized as well. Leave out {field}, or write "
                    f"minimize={others}."
                )
        if all(one.bound(self) is None for one in OBJECTIVES.values()):
            raise SettingsError(
                f"Budget(minimize={self.minimize!r}) bounds nothing. Give at least one of max_drop, min_metric, "
                "max_latency_ms and max_size_mb that is not what is minimized."
            )

    def __str__(self) -> str:
        bounds = [
            f"a drop of at most {self.max_drop:g}" if self.max_drop is not None else "",
            f"a metric of {self.min_metric:g} or better" if self.min_metric is not None else "",
        ]
        for one in costs_besides_drop():
            if (most := one.bound(self)) is not None:
                bounds.append(f"at most {one.text(most * one.per_unit, 'g')}")
        return f"{OBJECTIVES[self.minimize].best} with {' and '.join(filter(None, bounds))}"


def _check_number(budget: Budget, field: str, expected: str, holds: object) -> None:
    value = getattr(budget, field)
    if value is None:
        return
    is_number = not isinstance(value, bool) and isinstance(value, int | float) and math.isfinite(value)
    if not is_number or not holds(value):  # type: ignore[operator]
        raise SettingsError(
            f"Budget.{field} must be None or a number {expected}, got {described(value)}. Write {field}=..."
        )
