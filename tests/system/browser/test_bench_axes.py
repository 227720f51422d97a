"""Chips of axes: limits in words, and each chip under the name of its own input."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from tests.system.browser.fake_bench import axis, open_bench, traits, turn_to

pytestmark = pytest.mark.timeout(120)

PLACES = """() => [...document.querySelectorAll('.pbb-axes-row')].map(row => {
  const label = row.querySelector('code').getBoundingClientRect();
  const box = row.getBoundingClientRect();
  return [label.right, box.top, box.bottom, ...[...row.querySelectorAll('.pbb-chip, .pbb-linked')].map(chip => {
    const {left, top, bottom, right} = chip.getBoundingClientRect();
    return [left, top, bottom, right <= box.right + 1];
  })];
})"""


@pytest.mark.parametrize("width", [1440, 1100, 800])
def test_chips_stay_beside_the_name_of_their_input(page: Page, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    limit = {"verified": "height at least 3", "reason": "(((image.shape[2] - 1)//2)) + 1 != 1 (cell:10 x[::2])"}
    axes = [axis("image", dim, [16, 24], True, f"s{dim}", **limit) for dim in range(5)]
    axes += [axis("a_mask_with_a_long_name", dim, [3], False, "") for dim in range(6)]
    open_bench(page, {**traits(), "axes": axes})
    turn_to(page, "axes")
    for right, top, bottom, *chips in page.evaluate(PLACES):
        assert len(chips) >= 5
        for left, upper, lower, is_inside in chips:
            assert left >= right, "right of the name, also in a second line"
            assert top - 1 <= upper
            assert lower <= bottom + 1
            assert is_inside
    chip = page.locator("[aria-label^='image dim 2:']")
    expect(chip).to_contain_text("height at least 3")
    assert "//" not in chip.inner_text()
    expect(chip.locator("small").nth(1)).to_have_attribute("title", limit["reason"])


def test_a_range_that_somebody_set_is_in_words(page: Page) -> None:
    axes = [
        axis("x", at, [4], True, f"s{at}", min=low, max=high)
        for at, (low, high) in enumerate([(3, -1), (-1, 8), (2, 9)])
    ]
    open_bench(page, {**traits(), "axes": axes})
    turn_to(page, "axes")
    for at, said in enumerate(["at least 3", "at most 8", "2 to 9"]):
        expect(page.locator(f"[aria-label^='x dim {at}:']")).to_contain_text(said)
