"""The bench fills the window and comes back, as one view that keeps its state, also without JupyterLab."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from tests.system.browser.fake_bench import after_run, give, open_bench, sent, traits, turn_to
from tests.system.browser.lab import Lab
from tests.system.browser.notebooks import open_notebook, run_cell

pytestmark = pytest.mark.timeout(120)

# a cell of a notebook: cut off, and the containing block of what is fixed in it
CELL = """() => {
  const cell = document.createElement('div');
  cell.style.cssText = 'height: 500px; overflow: auto; contain: strict; transform: translateZ(0); position: relative';
  const box = document.querySelector('.pbb-box');
  box.before(cell);
  cell.append(box);
  const below = document.createElement('p');
  below.style.height = '2000px';
  cell.append(below);
  cell.scrollTop = 60;
  cell.className = 'cell';
}"""
WINDOW = """() => {
  const {left, top, right, bottom} = document.querySelector('.pbb-box').getBoundingClientRect();
  return [left, top, innerWidth - right, innerHeight - bottom].map(Math.round);
}"""


@pytest.mark.parametrize("width", [1440, 1100, 800])
def test_it_fills_the_window_and_comes_back_as_it_was(page: Page, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    given = traits()
    open_bench(page, {**given, **after_run(given)})
    page.evaluate(CELL)
    turn_to(page, "precision")
    page.get_by_role("searchbox", name="Filter layers").fill("_proj")
    page.locator("tr[data-at='1']").click()
    table = page.locator(".pbb-layers .pbb-scroll")
    page.get_by_label("Rows").select_option("Single layers")
    table.evaluate("e => { e.scrollTop = 1400; }")
    page.evaluate("() => { document.querySelector('.cell').scrollTop = 60; }")
    sent(page)
    before = page.evaluate("() => document.querySelector('.cell').scrollTop")

    page.get_by_role("button", name="Fill the window").evaluate("e => e.click()")
    assert page.evaluate(WINDOW) == [0, 0, 0, 0]
    assert page.locator(".pbb").count() == 1, "one view"
    expect(page.get_by_role("tabpanel")).to_have_attribute("data-shows", "precision")
    expect(page.get_by_role("searchbox", name="Filter layers")).to_have_value("_proj")
    assert table.evaluate("e => e.scrollTop") == 1400
    expect(page.get_by_role("button", name="Back into the page (Escape)")).to_be_focused()
    page.locator("tr[data-at]").nth(12).click()  # it is alive
    assert sent(page)

    page.keyboard.press("Escape")  # gives up the marked row
    assert page.evaluate(WINDOW) == [0, 0, 0, 0]
    page.keyboard.press("Escape")
    assert page.evaluate(WINDOW) != [0, 0, 0, 0]
    assert page.evaluate("() => document.querySelector('.cell').scrollTop") == pytest.approx(before, abs=1)
    assert table.evaluate("e => e.scrollTop") == 1400
    expect(page.get_by_role("searchbox", name="Filter layers")).to_have_value("_proj")
    page.get_by_role("button", name="Fill the window").evaluate("e => e.click()")
    page.get_by_role("button", name="Back into the page (Escape)").click()
    assert page.evaluate(WINDOW) != [0, 0, 0, 0]
    assert page.locator(".pbb-hole").count() == 0


def test_the_rail_and_the_diagram_stay_in_the_full_window(page: Page) -> None:
    page.set_viewport_size({"width": 1440, "height": 700})
    given = traits()
    open_bench(page, {**given, **after_run(given, runs=40)})
    turn_to(page, "results")
    page.get_by_role("button", name="Fill the window").click()
    chart = page.locator(".pbb-chart").bounding_box()
    assert chart
    assert chart["height"] >= 300, "the chart is whole, too"
    page.locator(".pbb-box").evaluate("e => { e.scrollTop = 600; }")
    rail = page.locator(".pbb-rail").bounding_box()
    assert rail
    assert abs(rail["y"]) <= 1
    give(page, {"title": "Other"})
    expect(page.get_by_role("button", name="Back into the page (Escape)")).to_have_count(1)


@pytest.mark.parametrize("width", [1440, 1100, 800])
def test_results_stand_beside_their_chart_where_there_is_room(page: Page, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    given = traits()
    open_bench(page, {**given, **after_run(given)})
    turn_to(page, "results")
    chart, step = page.locator(".pbb-chart").bounding_box(), page.locator(".pbb-step").bounding_box()
    assert chart
    assert step
    if width == 1440:
        assert chart["x"] + chart["width"] <= step["x"]
        assert abs(chart["y"] - step["y"]) < 4
    else:
        assert chart["y"] + chart["height"] <= step["y"] + 1
    table = page.locator(".pbb-history")
    speed = page.get_by_role("columnheader", name="Speed-up").bounding_box()
    place = table.bounding_box()
    assert speed
    assert place
    assert speed["x"] + speed["width"] <= place["x"] + place["width"], "it is in sight without scrolling"


NET = """
import torch, prepbench as pb
net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2)).eval()
bench = pb.Bench(net, calibration_inputs=[torch.randn(2, 4), torch.randn(3, 4)])
bench
"""


@pytest.mark.timeout(300)
def test_it_fills_the_window_of_jupyterlab_and_the_view_stays_the_same(page: Page, lab: Lab) -> None:
    page.set_viewport_size({"width": 1440, "height": 900})
    open_notebook(page, lab, "full", [NET])
    run_cell(page, 0)
    bench = page.locator(".pbb-box")
    expect(bench.locator("[data-step='precision']")).to_be_visible(timeout=60_000)
    bench.locator("[data-step='precision']").click()
    bench.get_by_role("searchbox", name="Filter layers").fill("2")
    bench.evaluate("e => { e.mark = 'the same'; }")
    bench.get_by_role("button", name="Fill the window").click()
    assert page.evaluate(WINDOW) == [0, 0, 0, 0]
    assert page.locator(".pbb-box").count() == 1
    bench.get_by_role("radio", name="float32").click()
    expect(bench.locator(".pbb-sentence")).to_contain_text("1 float")
    covered = "() => document.elementFromPoint(innerWidth / 2, 20).closest('.pbb-box') !== null"
    assert page.evaluate(covered), "nothing of JupyterLab lies over it"
    page.keyboard.press("Escape")
    assert page.evaluate(WINDOW) != [0, 0, 0, 0]
    assert bench.evaluate("e => e.mark") == "the same"
    expect(bench.get_by_role("searchbox", name="Filter layers")).to_have_value("2")
    bench.get_by_role("button", name="Undo", exact=True).click()
    expect(bench.locator(".pbb-sentence")).not_to_contain_text("1 float")
