"""Which cases the short form of the tests has."""

from __future__ import annotations

from typing import Any

from tests.turns import leave_most


class Case:
    """What pytest collects, as far as the choice reads it."""

    def __init__(self, nodeid: str, *marks: str) -> None:
        self.nodeid, self.marks = nodeid, list(marks)

    def get_closest_marker(self, name: str) -> Any:
        return name if name in self.marks else None

    def add_marker(self, name: str) -> None:
        self.marks.append(name)


def left(name: str, count: int, *marks: str) -> list[int]:
    """The places of the cases that are left to the long form."""
    cases: Any = [Case(f"{name}[{at}]", *(marks if at == 0 else ())) for at in range(count)]
    leave_most(cases)
    return [at for at, case in enumerate(cases) if "stress" in case.marks]


def test_most_of_many_cases_are_left_to_the_long_form() -> None:
    assert {tuple(left(f"test_{number}", 5)) for number in range(20)} == {(0, 2, 4), (1, 3)}
    assert {tuple(left(f"test_{number}", 6)) for number in range(40)} == {(1, 2, 4, 5), (0, 2, 3, 5), (0, 1, 3, 4)}
    assert {len(left(f"test_{number}", 20)) for number in range(20)} == {15}
    assert left("test_a", 9) == left("test_a", 9), "the same in every process"


def test_few_cases_and_those_of_a_test_that_chooses_stay() -> None:
    assert left("test_few", 2) == []
    assert left("test_that_chooses", 12, "stress") == [0]
