"""The diagram in a real Chromium: seconds to the first picture, milliseconds to open and close, how long the page is
blocked, how large what is saved is. Every figure stands beside its limit.

Run with ``python -m tests.benchmarks.bench_diagram``.
"""

from __future__ import annotations

import base64
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

from playwright.sync_api import Page, sync_playwright

from prepbench.document.codec import to_json
from prepbench.document.hierarchy import grouped
from prepbench.document.model import Graph, GraphCollectionDocument, Module, Node, SourceLine
from prepbench.views.display import collection_bundle
from prepbench.views.page import STATIC, packed, page
from tests.system.browser.chromium import CHROMIUM_FLAGS

ROOT = Path(__file__).parents[2]
ROUNDS = 5

LOAD = """async (data) => {
  const bytes = Uint8Array.from(atob(data), c => c.charCodeAt(0));
  window.longest = 0;
  const note = entries => { for (const e of entries) window.longest = Math.max(window.longest, e.duration); };
  new PerformanceObserver(list => note(list.getEntries())).observe({type: 'longtask'});
  await new Promise(r => setTimeout(r, 300));
  window.longest = 0;
  const start = performance.now();
  await prepbenchDiagram.load(bytes);
  await new Promise(r => requestAnimationFrame(() => requestAnimationFrame(r)));
  const time = performance.now() - start;
  if (!document.querySelector('.pb-diagram g.node')) throw new Error(document.body.innerText.slice(0, 300));
  return time;
}"""
SHOW = """async (view) => {
  const start = performance.now();
  await prepbenchDiagram.show(view);
  await new Promise(r => requestAnimationFrame(() => requestAnimationFrame(r)));
  return performance.now() - start;
}"""
BOXES = "() => document.querySelectorAll('.pb-diagram g.node').length"
BLOCKED = "async () => { await new Promise(r => setTimeout(r, 400)); return window.longest; }"


def language_model(layers: int, width: int, masked: bool = True) -> GraphCollectionDocument:
    """A decoder as export writes it: ``layers * width`` operations, one mask that every layer uses, residual sums."""
    nodes = [Node(":ids", "placeholder", "ids", "ids", shapes=("B×S",), dtypes=("int64",))]
    modules = [Module("", "Decoder", "traced", 10**9, 1), Module("layers", "ModuleList", "traced", 10**9)]
    nodes.append(_operation(":mask", "mask", "", (":ids",), 7))
    last = ":ids"
    parts = ("input_norm", "attention.q_proj", "attention.k_proj", "attention.v_proj", "attention", "mlp.up", "mlp")
    for layer in range(layers):
        owner = f"layers.{layer}"
        modules.append(Module(owner, "DecoderLayer", "traced", 10**7, 1))
        for name in ("attention", "mlp", *parts):
            if name not in ("attention", "mlp") or name == "attention":
                modules.append(Module(f"{owner}.{name}", name.rpartition(".")[2].title(), "traced", 10**6, 1))
        modules.append(Module(f"{owner}.mlp", "Mlp", "traced", 10**6, 1))
        skip = last
        for i in range(width):
            part = f"{owner}.{parts[i * len(parts) // width]}"
            inputs = (last, ":mask") if masked and i == width // 2 else (last, skip) if i == width - 1 else (last,)
            last = f":op{layer}_{i}"
            nodes.append(_operation(last, f"op{i}", part, inputs, i))
    nodes.append(Node(":output", "output", "output", "output", inputs=(last,), shapes=("B×S×4096",)))
    unique = tuple({module.fqn: module for module in modules}.values())
    return grouped(GraphCollectionDocument("Decoder", "aten", (Graph("graph:", "", tuple(nodes)),), unique))


def _operation(name: str, label: str, part: str, inputs: tuple[str, ...], line: int) -> Node:
    source = SourceLine("transformers/models/decoder/modeling_decoder.py", 100 + line, f"hidden = self.{label}(hidden)")
    target = f"aten.{label}.Tensor"
    return Node(
        name, "call_function", label, target, part, label, "traced", ("B×S×4096",), ("float32",), inputs, source
    )


def flat_transformer(boxes: int) -> GraphCollectionDocument:
    """``boxes`` operations without modules, with one mask that every layer uses: what breaks plain layouts."""
    made = language_model(boxes // 22, 22)
    nodes = tuple(replace(node, fqn="", group=None) for node in made.graphs[0].nodes)
    return grouped(replace(made, graphs=(Graph("graph:", "", nodes),), modules=made.modules[:1], groups=()))


def main() -> int:
    """Print every figure with its limit; the exit status says whether all are kept."""
    rows: list[tuple[str, float, float, str]] = []
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as folder:
        browser = playwright.chromium.launch(executable_path=chromium, args=CHROMIUM_FLAGS)
        tab = browser.new_page(viewport={"width": 1400, "height": 900})
        _open(tab, Path(folder))
        two, twenty = language_model(25, 80), language_model(80, 250)
        rows += _first(tab, "2,000 nodes", two, 1500)
        rows += _first(tab, "20,000 nodes", twenty, 4000)
        rows += _opening(tab, two)
        rows += _flat(tab)
        browser.close()
    rows += _sizes(two)
    for name, value, limit, unit in rows:
        print(f"{name:<58} {value:>9.1f} {unit:<3} limit {limit:>7.0f}  {'ok' if value <= limit else 'MISSED'}")
    return int(any(value > limit for _, value, limit, _ in rows))


def _open(tab: Page, folder: Path) -> None:
    path = folder / "page.html"
    path.write_text(page(language_model(1, 4)))
    tab.goto(f"file://{path}")
    tab.wait_for_selector("g.node")


def _median(act: Callable[[], float]) -> float:
    return statistics.median(act() for _ in range(ROUNDS))


def _load(tab: Page, document: GraphCollectionDocument) -> float:
    return float(tab.evaluate(LOAD, base64.b64encode(packed(to_json(document))).decode()))


def _first(
    tab: Page, name: str, document: GraphCollectionDocument, limit: float
) -> list[tuple[str, float, float, str]]:
    seconds, blocked = [], []
    for _ in range(ROUNDS):
        seconds.append(_load(tab, document))
        blocked.append(float(tab.evaluate(BLOCKED)))
    return [
        (f"first diagram, {name}", statistics.median(seconds), limit, "ms"),
        (f"longest block of the page meanwhile, {name}", statistics.median(blocked), 100, "ms"),
    ]


def _opening(tab: Page, document: GraphCollectionDocument) -> list[tuple[str, float, float, str]]:
    """Open and close one layer when nearly 300 boxes are visible."""
    _load(tab, document)
    blocks = ["layers.0", "layers.1", "layers.2"]
    inner = [f"{b}.{part}" for b in blocks for part in ("attention", "mlp", "input_norm", "attention.q_proj")]
    inner += [f"{b}.{part}" for b in blocks for part in ("attention.k_proj", "attention.v_proj", "mlp.up")]
    many = ["", "layers", *blocks, *inner]
    tab.evaluate(SHOW, {"open": many, "unfolded": ["layers"]})
    boxes = int(tab.evaluate(BOXES))
    tab.evaluate("() => { window.longest = 0; }")
    opening, closing = [], []
    for _ in range(ROUNDS):
        opening.append(float(tab.evaluate(SHOW, {"open": [*many, "layers.3"]})))
        most = int(tab.evaluate(BOXES))
        closing.append(float(tab.evaluate(SHOW, {"open": many})))
    blocked = float(tab.evaluate(BLOCKED))
    return [
        (f"open a module, {boxes} -> {most} boxes", statistics.median(opening), 300, "ms"),
        (f"close it, {most} -> {boxes} boxes", statistics.median(closing), 300, "ms"),
        ("longest block of the page meanwhile", blocked, 100, "ms"),
    ]


def _flat(tab: Page) -> list[tuple[str, float, float, str]]:
    document = flat_transformer(1000)
    tab.evaluate("() => prepbenchDiagram.setOptions({limit: 1500})")
    _load(tab, document)
    parts = [group.id for group in document.groups]  # cut into parts at first; here all of them are open

    def opened() -> float:
        tab.evaluate(SHOW, {"open": []})
        return float(tab.evaluate(SHOW, {"open": parts}))

    milliseconds = _median(opened)
    boxes = int(tab.evaluate(BOXES))
    blocked = float(tab.evaluate(BLOCKED))
    tab.evaluate("() => prepbenchDiagram.setOptions({limit: 300})")
    return [
        (f"flat graph of 1,000 operations, one mask, {boxes} boxes", milliseconds, 1000, "ms"),
        ("longest block of the page meanwhile", blocked, 100, "ms"),
    ]


def _sizes(document: GraphCollectionDocument) -> list[tuple[str, float, float, str]]:
    bundle = collection_bundle(SimpleNamespace(document=lambda: document, failures=()))
    assert "application/vnd.prepbench.graph+json" in bundle
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, str(ROOT)]
        subprocess.run(command, check=True)
        wheel = next(Path(folder).glob("*.whl")).stat().st_size
    return [
        ("saved output of a 2,000-node model", len(json.dumps(bundle, ensure_ascii=False).encode()) / 1000, 300, "kB"),
        ("front end of the widget", (STATIC / "diagram.js").stat().st_size / 1000, 100, "kB"),
        ("wheel", wheel / 1000, 4000, "kB"),
    ]


if __name__ == "__main__":
    raise SystemExit(main())
