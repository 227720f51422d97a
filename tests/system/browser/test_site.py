"""The site of the documentation: it builds without a warning, its links lead somewhere, and it is live from files."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

import prepbench as pb
from docs.tools import errors, gallery, links, reference
from prepbench.errors import page_of

ROOT = Path(__file__).parents[3]
QUESTIONS = {
    "How do I install and start it?": ("start.html", "two-commands"),
    "What is the shortest program?": ("start.html", "ten-lines"),
    "My model has an if on data: what now?": ("guides/if-on-data.html", "change-it-yourself"),
    "Why is my layer in float?": ("guides/layer-in-float.html", "why-is-my-layer-in-float"),
    "How do I keep one layer in float?": ("guides/layer-in-float.html", "keep-one-layer-in-float"),
    "Why is int8 slower?": ("guides/int8-slower.html", "why-is-int8-slower"),
    "Which sizes may change?": ("guides/dynamic-sizes.html", "is-that-true"),
    "What is a leaf?": ("concepts.html", "leaves"),
    "What does QuantizationSettings take?": ("reference/QuantizationSettings.html", "prepbench.QuantizationSettings"),
    "What is 'item() / Python number from a tensor'?": ("errors.html", "item-python-number-from-a-tensor"),
    "How do I prune, and train it back?": ("guides/prune.html", "train-back-what-it-cost"),
    "How do 4 bits work for a language model?": ("guides/four-bits.html", ""),
    "How do I fail in CI when a model breaks?": ("command-line.html", "in-github-actions"),
    "What does clika_compile become?": ("guides/coming-from.html", "clika-ace"),
    "Can I see a finished example with its results?": ("tutorials/01_quickstart.html", ""),
}
"""What a newcomer asks, and where it is answered."""


def _cpu_seconds() -> float:
    """What finished processes of this one took."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site."""
    folder = tmp_path_factory.mktemp("docs")
    before = _cpu_seconds()
    command = [sys.executable, "-m", "docs.tools.build", "--folder", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert _cpu_seconds() - before < 180  # of the processor, so that other work on the machine does not count
    return folder / "html"


def test_the_site_is_small(site: Path) -> None:
    assert sum(file.stat().st_size for file in site.rglob("*") if file.is_file()) < 60e6
    sizes = {name: (site / "gallery" / f"{name}.html").stat().st_size for name in gallery.ENTRIES}
    assert max(sizes.values()) < 300_000, sizes


def test_a_long_table_is_sorted_by_its_headings(site: Path, page: Page) -> None:
    page.goto((site / "board.html").as_uri())
    table = page.locator("article table").first
    speeds = lambda: [float(text[:-1]) for text in table.locator("td:nth-child(8)").all_text_contents() if text]  # noqa: E731
    names = lambda: table.locator("td:first-child").all_text_contents()  # noqa: E731
    printed = names()
    speed = table.get_by_role("button", name="speed")
    speed.click()
    assert speeds() == sorted(speeds())
    assert sorted(names()) == sorted(printed)
    speed.press("Enter")
    assert speeds() == sorted(speeds(), reverse=True)
    assert table.locator("[aria-sort]").all_text_contents() == ["speed"]
    table.get_by_role("button", name="remarks").click()
    filled = [bool(text) for text in table.locator("td:last-child").all_text_contents()]
    assert filled == sorted(filled, reverse=True), "empty cells stay last"


def test_every_link_leads_somewhere(site: Path) -> None:
    assert links.problems(site) == []


def test_a_dead_link_would_be_found(tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text('<a href="a.html#b">a</a><a href="no.html">no</a><script src="//x/y.js">')
    (tmp_path / "a.html").write_text('<p id="c"></p>')
    found = links.problems(tmp_path)
    assert [text.partition(": ")[2] for text in found] == [
        "a.html#b leads to no anchor", "no.html leads to no page", "//x/y.js would be loaded from elsewhere",
    ]  # fmt: skip


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_newcomer_is_answered_in_three_clicks(site: Path, question: str) -> None:
    page, anchor = QUESTIONS[question]
    assert links.clicks(site, "index.html", 3).get(page, 99) <= 3
    assert not anchor or anchor in links.read(site)[page].ids


def test_every_name_error_and_kind_has_a_place(site: Path) -> None:
    pages = links.read(site)
    for group in reference.GROUPS.values():
        for name in group.split():
            assert f"reference/{reference.page_name(name)}.html" in pages
    named = [*errors.kinds(), *(error.__name__ for error in errors.classes())]
    for name in named:
        page, _, anchor = page_of(name).partition("#")
        assert anchor in pages[page].ids, name


class Watched:
    """What a page asks for and complains about."""

    def __init__(self, page: Page) -> None:
        self.requests: list[str] = []
        self.complaints: list[str] = []
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("console", lambda message: message.type == "error" and self.complaints.append(message.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))

    def check(self) -> None:
        assert self.complaints == []
        outside = [url for url in self.requests if not url.startswith(("file:", "blob:", "data:"))]
        assert outside == []


def _open(page: Page, site: Path, name: str) -> Watched:
    watched = Watched(page)
    file, _, query = name.partition("?")
    page.goto(f"{(site / file).as_uri()}?{query}")
    return watched


def test_the_first_page_is_light(page: Page, site: Path) -> None:
    watched = _open(page, site, "index.html")
    page.wait_for_load_state("networkidle")
    files = {Path(url.partition("?")[0].removeprefix("file://")) for url in watched.requests if url.startswith("file:")}
    assert sum(file.stat().st_size for file in files) < 1e6
    watched.check()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_page_of_the_gallery_is_live_in_both_themes(browser: Browser, site: Path, scheme: Any) -> None:
    page = browser.new_page(color_scheme=scheme, viewport={"width": 1440, "height": 900})
    watched = _open(page, site, "gallery/resnet50.html")
    page.locator(".pb-live[data-drawn] .pbd svg g.node").first.wait_for(timeout=60_000)
    boxes = page.locator(".pbd svg g.node").count()
    page.locator(".pbd svg .pbd-handle").first.click()
    page.wait_for_function("count => document.querySelectorAll('.pbd svg g.node').length !== count", arg=boxes)
    watched.check()
    for theme in ("light", "dark"):
        page.evaluate("theme => { document.body.dataset.theme = theme; }", theme)
        shown = page.evaluate("() => getComputedStyle(document.querySelector('.pbd')).colorScheme")
        assert shown == theme
    page.close()


def test_a_tutorial_has_live_diagrams_and_charts(page: Page, site: Path) -> None:
    watched = _open(page, site, "tutorials/01_quickstart.html")
    for element in page.locator(".pb-live, .pb-chart").all():
        element.scroll_into_view_if_needed()
        element.locator("xpath=self::*[@data-drawn]").wait_for(timeout=60_000)
    assert page.locator(".pb-live .pbd svg").count() >= 4
    assert page.locator(".js-plotly-plot .main-svg").count() >= 1
    assert page.evaluate("() => document.documentElement.scrollWidth <= innerWidth")
    watched.check()


def test_search_finds_compile_model(page: Page, site: Path) -> None:
    watched = _open(page, site, "search.html?q=compile_model")
    found = page.locator("#search-results ul.search a")
    found.first.wait_for(timeout=30_000)
    assert any("reference/compile_model.html" in (link.get_attribute("href") or "") for link in found.all()[:5])
    watched.check()


def test_search_finds_every_public_name(page: Page, site: Path) -> None:
    """The page of a name is among the first ten that a search for it finds."""
    _open(page, site, "search.html")
    page.wait_for_function("() => typeof Search !== 'undefined' && Search.hasIndex()")
    found = page.evaluate(
        "names => names.map(name => Search._performSearch(...Search._parseQuery(name)).slice(-10).map(one => one[0]))",
        pb.__all__,
    )
    missing = [
        name
        for name, pages in zip(pb.__all__, found, strict=True)
        if f"reference/{reference.page_name(name)}" not in pages
    ]
    assert missing == []


@pytest.mark.parametrize(
    "name", ["index", "start", "reference/index", "reference/QuantizationSettings", "errors", "figures", "guides/prune"]
)
def test_pages_fit_a_phone(page: Page, site: Path, name: str) -> None:
    """Tables and code scroll, pages do not, and names in tables are on one line."""
    page.set_viewport_size({"width": 400, "height": 800})
    _open(page, site, f"{name}.html")
    assert page.evaluate("() => document.documentElement.scrollWidth <= innerWidth")
    names = page.locator("table.docutils td:first-child code")
    assert all(len(text) < 2 for text in names.evaluate_all("all => all.map(one => [...one.getClientRects()])"))
