"""What axe-core finds in a page."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from playwright.sync_api import Page

_SCRIPT = Path(__file__).parents[3] / "extension" / "node_modules" / "axe-core" / "axe.min.js"
_RUN = """async (place) => {
  const found = await axe.run(place ?? document, {resultTypes: ['violations']});
  return found.violations.filter(({impact}) => impact === 'serious' || impact === 'critical')
    .flatMap(({id, help, nodes}) => nodes.map(node => ({
      rule: id, help, where: node.target.join(' '), element: node.html.slice(0, 200), why: node.failureSummary,
    })));
}"""


@cache
def _script() -> str:
    assert _SCRIPT.exists(), "axe-core is not installed: make extension/node_modules/.installed"
    return _SCRIPT.read_text()


def violations(page: Page, place: str | None = None) -> list[dict[str, Any]]:
    """The serious and critical violations in a page, or in the part of it that a selector names."""
    if not page.evaluate("() => 'axe' in window"):
        page.evaluate(_script())
    found: list[dict[str, Any]] = page.evaluate(_RUN, place)
    return found
