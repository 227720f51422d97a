"""What layers cost, on the bench's page: the action, the columns, the bars, the one selection, what is old."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from tests.system.browser.fake_bench import give, layer_costs, open_bench, sent, traits, turn_to

pytestmark = pytest.mark.timeout(120)


def _shown(page: Page, *, stale: str = "", width: int = 1100) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    given = traits()
    open_bench(page, given)
    turn_to(page, "precision")
    give(page, layer_costs(given, stale))


def test_layers_are_measured_at_a_press_and_cancelled_at_another(page: Page) -> None:
    open_bench(page, traits())
    turn_to(page, "precision")
    page.get_by_role("button", name="Measure layers").click()
    assert sent(page) == [{"action": "measure_layers"}]
    give(
        page,
        {
            "is_measuring": True,
            "running": True,
            "about": "layers",
            "stage": "Testing layers one by one · layers.3.up_proj: int8",
        },
    )
    expect(page.get_by_role("button", name="Measure layers")).to_be_disabled()
    costs = page.get_by_role("region", name="What layers cost")
    expect(costs.get_by_role("status")).to_contain_text("layers.3.up_proj")
    costs.get_by_role("button", name="Cancel").click()
    assert sent(page) == [{"action": "cancel"}]
    give(page, {"is_measuring": False, "running": False})
    expect(page.get_by_role("button", name="Measure layers")).to_be_enabled()


@pytest.mark.parametrize("width", [1100, 700])
def test_both_columns_are_in_sight_and_sort(page: Page, width: int) -> None:
    _shown(page, width=width)
    head = page.get_by_role("columnheader", name="Model SQNR (dB)")
    expect(head).to_be_in_viewport()
    assert not page.evaluate("() => document.documentElement.scrollWidth > innerWidth")
    page.get_by_label("Rows").select_option("Single layers")
    head.get_by_role("button").click()
    first = page.locator(".pbb-layers tr[data-at='0']")
    expect(first).to_have_attribute("data-fqn", "layers.0.q_proj")
    expect(first).to_have_attribute("aria-label", "layers.0.q_proj, planned int8, Model SQNR 24 dB, Time 0 %")
    page.locator(".pbb-layers .pbb-scroll").evaluate("e => e.scrollTop = 1e6")
    unknown = page.locator(".pbb-layers tr[aria-label*='SQNR unknown'] td.pbb-number").last
    expect(unknown).to_have_text("–")
    expect(unknown).to_have_attribute("title", "not measured with these settings: measure layers again")


def test_bars_and_rows_have_one_selection(page: Page) -> None:
    _shown(page)
    bars = page.locator("[data-column='sensitivity'] .pbb-bar")
    expect(bars).to_have_count(10)
    bar = page.get_by_role("button", name="layers.23.v_proj 24.8")
    bar.press("Enter")
    assert sent(page) == [{"action": "select", "fqn": "layers.23.v_proj"}]
    give(page, {"selected": "layers.23.v_proj"})
    expect(bar).to_have_attribute("aria-pressed", "true")
    expect(bar).to_be_focused()
    expect(page.locator(".pbb-layers tr[data-fqn='layers.23.v_proj']")).to_have_attribute("aria-selected", "true")
    bar.press("Enter")
    assert sent(page) == [{"action": "select", "fqn": ""}]


def test_what_is_old_is_said_beside_the_numbers(page: Page) -> None:
    _shown(page, stale="the target was OpenVINO")
    expect(page.get_by_role("columnheader", name=re.compile(r"Model SQNR \(dB\).*old"))).to_be_visible()
    expect(page.locator("[data-column='sensitivity']")).to_contain_text("Old: the target was OpenVINO")
    expect(page.locator("[data-column='time']")).not_to_contain_text("Old")


def test_names_of_layers_are_text(page: Page) -> None:
    given = traits(blocks=1)
    given["layers"][0]["fqn"] = "<img src=x onerror=window.harmed=1>"
    open_bench(page, given)
    turn_to(page, "precision")
    give(page, layer_costs(given))
    expect(page.locator("[data-column='sensitivity']")).to_contain_text("onerror")
    assert not page.evaluate("() => window.harmed")
