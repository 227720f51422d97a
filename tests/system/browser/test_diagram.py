"""The diagram in a real JupyterLab: every interaction by mouse and keyboard, in both themes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
from playwright.sync_api import Page, expect

import prepbench as pb
from prepbench.document.codec import to_json
from prepbench.document.model import DiagramDocument
from prepbench.views.display import combined
from tests.system.browser.diagrams import Net, View, luminance, net_document, opened
from tests.system.browser.lab import watch
from tests.turns import in_turns

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def document() -> DiagramDocument:
    return net_document()


@pytest.mark.parametrize("theme", in_turns(["light", "dark"], 1))
def test_every_interaction_by_mouse(page: Page, lab: Any, document: DiagramDocument, theme: str) -> None:
    problems, outside = watch(page, lab.url)
    view = opened(page, lab, "net.graph.json", to_json(document), theme)
    expect(view.box("stem")).to_be_visible(timeout=30_000)
    assert view.count() <= 40
    assert luminance(view.root) < 0.1 if theme == "dark" else luminance(view.root) > 0.9

    # 2: what cannot be captured is listed; one click leads to reason, line and remedy
    expect(view.legend).to_contain_text("✕ 1 failed")
    expect(view.legend).to_contain_text("∅ 1 not reached")
    view.side.get_by_role("button", name=re.compile("gate")).click()
    expect(view.side).to_contain_text("data-dependent branch")
    expect(view.side).to_contain_text("What to do")
    expect(view.side).to_contain_text("if x.sum() > 0:")
    expect(view.root.locator(".pbd-ring")).to_have_count(1)

    # 3: open and close in place, and undo
    closed = view.drawn(lambda: view.root.get_by_role("button", name="Close all modules").click())
    blocks = view.box("blocks")
    page.wait_for_timeout(400)  # boxes slide to their places
    at = blocks.bounding_box()
    count = view.drawn(lambda: blocks.dblclick())
    assert count > closed
    page.wait_for_timeout(400)
    now = view.box("blocks, open module").bounding_box()
    assert at
    assert now
    assert abs(now["x"] - at["x"]) < 60
    assert abs(now["y"] - at["y"]) < 60
    assert view.drawn(lambda: view.root.get_by_role("button", name="Undo").click()) == closed
    page.wait_for_timeout(400)
    view.drawn(lambda: blocks.locator(".pbd-handle").click())  # one click does it too
    expect(view.box("blocks, open module")).to_be_attached()
    view.drawn(lambda: view.box("blocks, open module").locator(".pbd-handle").click())
    assert view.drawn(lambda: view.root.get_by_role("button", name="Open one level more").click()) >= count

    # 4: search counts while typing, goes through what was found
    search = view.root.get_by_role("searchbox")
    search.fill("linear")
    expect(view.root.locator(".pbd-count")).to_have_text("8 found")
    search.press("Enter")
    expect(view.root.locator(".pbd-count")).to_have_text("1 of 8")
    view.root.get_by_role("button", name="Next found").click()
    expect(view.root.locator(".pbd-count")).to_have_text("2 of 8")
    expect(view.root.locator(".pbd-hit").first).to_be_attached()
    search.fill("failed")
    expect(view.root.locator(".pbd-count")).to_have_text("1 found")
    search.fill("")

    # 5: details of one and of several
    view.box("stem").click()
    expect(view.side).to_contain_text("Linear")
    expect(view.side).to_contain_text("parameters72")
    expect(view.side).to_contain_text("float32")
    expect(view.root.locator(".pbd-in")).to_have_count(1)
    expect(view.root.locator(".pbd-out")).to_have_count(1)
    view.box("head").click(modifiers=["Control"])
    expect(view.side).to_contain_text("2 selected")

    # filter by status
    view.legend.get_by_role("button", name=re.compile("failed")).click()
    expect(view.box("stem")).to_have_class(re.compile("pbd-faded"))
    expect(view.box("gate")).not_to_have_class(re.compile("pbd-faded"))
    view.legend.get_by_role("button", name=re.compile("failed")).click()

    # overlays
    view.root.get_by_label("colour by").select_option("bits")
    expect(view.legend).to_contain_text("int8")
    expect(view.box("head")).to_have_class(re.compile("pb-precision-int4"))
    view.root.get_by_label("colour by").select_option("latency")
    expect(view.legend).to_contain_text("ms")
    expect(view.legend).to_contain_text("the sum of its layers")
    view.root.get_by_label("colour by").select_option("")

    # zoom, pan, map
    for _ in range(4):
        view.root.get_by_role("button", name="Zoom in").click()
    expect(view.root.locator(".pbd-map")).to_be_visible()
    before = view.canvas.evaluate("e => [e.scrollLeft, e.scrollTop]")
    place = view.canvas.bounding_box()
    assert place
    page.mouse.move(place["x"] + 300, place["y"] + 200)
    page.mouse.down()
    page.mouse.move(place["x"] + 260, place["y"] + 120, steps=4)
    page.mouse.up()
    assert view.canvas.evaluate("e => [e.scrollLeft, e.scrollTop]") != before
    view.root.get_by_role("button", name="Fit").click()

    # the other level, with the selection carried over
    view.box("head").click()
    view.root.get_by_role("button", name="ATen graph").click()
    expect(view.side.locator("h4")).to_have_text("head", timeout=20_000)
    expect(view.side).to_contain_text("aten.linear")
    assert not problems
    assert not outside


def test_every_interaction_by_keyboard(page: Page, lab: Any, document: DiagramDocument) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    problems, _ = watch(page, lab.url)
    view = opened(page, lab, "net.graph.json", to_json(document))
    expect(view.box("stem")).to_be_visible(timeout=30_000)
    view.canvas.focus()
    view.key("f")
    expect(view.side).to_contain_text("What to do")
    active = view.canvas.get_attribute("aria-activedescendant")
    item = page.locator(f"#{active}")
    expect(item).to_have_attribute("role", "treeitem")
    expect(item).to_have_attribute("aria-label", re.compile("^gate, Gate, data-dependent branch, failed"))
    expect(item).to_have_attribute("aria-selected", "true")

    view.key("Home")
    expect(view.side.locator("h4")).to_have_text("x")
    view.key("Shift+ArrowDown")
    expect(view.side.locator("h4")).to_have_text("stem")
    view.key("ArrowDown")
    expect(view.side.locator("h4")).to_have_text("act")
    view.key(" ", "ArrowUp")
    expect(view.side).to_contain_text("2 selected")
    view.key(" ", "Escape")
    expect(view.side).to_contain_text("Click a box")
    view.key("Home")
    view.key("c")
    expect(view.root.locator(".pbd-status")).to_contain_text("no name to copy")

    closed = view.drawn(lambda: view.key("x"))
    one = view.drawn(lambda: view.key("o"))
    assert one > closed
    assert view.drawn(lambda: view.key("u")) == closed
    page.keyboard.press("/")
    page.keyboard.type("blocks.3.fc")
    page.keyboard.press("Enter")
    expect(view.side.locator("h4")).to_have_text("blocks.3.fc")
    expect(view.root.locator(".pbd-crumbs")).to_have_text("Net › blocks › 3 › fc")
    view.canvas.focus()
    view.key("c")
    assert page.evaluate("() => navigator.clipboard.readText()") == "blocks.3.fc"
    page.keyboard.press("/")
    page.keyboard.press("Escape")
    view.canvas.focus()
    view.drawn(lambda: view.key("Enter"))  # an operation closes its module
    expect(view.side.locator("h4")).to_have_text("blocks.0 … 5")  # and is folded with the others
    view.drawn(lambda: view.key("x"))
    view.drawn(lambda: view.key("2"))
    folded = view.count()
    view.box("0 … 5").click()
    assert view.drawn(lambda: view.key("r")) == folded + 5
    view.key("Home", "End")
    view.box("blocks.3").click()
    around = view.drawn(lambda: view.key("n"))
    assert around < folded + 5
    expect(view.root.locator(".pbd-crumbs")).to_contain_text("only around the selection")
    view.drawn(lambda: view.key("b"))
    view.box("blocks.3").click()
    only = view.drawn(lambda: view.key("."))
    expect(view.root.locator(".pbd-crumbs")).to_contain_text("blocks › 3 only")
    assert only < folded + 5
    view.drawn(lambda: view.root.locator(".pbd-crumbs").get_by_role("button", name="Net").click())

    view.canvas.focus()
    view.box("stem").click()
    view.key("h")
    assert view.root.locator(".node.pbd-near").count() > 4  # all that the stem feeds
    view.key("Escape")
    view.drawn(lambda: view.key("v"))
    expect(view.legend).to_contain_text("latency")
    view.key("+", "+", "+", "+")
    expect(view.root.locator(".pbd-map")).to_be_visible()
    view.key("m")
    expect(view.root.locator(".pbd-map")).to_be_hidden()
    view.key("0")
    view.key("?")
    expect(view.root.locator(".pbd-help")).to_contain_text("undo a change of the view")
    page.keyboard.press("Escape")
    expect(view.root.locator(".pbd-help")).to_have_count(0)
    view.drawn(lambda: view.key("g"))
    expect(view.root.get_by_role("button", name="ATen graph")).to_have_attribute("aria-pressed", "true")

    page.emulate_media(reduced_motion="reduce")
    view.drawn(lambda: view.key("x"))
    view.drawn(lambda: view.key("u"))
    assert page.evaluate("() => document.querySelector('.pb-diagram').getAnimations({subtree: true}).length") == 0
    assert not problems


def test_pictures_and_pages_are_saved(page: Page, lab: Any, document: DiagramDocument, tmp_path: Path) -> None:
    view = opened(page, lab, "net.graph.json", to_json(document))
    expect(view.box("stem")).to_be_visible(timeout=30_000)
    saved = {}
    for kind in ("SVG", "PNG", "HTML"):
        view.root.get_by_label("save the picture").click()
        with page.expect_download() as download:
            view.root.get_by_role("button", name=f"Save as {kind}").click()
        saved[kind] = tmp_path / download.value.suggested_filename
        download.value.save_as(saved[kind])
    svg = ElementTree.fromstring(saved["SVG"].read_text())
    texts = [element.text for element in svg.iter("{http://www.w3.org/2000/svg}text")]
    assert {"stem", "gate", "✕ failed"} <= set(texts)
    assert any("1 failed" in (text or "") for text in texts)  # the legend goes along
    assert "rgb(" in saved["SVG"].read_text()  # and the colours
    assert saved["PNG"].read_bytes().startswith(b"\x89PNG")
    page.context.set_offline(True)
    page.goto(f"file://{saved['HTML']}")
    expect(View(page).box("stem")).to_be_visible(timeout=30_000)


def test_two_graphs_side_by_side_are_linked(page: Page, lab: Any) -> None:
    problems, _ = watch(page, lab.url)
    model = Net().eval()
    model.gate = torch.nn.Identity()
    samples = [torch.randn(3, 8), torch.randn(5, 8)]
    prepared = pb.prepare_model(model, inputs=samples)
    pair = combined(
        pb.recursive_trace(model, inputs=samples), pb.recursive_trace(prepared, inputs=samples), compare=True
    )
    (lab.folder / "pair.graph.json").write_text(to_json(pair))
    page.goto(f"{lab.url}/lab/tree/pair.graph.json?reset")
    before, after = page.locator(".pbd-pane").nth(0), page.locator(".pbd-pane").nth(1)
    item = '[role="treeitem"][aria-label^="{}"]'
    expect(after.locator(item.format("stem"))).to_be_visible(timeout=60_000)
    expect(after.locator(".pbd-legend")).to_contain_text("changed")
    before.locator(item.format("stem")).click()
    expect(after.locator(item.format("stem"))).to_have_class(re.compile("pbd-chosen"))
    before.get_by_role("button", name="Close all modules").click()
    expect(after.locator(item.format("blocks,"))).to_be_attached()
    expect(after.locator(item.format("blocks, open"))).to_have_count(0)
    before.locator(item.format("blocks")).locator(".pbd-handle").click()
    expect(after.locator(item.format("blocks, open"))).to_be_attached()
    changed = before.locator("g.node.changed").first
    changed.click()
    expect(before.locator(".pbd-side")).to_contain_text("became")
    assert not problems
