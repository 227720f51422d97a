"""The bench for everybody: axe-core in every state and page, the keyboard alone, zoomed pages."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from prepbench.views.bench_page import bench_html, report_page
from prepbench.views.page import page as diagram_page
from tests.compile.views.benches import GRAPH, shown
from tests.system.browser.axe import violations
from tests.system.browser.bench_states import STATES
from tests.system.browser.diagrams import net_document
from tests.system.browser.fake_bench import open_bench, sent, traits
from tests.turns import every_second, in_turns

pytestmark = pytest.mark.timeout(180)

ZOOMED = [(550, 450), (720, 450), (800, 900)]
"""The first two are windows of 1100 and 1440 pixels at 200 %."""
CUT_OFF = """() => {
  const scrolls = (e) => e && (/auto|scroll/.test(getComputedStyle(e).overflowX) || scrolls(e.parentElement));
  const name = (e) => `${e.tagName} ${e.className} ${(e.ariaLabel ?? e.textContent).slice(0, 60)}`;
  return [...document.querySelectorAll('.pbb :is(button, input, select, summary, label, p, h4, li, th, td)')]
    .filter(e => e.checkVisibility({visibilityProperty: true}))
    .filter(e => {
      const r = e.getBoundingClientRect();
      if (!scrolls(e.parentElement) && (r.right > innerWidth + 1 || r.left < -1)) return true;
      const style = getComputedStyle(e);
      const shortened = style.textOverflow === 'ellipsis' && (e.title || e.closest('[title]'));
      return style.overflowX === 'hidden' && e.scrollWidth > e.clientWidth + 1 && !shortened;
    }).map(name);
}"""
UNSEEN = """() => {
  const stops = [...document.querySelectorAll('.pbb :is(button, input, select, summary, [tabindex])')]
    .filter(e => e.tabIndex >= 0 && !e.disabled && e.checkVisibility({visibilityProperty: true}));
  return stops.filter(e => {
    e.focus();
    if (document.activeElement !== e) return true;
    const r = e.getBoundingClientRect();
    const [top, bottom] = [Math.max(r.top, 0), Math.min(r.bottom, innerHeight)];
    const [left, right] = [Math.max(r.left, 0), Math.min(r.right, innerWidth)];
    if (bottom - top < Math.min(8, r.height) || right - left < Math.min(8, r.width)) return true;
    const at = document.elementFromPoint((left + right) / 2, (top + bottom) / 2);
    return !(e === at || e.contains(at) || at?.closest('label')?.contains(e));
  }).map(e => e.outerHTML.slice(0, 120));
}"""


@pytest.mark.parametrize(("width", "dark"), every_second({"wide": 1440, "narrow": 700}, {"light": False, "dark": True}))
def test_axe_finds_nothing_serious_in_any_state(page: Page, width: int, dark: bool) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    found = []
    for state in STATES:
        state.show(page, dark=dark)
        found += [(state.name, each) for each in violations(page, ".pbb-box")]
    assert not found


PAGES: dict[str, Callable[[], str]] = {
    "report": lambda: report_page(shown(), GRAPH, "22 Nov 2026"),
    "without a kernel": lambda: f"<!doctype html><title>x</title><main>{bench_html(shown(), GRAPH)}</main>",
    "diagram": lambda: diagram_page(net_document()),
}


@pytest.mark.parametrize("name", PAGES)
def test_axe_finds_nothing_serious_in_pages_without_a_kernel(page: Page, name: str) -> None:
    text = PAGES[name]()
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        page.set_content(text)
        page.evaluate("() => { document.documentElement.lang ||= 'en'; }")
        if name != "without a kernel":
            expect(page.locator("g.node").first).to_be_visible(timeout=30_000)
            page.locator("g.node.failed").first.click()
            expect(page.locator(".pbd-side")).to_contain_text("What to do")
        assert not violations(page), scheme


@pytest.mark.parametrize("size", in_turns(ZOOMED, 0, len(ZOOMED)))
def test_zoomed_pages_show_everything(page: Page, size: tuple[int, int]) -> None:
    width, height = size
    page.set_viewport_size({"width": width, "height": height})
    for state in STATES:
        state.show(page)
        assert page.evaluate("() => document.documentElement.scrollWidth - innerWidth") <= 0, state.name
        assert not page.evaluate(CUT_OFF), state.name
        page.keyboard.press("Tab")  # from here on the focus moves by key
        assert not page.evaluate(UNSEEN), state.name


class Keys:
    """Somebody who has no mouse."""

    def __init__(self, page: Page) -> None:
        self._page = page

    def to(self, name: str, most: int = 60) -> None:
        """Press Tab until the control of this name has the focus."""
        for _ in range(most):
            self._page.keyboard.press("Tab")
            if self.name().startswith(name):
                return
        raise AssertionError(f"Tab does not come to {name!r}, but to {self.name()!r}")

    def press(self, *keys: str) -> None:
        for key in keys:
            self._page.keyboard.press(key)

    def name(self) -> str:
        """What the focused control is called."""
        name: str = self._page.evaluate(
            """() => { const e = document.activeElement;
              return e.ariaLabel ?? (e.labels?.[0] ?? e).textContent.trim(); }"""
        )
        return name


def test_everything_can_be_done_without_a_mouse(page: Page) -> None:
    page.set_viewport_size({"width": 1440, "height": 900})
    given = traits()
    open_bench(page, given)
    keys = Keys(page)
    keys.to("Capture, 2 fail")
    keys.to("Apply fix to router")
    keys.press("Enter")
    keys.to("Keep what fails in PyTorch")
    keys.press("Space")
    page.keyboard.press("Shift+Tab")
    page.locator("[data-step='capture']").focus()
    keys.press("ArrowRight")
    keys.to("ids dim 0: B")
    keys.press("Space")
    keys.to("Name and range of ids dim 0")
    keys.press("Enter")
    assert keys.name() == "Name of ids dim 0"
    page.keyboard.type("rows")
    keys.press("Enter")
    page.locator("[data-step='axes']").focus()
    keys.press("ArrowRight")
    keys.to("Filter layers")
    page.keyboard.type("_proj")
    keys.press("ArrowDown", "ArrowDown", "Shift+ArrowDown", "Enter")
    assert keys.name() == "int8"
    keys.press("ArrowRight")
    keys.to("layers.*.v_proj")
    keys.press("Escape")
    expect(page.get_by_role("textbox", name="Selected layers")).to_have_value("*_proj*")  # what is typed
    page.locator("[data-step='precision']").focus()
    keys.press("ArrowRight")
    keys.to("Steps at most")
    page.locator("[data-step='recover']").focus()
    keys.press("ArrowRight")
    keys.to("OpenVINO")
    keys.press("Space")
    keys.to("Compile")
    keys.press("Enter")
    keys.to("Log")
    keys.press("Enter")
    keys.to("Log of the runs")
    page.locator("[data-step='run']").focus()
    keys.press("ArrowRight")
    keys.to("Save bench")
    keys.press("Enter")
    keys.press("Control+z")
    keys.to("The same in Python")
    keys.press("Enter")
    keys.to("Copy")
    keys.to("Python code")
    asked = [
        (each["action"], *[each[key] for key in ("precision", "fqn", "name") if key in each]) for each in sent(page)
    ]
    assert [each for each in asked if each[0] != "select"] == [
        ("apply_fix", "router"), ("set_leaf_wrap",), ("set_axis",), ("name_axis", "rows"),
        ("set_precision", "int8 weights"), ("set_target",), ("compile",), ("save",), ("undo",),
    ]  # fmt: skip
