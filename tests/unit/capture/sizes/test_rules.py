"""Sizes are explained by the simplest formula over known sizes, or by none."""

from __future__ import annotations

import pytest

from prepbench.capture.sizes.learned_outputs import Known, learn_rule


@pytest.mark.parametrize(
    "values, known, text",
    [
        ((7, 7), [("b", (1, 2))], "7"),
        ((1, 2), [("b", (1, 2)), ("h", (8, 9))], "b"),
        ((4, 10), [("b", (2, 5))], "2*b"),
        ((6, 9), [("n", (5, 8))], "n+1"),
        ((112, 160), [("h", (224, 320))], "h//2"),
        ((17, 24, 30), [("h", (33, 47, 60))], "(h+1)//2"),
        ((12, 35), [("b", (2, 5)), ("n", (6, 7))], "b*n"),
        ((8, 12), [("a", (2, 5)), ("b", (6, 7))], "a+b"),
        ((6, 5), [("a", (2, 5)), ("b", (6, 3))], "max(a, b)"),
        ((197, 401), [("h", (224, 320)), ("w", (224, 320))], None),
        ((3, 17, 5), [("b", (1, 2, 3))], None),
    ],
)
def test_rules(values: tuple[int, ...], known: list[tuple[str, tuple[int, ...]]], text: str | None) -> None:
    sizes = [Known(name, column) for name, column in known]
    rule = learn_rule(values, sizes)
    if text is not None:
        assert rule is not None
        assert rule.text == text
    for index, value in enumerate(values):
        if rule is not None:
            assert rule.compute([column[index] for _, column in known]) == value


def test_patches_with_a_class_token_hold_at_other_sizes() -> None:
    rule = learn_rule((197, 301, 281), [Known("h", (224, 240, 320)), Known("w", (224, 320, 224))])
    assert rule is not None
    assert rule.compute([32, 64]) == 2 * 4 + 1
