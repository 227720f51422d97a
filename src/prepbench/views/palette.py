"""Every colour of the diagrams, by meaning, for light and dark pages.

Outline, shape and badge tell the capture status; they were chosen so that any two states differ by at least 15
(CIEDE2000) in normal
vision and in simulations of protanopia, deuteranopia and tritanopia, with a contrast of at least 3 to the page. A
test computes it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Shade:
    """One meaning's colour on light and on dark pages."""

    light: str
    dark: str


@dataclass(frozen=True)
class Mark:
    """How a status is drawn: never by colour alone."""

    outline: Shade
    width: float
    shape: str
    style: str
    glyph: str
    word: str


PAGE = Shade("#ffffff", "#111111")
TEXT = Shade("#0b1220", "#f3f4f6")
DIM = Shade("#56606b", "#a9b1ba")
EDGE = Shade("#8b939c", "#7c848d")
CARD = Shade("#f4f6f8", "#2a2f36")
CLUSTER = Shade("#fafbfc", "#191c20")
CLUSTER_LINE = Shade("#c3cad2", "#474e57")

STATUS = {
    "traced": Mark(Shade("#767a80", "#7c7f86"), 1.0, "box", "rounded,filled", "●", "traced"),
    "failed": Mark(Shade("#e04f00", "#ff5a36"), 3.0, "octagon", "filled", "✕", "failed"),
    "leaf": Mark(Shade("#6b0f69", "#efc4ea"), 2.5, "component", "filled", "▣", "leaf-wrapped"),
    "unvisited": Mark(Shade("#767a80", "#7c7f86"), 1.5, "box", "dashed,filled", "∅", "unvisited"),
}
