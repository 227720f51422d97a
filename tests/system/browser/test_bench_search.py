"""The search on the bench's page: the form, what fills in, the slider, the chart and the list, using what was found."""

from __future__ import annotations

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.system.browser import fake_search
from tests.system.browser.fake_bench import give, open_bench, sent, traits, turn_to

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def search(page: Page) -> Locator:
    page.set_viewport_size({"width": 1100, "height": 900})
    open_bench(page, traits())
    turn_to(page, "run")
    return page.get_by_role("region", name="Best settings within a budget")


def test_a_budget_is_asked_for(page: Page, search: Locator) -> None:
    expect(search.get_by_role("textbox", name="Latency at most (ms)")).to_be_disabled()
    search.get_by_role("textbox", name="Drop of accuracy at most").fill("0,02")
    search.get_by_role("textbox", name="Drop of accuracy at most").press("Enter")
    assert sent(page) == [{"action": "search", "minimize": "latency", "loss": "0,02", "latency": "", "size": ""}]
    search.get_by_role("combobox", name="Make it").select_option("Most exact")
    search.get_by_role("textbox", name="Latency at most (ms)").fill("2.5")
    search.get_by_role("button", name="Search").click()
    assert sent(page) == [{"action": "search", "minimize": "drop", "loss": "", "latency": "2.5", "size": ""}]


def test_where_none_is_possible_the_reason_is_there(page: Page, search: Locator) -> None:
    why = "A search needs calibration inputs."
    give(page, {"search_now": {"unavailable": why, "repairs": [], "is_searching": False, "stale": "", "used": -1}})
    expect(search.get_by_role("button", name="Search")).to_be_disabled()
    expect(search).to_contain_text(why)
    repair = {"label": "Keep nothing in PyTorch", "action": "one_graph", "value": "", "again": ""}
    give(
        page, {"search_now": {"unavailable": why, "repairs": [repair], "is_searching": False, "stale": "", "used": -1}}
    )
    search.get_by_role("button", name="Keep nothing in PyTorch").click()
    assert sent(page) == [{"action": "repair", "how": "one_graph", "value": "", "again": ""}]


def test_the_chart_fills_while_it_goes_on(page: Page, search: Locator) -> None:
    give(page, fake_search.going(1))
    points = search.locator("[data-point]")
    expect(points).to_have_count(1)
    expect(search.locator("p[role=status]")).to_contain_text("1 candidate measured so far")
    expect(search.get_by_role("button", name="Search")).to_be_disabled()
    search.get_by_role("button", name="float", exact=True).focus()
    give(page, fake_search.going(3))
    expect(points).to_have_count(3)
    expect(search.get_by_role("button", name="float", exact=True)).to_be_focused()
    expect(search.get_by_role("slider")).to_be_hidden()


def test_the_slider_picks_without_measuring(page: Page, search: Locator) -> None:
    give(page, fake_search.done())
    slider, chosen = search.get_by_role("slider"), search.get_by_role("group", name="Chosen settings")
    best = f"The fastest is mixture 1 (measured).{fake_search.BESIDE}"
    expect(slider).to_have_attribute("aria-valuetext", f"0.01: {best}")
    expect(chosen).to_contain_text("in float: 3 of 8")
    slider.focus()
    slider.press("ArrowRight")
    expect(chosen).to_contain_text("mixture 2")
    expect(search.locator(".pbb-point title")).to_contain_text("mixture 2")
    expect(search.get_by_role("row", name="mixture 2")).to_have_attribute("data-shown", "true")
    slider.press("End")
    expect(chosen).to_contain_text("int8")
    assert not sent(page), "nothing is asked of Python"
    chosen.get_by_role("button", name="Use these settings").click()
    used = fake_search.done()["search"]["found"][1]
    assert sent(page) == [{"action": "use_candidate", "id": used["id"]}]
    give(page, {"search_now": fake_search.done(used=1)["search_now"]})
    expect(chosen.get_by_role("button", name="These are the settings of now")).to_be_disabled()
    expect(slider).to_have_value("6")


def test_a_point_and_a_row_can_be_picked(page: Page, search: Locator) -> None:
    give(page, fake_search.done())
    chosen = search.get_by_role("group", name="Chosen settings")
    search.locator("[data-point='0']").click()
    expect(chosen).to_contain_text("float")
    search.get_by_role("button", name="predicted 2").press("Enter")
    expect(chosen).to_contain_text("predicted 2 ONNX Runtime, predicted")
    search.get_by_role("slider").press("ArrowLeft")
    expect(chosen).to_contain_text("mixture 1")


def test_what_is_old_is_said(page: Page, search: Locator) -> None:
    give(page, fake_search.done(stale="the target was OpenVINO"))
    expect(search.get_by_role("status").filter(has_text="Old")).to_contain_text("the target was OpenVINO")


@pytest.mark.parametrize("width", [1100, 700, 550])
def test_it_fits(page: Page, search: Locator, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    give(page, fake_search.done())
    box, panel = search.bounding_box(), page.get_by_role("tabpanel").bounding_box()
    assert box
    assert panel
    assert search.evaluate("e => e.scrollWidth <= e.clientWidth")
    assert box["x"] + box["width"] <= panel["x"] + panel["width"]


def test_names_of_layers_are_text(page: Page, search: Locator) -> None:
    changes = fake_search.done()
    evil = "<img src=x onerror=window.harmed=1>"
    changes["search"]["found"][2] |= {"name": evil, "kept": evil}
    changes["search"]["chart"]["points"][2] |= {"name": evil, "label": evil}
    give(page, changes)
    expect(search).to_contain_text("onerror")
    assert not page.evaluate("() => window.harmed")
