"""What tests measure of diagrams and of the bench in a page."""

from __future__ import annotations

from playwright.sync_api import Locator, expect


def turn_to(bench: Locator, step: str) -> None:
    """Show one of the bench's steps; one click has to be enough."""
    tab = bench.locator(f"[data-step='{step}']")
    tab.click()
    expect(tab).to_have_attribute("aria-selected", "true")


def inside(inner: Locator, outer: Locator) -> bool:
    """Whether an element lies in the visible area of another."""
    a, b = inner.bounding_box(), outer.bounding_box()
    assert a
    assert b
    near = 1.0
    return (
        a["x"] >= b["x"] - near
        and a["y"] >= b["y"] - near
        and a["x"] + a["width"] <= b["x"] + b["width"] + near
        and a["y"] + a["height"] <= b["y"] + b["height"] + near
    )


def covered_by_map(view: Locator) -> list[str]:
    """Boxes that the small map lies over."""
    names: list[str] = view.evaluate(
        """e => {
          const map = e.querySelector('.pbd-map').getBoundingClientRect();
          if (!map.width) return [];
          const canvas = e.querySelector('.pbd-canvas').getBoundingClientRect();
          return [...e.querySelectorAll('g.node')].filter(node => {
            const r = node.getBoundingClientRect();
            const [right, bottom] = [Math.min(r.right, canvas.right), Math.min(r.bottom, canvas.bottom)];
            return r.left < map.right && right > map.left && r.top < map.bottom && bottom > map.top;
          }).map(node => node.getAttribute('aria-label'));
        }"""
    )
    return names


def smallest_text(view: Locator) -> float:
    """Pixels of the smallest text in the picture."""
    size: float = view.evaluate(
        """e => Math.min(...[...e.querySelectorAll('.pb-diagram text')].map(
            t => Number(t.getAttribute('font-size')) * t.getScreenCTM().a))"""
    )
    return size


def contrast(element: Locator) -> float:
    """Of an element's text with its own background, as WCAG 2 defines it."""
    ratio: float = element.evaluate(
        """e => {
          const style = getComputedStyle(e);
          const [text, ground] = [style.color, style.backgroundColor].map(colour => {
            const [r, g, b] = colour.match(/[\\d.]+/g).slice(0, 3).map(Number).map(part => part / 255)
              .map(part => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
            return 0.2126 * r + 0.7152 * g + 0.0722 * b;
          });
          return (Math.max(text, ground) + 0.05) / (Math.min(text, ground) + 0.05);
        }"""
    )
    return ratio


def broken_labels(view: Locator) -> list[str]:
    """Labels in the details that are broken into lines."""
    broken: list[str] = view.evaluate(
        """e => [...e.querySelectorAll('.pbd-side dt')].filter(
            t => t.getBoundingClientRect().height > 1.6 * parseFloat(getComputedStyle(t).lineHeight)
        ).map(t => t.textContent)"""
    )
    return broken
