"""The table of layers at three widths: what leads, bars in cells, columns by a menu, and nothing off the edge."""

from __future__ import annotations

import math
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.system.browser.fake_bench import after_run, give, layer_costs, open_bench, traits, turn_to

pytestmark = pytest.mark.timeout(120)

HEADS = "() => [...document.querySelectorAll('.pbb-layers thead th')].map(th => th.firstChild.textContent)"
CUT = """() => {
  const scroll = document.querySelector('.pbb-layers .pbb-scroll');
  return [scroll.scrollWidth - scroll.clientWidth, scroll.dataset.more === 'true'];
}"""
CUT_HEADS = """() => [...document.querySelectorAll('.pbb-layers thead button')]
  .filter(button => button.scrollWidth > button.clientWidth).map(button => button.textContent)"""
BARS = """key => [...document.querySelectorAll('.pbb-layers tbody tr[data-at]')].map(row => {
  const at = [...document.querySelectorAll('.pbb-layers thead th')].findIndex(th => th.textContent.startsWith(key));
  const cell = row.children[at];
  const [number, power] = cell.lastChild.textContent.split(' ');
  return [Number(number) * (power === 'k' ? 1000 : 1), parseFloat(cell.querySelector('.pbb-in-bar').style.width)];
})"""


def measured() -> dict[str, Any]:
    """After a run, with costs of layers."""
    given = traits()
    after, costs = after_run(given), layer_costs(given)
    return {**given, **after, "columns": [*after["columns"], *costs["columns"]]}


@pytest.mark.parametrize("width", [1440, 1100, 800])
def test_what_counts_leads_and_nothing_lies_off_the_edge(page: Page, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    open_bench(page, measured())
    turn_to(page, "precision")
    heads = page.evaluate(HEADS)
    assert heads[:5] == ["Layer", "Decided as", "Parameters", "Time (%)", "Model SQNR (dB)"]
    assert page.evaluate(CUT)[0] <= 0
    assert not page.evaluate(CUT_HEADS), "heads are whole"
    menu = page.locator(".pbb-columns")
    expect(menu).to_contain_text(f"Columns {len(heads) - 1} of 8")
    menu.locator("summary").click()
    for name in ("Why", "Set by", "Type", "Model SQNR (dB)"):
        page.get_by_role("checkbox", name=name).check()
    assert set(page.evaluate(HEADS)) >= {"Why", "Set by", "Type", "Model SQNR (dB)"}
    over, is_said = page.evaluate(CUT)
    assert over > 0
    assert is_said, "it is seen that the table goes on"
    page.locator(".pbb-layers .pbb-scroll").evaluate("e => { e.scrollLeft = e.scrollWidth; }")
    expect(page.locator(".pbb-layers .pbb-scroll")).to_have_attribute("data-more", "false")
    page.get_by_role("button", name="As many as fit").click()
    assert page.evaluate(HEADS) == heads
    page.keyboard.press("Escape")
    expect(page.get_by_role("checkbox", name="Why")).to_be_hidden()
    assert page.locator(".pbb-box").evaluate("e => e.scrollWidth <= e.clientWidth")


def test_a_longer_bar_costs_more_and_the_head_names_its_scale(page: Page) -> None:
    page.set_viewport_size({"width": 1440, "height": 900})
    given = measured()
    open_bench(page, given)
    turn_to(page, "precision")
    page.get_by_label("Rows").select_option("Single layers")
    for key, sign in (("Parameters", 1), ("Time (%)", 1), ("Model SQNR (dB)", -1)):
        bars = [(value, length) for value, length in page.evaluate(BARS, key) if not math.isnan(value)]
        lengths = [length for _, length in sorted(bars, key=lambda bar: sign * bar[0])]
        assert lengths == sorted(lengths), key
        assert len(set(lengths)) > 5, key
    head = page.locator(".pbb-layers thead")
    worst = min(value for value in given["columns"][1]["values"] if value is not None)
    expect(head).to_contain_text(f"full bar {worst:.3g} dB, worst")
    expect(head.get_by_role("button", name="Time (%)")).to_have_count(1)


def test_planned_and_done_are_one_column(page: Page) -> None:
    page.set_viewport_size({"width": 1440, "height": 900})
    open_bench(page, traits())
    turn_to(page, "precision")
    page.get_by_label("Rows").select_option("Single layers")
    cell = lambda fqn: page.locator(f"tr[data-fqn='{fqn}'] td").first  # noqa: E731
    expect(cell("layers.0.q_proj").locator(".pbb-planned")).to_have_text("int8")
    expect(cell("layers.0.q_proj").locator(".pbb-ruled")).to_have_count(0)
    expect(cell("layers.0.up_proj").locator(".pbb-ruled")).to_have_count(1)
    expect(cell("layers.0.up_proj")).to_have_attribute("title", "Planned: int4 weights, 32\nSet by layers.*.up_proj")
    give(page, after_run(traits()))
    expect(cell("layers.0.q_proj").locator(".pbb-badge")).to_have_count(1)  # done as planned
    expect(cell("layers.0.q_proj").locator(".pbb-applied")).to_have_text("int8")
    differing = cell("layers.0.gate_proj")  # the sixth layer
    expect(differing.locator(".pbb-badge")).to_have_text(["int8", "float"])
    expect(differing).to_have_attribute(
        "title", "Planned: int8\nDone: float\nWhy: SQNR 8 dB is below the floor of 10 dB"
    )


def test_a_folded_row_says_how_many_layers_have_what(page: Page) -> None:
    given = traits(8)
    names = [layer["fqn"] for layer in given["layers"]]
    four = [1 if name.endswith("up_proj") and int(name.split(".")[1]) < 4 else 0 for name in names]
    three = [2 if name == "layers.7.up_proj" else kind for name, kind in zip(names, four, strict=True)]
    given["decisions"][1]["label"] = "int4 weights"
    open_bench(page, {**given, "planned": four})
    turn_to(page, "precision")
    cell = page.locator("tr[data-at]").filter(has_text="up_proj").locator("td").first
    expect(cell).to_have_text("4 × int4 weights4 × int8")
    for badge in cell.locator(".pbb-badge").all():
        assert badge.evaluate("e => e.scrollWidth <= e.clientWidth + 1"), "a chip is whole"
    give(page, {"planned": three})
    expect(cell).to_have_text("4 × int4 weights4 others")


@pytest.mark.parametrize("width", [1440, 1100, 800])
def test_the_expected_size_is_beside_the_buttons(page: Page, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    open_bench(page, traits())
    turn_to(page, "precision")
    size = page.get_by_role("status", name="Expected size")
    expect(size).to_have_text("about 4.21 MB of 16.8 MB in weights")
    buttons, said = page.get_by_role("radiogroup", name="Precision").bounding_box(), size.bounding_box()
    assert buttons
    assert said
    assert 0 <= said["y"] - buttons["y"] < 80
    give(page, {"expected": {"megabytes": 9.1, "float_megabytes": 16.78, "note": ""}})
    expect(size).to_contain_text("about 9.1 MB")
