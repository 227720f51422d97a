"""Speed-ups: what they are compared with, which digits they have, and when there is none."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from prepbench.results.speed_up import EAGER, Reference, SpeedUp, speed_up_text, speed_ups

BESIDE = Reference(EAGER, 39.0, (38.9, 39.1))


@dataclass(frozen=True)
class Row:
    p50_ms: float | None
    runtime: str = "onnxruntime"
    is_float: bool = False
    interval_ms: tuple[float, float] | None = None
    busy: float = 0.0
    reference: Reference | None = BESIDE


def near(ms: float, **more: object) -> Row:
    """A row that was timed to a hundredth."""
    return Row(ms, interval_ms=(ms * 0.995, ms * 1.005), **more)  # type: ignore[arg-type]


EAGER_ROW = near(39.0, runtime="eager", is_float=True, reference=None)


def texts(*rows: Row) -> list[str]:
    return [speed_up_text(one) for one in speed_ups(rows, [f"row {place}" for place in range(len(rows))])]


def test_the_baseline_is_float_on_the_same_runtime() -> None:
    found = texts(EAGER_ROW, near(1.0), near(2.0, is_float=True), near(3.0, runtime="openvino"))
    assert found == ["–", "2.00× of row 2", "19.5× of PyTorch eager", "13.0× of PyTorch eager"]


def test_a_second_float_row_is_compared_with_the_first() -> None:
    assert texts(near(2.0, is_float=True), near(1.0, is_float=True))[1] == "2.00× of row 0"


def test_quantized_in_pytorch_is_compared_with_float_there() -> None:
    assert texts(EAGER_ROW, near(78.0, runtime="eager"))[1] == "0.50× of row 0"


@pytest.mark.parametrize(
    ("low", "value", "high", "text"),
    [
        (4.4, 4.5012, 4.6, "4.5× of float"),
        (4.49, 4.5012, 4.52, "4.50× of float"),
        (3.0, 4.5012, 7.0, "5× of float"),
        (30.0, 39.4, 55.0, "40× of float"),
        (39.3, 39.42, 39.5, "39.4× of float"),
        (147.9, 148.3, 148.9, "148× of float"),
        (1.02, 1.4, 2.9, "1.4× of float"),
        (0.3, 0.41, 0.9, "0.4× of float"),
        (2.0, 2.0, 2.0, "2.00× of float"),
        (0.98, 1.01, 1.04, "about the same as float"),
        (0.7, 1.3, 2.4, "no difference measured from float"),
        (1.0, 1.3, 1.5, "no difference measured from float"),
    ],
)
def test_digits_follow_the_interval(low: float, value: float, high: float, text: str) -> None:
    assert SpeedUp(low, value, high, "float").text == text


def test_the_interval_is_that_of_both_times() -> None:
    (_, found) = speed_ups([Row(4.0, is_float=True, interval_ms=(3.6, 4.4)), Row(2.0, interval_ms=(1.6, 2.2))], "ab")
    assert found is not None
    assert (found.low, found.value, found.high) == pytest.approx((3.6 / 2.2, 2.0, 4.4 / 1.6))
    assert found.text == "2× of a"


def test_a_machine_that_changed_between_two_measurements_widens_the_interval() -> None:
    later = near(1.0, reference=Reference(EAGER, 78.0, (77.9, 78.1)))
    (_, found) = speed_ups([near(2.0, is_float=True), later], ("float", "int8"))
    assert found is not None
    assert found.low is not None
    assert found.high is not None
    assert found.low < 1 < found.value < found.high  # type: ignore[operator]
    assert found.text == "no difference measured from float"


@pytest.mark.parametrize(("busy", "has_ratio"), [(0.0, True), (0.1, True), (0.11, False), (0.9, False)])
def test_no_ratio_beside_busy_programs(busy: float, has_ratio: bool) -> None:
    both = speed_ups([near(2.0, is_float=True), near(1.0, busy=busy)], ("float", "int8"))[1]
    of_baseline = speed_ups([near(2.0, is_float=True, busy=busy), near(1.0)], ("float", "int8"))[1]
    for found in (both, of_baseline):
        assert found is not None
        assert (found.value is not None) == has_ratio
        assert found.text == ("2.00× of float" if has_ratio else "measure again: other programs were busy")
        assert not found.is_slower


def test_no_ratio_without_an_interval() -> None:
    assert texts(near(2.0, is_float=True), Row(1.0))[1] == "measure again: too few calls were timed"
    assert texts(near(2.0, is_float=True), Row(1.0, reference=None))[1] == "–"


def test_what_was_not_timed_has_no_speed_up_and_is_no_baseline() -> None:
    assert texts(Row(None, is_float=True), near(1.0)) == ["–", "39.0× of PyTorch eager"]


def test_slower_only_beyond_doubt() -> None:
    assert SpeedUp(0.7, 0.8, 0.9, "float").is_slower
    assert not SpeedUp(0.7, 0.8, 1.1, "float").is_slower
