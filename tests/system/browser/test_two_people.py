"""Two people in one notebook, with jupyter-collaboration where it is there: who has it open, and who opens it later."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from tests.system.browser.lab import READY, Lab, watch
from tests.system.browser.measures import turn_to
from tests.system.browser.notebooks import open_notebook, run_cell

pytest.importorskip("jupyter_collaboration", reason="not installed: jupyter-collaboration")
pytestmark = pytest.mark.timeout(600)

MODEL = """
import torch, prepbench as pb
net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2)).eval()
samples = [torch.ones(2, 4), torch.ones(3, 4)]
"""
DISPLAYS = ["pb.recursive_trace(net, inputs=samples).diagram()", "pb.Bench(net, calibration_inputs=samples)"]
NAME = "together"
READABLE = """(number) => {
  const names = [...document.querySelectorAll('.jp-Cell')[number].querySelectorAll('.pbd g.node text')];
  return names.length && names.every(name => name.getBoundingClientRect().height >= 9);
}"""


@pytest.fixture
def desks(browser: Browser) -> Iterator[list[Page]]:
    """The pages of two people, each in a browser of their own."""
    contexts = [browser.new_context(viewport={"width": 1400, "height": 1000}) for _ in range(2)]
    yield [context.new_page() for context in contexts]
    for context in contexts:
        context.close()


def problems_of(page: Page, lab: Lab) -> list[str]:
    """Errors of the page and of its console."""
    problems, outside = watch(page, lab.url)
    page.on("console", lambda said: problems.append(f"{said.text} {said.location}") if said.type == "error" else None)
    page.on("close", lambda _: problems.extend(outside))
    return problems


def join(page: Page, lab: Lab) -> None:
    page.goto(f"{lab.url}/lab/tree/{NAME}.ipynb?reset")
    page.wait_for_function(READY, timeout=90_000)


def diagram_of(page: Page) -> Locator:
    return page.locator(".jp-Cell").nth(1).locator(".pbd")


def bench_of(page: Page) -> Locator:
    return page.locator(".jp-Cell").nth(2).locator(".pbb-box")


def expect_readable(page: Page) -> None:
    """Both displays are drawn, live or as they were saved, and nothing says that it failed."""
    for number in (1, 2):
        page.wait_for_function(READABLE, arg=number, timeout=60_000)
    expect(page.get_by_text("Error displaying widget").filter(visible=True)).to_have_count(0)


def test_who_had_it_open_and_who_comes_later_see_and_use_the_same(desks: list[Page], lab: Any) -> None:
    first, second = desks
    problems = [problems_of(page, lab) for page in desks]
    open_notebook(first, lab, NAME, [MODEL, *DISPLAYS])
    run_cell(first, 0)
    join(second, lab)  # before anything is shown
    for number in (1, 2):
        run_cell(first, number)
    for page in desks:
        expect_readable(page)
    second.reload()  # as one who opens it after
    second.wait_for_function(READY, timeout=90_000)
    expect_readable(second)
    for page in desks:
        expect(bench_of(page)).to_be_visible(timeout=60_000)
        turn_to(bench_of(page), "precision")
    bench_of(first).locator("tr[data-at='0']").click()
    bench_of(first).get_by_role("radio", name="float").click()
    for page in desks:
        expect(bench_of(page).locator(".pbb-sentence")).to_contain_text("1 float")
    diagram_of(second).locator("g.node").nth(1).click()
    bench_of(second).locator("tr[data-at='1']").click()
    bench_of(second).get_by_role("radio", name="float").click()
    for page in desks:
        expect(bench_of(page).locator(".pbb-sentence")).to_contain_text("2 float")
        expect_readable(page)
    second.close()
    bench_of(first).get_by_role("radio", name="int8", exact=True).click()
    expect(bench_of(first).locator(".pbb-sentence")).not_to_contain_text("2 float")
    assert problems == [[], []]
