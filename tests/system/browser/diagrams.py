"""A model with a bit of everything, and what a person sees and does in its diagram."""

from __future__ import annotations

import json
import re
from typing import Any

import torch
from playwright.sync_api import Locator, Page, expect

import prepbench as pb
from prepbench.document.model import DiagramDocument
from prepbench.views.display import combined
from prepbench.views.overlays import make_overlay
from tests.system.browser.lab import Lab


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


def net_document() -> DiagramDocument:
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


def opened(page: Page, lab: Lab, name: str, text: str, theme: str = "light") -> View:
    """A graph file in its own tab, in the given theme."""
    (lab.folder / name).write_text(text)
    if theme == "dark":
        themes = lab.folder.parent / "settings/@jupyterlab/apputils-extension/themes.jupyterlab-settings"
        themes.write_text(json.dumps({"theme": "JupyterLab Dark"}))
    page.goto(f"{lab.url}/lab/tree/{name}?reset")
    page.wait_for_function("() => window.jupyterapp?.restored.then(() => true)", timeout=60_000)
    expect(page.locator(".pbd").last).to_be_visible(timeout=60_000)
    return View(page)


def luminance(element: Locator) -> float:
    """Of an element's background, roughly, from 0 to 1."""
    colour = element.evaluate("e => getComputedStyle(e).backgroundColor")
    red, green, blue = (int(part) for part in re.findall(r"\d+", colour)[:3])
    return (0.2126 * red + 0.7152 * green + 0.0722 * blue) / 255
