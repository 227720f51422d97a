"""The first time on a bench: three questions, then one primary button a step, up to what a search found."""

from __future__ import annotations

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.system.browser import fake_search
from tests.system.browser.axe import violations
from tests.system.browser.fake_bench import after_run, captured, card, give, open_bench, run, sent, traits, turn_to

pytestmark = [pytest.mark.browser, pytest.mark.timeout(120)]
QUESTION = "Where will it run, and what may it cost?"


def guide(page: Page) -> Locator:
    return page.get_by_role("region", name="First time")


def primaries(page: Page) -> list[str]:
    return guide(page).locator(".pbb-primary:visible").all_text_contents()


def test_it_asks_where_and_what_it_may_cost_with_one_primary_button(page: Page) -> None:
    open_bench(page, captured())
    expect(guide(page)).to_contain_text(QUESTION)
    assert primaries(page) == ["Find the best"]
    targets = page.get_by_role("group", name="Where it will run").locator("label")
    lacking = ["not here" in text for text in targets.all_text_contents()]
    assert lacking == sorted(lacking), "targets that run here come first"
    page.get_by_role("group", name="Where it will run").get_by_label("OpenVINO").click()
    assert next(each for each in sent(page) if each["action"] == "set_target")["target"] == "OpenVINO"
    assert violations(page, ".pbb-guide") == []


def test_the_answers_are_the_limits_of_the_search(page: Page) -> None:
    open_bench(page, captured())
    guide(page).get_by_role("button", name="Find the best").click()
    bounds = ("minimize", "loss", "latency", "size")
    [asked] = [each for each in sent(page) if each["action"] == "search"]
    assert [asked[name] for name in bounds] == ["latency", "0.01", "", ""]
    page.get_by_label("Time of a call at most, in ms").fill("2,5")
    expect(guide(page).get_by_text("Finds the smallest settings")).to_be_visible()
    page.get_by_label("Size at most, in MB").fill("1")
    expect(guide(page).get_by_text("Finds the most exact settings")).to_be_visible()
    page.get_by_label("Size at most, in MB").press("Enter")
    [asked] = [each for each in sent(page) if each["action"] == "search"]
    assert [asked[name] for name in bounds] == ["drop", "", "2,5", "1"]


def test_each_step_has_one_primary_button_up_to_a_run(page: Page) -> None:
    open_bench(page, traits(2))
    expect(guide(page)).to_be_hidden()  # failures come first, and their cards have buttons
    give(page, {"failures": [], "steps": captured()["steps"]})
    expect(guide(page)).to_contain_text("1 of 3")
    assert primaries(page) == ["Find the best"]
    give(page, fake_search.going())
    expect(guide(page)).to_contain_text("Searching within these limits.")
    assert primaries(page) == ["See the search"]
    guide(page).get_by_role("button", name="See the search").click()
    expect(page.get_by_role("region", name="Best settings within a budget")).to_be_in_viewport()
    expect(guide(page)).to_be_hidden()  # the step itself has the same buttons
    turn_to(page, "precision")
    give(page, {**fake_search.done(), "running": False, "about": "", "stage": ""})
    expect(guide(page)).to_contain_text("Best: mixture 1 on ")
    expect(guide(page)).to_contain_text("Measured beside it: int8 0.8780")
    expect(guide(page).get_by_role("button", name="See the search")).to_be_visible()
    assert primaries(page) == ["Use these settings"]
    guide(page).get_by_role("button", name="Use these settings").click()
    [asked] = sent(page)
    chosen = fake_search.done()["search"]
    assert (asked["action"], asked["id"]) == (
        "use_candidate",
        chosen["found"][chosen["stops"][chosen["stop"]]["best"]]["id"],
    )
    give(page, {"search_now": {**fake_search.done()["search_now"], "used": 2}})
    assert primaries(page) == ["Compile"]
    guide(page).get_by_role("button", name="Compile").click()
    assert [each["action"] for each in sent(page)] == ["compile"]
    give(page, {"runs": [run(0)]})
    expect(guide(page)).to_be_hidden()  # these are another page's


def test_the_first_result_is_where_the_click_was(page: Page) -> None:
    ready = {**captured(), **fake_search.done()}
    open_bench(page, {**ready, "search_now": {**ready["search_now"], "used": 2}})
    turn_to(page, "precision")
    guide(page).get_by_role("button", name="Compile").click()
    give(page, {"running": True, "about": "compile", "stage": "Choosing scales", "message": card("info", "")})
    expect(guide(page).get_by_role("progressbar")).to_be_visible()
    expect(guide(page).get_by_text("Choosing scales")).to_be_visible()
    expect(page.get_by_text("Choosing scales")).to_have_count(1)  # and not in the foot as well
    ended = after_run(traits(2))
    give(page, {"running": False, "runs": [run(0)], "message": ended["message"]})
    told = guide(page).get_by_text("mixed int8 ONNX Runtime is ready.")
    expect(told).to_be_in_viewport()
    expect(guide(page).get_by_role("progressbar")).to_be_hidden()
    turn_to(page, "run")
    expect(page.get_by_text("mixed int8 ONNX Runtime is ready.").locator("visible=true")).to_have_count(1)
    turn_to(page, "precision")
    guide(page).get_by_role("button", name="See").click()
    expect(page.get_by_role("tab", name="Results")).to_have_attribute("aria-selected", "true")
    expect(guide(page)).to_be_hidden()


def test_without_a_search_a_compile_leads_on(page: Page) -> None:
    given = captured()
    open_bench(page, {**given, "search_now": {**given["search_now"], "unavailable": "there is no data"}})
    assert primaries(page) == ["Compile"]
    expect(guide(page)).to_contain_text("No search: there is no data")
    for label in ("Quality at least, in dB", "Size at most, in MB"):
        expect(page.get_by_label(label)).to_be_hidden()
    expect(guide(page).get_by_text("settings within these limits")).to_be_hidden()


def test_it_stays_dismissed_and_the_steps_stay_free(page: Page) -> None:
    page.route("http://bench.test/", lambda route: route.fulfill(body="<title>bench</title>", content_type="text/html"))
    page.goto("http://bench.test/")  # a page with a storage
    open_bench(page, captured())
    for step in ("capture", "axes", "precision"):
        turn_to(page, step)
        expect(guide(page)).to_be_visible()
    page.get_by_label("Size at most, in MB").focus()
    button = page.get_by_role("button", name="Dismiss the guided path")
    button.focus()
    page.keyboard.press("Enter")
    expect(guide(page)).to_be_hidden()
    assert page.evaluate("() => document.activeElement.getAttribute('role')") == "tabpanel", "the focus stays near"
    give(page, {"running": True})
    give(page, {"running": False})
    expect(guide(page)).to_be_hidden()
    open_bench(page, captured())
    expect(page.get_by_role("tablist", name="Steps")).to_be_visible()
    expect(guide(page)).to_be_hidden()
    back = page.get_by_role("button", name="Guide", exact=True)
    back.click()
    expect(guide(page)).to_be_visible()
    assert guide(page).evaluate("e => e.contains(document.activeElement)")
    expect(back).to_be_hidden()
    open_bench(page, captured())
    expect(guide(page)).to_be_visible()


def test_answers_are_in_view_below_it(page: Page) -> None:
    page.set_viewport_size({"width": 1440, "height": 900})
    open_bench(page, captured())
    assert guide(page).evaluate("e => e.offsetHeight") < 300
    give(page, fake_search.going())
    assert guide(page).evaluate("e => e.offsetHeight") < 130, "a line and its progress while something goes on"
    for width in (1440, 800):
        page.set_viewport_size({"width": width, "height": 900})
        assert guide(page).evaluate("e => e.scrollWidth <= e.clientWidth")
