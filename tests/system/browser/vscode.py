"""A notebook as the renderers of VS Code show it, in code-server, without a kernel."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, Frame, Page

from tests.system.browser import lab

PLACE = "VS Code without a kernel"
HEIGHT = 6000
"""Of the window: VS Code draws only outputs that are in view."""
DRAWN = "() => document.querySelectorAll('.output_container').length"

IN_ORDER = "outputs.sort((one, other) => one.getBoundingClientRect().top - other.getBoundingClientRect().top)"
"""VS Code places outputs by their positions, in any order of elements."""


def is_installed() -> bool:
    """Whether ``code-server`` is on the path."""
    return shutil.which("code-server") is not None


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address of a code-server that shows the folder."""
    settings = folder / ".code-server"
    (settings / "User").mkdir(parents=True)
    (settings / "User" / "settings.json").write_text(json.dumps({"workbench.startupEditor": "none"}))
    command = [
        "code-server", "--auth=none", "--bind-addr=127.0.0.1:{port}", f"--user-data-dir={settings}",
        f"--extensions-dir={settings / 'extensions'}", f"--config={settings / 'config.yaml'}",
        "--disable-telemetry", "--disable-update-check", "--disable-workspace-trust", str(folder),
    ]  # fmt: skip
    with lab.served(command, "/healthz", settings / "log", cwd=folder) as url:
        yield f"{url}/?folder={folder}"


def _outputs(page: Page, name: str, count: int) -> Frame:
    """The frame that holds the outputs of the notebook, once all are drawn."""
    for _ in range(5):
        page.locator(".explorer-folders-view .monaco-list-row", has_text=name).dblclick(timeout=60_000)
        for _ in range(16):
            page.wait_for_timeout(500)
            for frame in page.frames:
                if frame.evaluate(DRAWN) >= count:
                    return frame
        # a notebook that is opened before its extension has started is shown as a text
        page.locator(".tabs-container .tab", has_text=name).click(button="middle")
    raise AssertionError("the outputs are not drawn")


def seen(chromium: Browser, notebook: Path, script: str, count: int) -> list[str]:
    """What the script answers of each output that shows a result."""
    context = chromium.new_context(viewport={"width": 1200, "height": HEIGHT})
    page = context.new_page()
    with served(notebook.parent) as url:
        page.goto(url, timeout=60_000)
        frame = _outputs(page, notebook.name, count)
        page.wait_for_timeout(1000)
        shown: list[str] = frame.locator(".output_container").evaluate_all(f"outputs => ({script})({IN_ORDER})")
        context.close()
    return shown
