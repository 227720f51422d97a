"""The first five minutes in a notebook, measured: what a person sees of a diagram and of the bench, in both themes."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.system.browser.lab import Lab, watch
from tests.system.browser.measures import broken_labels, contrast, covered_by_map, inside, smallest_text, turn_to
from tests.system.browser.models import GATE, UNTIMED
from tests.system.browser.notebooks import looks, open_notebook, outputs_of, run_cell, set_source

pytestmark = pytest.mark.timeout(600)

MODEL = f"""{GATE}
class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = torch.nn.Conv2d(8, 8, 3, padding=1)
        self.conv2 = torch.nn.Conv2d(8, 8, 3, padding=1)

    def forward(self, x):
        return x + self.conv2(torch.relu(self.conv1(x)))

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = torch.nn.Conv2d(3, 8, 3, stride=2, padding=1)
        self.blocks = torch.nn.ModuleList(Block() for _ in range(4))
        self.gate = Gate()
        self.head = torch.nn.Linear(8, 2)

    def forward(self, x):
        x = torch.relu(self.stem(x))
        for block in self.blocks:
            x = block(x)
        return self.head(self.gate(x).mean((2, 3)))

torch.manual_seed(0)
net = Net().eval()
batches = [torch.randn(2, 3, 32, 32), torch.randn(3, 3, 40, 40)]
"""
FAILING_LINE = next(n for n, line in enumerate(MODEL.splitlines(), 1) if "if x.sum" in line)
_AT_LINE = """([cell, line]) => {
  const { activeCellIndex, activeCell } = window.jupyterapp.shell.currentWidget.content;
  return activeCellIndex === cell && activeCell.editor?.getCursorPosition().line === line - 1;
}"""
LONG = """
class Caching(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(8, 8)

    def forward(self, x, keys, values):
        keys, values = torch.cat([keys, x[:, None]], 2), torch.cat([values, x[:, None]], 2)
        return self.fc(torch.nn.functional.scaled_dot_product_attention(x[:, None], keys, values)[:, 0]), [keys, values]

class Body(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(Caching() for _ in range(6))

    def forward(self, x, cache):
        for _ in range(50):
            x = x + 1
        for i, layer in enumerate(self.layers):
            x, cache[i] = layer(x, *cache[i])
        return x, cache

class Language(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = Body()
        self.head = torch.nn.Linear(8, 20)

    def forward(self, x, cache):
        x, cache = self.body(x, [list(pair) for pair in cache])
        return self.head(x), cache

def sample(batch, new, past):
    caches = [[torch.ones(batch, 1, past, 8), torch.ones(batch, 1, past, 8)] for _ in range(6)]
    return torch.ones(batch, new, 8), caches

language = Language().eval()
samples = [sample(2, 3, 5), sample(3, 5, 9)]
deep = torch.nn.Sequential(*(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()) for _ in range(555))).eval()
strides = torch.nn.Sequential(*(torch.nn.Conv2d(3, 3, 3, stride=2, padding=1) for _ in range(3))).eval()
images = [torch.randn(2, 3, 64, 64), torch.randn(3, 3, 80, 72)]
"""
BENCH = "bench = pb.Bench(net, calibration_inputs=batches)\nbench"


def shot(page: Page, name: str) -> None:
    """A picture for those who look at it: in the folder SCREENSHOTS, where that is set."""
    if folder := os.environ.get("SCREENSHOTS"):
        page.screenshot(path=Path(folder) / f"{name}.png")


def test_a_diagram_in_a_cell_can_be_read(page: Page, lab: Lab) -> None:
    problems, _ = watch(page, lab.url)
    open_notebook(page, lab, "diagram", [MODEL, "pb.recursive_trace(net, inputs=batches)"])
    run_cell(page, 0)
    for theme, width in looks(page):
        run_cell(page, 1)  # a new output: the first view at this width
        view = page.locator(".pbd").last
        expect(view.locator("g.node").first).to_be_visible(timeout=60_000)
        view.scroll_into_view_if_needed()
        page.wait_for_timeout(300)
        shot(page, f"diagram-{width}-{theme[-5:].strip()}")
        where = f"{theme}, {width}"
        assert smallest_text(view) >= 9, where
        assert inside(view.locator("g.node.failed").first, view.locator(".pbd-canvas")), where
        assert not covered_by_map(view), where
        view.locator("g.node[aria-label^='gate']").click()
        expect(view.locator(".pbd-side")).to_contain_text("What to do")
        shot(page, f"details-{width}-{theme[-5:].strip()}")
        assert not broken_labels(view), where
        assert view.locator(".pbd-title button svg").bounding_box()["width"] >= 12, where  # type: ignore[index]
        values = view.locator(".pbd-side dd").first.bounding_box()
        assert values
        assert values["width"] > 60, where
        if width == 1440:
            view.get_by_role("button", name="Zoom out").click(click_count=6, delay=20)
            view.get_by_role("searchbox").fill("head")
            view.get_by_role("searchbox").press("Enter")
            expect(view.locator(".pbd-count")).to_have_text("1 of 1")
            page.wait_for_timeout(300)
            assert smallest_text(view) >= 9, "a hit can be read"
            view.get_by_role("button", name="Zoom out").click(click_count=6, delay=20)
        view.get_by_role("button", name="Close all modules").click()
        page.wait_for_timeout(600)
        assert smallest_text(view) >= 9, "closing all fits again"
    assert not problems


def test_the_bench_says_what_it_does(page: Page, lab: Lab) -> None:
    problems, _ = watch(page, lab.url)
    open_notebook(page, lab, "bench", [MODEL + UNTIMED, BENCH, "", "print([row.name for row in comparison.rows])"])
    run_cell(page, 0)
    run_cell(page, 1)
    bench = page.locator(".pbb-box")
    expect(bench).to_be_visible(timeout=60_000)

    failure = bench.locator(".pbb-capture .pbb-card")
    expect(failure).to_contain_text("if x.sum() > 0:")  # known before anything is compiled
    expect(failure.get_by_role("button", name="Apply fix")).to_be_visible(timeout=60_000)  # looked for meanwhile
    turn_to(bench, "precision")
    filter_box = bench.get_by_role("searchbox", name="Filter layers")
    rows = bench.locator("tr[data-at]:visible")
    for query, count in (("blocks.*.conv1", 4), ("CONV1", 4), ("blocks.[01].conv?", 4), ("linear", 1), ("", 10)):
        filter_box.fill(query)
        expect(rows).to_have_count(count)
    filter_box.fill("encoder.*")
    expect(bench.locator(".pbb-nothing")).to_contain_text("among 10 layers fits “encoder.*”")
    bench.get_by_role("button", name="Show all layers").click()
    expect(rows).to_have_count(10)

    turn_to(bench, "axes")
    axis = bench.locator("[aria-label^='x dim 2:']")
    axis.click()
    expect(bench.locator(".pbb-problem")).to_contain_text("sample 2 has 40")
    expect(axis).to_contain_text("sizes differ")
    shot(page, "contradiction")
    bench.locator(".pbb-head").get_by_role("button", name="Undo").click()
    expect(bench.locator(".pbb-problem")).to_have_count(0)

    turn_to(bench, "run")
    bench.get_by_role("button", name="Compile", exact=True).click()
    card = bench.locator(".pbb-error")
    expect(card.locator("strong")).to_have_text("gate cannot be captured: data-dependent branch", timeout=120_000)
    expect(card).to_contain_text("if x.sum() > 0:")
    expect(card.locator("> :not(details)").filter(has_text="fullgraph")).to_have_count(0)
    expect(card.locator("> :not(details)").filter(has_text="leaf_modules=")).to_have_count(0)
    expect(card.locator("pre")).to_be_hidden()
    for theme, width in looks(page):
        card.scroll_into_view_if_needed()
        shot(page, f"error-{width}-{theme[-5:].strip()}")
        box = card.bounding_box()
        assert box
        assert box["height"] < 260, (theme, width)
    card.get_by_role("button", name="Open line").click()
    page.wait_for_function(_AT_LINE, arg=[0, FAILING_LINE], timeout=20_000)
    card.scroll_into_view_if_needed()
    card.get_by_role("button", name="Keep it in PyTorch").click()
    expect(bench.locator(".pbb-info")).to_contain_text("int8 ONNX Runtime", timeout=180_000)
    expect(bench.locator(".pbb-info")).not_to_contain_text(re.compile(r"(?<![\d.])0 MB"))
    expect(bench.locator(".pbb-info")).to_contain_text(" MB")
    assert not [o for cell in (0, 1) for o in outputs_of(page, cell) if o["output_type"] == "stream"], "log lines"

    for theme, width in looks(page):
        bench.scroll_into_view_if_needed()
        turn_to(bench, "precision")
        shot(page, f"bench-{width}-{theme[-5:].strip()}")
        area, first = bench.locator(".pbb-layers .pbb-scroll"), bench.locator("tr[data-at='0']")
        assert inside(first.locator(".pbb-number").first, area), (theme, width)
        assert inside(first.locator("th"), area), (theme, width)
        area.evaluate("e => e.scrollTo(9999, 0)")
        assert inside(first.locator("th"), area), "names stay"
        area.evaluate("e => e.scrollTo(0, 0)")
        page.evaluate("window.dispatchEvent(new Event('resize'))")  # plotly draws again, in a place of no height
        page.wait_for_timeout(300)
        turn_to(bench, "results")
        chart, code = page.locator(".js-plotly-plot").last, page.locator(".pbb-code")
        expect(chart).to_be_visible(timeout=30_000)
        assert chart.bounding_box()["y"] < code.bounding_box()["y"], "the code is below the chart"  # type: ignore[index]
        chart.scroll_into_view_if_needed()
        shot(page, f"chart-{width}-{theme[-5:].strip()}")

    code = page.locator(".pbb-code")
    code.locator("summary").click()
    assert "tracing_inputs=batches" in code.locator("pre").inner_text()
    set_source(page, 2, code.locator("pre").inner_text())
    assert not [o for o in run_cell(page, 2) if o["output_type"] == "error"]
    printed: Any = run_cell(page, 3)[0]
    assert "int8 ONNX Runtime" in printed["text"]

    turn_to(bench, "precision")
    bench.locator("tr[data-at='0']").click()
    bench.get_by_role("radio", name="float32").click()
    expect(bench.locator(".pbb-layers thead")).to_contain_text("Decided as (old)")
    turn_to(bench, "run")
    expect(bench.locator(".pbb-run .pbb-old")).to_contain_text("1 layer had another precision")
    expect(page.locator(".pbb-stale")).to_have_count(1)
    shot(page, "stale")
    bench.locator(".pbb-head").get_by_role("button", name="Undo").click()
    expect(bench.locator(".pbb-run .pbb-old")).to_have_count(0)
    expect(page.locator(".pbb-stale")).to_have_count(0)
    assert not problems


def long_texts(view: Locator) -> list[str]:
    """Texts in boxes that are too long to be read at a glance."""
    texts: list[str] = view.locator("g.node text").all_text_contents()
    return [text for text in texts if len(text) > 30]


@pytest.mark.stress
def test_sizes_have_short_names_in_both_graphs(page: Page, lab: Lab) -> None:
    problems, _ = watch(page, lab.url)
    both = "pb.diagram(pb.recursive_trace(strides, inputs=images), pb.capture(strides, images))"
    open_notebook(page, lab, "sizes", [MODEL + LONG, both])
    run_cell(page, 0)
    for theme, width in looks(page):
        run_cell(page, 1)
        view = page.locator(".pbd").last
        shown = []
        for level in ("module graph", "ATen graph"):
            view.get_by_role("button", name=level).click()
            expect(view.get_by_role("button", name=level)).to_have_attribute("aria-pressed", "true")
            page.wait_for_timeout(600)
            expect(view.locator("g.node").first).to_be_visible(timeout=60_000)
            assert contrast(view.get_by_role("button", name=level)) >= 4.5, (theme, width, level)
            assert not long_texts(view), (theme, width, level)
            assert smallest_text(view) >= 9, (theme, width, level)
            legend = view.locator(".pbd-sizes")
            expect(legend).to_contain_text("H1 = (H - 1)//2 + 1")
            expect(legend).to_contain_text("H = input.shape[2]")
            assert inside(legend, view), (theme, width)
            texts = view.locator("g.node text").all_text_contents()
            shown.append({text for text in texts if "×" in text})
            shot(page, f"sizes-{level[:4]}-{width}-{theme[-5:].strip()}")
        assert shown[0] == shown[1]
        assert "B×3×H1×W1" in shown[0]
        view.locator("g.node[aria-label^='1,']").first.click()
        details = view.locator(".pbd-side dl")
        expect(details).to_contain_text("H2")
        expect(details).to_contain_text("//4")
        assert not broken_labels(view), (theme, width)
    assert not problems


@pytest.mark.stress
def test_long_models_and_caches_open_on_what_they_hold(page: Page, lab: Lab) -> None:
    problems, _ = watch(page, lab.url)
    cells = [
        MODEL + LONG,
        "pb.recursive_trace(deep, inputs=[torch.ones(2, 4), torch.ones(3, 4)])",
        "captured = pb.capture(language, samples)\ncaptured",
        "print(captured.verify())",
        "pb.Bench(language, tracing_inputs=samples)",
    ]
    open_notebook(page, lab, "long", cells)
    run_cell(page, 0)
    printed: Any = run_cell(page, 3 - 1) and run_cell(page, 3)[0]
    assert len(printed["text"].splitlines()) <= 12
    assert "height" not in printed["text"]
    for theme, width in looks(page):
        where = f"{theme}, {width}"
        run_cell(page, 1)
        view = page.locator(".pbd").first
        expect(view.locator("g.node").first).to_be_visible(timeout=60_000)
        view.scroll_into_view_if_needed()
        page.wait_for_timeout(300)
        titles = [text for text in view.locator("g.node text, g.cluster > text").all_text_contents() if " … " in text]
        numbers = sorted(tuple(map(int, re.findall(r"\d+", title)))[:2] for title in titles)
        assert ("520", "554") in {tuple(re.findall(r"\d+", title)) for title in titles}, (where, titles)
        assert numbers[0][0] <= 1, (where, titles)
        shot(page, f"deep-{width}-{theme[-5:].strip()}")

        run_cell(page, 2)
        view = page.locator(".pbd").nth(1)
        expect(view.locator("g.node").first).to_be_visible(timeout=60_000)
        view.scroll_into_view_if_needed()
        page.wait_for_timeout(300)
        shot(page, f"language-{width}-{theme[-5:].strip()}")
        assert 8 < view.locator("g.node").count() <= 120, where
        assert view.locator("g.node.input").count() <= 2, where
        assert smallest_text(view) >= 9, where
        assert inside(view.locator("g.node").first, view.locator(".pbd-canvas")), where

        run_cell(page, 4)
        turn_to(page.locator(".pbb-box").last, "axes")
        rows = page.locator(".pbb-axes-row")
        expect(rows).to_have_count(2)
        expect(rows.last).to_contain_text("cache[*][*] (12)")
        expect(rows.last).to_contain_text("past")
        rows.last.scroll_into_view_if_needed()
        shot(page, f"axes-{width}-{theme[-5:].strip()}")
    assert not problems
