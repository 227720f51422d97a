"""Every colour of the front end, by meaning, for light and dark pages.

Outline, shape and badge tell the capture status; they were chosen so that any two states differ by at least 15
(CIEDE2000) in normal vision and in simulations of protanopia, deuteranopia and tritanopia, with a contrast of at least
3 to the page. A test computes it.
"""

from __future__ import annotations

from dataclasses import dataclass

from prepbench.document.model import STATUS_WORDS


@dataclass(frozen=True)
class Shade:
    """A colour for one meaning, on light and on dark pages."""

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
    "traced": Mark(Shade("#767a80", "#7c7f86"), 1.0, "box", "rounded,filled", "●", STATUS_WORDS["traced"]),
    "failed": Mark(Shade("#e04f00", "#ff5a36"), 3.0, "octagon", "filled", "✕", STATUS_WORDS["failed"]),
    "leaf": Mark(Shade("#6b0f69", "#efc4ea"), 2.5, "component", "filled", "▣", STATUS_WORDS["leaf"]),
    "unvisited": Mark(Shade("#767a80", "#7c7f86"), 1.5, "box", "dashed,filled", "∅", STATUS_WORDS["unvisited"]),
}

LINE = Shade("#d5dae0", "#3a4048")
ACCENT = Shade("#1f6feb", "#58a6ff")
BUTTON = Shade("#1f5fa8", "#1f5fa8")
BUTTON_HOVER = Shade("#174b87", "#174b87")
BUTTON_TEXT = Shade("#ffffff", "#ffffff")
ERROR = Shade("#b23c00", "#ff8a6e")
SHADOW = Shade("#00000040", "#00000040")

HIT = Shade("#b58900", "#f0e442")
REUSED = Mark(Shade("#008fe8", "#3c94ff"), 1.5, "box", "rounded,filled", "↻", "reused")

_CHANGE = Shade("#0f5239", "#3df0a6")
CHANGES = {
    "added": Mark(_CHANGE, 2.0, "box", "filled", "+", "added"),
    "changed": Mark(_CHANGE, 2.0, "box", "diagonals,filled", "Δ", "changed"),
    "removed": Mark(_CHANGE, 2.0, "box", "dotted,filled", "−", "removed"),
}


@dataclass(frozen=True)
class Fill:
    """A background and its text, for light and dark pages, and the badge with the same meaning."""

    ground: Shade
    text: Shade
    badge: str = ""


PRECISION = {
    "float32": Fill(CARD, TEXT, "f32"),
    "float16": Fill(Shade("#c9ddf0", "#2e4f70"), TEXT, "f16"),
    "int8": Fill(Shade("#6faedc", "#3f86bd"), Shade("#0b1220", "#0b1220"), "i8"),
    "int4": Fill(Shade("#1f5fa8", "#a9d3f5"), Shade("#ffffff", "#0b1220"), "i4"),
}
"""Fills by precision; one hue whose lightness follows the number of bits."""

_BLACK, _WHITE = Shade("#0b1220", "#0b1220"), Shade("#ffffff", "#ffffff")


def _scale(colours: str, white_on: set[int]) -> tuple[Fill, ...]:
    return tuple(
        Fill(Shade(colour, colour), _WHITE if i in white_on else _BLACK) for i, colour in enumerate(colours.split())
    )


RAMP = _scale("#00204d #0a376d #39486b #575d6d #777678 #958f78 #b8a96a #d9c554 #ffe945", {0, 1, 2, 3, 4})
"""A continuous scale from low to high (nine steps of cividis: Nuñez, Anderton, Renslow 2018)."""

DIVERGING = _scale("#2d6aa8 #5b94c6 #8fbadb #c3d9ea #e2e2e2 #f0d3b0 #e5ae73 #cf823c #a95c17", {0, 8})
"""A scale with zero in its middle."""

CATEGORIES = tuple(
    Fill(Shade(light, dark), Shade("#0b1220", "#f3f4f6"))
    for light, dark in (
        ("#b9d9f2", "#1f4e79"),
        ("#f6d9a8", "#7a4a06"),
        ("#c9e4c5", "#24582b"),
        ("#e9c7e6", "#6b2f68"),
        ("#d5d0f2", "#443b87"),
        ("#f2c4bd", "#7c2f25"),
    )
)
"""Fills for categories; further ones share the last, and every box carries its category as text."""


def controls() -> dict[str, Shade]:
    """Return the colours of the controls around diagrams, of the bench and of the panel, by CSS variable."""
    fills = {f"precision-{name}": fill for name, fill in PRECISION.items()}
    return {
        "page": PAGE,
        "text": TEXT,
        "dim": DIM,
        "card": CARD,
        "line": LINE,
        "accent": ACCENT,
        "button": BUTTON,
        "button-hover": BUTTON_HOVER,
        "button-text": BUTTON_TEXT,
        "error": ERROR,
        "shadow": SHADOW,
        "leaf": STATUS["leaf"].outline,
        "failed": STATUS["failed"].outline,
        "change": _CHANGE,
        "hit": HIT,
        **{name: fill.ground for name, fill in fills.items()},
        **{f"{name}-text": fill.text for name, fill in fills.items()},
    }


def variables() -> dict[str, Shade]:
    """Return every colour of a diagram by the name of its CSS variable (without ``--pb-``)."""
    fills = {
        **{f"precision-{name}": fill for name, fill in PRECISION.items()},
        **{f"ramp-{i}": fill for i, fill in enumerate(RAMP)},
        **{f"diverging-{i}": fill for i, fill in enumerate(DIVERGING)},
        **{f"category-{i}": fill for i, fill in enumerate(CATEGORIES)},
    }
    return {
        "page": PAGE,
        "text": TEXT,
        "dim": DIM,
        "edge": EDGE,
        "card": CARD,
        "cluster": CLUSTER,
        "cluster-line": CLUSTER_LINE,
        **{status: mark.outline for status, mark in STATUS.items()},
        "reused": REUSED.outline,
        "change": _CHANGE,
        "hit": HIT,
        **{name: fill.ground for name, fill in fills.items()},
        **{f"{name}-text": fill.text for name, fill in fills.items()},
    }
