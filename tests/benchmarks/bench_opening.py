"""Seconds from running a cell in JupyterLab until its diagram or bench is there, for a model of 100 layers.

Cold is the first cell of a kernel and of a page, with the imports of torch and prepbench. Warm are cells behind it,
each with a model of its own.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from playwright.sync_api import Locator, Page, expect, sync_playwright

from tests.system.browser.chromium import CHROMIUM_FLAGS
from tests.system.browser.lab import running
from tests.system.browser.notebooks import open_notebook

LIMITS = {"first picture, cold": 6.0, "first picture, warm": 3.0, "bench that takes a click, warm": 4.0}
ROUNDS = 3
MODEL = """
import torch, prepbench as pb
from torch import nn

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(16), nn.Linear(16, 32), nn.Linear(32, 16)
        self.mix = nn.Conv1d(16, 16, 3, padding=1)

    def forward(self, x):
        x = x + self.down(torch.relu(self.up(self.norm(x))))
        return x + self.mix(x.transpose(1, 2)).transpose(1, 2)

samples = [torch.randn(2, 9, 16), torch.randn(3, 7, 16)]
"""
PICTURE = "graph = pb.recursive_trace(nn.Sequential(*(Block() for _ in range(25))).eval(), inputs=samples)\n"
PICTURE += "graph.diagram()"
BENCH = "pb.Bench(nn.Sequential(*(Block() for _ in range(25))).eval(), calibration_inputs=samples)"


def main() -> int:
    """Print the seconds; returns 1 if a limit is missed."""
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as browsers:
        with closing(running(Path(folder))) as labs:
            lab = next(labs)
            cells = [MODEL + PICTURE, *[PICTURE] * ROUNDS, *[BENCH] * ROUNDS]
            browser = browsers.chromium.launch(executable_path="/usr/bin/chromium", args=CHROMIUM_FLAGS)
            page = browser.new_page(viewport={"width": 1440, "height": 1000})
            open_notebook(page, lab, "opening", cells)
            expect(page.locator(".jp-Notebook-ExecutionIndicator[data-status='idle']")).to_be_visible(timeout=60_000)
            seconds = [_after(page, cell, _is_drawn) for cell in range(1 + ROUNDS)]
            usable = [_after(page, cell, _takes_a_click) for cell in range(1 + ROUNDS, len(cells))]
            browser.close()
    found = dict(zip(LIMITS, (seconds[0], statistics.median(seconds[1:]), statistics.median(usable)), strict=True))
    for name, each in found.items():
        print(f"{name:<32} {each:5.1f} s  limit {LIMITS[name]:.0f}  {'ok' if each <= LIMITS[name] else 'missed'}")
    return int(any(each > LIMITS[name] for name, each in found.items()))


def _after(page: Page, cell: int, is_there: Callable[[Locator], None]) -> float:
    place = page.locator(".jp-CodeCell").nth(cell)
    place.locator(".cm-content").first.click()
    began = time.monotonic()
    page.keyboard.press("Control+Enter")
    is_there(place.locator(".jp-Cell-outputArea"))
    return time.monotonic() - began


def _is_drawn(output: Locator) -> None:
    expect(output.locator(".pbd g.node").first).to_be_visible(timeout=60_000)


def _takes_a_click(output: Locator) -> None:
    output.locator("tr[data-at='0']").click(timeout=60_000)
    expect(output.locator("tr[data-at='0'][aria-selected='true']")).to_be_visible(timeout=60_000)


if __name__ == "__main__":
    sys.exit(main())
