"""Where notebooks are read without their kernel: files that were really made there, looked at in Chromium.

What each place shows is a table in the docs, which these tests hold to what they see.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, Playwright, expect

from prepbench.document.model import Failure
from prepbench.strict_pages import for_strict_pages
from prepbench.views.display import _STYLE, failures_html
from tests.system.browser import pdf, voila, vscode
from tests.system.browser.lab import READY, is_local, watch
from tests.system.browser.places import (
    DISPLAYS,
    PLACES,
    SAW,
    converted,
    executed_once,
    not_installed,
    seen,
    seen_in_vscode,
    told,
    write,
)

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def executed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    return executed_once(tmp_path_factory.mktemp("executed"))


# of pages that nbconvert makes, one kept and one sanitized stand for the others in the short form
LIKE_OTHERS = ("`--template classic`", "`--no-input`", "`--to slides`", "`--sanitize-html`")


@pytest.mark.parametrize(
    "place", [pytest.param(place, marks=[pytest.mark.stress] if place in LIKE_OTHERS else []) for place in PLACES]
)
def test_a_file_shows_what_the_guide_says(
    place: str, executed: Callable[[str], Path], browser: Browser, tmp_path: Path
) -> None:
    context = browser.new_context(offline=True, viewport={"width": 1200, "height": 900})
    page = context.new_page()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(f"file://{PLACES[place](executed, tmp_path)}")
    assert seen(page) == told()[place], "python -m tests.system.browser.places --write"
    assert not [url for url in asked if "widgets" in url or "prepbench" in url.lower()], asked
    context.close()


ALIGNED = ":not(.jp-RenderedMarkdown).jp-RenderedHTMLCommon td{text-align:right}"  # as JupyterLab and nbconvert do


@pytest.mark.parametrize("width", [1100, 700])
def test_remedies_stand_whole_under_their_code(page: Page, width: int) -> None:
    code, remedy = f"x = {'longer_name + ' * 12}1", "Compute both sides and choose with torch.where. " * 4
    failure = Failure("blocks.0", "Block", "data-dependent branch", "Unsupported", "message", None, remedy, code)
    page.set_viewport_size({"width": width, "height": 600})
    table = f"{_STYLE}{failures_html((failure,))}"
    page.set_content(f"<style>{ALIGNED}</style><div class='jp-RenderedHTMLCommon'>{for_strict_pages(table)}</div>")
    lines, said = page.locator("pre").first.bounding_box(), page.get_by_text("Remedy:").first.locator("..")
    below = said.bounding_box()
    assert lines is not None
    assert below is not None
    assert below["x"] == lines["x"]
    assert below["y"] >= lines["y"] + lines["height"]
    assert below["x"] + below["width"] <= width
    assert said.evaluate("e => getComputedStyle(e).textAlign") == "left"
    assert page.evaluate("() => document.documentElement.scrollWidth <= innerWidth"), "nothing is cut off"


@pytest.mark.parametrize("place", pdf.TOOLS)
def test_a_pdf_shows_what_the_guide_says(
    place: str, executed: Callable[[str], Path], playwright: Playwright, tmp_path: Path
) -> None:
    if place in not_installed():
        pytest.skip(f"not installed: {not_installed()[place]}")
    notebook = Path(shutil.copy(executed(""), tmp_path))
    path = pdf.made(place, notebook, playwright)
    assert pdf.seen(path, list(DISPLAYS)) == told()[place], "python -m tests.system.browser.places --write"
    assert not pdf.is_black(path)


@pytest.mark.skipif(vscode.PLACE in not_installed(), reason="not installed: code-server")
def test_vs_code_shows_what_the_guide_says(executed: Callable[[str], Path], browser: Browser, tmp_path: Path) -> None:
    shown = seen_in_vscode(browser, executed(""), tmp_path)
    assert shown == told()[vscode.PLACE], "python -m tests.system.browser.places --write"


@pytest.mark.skipif(voila.PLACE in not_installed(), reason="not installed: voila")
def test_voila_serves_live_views_that_answer(page: Page, tmp_path: Path) -> None:
    errors: list[str] = []
    outside: list[str] = []
    with voila.served(write(tmp_path)) as url:
        page.on("pageerror", lambda error: errors.append(f"{error} {error.stack}"))
        page.on("console", lambda said: errors.append(f"{said.text} {said.location}") if said.type == "error" else None)
        page.on("request", lambda asked: None if is_local(asked.url, url) else outside.append(asked.url))
        voila.show(page, url)
        shown = dict(zip(DISPLAYS, page.locator(voila.OUTPUTS).evaluate_all(SAW), strict=True))
        assert shown == told()[voila.PLACE], "python -m tests.system.browser.places --write"
        bench = page.locator(".pbb-box")
        bench.locator("tr[data-at='1']").click()
        bench.get_by_role("radio", name="float").click()
        expect(bench.locator(".pbb-sentence")).to_contain_text("1 float")  # the kernel has answered
        page.locator(".pbd g.node", has_text="head").first.click()
        page.close()
    # its page asks for an icon font, and plotly's own renderer tries to keep a picture of each chart
    assert not [url for url in outside if "fontawesome" not in url], outside
    assert not [error for error in errors if "fontawesome" not in error and "jupyterlab-plotly" not in error], errors


def test_a_notebook_saved_in_jupyterlab_shows_the_same_without_its_kernel(
    page: Page, lab: Any, browser: Browser
) -> None:
    problems, outside = watch(page, lab.url)
    page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    path = write(lab.folder)
    page.goto(f"{lab.url}/lab/tree/{path.name}?reset")
    page.wait_for_function(READY, timeout=90_000)
    page.evaluate("() => window.jupyterapp.commands.execute('notebook:run-all-cells')")
    expect(page.locator(".pbl-bench-output .jupyter-widgets").first).to_be_visible(timeout=120_000)
    expect(page.locator(".pbd svg g.node").last).to_be_visible(timeout=60_000)
    expect(page.get_by_text("No kernel")).to_have_count(0)
    page.evaluate("() => window.jupyterapp.commands.execute('docmanager:save')")
    page.wait_for_timeout(2000)
    saved = json.loads(path.read_text())
    for cell in saved["cells"][2:]:
        assert "application/vnd.jupyter.widget-view+json" not in cell["outputs"][-1]["data"]
    assert "widgets" not in saved["metadata"]
    page.evaluate("() => window.jupyterapp.serviceManager.sessions.shutdownAll()")
    page.reload()
    page.wait_for_function(READY, timeout=90_000)
    notes = page.get_by_text("No kernel has this diagram: it is shown as it was saved.")
    expect(notes).to_have_count(2, timeout=30_000)
    expect(page.get_by_text("Its controls need a kernel")).to_be_visible()
    expect(page.locator(".pbl-bench-output .pbd svg g.node").first).to_be_visible(timeout=60_000)
    table = told()["JupyterLab without the kernel"]
    shown = dict(zip(DISPLAYS, page.locator(".jp-OutputArea-executeResult").evaluate_all(SAW), strict=True))
    charts = {name: table[name] for name in ("comparison", "inspector")}  # of plotly, which have tests of their own
    assert {**shown, **charts} == table
    expect(page.get_by_text("Error displaying widget")).to_have_count(0)
    assert not problems, problems
    assert not outside, outside
    elsewhere = browser.new_context(offline=True, viewport={"width": 1200, "height": 900})
    copy = elsewhere.new_page()
    copy.goto(f"file://{converted(path, '--to', 'html')}")
    assert seen(copy) == told()["`nbconvert --to html`"]
    elsewhere.close()
    page.close()
