"""A real JupyterLab on a copy of the notebooks, and what tests do with it."""

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

from playwright.sync_api import Page

ROOT = Path(__file__).parents[3]
NOTEBOOKS = ROOT / "notebooks"
READY = """() => {
  const context = window.jupyterapp?.shell.currentWidget?.sessionContext;
  return context?.session?.kernel?.connectionStatus === 'connected';
}"""


@dataclass(frozen=True)
class Lab:
    """A running JupyterLab: its address, and the folder that it serves."""

    url: str
    folder: Path


def running(tmp_path: Path, settings: dict[str, Any] | None = None, **environment: str) -> Iterator[Lab]:
    """A JupyterLab that runs until the iterator goes on; ``settings`` are those of our extension."""
    folder = tmp_path / "notebooks"
    shutil.copytree(NOTEBOOKS, folder, ignore=shutil.ignore_patterns(".ipynb_checkpoints"))
    _write_settings(tmp_path / "settings", settings or {})
    extensions = tmp_path / "labextensions"  # those of this working tree, whatever is installed
    extensions.mkdir()
    (extensions / "prepbench-lab").symlink_to(ROOT / "src" / "prepbench" / "labextension")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = (tmp_path / "lab.log").open("w")
    process = subprocess.Popen(
        [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", f"--port={port}",
         "--ServerApp.port_retries=0", "--IdentityProvider.token=", "--LabApp.expose_app_in_browser=True",
         f"--LabApp.extra_labextensions_path={extensions}", f"--ServerApp.root_dir={folder}"],
        stdout=log, stderr=subprocess.STDOUT, cwd=tmp_path,  # where jupyter-collaboration keeps its database
        env={**os.environ, **_folders_of_its_own(tmp_path), **environment},
    )  # fmt: skip
    url = f"http://127.0.0.1:{port}"
    try:
        wait_for(f"{url}/api/status", process, tmp_path / "lab.log")
        yield Lab(url, folder)
    finally:
        process.terminate()
        try:
            process.wait(timeout=5)
        except subprocess.TimeoutExpired:  # a thread of the server may keep a finished one alive
            process.kill()
            process.wait()
        log.close()


def _folders_of_its_own(tmp_path: Path) -> dict[str, str]:
    """Where this JupyterLab keeps settings and layouts: two that run at once would overwrite each other's."""
    return {
        "JUPYTERLAB_SETTINGS_DIR": str(tmp_path / "settings"),
        "JUPYTERLAB_WORKSPACES_DIR": str(tmp_path / "layouts"),
    }


def _write_settings(folder: Path, own: dict[str, Any]) -> None:
    settings: dict[str, dict[str, Any]] = {
        "notebook-extension/tracker": {"windowingMode": "none"},
        "apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
    }
    for name, value in settings.items():
        path = folder / "@jupyterlab" / f"{name}.jupyterlab-settings"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(value))
    (folder / "prepbench-lab").mkdir()
    (folder / "prepbench-lab" / "plugin.jupyterlab-settings").write_text(json.dumps(own))


def wait_for(url: str, process: subprocess.Popen[bytes], log: Path, seconds: float = 60) -> None:
    """Wait until a server answers; its log is told where it ends before."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        assert process.poll() is None, f"The server ended:\n{log.read_text()[-3000:]}"
        try:
            with urllib.request.urlopen(url, timeout=2):
                return
        except OSError:
            time.sleep(0.2)
    raise AssertionError(f"The server did not answer within {seconds} s:\n{log.read_text()[-3000:]}")


def is_local(url: str, base: str) -> bool:
    """Whether a request stays in the page or goes to the Lab at ``base``."""
    return url.startswith((base, base.replace("http", "ws"), "data:", "blob:", "about:"))


def watch(page: Page, base: str) -> tuple[list[str], list[str]]:
    """Errors of the page, and requests that go elsewhere."""
    problems: list[str] = []
    outside: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("request", lambda request: None if is_local(request.url, base) else outside.append(request.url))
    return problems, outside
