"""README's pictures of the bench, from a run of the notebook about it: ``python -m tests.system.browser.pictures``."""

from __future__ import annotations

import io
import tempfile
from contextlib import closing
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, expect, sync_playwright

from tests.system.browser.chromium import CHROMIUM_FLAGS
from tests.system.browser.lab import NOTEBOOKS, READY, Lab, running

_NOTEBOOK = "06_workbench.ipynb"
_THEMES = {"light": "JupyterLab Light", "dark": "JupyterLab Dark"}
_RESTORED = "bench.restore_run("  # the bench is shown as it stands after this cell
_RUN_TO = """async (mark) => {
  const notebook = window.jupyterapp.shell.currentWidget.content;
  const last = notebook.widgets.findIndex((cell) => cell.model.sharedModel.source.includes(mark));
  for (let cell = 0; cell <= last; cell++) {
    notebook.activeCellIndex = cell;
    await window.jupyterapp.commands.execute('notebook:run-cell');
  }
}"""

# the bench is as tall as what it holds: what a person sees of it at once
_IN_VIEW = """(box) => {
  const [whole, panel] = [box, box.closest('.jp-WindowedPanel-outer')].map((e) => e.getBoundingClientRect());
  const [x, y] = [Math.max(whole.left, panel.left), Math.max(whole.top, panel.top)];
  return {x, y, width: Math.min(whole.right, panel.right) - x, height: Math.min(whole.bottom, panel.bottom) - y};
}"""


def main() -> None:
    """Run the notebook, and photograph the bench in both themes."""
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as browsers:
        with closing(running(Path(folder))) as labs:
            lab = next(labs)
            browser = browsers.chromium.launch(executable_path="/usr/bin/chromium", args=CHROMIUM_FLAGS)
            page = browser.new_page(viewport={"width": 1440, "height": 1100}, device_scale_factor=1.5)
            page.set_default_timeout(300_000)
            _photograph(page, lab)
            browser.close()


def _photograph(page: Page, lab: Lab) -> None:
    page.goto(f"{lab.url}/lab/tree/{_NOTEBOOK}?reset")
    page.wait_for_function(READY)
    page.evaluate("() => window.jupyterapp.commands.execute('application:toggle-left-area')")
    page.evaluate("() => window.jupyterapp.commands.execute('notebook:clear-all-cell-outputs')")
    page.evaluate(_RUN_TO, _RESTORED)
    bench = page.locator(".pbb-box")
    for name, theme in _THEMES.items():
        page.evaluate("theme => window.jupyterapp.commands.execute('apputils:change-theme', {theme})", theme)
        bench.locator("[data-step='results']").click()
        expect(bench.locator(".pbb-chart .main-svg").first).to_be_visible()
        bench.evaluate("(box) => box.scrollIntoView({block: 'start'})")
        page.wait_for_timeout(1500)  # the diagram and the chart are drawn again in the theme's colours
        _write(page.screenshot(clip=bench.evaluate(_IN_VIEW)), NOTEBOOKS / "images" / f"bench-{name}.png")


def _write(picture: bytes, path: Path) -> None:
    """Write a picture in 256 colours, which is a third of its bytes: the first page of the site shows it."""
    colours = Image.open(io.BytesIO(picture)).convert("RGB").quantize(256, dither=Image.Dither.NONE)
    colours.save(path, optimize=True)


if __name__ == "__main__":
    main()
