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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
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
    command = [
        sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--port={port}",
        "--ServerApp.port_retries=0", "--IdentityProvider.token=", "--LabApp.expose_app_in_browser=True",
        f"--LabApp.extra_labextensions_path={extensions}", f"--ServerApp.root_dir={folder}",
    ]  # fmt: skip
    variables = {**os.environ, **_folders_of_its_own(tmp_path), **environment}
    # jupyter-collaboration keeps its database where the server runs
    with served(command, "/api/status", tmp_path / "lab.log", cwd=tmp_path, env=variables) as url:
        yield Lab(url, folder)


@contextmanager
def served(command: Sequence[str], answers: str, log: Path, **options: Any) -> Iterator[str]:
    """The address of a server that runs during the block.

    Args:
        command: starts it; ``{port}`` stands for a free port.
        answers: the path that answers once it is ready.
        log: the file for what it prints.
        options: of ``subprocess.Popen``.
    """
    port = free_port()
    with log.open("w") as output:
        started = [part.replace("{port}", str(port)) for part in command]
        process = subprocess.Popen(started, stdout=output, stderr=subprocess.STDOUT, **options)
        try:
            wait_for(f"http://127.0.0.1:{port}{answers}", process, log)
            yield f"http://127.0.0.1:{port}"
        finally:
            end(process)


def free_port() -> int:
    """A port of this machine that nobody listens at."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    return port


def end(process: subprocess.Popen[bytes]) -> None:
    """End a process: a thread of a server may keep a finished one alive."""
    process.terminate()
    try:
        process.wait(timeout=5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


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
