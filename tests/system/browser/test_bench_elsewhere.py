"""Runs from elsewhere on the bench's page: where they ran, what can be done with them, the switch, a file."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from tests.system.browser.fake_bench import after_run, elsewhere, give, open_bench, sent, traits, turn_to

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def results(page: Page) -> Page:
    page.set_viewport_size({"width": 1100, "height": 900})
    given = traits()
    open_bench(page, given)
    turn_to(page, "results")
    give(page, after_run(given, runs=4))
    return page


def test_where_runs_ran_is_a_column_once_it_differs(results: Page) -> None:
    head = results.get_by_role("columnheader", name="Where")
    expect(head).to_have_count(0)
    give(results, elsewhere(traits()))
    expect(head).to_be_visible()
    row = results.locator("tr[data-run='r1']")
    expect(row).to_contain_text("gpu-box · train.ipynb")
    expect(row).to_have_attribute("data-far", "true")
    expect(results.locator("tr[data-run='r0']")).to_contain_text("here")
    give(results, after_run(traits(), runs=4) | {"elsewhere": {"count": 3, "shown": False, "path": ""}})
    expect(head).to_have_count(0)
    expect(results.get_by_role("checkbox", name="From other notebooks (3)")).not_to_be_checked()


def test_what_is_of_a_file_can_only_be_looked_at(results: Page) -> None:
    give(results, elsewhere(traits()))
    row = results.locator("tr[data-run='r3']")
    expect(row).to_contain_text("gpu-box · train.ipynb · file")
    expect(row.get_by_role("button")).to_have_count(0)
    expect(row.get_by_role("checkbox")).to_be_disabled()
    row.get_by_role("cell").nth(3).click()
    assert not sent(results)


def test_the_switch_and_the_file(results: Page) -> None:
    results.get_by_role("checkbox", name="From other notebooks (0)").click()
    assert sent(results) == [{"action": "show_elsewhere", "shown": False}]
    file = results.get_by_role("textbox", name="Results file")
    file.fill("search.sqlite")
    file.press("Enter")
    assert sent(results) == [{"action": "show_results", "path": "search.sqlite"}]
    give(results, elsewhere(traits()))
    results.get_by_role("button", name="Close the file").click()
    assert sent(results) == [{"action": "show_results", "path": ""}]


@pytest.mark.parametrize("width", [1100, 700, 550])
def test_it_fits(results: Page, width: int) -> None:
    results.set_viewport_size({"width": width, "height": 900})
    give(results, elsewhere(traits()))
    line = results.locator(".pbb-elsewhere")
    expect(line).to_be_visible()
    assert line.evaluate("e => e.scrollWidth <= e.clientWidth")
    assert not results.evaluate("() => document.documentElement.scrollWidth > innerWidth")
