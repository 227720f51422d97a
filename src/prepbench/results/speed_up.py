"""How many times faster a call is than another one: the one place that divides two latencies for people to read."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

EAGER = "PyTorch eager"
MEASURE_AGAIN = "measure again"

_BUSY = 0.1  # the share of all cores above which other programs make times worth nothing
_ALIKE = 1.1  # an interval within this factor of 1 says that both take the same time


@dataclass(frozen=True)
class Reference:
    """The time of the model that a candidate was timed beside, in the same rounds.

    Attributes:
        name: ``"PyTorch eager"``, or the name of the first candidate where none ran there in float.
        p50_ms: median latency in milliseconds.
        interval_ms: the interval of that median; None where it is not known.
    """

    name: str
    p50_ms: float
    interval_ms: tuple[float, float] | None = None


class Timed(Protocol):
    """A row of results, as a speed-up needs it."""

    @property
    def p50_ms(self) -> float | None:
        """Median latency in milliseconds; None where it was not measured."""

    @property
    def interval_ms(self) -> tuple[float, float] | None:
        """The interval of that median; None where it is not known."""

    @property
    def busy(self) -> float:
        """The share of all cores that other programs kept busy meanwhile, 0 to 1."""

    @property
    def reference(self) -> Reference | None:
        """The time of the model beside which it was timed; None for that model itself."""

    @property
    def runtime(self) -> str:
        """An identity of target, machine and work: equal where times can be compared."""

    @property
    def is_float(self) -> bool:
        """Whether it is the model as it was, neither quantized nor pruned."""


@dataclass(frozen=True)
class SpeedUp:
    """How many times faster a candidate is than its baseline, with the interval of that number.

    Attributes:
        low: the least ratio that both times allow; None without a ratio.
        value: the ratio of both medians; None without a ratio.
        high: the largest ratio that both times allow; None without a ratio.
        baseline: the name of what it is compared with.
        remark: why there is no ratio; else empty.

    Example:
        >>> SpeedUp(1.9, 2.04, 2.2, "float32 ONNX Runtime").text
        '2.0× of float32 ONNX Runtime'
    """

    low: float | None
    value: float | None
    high: float | None
    baseline: str
    remark: str = ""

    @property
    def is_slower(self) -> bool:
        """Whether the candidate is slower than its baseline beyond doubt."""
        return self.high is not None and self.high < 1

    @property
    def ratio(self) -> str:
        """The ratio alone, with as many digits as its interval allows; "" where the times do not tell."""
        if self.low is None or self.value is None or self.high is None or self.low <= 1 <= self.high:
            return ""
        return f"{_rounded(self.low, self.value, self.high)}×"

    @property
    def text(self) -> str:
        """The ratio with as many digits as its interval allows, and what it is one of; or why there is none."""
        if self.low is None or self.value is None or self.high is None:
            return self.remark
        if self.low <= 1 <= self.high:
            is_alike = self.low * _ALIKE >= 1 and self.high <= _ALIKE
            return f"{'about the same as' if is_alike else 'no difference measured from'} {self.baseline}"
        return f"{self.ratio} of {self.baseline}"


def speed_ups(rows: Sequence[Timed], names: Sequence[str]) -> tuple[SpeedUp | None, ...]:
    """Return the speed-up of each row; None for one without a time, and for one that is compared with nothing.

    The baseline is the first float row of the same runtime, so that a ratio tells what quantization has won. Where
    there is none, it is the model that the row was timed beside, and the text names it.
    """
    floats: dict[str, int] = {}
    for place, row in enumerate(rows):
        if row.is_float and row.p50_ms is not None:
            floats.setdefault(row.runtime, place)
    found: list[SpeedUp | None] = []
    for place, row in enumerate(rows):
        base = floats.get(row.runtime, place)
        if row.p50_ms is None:
            found.append(None)
        elif base != place:
            found.append(_over(row, rows[base], names[base]))
        else:
            found.append(None if row.reference is None else _over_reference(row, row.reference))
    return tuple(found)


def speed_up_over_reference(row: Timed) -> float | None:
    """Return how many times faster a row is than the model that it was timed beside; 1 for that model itself.

    None without a time, and where the times do not tell.
    """
    if row.reference is None:
        return None if row.p50_ms is None else 1.0
    return _over_reference(row, row.reference).value


def speed_up_text(found: SpeedUp | None) -> str:
    """Return the text of a speed-up; ``–`` where there is none."""
    return "–" if found is None else found.text


def is_busy(share: float) -> bool:
    """Return whether other programs kept more than a tenth of the cores busy, so that times say nothing."""
    return share > _BUSY


def _over(row: Timed, base: Timed, name: str) -> SpeedUp | None:
    if row.interval_ms is None and row.reference is None:
        return None  # a search's times are predictions and single measurements
    drift = 1.0
    if row.reference is not None and base.reference is not None and row.reference.name == base.reference.name:
        # both were timed beside one model, maybe on different days: what that model's time changed by is uncertain
        drift = row.reference.p50_ms / max(base.reference.p50_ms, 1e-9)
    return _ratio(row, base.p50_ms, base.interval_ms, name, busy=max(row.busy, base.busy), drift=drift)


def _over_reference(row: Timed, base: Reference) -> SpeedUp:
    return _ratio(row, base.p50_ms, base.interval_ms, base.name, busy=row.busy)


def _ratio(
    row: Timed,
    base_ms: float | None,
    base_interval: tuple[float, float] | None,
    name: str,
    *,
    busy: float,
    drift: float = 1.0,
) -> SpeedUp:
    if is_busy(busy):
        return SpeedUp(None, None, None, name, f"{MEASURE_AGAIN}: other programs were busy")
    interval = row.interval_ms
    if not row.p50_ms or not base_ms or interval is None or base_interval is None or min(interval[0], drift) <= 0:
        return SpeedUp(None, None, None, name, f"{MEASURE_AGAIN}: too few calls were timed")
    factor = max(drift, 1 / drift)
    return SpeedUp(
        base_interval[0] / interval[1] / factor, base_ms / row.p50_ms, base_interval[1] / interval[0] * factor, name
    )


def _rounded(low: float, value: float, high: float) -> str:
    """Return a number without the digits that its interval leaves open; three digits at most, two behind the point.

    There are more only where the rounded number would lie outside of the interval.
    """
    spread = max(high - value, value - low)
    last = max(math.floor(math.log10(value)) - 2, -2)
    if spread > 0:
        last = max(last, math.floor(math.log10(2 * spread)))
    while not low <= round(value, -last) <= high and last > -9:
        last -= 1
    return f"{round(value, -last):.{max(-last, 0)}f}"
