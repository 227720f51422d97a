"""What is pressed in the page of the bench counts, whatever Python changes before it is let go."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.system.browser.fake_bench import after_run, give, open_bench, run, sent, traits, turn_to

pytestmark = pytest.mark.timeout(120)

EVERYTHING = "() => window.bench.set(window.bench.all())"
"""A message of Python that sets every trait again."""
LATER = {
    "running": True,
    "about": "compile",
    "stage": "Choosing scales from samples",
    "elapsed_s": 2.0,
    "log": ["captured"],
    "can_undo": True,
}

CONTROLS = [
    ("capture", "button", "Apply fix to router", "apply_fix"),
    ("capture", "button", "Capture again", "capture"),
    ("axes", "button", "ids dim 0: B dynamic · seen 2, 3 ✓ 1, 2, 7 also mask dim 0", "set_axis"),
    ("precision", "radio", "int4 weights", "set_precision"),
    ("precision", "button", "Remove the rule lm_head", "clear_rules"),
    ("run", "checkbox", "OpenVINO", "set_target"),
    ("run", "button", "Compile", "compile"),
    ("results", "checkbox", "Compare int8 ONNX Runtime 0", "compare_runs"),
    ("results", "button", "Restore", "restore_run"),
    ("results", "button", "Save bench", "save"),
    ("results", "button", "Undo", "undo"),
]  # fmt: skip


def bench_with_runs(page: Page) -> None:
    given = traits()
    open_bench(page, {**given, **after_run(given)})


def let_go_later(page: Page, control: Locator) -> None:
    """Press it, let everything change, and let it go."""
    control.scroll_into_view_if_needed()
    control.hover()
    page.mouse.down()
    page.evaluate(EVERYTHING)
    page.wait_for_timeout(30)
    page.mouse.up()


def actions(page: Page) -> list[str]:
    return [each["action"] for each in sent(page)]


@pytest.mark.parametrize(("step", "role", "name", "action"), CONTROLS)
def test_a_click_counts_though_everything_changes(page: Page, step: str, role: Any, name: str, action: str) -> None:
    bench_with_runs(page)
    turn_to(page, step)
    control = page.get_by_role(role, name=name, exact=True)
    let_go_later(page, control)
    assert actions(page) == [action]
    page.evaluate(EVERYTHING)  # and once more with a key
    control.focus()
    page.keyboard.down(" ")
    page.evaluate(EVERYTHING)
    page.wait_for_timeout(30)
    page.keyboard.up(" ")
    assert actions(page) == [action]


def test_a_step_is_turned_to_though_its_status_changes(page: Page) -> None:
    bench_with_runs(page)
    results = page.locator("[data-step='results']")
    for part in ("b", "small"):
        turn_to(page, "precision")
        let_go_later(page, results.locator(part))
        expect(results).to_have_attribute("aria-selected", "true")


def test_a_row_is_chosen_though_the_table_changes(page: Page) -> None:
    bench_with_runs(page)
    turn_to(page, "precision")
    let_go_later(page, page.locator(".pbb-layers tr[data-at='2'] .pbb-number").first)
    assert actions(page) == ["select"]
    turn_to(page, "results")
    let_go_later(page, page.locator("tr[data-run='r3'] td").last)
    assert actions(page) == ["show_run"]


def test_changes_come_after_the_click_and_typing_keeps_its_text(page: Page) -> None:
    bench_with_runs(page)
    turn_to(page, "results")
    name = page.get_by_role("textbox", name="Name of the run")
    name.fill("better")
    give(page, {"runs": [{**run(1), "name": "from Python"}], "stale_of": [1]})  # waits while somebody types
    expect(name).to_have_value("better")
    page.get_by_role("button", name="Restore", exact=True).click()  # the focus leaves between down and up
    assert actions(page) == ["rename_run", "restore_run"]
    expect(page.get_by_role("textbox", name="Name of the run")).to_have_value("from Python")


def test_the_focus_stays_where_a_part_is_built_again(page: Page) -> None:
    bench_with_runs(page)
    turn_to(page, "results")
    for name in ("Code", "Pin", "Report"):
        control = page.get_by_role("button", name=name, exact=True).first
        control.focus()
        page.evaluate(EVERYTHING)
        expect(control).to_be_focused()
    turn_to(page, "run")
    start = page.get_by_role("button", name="Compile", exact=True)
    start.press("Enter")
    give(page, {**LATER, "is_queued": True})
    expect(page.get_by_role("button", name="Add to the queue")).to_be_disabled()
    expect(page.get_by_role("tabpanel")).to_be_focused()  # not the start of the page
    give(page, {"is_queued": False})
    page.get_by_role("button", name="Add to the queue").focus()
    give(page, {"running": False})
    expect(start).to_be_focused()


def test_a_picture_of_a_chart_becomes_the_chart(page: Page) -> None:
    bench_with_runs(page)
    turn_to(page, "results")
    page.evaluate("""() => {
      const image = document.createElement('img');
      image.className = 'plot-img';
      image.addEventListener('mouseenter', () => { window.entered = (window.entered ?? 0) + 1; });
      document.querySelector('.pbb-chart').append(image);
    }""")
    page.wait_for_timeout(50)
    assert page.evaluate("() => window.entered") is None, "a live chart has an image without a source"
    page.evaluate("() => { document.querySelector('.plot-img').src = 'data:image/png;base64,'; }")
    page.wait_for_function("() => window.entered === 1")


def test_what_asks_python_is_disabled_once_nobody_answers(page: Page) -> None:
    given = traits()
    open_bench(page, {**given, **after_run(given)})
    turn_to(page, "run")
    compiling = page.get_by_role("button", name="Compile", exact=True)
    expect(compiling).to_be_enabled()
    page.evaluate("() => { window.sent.push = () => { throw new Error('the kernel is gone'); }; }")
    compiling.evaluate("e => e.click()")
    expect(compiling).to_be_disabled()
    expect(page.get_by_role("button", name="Undo")).to_be_disabled()
    expect(page.get_by_title("The same in Python")).to_be_enabled()
    turn_to(page, "capture")  # a step that is built only now
    expect(page.get_by_role("button", name="Apply fix to router")).to_be_disabled()
    expect(page.get_by_role("button", name="Copy report of router")).to_be_enabled()
    turn_to(page, "precision")
    expect(page.get_by_role("radio", name="int8", exact=True)).to_be_disabled()
    page.get_by_role("searchbox", name="Filter layers").fill("lm_head")
    expect(page.locator(".pbb-layers tr[data-at]")).to_have_count(1)
    page.locator(".pbb-layers tr[data-at='0']").click()  # the editor is built again
    expect(page.get_by_role("radio", name="int8", exact=True)).to_be_disabled()
    expect(page.get_by_role("button", name="Layer", exact=True)).to_be_enabled()
