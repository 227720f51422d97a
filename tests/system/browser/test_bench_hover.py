"""What the pointer is over in the table is shown in the diagram, and the other way round; nothing is chosen by that."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from prepbench.views.page import page as diagram_page
from tests.system.browser.diagrams import net_document
from tests.system.browser.fake_bench import open_bench, sent, traits, turn_to

pytestmark = pytest.mark.timeout(120)

TELL = """name => document.querySelector('.picture').dispatchEvent(
  new CustomEvent('pb-hovered', {detail: name, bubbles: true}))"""
ASK = "names => document.querySelector('.pbd').dispatchEvent(new CustomEvent('pb-preview', {detail: names}))"


def test_the_table_and_the_diagram_tell_each_other(page: Page) -> None:
    open_bench(page, traits())
    page.evaluate("""() => {
      window.asked = [];
      const diagram = document.querySelector('.picture');
      diagram.classList.add('pbd');
      diagram.addEventListener('pb-preview', (event) => window.asked.push(event.detail));
    }""")
    turn_to(page, "precision")
    page.get_by_label("Rows").select_option("Single layers")
    rows = page.locator(".pbb-layers tr[data-at]")
    rows.nth(1).hover()
    page.get_by_role("searchbox", name="Filter layers").hover()
    assert page.evaluate("() => window.asked") == [["layers.0.k_proj"], []]
    page.evaluate(TELL, "layers.0.v_proj")
    expect(rows.nth(2)).to_have_class("pbb-preview")
    page.evaluate(TELL, "")
    expect(page.locator(".pbb-preview")).to_have_count(0)
    assert not sent(page)


def test_a_diagram_shows_and_tells_modules(page: Page) -> None:
    page.set_content(diagram_page(net_document()))
    stem = page.locator("g.node[aria-label^='stem']")
    expect(stem).to_be_visible(timeout=30_000)
    page.evaluate("""() => {
      window.told = [];
      document.addEventListener('pb-hovered', (event) => window.told.push(event.detail));
    }""")
    stem.hover()
    page.mouse.move(2, 2)
    assert page.evaluate("() => window.told.filter(name => name === 'stem' || name === '')") == ["stem", ""]
    previewed = page.locator("g.pbd-preview")
    page.evaluate(ASK, ["head"])
    expect(previewed).to_have_count(1)
    expect(previewed).to_have_attribute("aria-label", "head, Linear, B×2")
    expect(previewed).to_have_attribute("aria-selected", "false")
    page.evaluate(ASK, [])
    expect(previewed).to_have_count(0)
