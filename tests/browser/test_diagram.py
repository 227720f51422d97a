"""The diagram in a real JupyterLab: every interaction by mouse and keyboard, in both themes, and as a widget."""

from __future__ import annotations

import json
import random
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import nbformat
import pytest
import torch
from playwright.sync_api import Browser, Locator, Page, expect

import prepbench as pb
from prepbench.document.codec import to_json
from prepbench.document.model import DiagramDocument, Graph, GraphCollectionDocument, Module, Node
from prepbench.views.diagrams import combined
from prepbench.views.overlays import make_overlay
from prepbench.views.page import write_page
from tests.views.documents import failing, reused

READY = """() => {
  const context = window.jupyterapp?.shell.currentWidget?.sessionContext;
  return context?.session?.kernel?.connectionStatus === 'connected';
}"""

pytestmark = [pytest.mark.browser, pytest.mark.timeout(600)]


class Gate(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:
            return x
        return -x


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(8)
        self.fc = torch.nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.relu(self.fc(self.norm(x)))


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = torch.nn.Linear(8, 8)
        self.blocks = torch.nn.Sequential(*(Block() for _ in range(6)))
        self.gate = Gate()
        self.act = torch.nn.GELU()
        self.head = torch.nn.Linear(8, 2)
        self.unused = torch.nn.Dropout()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.act(self.stem(x))
        x = self.gate(self.act(self.blocks(x)))
        return self.head(x)


@pytest.fixture(scope="module")
def document() -> DiagramDocument:
    """Both levels of a model with a failure, repeated blocks, a reused module and one that is never called."""
    model = Net().eval()
    samples = [torch.randn(3, 8), torch.randn(5, 8)]
    levels = combined(pb.recursive_trace(model, inputs=samples), pb.capture(model, samples, fullgraph=False))
    layers = {name: i * 1.5 for i, (name, m) in enumerate(model.named_modules()) if isinstance(m, torch.nn.Linear)}
    bits = {name: 4 if name == "head" else 8 for name in layers}
    overlays = (
        make_overlay(layers, levels.documents, name="latency", unit="ms"),
        make_overlay(bits, levels.documents, name="bits"),
    )
    return DiagramDocument(levels.documents, (), "levels", overlays)


class View:
    """What a person sees and does in one diagram."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.root = page.locator(".pbd").last
        self.canvas = self.root.locator(".pbd-canvas")
        self.side = self.root.locator(".pbd-side")
        self.legend = self.root.locator(".pbd-legend")

    def box(self, name: str) -> Locator:
        """A box by the start of its description."""
        return self.root.locator(f'[role="treeitem"][aria-label^="{name}"]').first

    def count(self) -> int:
        return self.root.locator("g.node").count()

    def key(self, *keys: str) -> None:
        for key in keys:
            self.canvas.press(key)

    def drawn(self, change: Any) -> int:
        """Do something that draws another view; how many boxes that has."""
        before = self.root.locator(".pb-diagram").element_handle()
        change()
        self.page.wait_for_function("old => !old.isConnected", arg=before, timeout=10_000)
        return self.count()


def watch(page: Page, base: str) -> tuple[list[str], list[str]]:
    """Errors of the page, and requests that go elsewhere."""
    problems: list[str] = []
    outside: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on(
        "request",
        lambda r: (
            None
            if r.url.startswith((base, base.replace("http", "ws"), "data:", "blob:", "about:"))
            else outside.append(r.url)
        ),
    )
    return problems, outside


def opened(page: Page, lab: Any, name: str, text: str, theme: str = "light") -> View:
    """A graph file in its own tab, in the given theme."""
    (lab.folder / name).write_text(text)
    if theme == "dark":
        themes = lab.folder.parent / "settings/@jupyterlab/apputils-extension/themes.jupyterlab-settings"
        themes.write_text(json.dumps({"theme": "JupyterLab Dark"}))
    page.goto(f"{lab.url}/lab/tree/{name}?reset")
    page.wait_for_function("() => window.jupyterapp?.restored.then(() => true)", timeout=60_000)
    expect(page.locator(".pbd").last).to_be_visible(timeout=60_000)
    return View(page)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_interaction_by_mouse(page: Page, lab: Any, document: DiagramDocument, theme: str) -> None:
    problems, outside = watch(page, lab.url)
    view = opened(page, lab, "net.graph.json", to_json(document), theme)
    expect(view.box("stem")).to_be_visible(timeout=30_000)
    assert view.count() <= 40
    assert luminance(view.root) < 0.1 if theme == "dark" else luminance(view.root) > 0.9

    # 2: what cannot be captured is listed; one click leads to reason, line and remedy
    expect(view.legend).to_contain_text("✕ 1 failed")
    expect(view.legend).to_contain_text("∅ 1 unvisited")
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
    expect(view.legend).to_contain_text("sum of what lies in them")
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


_IN_MODEL, _IN_ITSELF = '"id": "block", "parent": ""', '"id": "block", "parent": "block"'


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("newer", to_json(reused()).replace('"version": "1.1"', '"version": "2.0"'), "newer prepbench"),
        ("cut", to_json(reused())[:700], "cut off"),
        ("circle", to_json(reused()).replace(_IN_MODEL, _IN_ITSELF), "hold each other"),
        ("other", '{"cells": [], "version": "1.1"}', "lacks the field"),
    ],
)  # fmt: skip
def test_bad_files_give_a_message(page: Page, lab: Any, name: str, text: str, words: str) -> None:
    problems, _ = watch(page, lab.url)
    view = opened(page, lab, f"{name}.graph.json", text)
    expect(view.root.get_by_role("alert")).to_contain_text(words, timeout=30_000)
    expect(view.root.get_by_role("alert")).to_contain_text("This diagram cannot be shown")
    assert not problems


def test_pages_without_network_with_names_that_are_markup(browser: Browser, tmp_path: Path) -> None:
    evil = '<img src=x onerror="window.hurt=1"><script>window.hurt=1</script>'
    document = failing()
    modules = tuple(replace(m, type=evil) if m.fqn == "gate" else m for m in document.modules)
    nodes = tuple(
        replace(node, target=evil if node.op == "call_method" else node.target, shapes=(evil,))
        for node in document.graphs[0].nodes
    )
    graphs = (Graph("graph:", "", nodes),)
    hostile = GraphCollectionDocument(evil, "module", graphs, modules, document.failures)
    path = write_page(combined(hostile), tmp_path / "evil.html")
    context = browser.new_context(offline=True)
    page = context.new_page()
    page.goto(f"file://{path}")
    view = View(page)
    expect(view.root.locator("g.node").first).to_be_visible(timeout=30_000)
    for box in view.root.locator("g.node").all():
        box.click(force=True)
    view.root.get_by_role("searchbox").fill("img")
    page.wait_for_timeout(300)
    assert page.evaluate("() => window.hurt") is None
    assert page.locator(".pbd img, .pbd script").count() == 0
    assert evil[:10] in view.root.inner_text()
    context.close()


def test_a_layout_that_takes_too_long_is_stopped(browser: Browser, tmp_path: Path) -> None:
    """Layers with random edges between them have no good layout; the page stays usable and offers something smaller."""
    chance = random.Random(0)
    nodes = [Node(f":n0_{i}", "placeholder", f"n{i}", f"n{i}", shapes=("B",)) for i in range(60)]
    for layer in range(1, 40):
        for i in range(60):
            inputs = tuple({f":n{layer - 1}_{chance.randrange(60)}" for _ in range(8)})
            nodes.append(Node(f":n{layer}_{i}", "call_function", f"n{i}", "n", shapes=("B",), inputs=inputs))
    modules = (Module("", "Dense", "traced"),)
    dense = GraphCollectionDocument("Dense", "module", (Graph("graph:", "", tuple(nodes)),), modules)
    path = write_page(combined(dense), tmp_path / "dense.html")
    page = browser.new_page()
    page.goto(f"file://{path}")
    view = View(page)
    expect(view.box("part 1 … 40")).to_be_visible(timeout=30_000)
    parts = [f"#1.{i + 1}" for i in range(60)]
    page.evaluate("() => prepbenchDiagram.setOptions({limit: 5000})")
    start = time.monotonic()
    page.evaluate("(parts) => { prepbenchDiagram.show({open: parts}); }", parts)
    expect(view.root.get_by_role("button", name="Cancel")).to_be_visible(timeout=3_000)
    expect(view.root.locator(".pbd-message")).to_contain_text("longer than 2 s and was stopped", timeout=12_000)
    assert time.monotonic() - start < 9  # one attempt, as there are so many, and starting Graphviz
    view.root.get_by_role("button", name="Keep what is shown").click()
    view.drawn(lambda: view.box("part 1 … 40").dblclick())
    page.evaluate("() => prepbenchDiagram.setOptions({limit: 300})")
    page.evaluate("(parts) => prepbenchDiagram.show({open: parts})", parts)
    expect(view.root.locator(".pbd-message")).to_contain_text("boxes; more than 300")
    page.close()


def test_the_widget_and_python_know_the_same(page: Page, lab: Any) -> None:
    check_widget(page, lab)


def test_the_widget_needs_no_extension(page: Page, lab_without_extension: Any) -> None:
    check_widget(page, lab_without_extension)
    assert page.evaluate("() => window[Symbol.for('prepbench')].assets === undefined")


def check_widget(page: Page, lab: Any) -> None:
    """Selection, overlay and view travel both ways between the page and the kernel."""
    problems, outside = watch(page, lab.url)
    cells = [
        "import torch, prepbench as pb\n"
        "inner = torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Linear(4, 2))\n"
        "model = torch.nn.Sequential(torch.nn.Linear(4, 4), inner).eval()\n"
        "diagram = pb.recursive_trace(model, inputs=torch.randn(3, 4)).diagram()\n"
        "diagram.overlay({'0': 8, '1.1': 4}, name='bits')",
        "print('selected', diagram.selected, diagram.overlay, sorted(diagram.view['open'] or ['auto']))",
        "diagram.selected = ['1.1']; diagram.overlay = ''",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(notebook, lab.folder / "widget.ipynb")
    page.goto(f"{lab.url}/lab/tree/widget.ipynb?reset")
    page.wait_for_function(READY, timeout=90_000)
    run(page, 0)
    view = View(page)
    expect(view.box("0, Linear")).to_have_class(re.compile("pb-precision-int8"), timeout=60_000)
    view.box("0, Linear").click()
    expect(view.side.locator("h4")).to_have_text("0")
    run(page, 1)
    expect(page.locator(".jp-OutputArea-output", has_text="selected ['0'] bits")).to_be_visible(timeout=30_000)
    run(page, 2)
    expect(view.side.locator("h4")).to_have_text("1.1", timeout=30_000)
    expect(view.legend).not_to_contain_text("int8")
    assert not problems
    assert not outside


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


def run(page: Page, cell: int) -> None:
    """Run one cell of the notebook in front."""
    page.evaluate(
        """async (cell) => {
          const panel = window.jupyterapp.shell.currentWidget;
          panel.content.activeCellIndex = cell;
          await window.jupyterapp.commands.execute('notebook:run-cell');
        }""",
        cell,
    )


def luminance(element: Locator) -> float:
    """Of an element's background, roughly, from 0 to 1."""
    colour = element.evaluate("e => getComputedStyle(e).backgroundColor")
    red, green, blue = (int(part) for part in re.findall(r"\d+", colour)[:3])
    return (0.2126 * red + 0.7152 * green + 0.0722 * blue) / 255
