"""A page that Voila serves of a notebook, with the notebook's kernel behind it."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Page, expect

from tests.system.browser import lab
from tests.system.browser.lab import ROOT

PLACE = "Voila"
OUTPUTS = ".jp-OutputArea-executeResult .jp-OutputArea-output, .jp-OutputArea-output.jp-OutputArea-executeResult"


def is_installed() -> bool:
    """Whether this environment has Voila."""
    return importlib.util.find_spec("voila") is not None


@contextmanager
def served(notebook: Path) -> Iterator[str]:
    """The address of a Voila that runs the notebook for each visitor, with prepbench's extension installed."""
    settings = notebook.parent / "settings"
    settings.mkdir()
    shutil.copy(ROOT / "extension" / "voila.json", settings)  # that of this working tree, whatever is installed
    extensions = notebook.parent / "labextensions"
    extensions.mkdir()
    (extensions / "prepbench-lab").symlink_to(ROOT / "src" / "prepbench" / "labextension")
    command = [
        sys.executable, "-m", "voila", str(notebook), "--no-browser", "--port={port}",
        f"--VoilaConfiguration.extra_labextensions_path={extensions}",
    ]  # fmt: skip
    variables = {**os.environ, "JUPYTER_CONFIG_PATH": str(settings)}
    log = notebook.parent / "voila.log"
    with lab.served(command, "/voila/static/voila.js", log, cwd=notebook.parent, env=variables) as url:
        yield url


def show(page: Page, url: str) -> None:
    """Open the page and wait until its live views are there."""
    page.goto(url, timeout=120_000)
    expect(page.locator(".pbb-box, .pbb").first).to_be_visible(timeout=120_000)
    expect(page.locator(".pbd svg g.node").last).to_be_visible(timeout=60_000)
    expect(page.locator(".js-plotly-plot .main-svg").last).to_be_visible(timeout=60_000)
