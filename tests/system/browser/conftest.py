"""Chromium, and a JupyterLab for each file that asks for one."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.system.browser.chromium import CHROMIUM_FLAGS
from tests.system.browser.lab import Lab, running

HERE = Path(__file__).parent

# two JupyterLabs share the machine with what they compile; how fast the page answers is measured elsewhere
expect.set_options(timeout=20_000)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what lies here, so that no file is left out of a run by a line that it lacks."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker("browser")


@pytest.fixture(scope="session")
def browser_type_launch_args(browser_type_launch_args: dict[str, Any]) -> dict[str, Any]:
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    assert chromium, "The browser tests need Chromium: apt-get install chromium"
    return {**browser_type_launch_args, "executable_path": chromium, "args": CHROMIUM_FLAGS, "headless": True}


@pytest.fixture(scope="session")
def browser_context_args(browser_context_args: dict[str, Any]) -> dict[str, Any]:
    return {**browser_context_args, "viewport": {"width": 1500, "height": 1000}}


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """One for all tests of a file, which give their notebooks names of their own."""
    yield from running(tmp_path_factory.mktemp("lab"))


@pytest.fixture
def lab_without_extension(tmp_path: Path) -> Iterator[Lab]:
    """A JupyterLab in which prepbench's extension is off: like any other notebook that shows widgets."""
    pages = tmp_path / "config" / "labconfig" / "page_config.json"
    pages.parent.mkdir(parents=True)
    pages.write_text(json.dumps({"disabledExtensions": {"prepbench-lab": True}}))
    yield from running(tmp_path, JUPYTER_CONFIG_DIR=str(tmp_path / "config"))
