"""Limits of axes are told in words, not as formulas."""

from __future__ import annotations

from prepbench.bench.summarize import verified_words
from prepbench.capture.aten.verification import AxisResult
from prepbench.capture.sizes.conditions import SizeCondition

SIZE = "image.shape[2]"


def result(*conditions: str, **more: object) -> AxisResult:
    kept = tuple(SizeCondition(text, (SIZE,), None) for text in conditions)
    return AxisResult("image", 2, "height", **{"status": "bounded", "conditions": kept, **more})  # type: ignore[arg-type]


def test_limits_are_words() -> None:
    formula = f"((({SIZE} - 1)//2)) + 1 != 1"
    assert verified_words([result(formula, held=(3, 5), refused=(1, 2))]) == ("height at least 3", formula)
    assert verified_words([result(formula, f"{SIZE} is at least 3")])[0] == "height at least 3"
    assert verified_words([result(f"{SIZE} must be a multiple of 4")])[0] == "height must be a multiple of 4"
    assert verified_words([result(formula, held=(2, 6), refused=(3, 5))])[0] == "height not 3, 5"
    assert verified_words([result(status="specialised", range=(16, 16))])[0] == "height only 16"
    assert verified_words([result(status="wrong", wrong=(7, 9), reason="off by 1")]) == (
        "differs from the model at 7, 9",
        "off by 1",
    )


def test_the_worst_of_several_is_told() -> None:
    good = AxisResult("x", 0, "batch", "holds", held=(1, 5))
    assert verified_words([good]) == ("✓ equal at 1, 5", "")
    assert verified_words([good, result(held=(3,), refused=(1, 2))])[0] == "height at least 3"
    assert verified_words([]) == ("", "")
