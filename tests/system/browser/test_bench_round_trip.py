"""What a click on a thousand layers costs in a real JupyterLab: time until the page shows it, and bytes on the wire."""

from __future__ import annotations

import statistics
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, WebSocket, expect

from tests.system.browser.lab import Lab
from tests.system.browser.measures import turn_to
from tests.system.browser.notebooks import open_notebook, run_cell

pytestmark = pytest.mark.timeout(300)

MODEL = """
import torch, prepbench as pb
net = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(1000))).eval()
batches = [torch.randn(2, 4), torch.randn(3, 4)]
"""
BENCH = "bench = pb.Bench(net, calibration_inputs=batches)\nbench"
MOST_MS, MOST_BYTES, TIMES = 100, 10_000, 7
CLICK = """([pressed, shown]) => new Promise((resolve, reject) => {
  const bench = document.querySelector('.jp-Notebook .pbb-box');
  const text = () => bench.querySelector(shown).textContent;
  const [before, started] = [text(), performance.now()];
  const observer = new MutationObserver(() => {
    if (text() === before) return;
    observer.disconnect();
    requestAnimationFrame(() => resolve(performance.now() - started));
  });
  observer.observe(bench, {childList: true, subtree: true, characterData: true, attributes: true});
  setTimeout(() => reject(new Error('nothing changed')), 20000);
  bench.querySelector(pressed).click();
})"""


class Wire:
    """Counts the bytes of all web sockets of a page."""

    def __init__(self, page: Page) -> None:
        self.bytes = 0
        page.on("websocket", self._follow)

    def _follow(self, socket: WebSocket) -> None:
        for event in ("framesent", "framereceived"):
            socket.on(event, self._count)

    def _count(self, payload: str | bytes) -> None:
        self.bytes += len(payload if isinstance(payload, bytes) else payload.encode())


@pytest.mark.stress
def test_a_click_goes_to_python_and_back(page: Page, lab: Lab, record_property: Callable[[str, object], None]) -> None:
    wire = Wire(page)
    open_notebook(page, lab, "thousand", [MODEL, BENCH, "bench.set_precision('5', 'float32')"])
    run_cell(page, 0)
    run_cell(page, 1)
    bench = page.locator(".jp-Notebook .pbb-box")
    expect(bench).to_be_visible(timeout=60_000)
    expect(bench.locator(".pbd g.node").first).to_be_visible(timeout=60_000)
    turn_to(bench, "precision")
    run_cell(page, 2)
    expect(bench.locator(".pbb-sentence")).to_contain_text("1 float")
    bench.scroll_into_view_if_needed()
    page.wait_for_timeout(3000)  # what JupyterLab and the diagram do on their own
    undo, redo = "header [aria-label='Undo']", "header [aria-label='Redo']"
    times, sizes = [], []
    for turn in range(2 * TIMES):
        page.wait_for_timeout(400)
        before = wire.bytes
        times.append(page.evaluate(CLICK, [undo if turn % 2 == 0 else redo, ".pbb-sentence"]))
        page.wait_for_timeout(300)
        sizes.append(wire.bytes - before)
    # of a click there and back, because the two differ; JupyterLab sends something of its own beside a few of them
    size = statistics.median((there + back) / 2 for there, back in zip(sizes[::2], sizes[1::2], strict=True))
    figures = f"{statistics.median(times):.0f} ms, {size:.0f} bytes (median of {len(times)})"
    print(f"\na click on 1,000 layers in JupyterLab: {figures}")  # noqa: T201
    record_property("round trip", figures)
    # the figure is recorded against its limit; a machine that is slow today fails no test
    assert min(times) < 3 * MOST_MS, times
    assert size < MOST_BYTES, sizes
