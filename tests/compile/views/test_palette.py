"""The palette's promise, computed: states differ for everybody, and marks and text stand out from the page.

Colour difference: CIEDE2000 (Sharma, Wu, Dalal 2005). Colour blindness: Machado, Oliveira, Fernandes 2009, severity 1.
Contrast: WCAG 2.1 relative luminance.
"""

from __future__ import annotations

import itertools
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prepbench.views.palette import (
    CARD,
    CATEGORIES,
    CHANGES,
    CLUSTER,
    DIM,
    DIVERGING,
    PAGE,
    PRECISION,
    RAMP,
    REUSED,
    STATUS,
    TEXT,
)

VISIONS = {
    "normal": np.eye(3),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "tritanopia": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
}


def linear(colour: str) -> np.ndarray:
    values = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def lab(rgb: np.ndarray) -> np.ndarray:
    matrix = np.array(
        [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
    )
    xyz = matrix @ np.clip(rgb, 0, 1) / np.array([0.95047, 1.0, 1.08883])
    f = np.where(xyz > 216 / 24389, np.cbrt(xyz), (24389 / 27 * xyz + 16) / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def difference(first: np.ndarray, second: np.ndarray) -> float:
    """CIEDE2000."""
    (l1, a1, b1), (l2, a2, b2) = first, second
    mean_c = (math.hypot(a1, b1) + math.hypot(a2, b2)) / 2
    g = 0.5 * (1 - math.sqrt(mean_c**7 / (mean_c**7 + 25**7)))
    a1, a2 = a1 * (1 + g), a2 * (1 + g)
    c1, c2 = math.hypot(a1, b1), math.hypot(a2, b2)
    h1, h2 = math.degrees(math.atan2(b1, a1)) % 360, math.degrees(math.atan2(b2, a2)) % 360
    dh = 0.0 if c1 * c2 == 0 else (h2 - h1 + 180) % 360 - 180
    mean_h = h1 + h2 if c1 * c2 == 0 else (h1 + dh / 2) % 360
    delta_h = 2 * math.sqrt(c1 * c2) * math.sin(math.radians(dh / 2))
    mean_l, mean_c = (l1 + l2) / 2, (c1 + c2) / 2
    cos = lambda k, offset: math.cos(math.radians(k * mean_h - offset))  # noqa: E731
    t = 1 - 0.17 * cos(1, 30) + 0.24 * cos(2, 0) + 0.32 * cos(3, -6) - 0.20 * cos(4, 63)
    s_l = 1 + 0.015 * (mean_l - 50) ** 2 / math.sqrt(20 + (mean_l - 50) ** 2)
    s_c, s_h = 1 + 0.045 * mean_c, 1 + 0.015 * mean_c * t
    rotation = (
        -2
        * math.sqrt(mean_c**7 / (mean_c**7 + 25**7))
        * math.sin(math.radians(60 * math.exp(-(((mean_h - 275) / 25) ** 2))))
    )
    light, chroma, hue = (l2 - l1) / s_l, (c2 - c1) / s_c, delta_h / s_h
    return math.sqrt(light * light + chroma * chroma + hue * hue + rotation * chroma * hue)


def contrast(first: str, second: str) -> float:
    weights = np.array([0.2126, 0.7152, 0.0722])
    low, high = sorted((float(weights @ linear(first)), float(weights @ linear(second))))
    return (high + 0.05) / (low + 0.05)


def test_the_formula_gives_published_values() -> None:
    assert difference(np.array([50, 2.6772, -79.7751]), np.array([50, 0, -82.7485])) == pytest.approx(2.0425, abs=1e-4)
    assert difference(np.array([50, 2.5, 0]), np.array([73, 25, -18])) == pytest.approx(27.1492, abs=1e-4)


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("vision", VISIONS)
def test_states_differ(theme: str, vision: str) -> None:
    # unvisited is neutral like traced, but dashed; changes share a colour and differ in line and glyph
    marks = {name: mark for name, mark in STATUS.items() if name != "unvisited"}
    marks |= {"reused": REUSED, "changed": CHANGES["changed"]}
    colours = {name: lab(VISIONS[vision] @ linear(getattr(mark.outline, theme))) for name, mark in marks.items()}
    for (one, first), (other, second) in itertools.combinations(colours.items(), 2):
        assert difference(first, second) >= 15, (one, other)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_contrast(theme: str) -> None:
    for mark in (*STATUS.values(), REUSED, *CHANGES.values()):
        assert contrast(getattr(mark.outline, theme), getattr(PAGE, theme)) >= 3
    for ground in (PAGE, CARD, CLUSTER):
        assert contrast(getattr(TEXT, theme), getattr(ground, theme)) >= 4.5
        assert contrast(getattr(DIM, theme), getattr(ground, theme)) >= 4.5
    for fill in (*PRECISION.values(), *RAMP, *DIVERGING, *CATEGORIES):
        assert contrast(getattr(fill.text, theme), getattr(fill.ground, theme)) >= 4.5


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("vision", VISIONS)
def test_neighbouring_precisions_and_steps_differ(theme: str, vision: str) -> None:
    def colours(fills: Any) -> list[np.ndarray]:
        return [lab(VISIONS[vision] @ linear(getattr(fill.ground, theme))) for fill in fills]

    for first, second in itertools.pairwise(colours(PRECISION.values())):
        assert difference(first, second) >= 9
    for scale in (RAMP, DIVERGING):
        for first, second in itertools.pairwise(colours(scale)):
            assert difference(first, second) >= 4
    lightness = [colour[0] for colour in colours(RAMP)]
    assert lightness == sorted(lightness)  # readable without colours


def test_states_differ_without_colour() -> None:
    looks = [(mark.shape, mark.style) for mark in (*STATUS.values(), *CHANGES.values())]
    assert len(set(looks)) == len(looks)
    marks = (*STATUS.values(), REUSED, *CHANGES.values())
    assert len({mark.glyph for mark in marks}) == len(marks)


NAMED = "black white red green blue yellow orange purple pink brown gray grey navy teal olive maroon silver gold cyan"
ANYWHERE = r"#(?:[0-9a-fA-F]{3,4}){1,2}\b|\b(?:rgb|hsl|hwb|lab|lch|oklab|oklch)a?\("
IN_STYLES = rf"{ANYWHERE}|[:\s](?:{NAMED.replace(' ', '|')})(?=[;\s])"


def test_the_front_end_takes_its_colours_from_the_palette() -> None:
    extension = Path(__file__).parents[3] / "extension"
    found = []
    for path in [*extension.glob("src/**/*.ts"), *extension.glob("src/**/*.css"), *extension.glob("style/*.css")]:
        if "generated" in path.parts or path.name.endswith(".test.ts"):
            continue
        code = re.sub(r"/\*.*?\*/|(?<!:)//[^\n]*", "", path.read_text(), flags=re.DOTALL)
        colours = re.findall(IN_STYLES if path.suffix == ".css" else ANYWHERE, code)
        found += [f"{path.relative_to(extension)}: {colour.strip(' :')}" for colour in colours]
    assert not found
