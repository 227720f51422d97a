"""Each state of the bench is read aloud and lies as it is committed: ``make screenshots`` after a change, then look."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page

from tests.system.browser.bench_states import STATES
from tests.system.browser.snapshots import (
    FOLDER,
    FRAME,
    HEIGHT,
    WIDTHS,
    boxes_of,
    frame_of,
    looks_of,
    picture,
    read_boxes,
    read_words,
    words_of,
)

pytestmark = pytest.mark.timeout(180)

NEAR = 14.0  # pixels: fonts differ between machines
SHARE = 0.06  # of the size
LARGEST = 3_000_000  # bytes of all pictures


def test_what_is_read_aloud_is_what_was_agreed_on(page: Page) -> None:
    page.set_viewport_size({"width": WIDTHS[0], "height": HEIGHT})
    agreed = read_words()
    assert list(agreed) == [FRAME, *(state.name for state in STATES)]
    for state in STATES:
        state.show(page)
        if state is STATES[0]:
            assert frame_of(page) == agreed[FRAME]
        assert words_of(page) == agreed[state.name], state.name


@pytest.mark.parametrize("width", WIDTHS)
def test_parts_lie_where_they_were(page: Page, width: int) -> None:
    page.set_viewport_size({"width": width, "height": HEIGHT})
    agreed = read_boxes()
    for state in STATES:
        state.show(page)
        boxes, before = boxes_of(page), agreed[state.name][str(width)]
        assert list(boxes) == list(before), state.name
        for name, box in boxes.items():
            moved = [abs(now - then) for now, then in zip(box, before[name], strict=True)]
            room = [max(NEAR, SHARE * then) for then in before[name]]
            assert all(by <= most for by, most in zip(moved, room, strict=True)), (state.name, name, box, before[name])


def test_every_state_has_its_pictures_and_they_are_small() -> None:
    pictures = [picture(state, *look) for state in STATES for look in looks_of(state)]
    assert {path.name for path in pictures} == {path.name for path in FOLDER.glob("*.jpeg")}
    assert sum(path.stat().st_size for path in pictures) < LARGEST
