"""A remedy for a condition on data is true for the statement that it stands in, however that is laid out."""

from __future__ import annotations

from pathlib import Path

import pytest

from prepbench.capture.failures.describe import CHECK_REMEDY, LOOP_REMEDY, VALUES_REMEDY, remedy_of_branch

CASES = {
    "if x.min() < 0: raise ValueError('x')  # HERE": CHECK_REMEDY,
    "if (\n    a\n    and x.min() < 0  # HERE\n):\n    # why\n    raise ValueError": CHECK_REMEDY,
    "if x.min() < 0:  # HERE\n    text = f'{x}'\n    raise ValueError(text)": CHECK_REMEDY,
    "assert (\n    x.min() < 0  # HERE\n), 'x'": CHECK_REMEDY,
    "while (\n    x.max() > 1  # HERE\n):\n    x = x / 2": LOOP_REMEDY,
    "while True:\n    x = x / 2\n    if x.max() < 1: break  # HERE": LOOP_REMEDY,
    "def f(x):\n    for i in range(9):\n        if x.max() < 1:  # HERE\n            return x": LOOP_REMEDY,
    "for i in range(x.max()):  # HERE\n    y = y + 1": VALUES_REMEDY,
    "y = [f(a) for a in x.tolist()]  # HERE": VALUES_REMEDY,
    "def f(x):\n    if x.max() < 1:  # HERE\n        return x\n    return -x": None,
    "y = x if x.max() < 1 else -x  # HERE": None,
    "while True:\n    def f(x):\n        if x.max() < 1:  # HERE\n            return x": None,
    "if x.max() < 1 this is no Python  # HERE": None,
}


@pytest.mark.parametrize("text", CASES)
def test_the_statement_decides(text: str, tmp_path: Path) -> None:
    file = tmp_path / "cases.py"
    file.write_text(text)
    line = next(number for number, each in enumerate(text.splitlines(), 1) if "HERE" in each)
    assert remedy_of_branch(str(file), line) == CASES[text]


def test_a_file_that_is_gone_has_no_remedy_of_its_own() -> None:
    assert remedy_of_branch("/nowhere/model.py", 3) is None
