"""What is committed of each state of the bench: what is read aloud, where things lie, and a picture.

``python -m tests.system.browser.snapshots --write`` writes them; tests compare the first two. Pictures are for people.
"""

from __future__ import annotations

import argparse
import json
import shutil
from itertools import product
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, sync_playwright

from tests.system.browser.bench_states import STATES, State
from tests.system.browser.chromium import CHROMIUM_FLAGS

FOLDER = Path(__file__).parent / "snapshots"
WORDS, BOXES = FOLDER / "words.txt", FOLDER / "boxes.json"
WIDTHS = (1440, 700)
HEIGHT = 900
FRAME = "the frame"
PICTURE_WIDTHS = (1440, 1080, 800)
_BOXES = """() => {
  const boxes = {};
  const add = (name, e) => {
    if (!e?.checkVisibility({visibilityProperty: true})) return;
    const r = e.getBoundingClientRect();
    boxes[name] = [r.left, r.top + scrollY, r.width, r.height].map(Math.round);
  };
  for (const name of ['header', '.pbb-rail', '.pbb-strip', '.pbb-picture', '.pbb-splitter', '.pbb-step', '.pbb-chart',
                      '.pbb-foot', '.pbb-code']) add(name, document.querySelector(`.pbb-box ${name}`));
  const parts = document.querySelectorAll('.pbb-step > :not([hidden]) > *');
  parts.forEach((part, at) => add(`part ${at}`, part));
  return boxes;
}"""


def words_of(page: Page) -> str:
    """What a screen reader finds in the step that is shown."""
    return page.locator(".pbb-box .pbb-step").aria_snapshot()


def frame_of(page: Page) -> str:
    """What it finds around the step."""
    parts = [page.locator(f".pbb-box {place}") for place in (".pbb-head", ".pbb-rail", ".pbb-splitter", ".pbb-foot")]
    return "\n".join(part.aria_snapshot() for part in parts).strip()


def boxes_of(page: Page) -> dict[str, list[int]]:
    """Left, top, width and height of the parts in the page, by name."""
    boxes: dict[str, list[int]] = page.evaluate(_BOXES)
    return boxes


def looks_of(state: State) -> tuple[tuple[str, int], ...]:
    """The themes and widths that a state has pictures in: all for the first one of each step."""
    first = next(each for each in STATES if each.step == state.step)
    return tuple(product(("light", "dark"), PICTURE_WIDTHS)) if state is first else (("light", 1080),)


def picture(state: State, theme: str, width: int) -> Path:
    """Where the picture of a state lies."""
    return FOLDER / f"{state.name.replace(', ', '-').replace(' ', '-')}-{theme}-{width}.jpeg"


def read_words() -> dict[str, str]:
    """The committed words of each state."""
    sections = WORDS.read_text(encoding="utf-8").split("\n## ")[1:]
    return {name: text.strip() for name, _, text in (section.partition("\n") for section in sections)}


def read_boxes() -> dict[str, Any]:
    """The committed boxes: for each state and width those of its parts."""
    boxes: dict[str, Any] = json.loads(BOXES.read_text(encoding="utf-8"))
    return boxes


def _write(page: Page) -> None:
    FOLDER.mkdir(exist_ok=True)
    for old in FOLDER.glob("*.jpeg"):
        old.unlink()
    words, boxes = ["# What is read aloud in each state of the bench"], {}
    for state in STATES:
        page.set_viewport_size({"width": WIDTHS[0], "height": HEIGHT})
        state.show(page)
        if len(words) == 1:
            words.append(f"## {FRAME}\n{frame_of(page)}")
        words.append(f"## {state.name}\n{words_of(page)}")
        boxes[state.name] = {str(width): _at(page, state, width) for width in WIDTHS}
        for theme, width in looks_of(state):
            page.set_viewport_size({"width": width, "height": round(width * 0.63)})
            state.show(page, dark=theme == "dark")
            page.screenshot(path=picture(state, theme, width), type="jpeg", quality=30)
    WORDS.write_text("\n\n".join(words) + "\n", encoding="utf-8")
    lines = [f"{json.dumps(name)}: {json.dumps(each)}" for name, each in boxes.items()]
    BOXES.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def _at(page: Page, state: State, width: int) -> dict[str, list[int]]:
    page.set_viewport_size({"width": width, "height": HEIGHT})
    state.show(page)
    return boxes_of(page)


def _main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", required=True, help="write the files again")
    parser.parse_args()
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=CHROMIUM_FLAGS)
        _write(browser.new_page())
        browser.close()


if __name__ == "__main__":
    _main()
