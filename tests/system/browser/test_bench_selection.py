"""What is typed or marked is what the buttons act on, and becomes one rule: seen from the page at three widths."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.system.browser.fake_bench import give, open_bench, sent, traits, turn_to

pytestmark = pytest.mark.timeout(120)

BRUSH = """names => document.querySelector('.picture').dispatchEvent(
  new CustomEvent('prepbench:brushed', {detail: names, bubbles: true}))"""


def nested() -> dict[str, Any]:
    """A model in which ``blocks.*.up`` would mean more layers than those of that role."""
    given = traits(1)
    names = [f"blocks.{block}.{part}" for block in range(21) for part in ("up", "mlp.up", "down")]
    given["layers"] = [{"fqn": fqn, "type": "Linear", "parameters": 64} for fqn in names]
    return {**given, "planned": [0] * len(names), "rules": []}


@pytest.mark.parametrize("width", [1440, 1100, 800])
def test_a_typed_pattern_is_the_selection_and_one_rule(page: Page, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    open_bench(page, traits())
    turn_to(page, "precision")
    chip, line = page.get_by_role("textbox", name="Selected layers"), page.locator(".pbb-editor")
    expect(chip).to_have_value("")
    expect(chip).to_have_attribute("placeholder", "all layers")
    expect(line).to_contain_text("169 layers")
    page.get_by_role("searchbox", name="Filter layers").fill("layers.1*.up_proj")
    expect(chip).to_have_value("layers.1*.up_proj")
    expect(line).to_contain_text("11 layers")
    assert chip.evaluate("e => e.scrollWidth <= e.clientWidth"), "its text is whole"
    above, table = line.bounding_box(), page.locator(".pbb-scroll").bounding_box()
    assert above
    assert table
    assert above["y"] + above["height"] <= table["y"]
    page.get_by_role("radio", name="float32").click()
    page.get_by_role("button", name="Use default").click()
    assert sent(page) == [
        {"action": "set_precision", "pattern": ["layers.1*.up_proj"], "precision": "float32"},
        {"action": "clear_rules", "pattern": ["layers.*.up_proj"]},
    ]
    page.keyboard.press("Control+a")
    page.locator("tr[data-at='0']").click()
    expect(chip).to_have_value("layers.1*.up_proj")  # its row stands for the same


def test_the_chip_can_be_edited_and_cleared(page: Page) -> None:
    open_bench(page, traits())
    turn_to(page, "precision")
    chip = page.get_by_role("textbox", name="Selected layers")
    page.locator("tr[data-at='0']").click()
    expect(chip).to_have_value("layers.*.q_proj")
    chip.fill("layers.2, *.k_proj")
    chip.press("Enter")
    expect(page.get_by_role("searchbox", name="Filter layers")).to_have_value("layers.2, *.k_proj")
    chip.fill("layers.2.*, *.k_proj")
    chip.press("Enter")
    expect(page.locator(".pbb-editor")).to_contain_text("30 layers")
    page.get_by_role("radio", name="float32").click()
    page.get_by_role("button", name="Select all layers").click()
    expect(page.locator(".pbb-editor")).to_contain_text("169 layers")
    page.get_by_role("radio", name="int8", exact=True).click()
    assert [each["pattern"] for each in sent(page) if each["action"] == "set_precision"] == [
        ["layers.2.*", "*.k_proj"],
        ["*"],
    ]


def test_rows_carry_the_pattern_of_exactly_their_layers(page: Page) -> None:
    open_bench(page, nested())
    turn_to(page, "precision")
    row = page.locator("tr[data-at='0']")
    expect(row).to_contain_text("× 21")
    expect(row).to_have_attribute("data-pattern", "re:blocks\\.\\d+\\.up")  # blocks.*.up takes blocks.*.mlp.up, too
    row.click()
    page.get_by_role("radio", name="float32").click()
    page.get_by_label("Rows").select_option("By block")
    expect(page.locator(".pbb-layers tr[data-at]").first).to_contain_text("blocks.0.*× 3")
    page.locator("tr[data-at='2']").click()
    page.get_by_role("radio", name="float32").click()
    page.locator("tr[data-at='3']").click(modifiers=["Shift"])
    page.get_by_role("radio", name="float32").click()
    page.get_by_label("Rows").select_option("Single layers")
    page.get_by_role("searchbox", name="Filter layers").fill("blocks.1*.up")
    page.locator("tr[data-at='0']").click()
    page.keyboard.press("Control+a")
    page.get_by_role("radio", name="float32").click()
    assert [each["pattern"] for each in sent(page) if each["action"] == "set_precision"] == [
        ["re:blocks\\.\\d+\\.up"],
        ["blocks.2.*"],
        ["blocks.2.*", "blocks.3.*"],
        ["blocks.1*.up"],
    ]


def test_a_range_in_a_chart_selects_layers(page: Page) -> None:
    open_bench(page, traits())
    turn_to(page, "run")
    page.evaluate(BRUSH, ["layers.3.q_proj", "layers.4.q_proj", "layers.5.q_proj", "unknown"])
    expect(page.get_by_role("tabpanel")).to_have_attribute("data-shows", "run")  # nobody is led away
    turn_to(page, "precision")
    chip = page.get_by_role("textbox", name="Selected layers")
    expect(chip).to_have_value("layers.[3-5].q_proj")
    page.evaluate(BRUSH, [])
    expect(chip).to_have_value("")


def test_somebody_who_types_in_the_chip_goes_on_typing(page: Page) -> None:
    open_bench(page, traits())
    turn_to(page, "precision")
    chip = page.get_by_role("textbox", name="Selected layers")
    chip.press_sequentially("layers.1")
    give(page, {"planned": [0] * 169})
    expect(chip).to_be_focused()
    expect(chip).to_have_value("layers.1")
