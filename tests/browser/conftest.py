"""A real JupyterLab on a copy of the notebooks, and a real Chromium to look at it."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.browser.chromium import CHROMIUM_FLAGS

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"


@dataclass(frozen=True)
class Lab:
    """A running JupyterLab: its address, and the folder that it serves."""

    url: str
    folder: Path


@pytest.fixture(scope="session")
def browser_type_launch_args(browser_type_launch_args: dict[str, Any]) -> dict[str, Any]:
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    assert chromium, "The browser tests need Chromium: apt-get install chromium"
    return {**browser_type_launch_args, "executable_path": chromium, "args": CHROMIUM_FLAGS, "headless": True}


@pytest.fixture(scope="session")
def browser_context_args(browser_context_args: dict[str, Any]) -> dict[str, Any]:
    return {**browser_context_args, "viewport": {"width": 1500, "height": 1000}}


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    yield from _running(tmp_path)


@pytest.fixture
def lab_without_extension(tmp_path: Path) -> Iterator[Lab]:
    """A JupyterLab in which prepbench's extension is off: like any other notebook that shows widgets."""
    pages = tmp_path / "config" / "labconfig" / "page_config.json"
    pages.parent.mkdir(parents=True)
    pages.write_text(json.dumps({"disabledExtensions": {"prepbench-lab": True}}))
    yield from _running(tmp_path, JUPYTER_CONFIG_DIR=str(tmp_path / "config"))


def _running(tmp_path: Path, **environment: str) -> Iterator[Lab]:
    folder = tmp_path / "notebooks"
    shutil.copytree(NOTEBOOKS, folder, ignore=shutil.ignore_patterns(".ipynb_checkpoints"))
    _write_settings(tmp_path / "settings")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = (tmp_path / "lab.log").open("w")
    process = subprocess.Popen(
        [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", f"--port={port}",
         "--ServerApp.port_retries=0", "--IdentityProvider.token=", "--LabApp.expose_app_in_browser=True",
         f"--ServerApp.root_dir={folder}"],
        stdout=log, stderr=subprocess.STDOUT,
        env={**os.environ, "JUPYTERLAB_SETTINGS_DIR": str(tmp_path / "settings"), **environment},
    )  # fmt: skip
    url = f"http://127.0.0.1:{port}"
    try:
        _wait_for(f"{url}/api/status", process, tmp_path / "lab.log")
        yield Lab(url, folder)
    finally:
        process.terminate()
        try:
            process.wait(timeout=30)
        except subprocess.TimeoutExpired:  # a thread of the server may keep a finished one alive
            process.kill()
            process.wait()
        log.close()


def _write_settings(folder: Path) -> None:
    settings = {
        "notebook-extension/tracker": {"windowingMode": "none"},
        "apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
    }
    for name, value in settings.items():
        path = folder / "@jupyterlab" / f"{name}.jupyterlab-settings"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(value))


def _wait_for(url: str, process: subprocess.Popen[bytes], log: Path, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        assert process.poll() is None, f"JupyterLab ended:\n{log.read_text()[-3000:]}"
        try:
            with urllib.request.urlopen(url, timeout=2):
                return
        except OSError:
            time.sleep(0.2)
    raise AssertionError(f"JupyterLab did not answer within {seconds} s:\n{log.read_text()[-3000:]}")
