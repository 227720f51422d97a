"""Firefox, driven by WebDriver BiDi, which it speaks itself: nothing else has to be installed."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import websocket

from tests.system.browser.lab import end, free_port

PREFERENCES = {
    "datareporting.policy.dataSubmissionEnabled": False,
    "network.proxy.type": 0,
    "toolkit.telemetry.enabled": False,
    "browser.shell.checkDefaultBrowser": False,
}


def program() -> str | None:
    """The path of Firefox, where it is installed."""
    return shutil.which("firefox-esr") or shutil.which("firefox")


class Firefox:
    """One tab of a running Firefox."""

    def __init__(self, socket_of: websocket.WebSocket) -> None:
        self._socket = socket_of
        self._count = 0
        self.errors: list[str] = []
        self.requests: list[str] = []
        self.send("session.new", capabilities={})
        self.send("session.subscribe", events=["log.entryAdded", "network.beforeRequestSent"])
        self._tab = self.send("browsingContext.getTree")["contexts"][0]["context"]

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command and wait for its result; events that come before it are noted."""
        self._count += 1
        self._socket.send(json.dumps({"id": self._count, "method": method, "params": params}))
        while True:
            answer = json.loads(self._socket.recv())
            if answer.get("id") == self._count:
                assert answer["type"] == "success", answer
                result: dict[str, Any] = answer["result"]
                return result
            self._note(answer)

    def _note(self, event: dict[str, Any]) -> None:
        params = event.get("params", {})
        if event.get("method") == "log.entryAdded" and params["level"] == "error":
            self.errors.append(f"{params['text']} {params.get('stackTrace', '')}")
        elif event.get("method") == "network.beforeRequestSent":
            self.requests.append(params["request"]["url"])

    def open(self, url: str, width: int = 1200, height: int = 900) -> None:
        """Load a page in a window of this size."""
        self.send("browsingContext.setViewport", context=self._tab, viewport={"width": width, "height": height})
        self.send("browsingContext.navigate", context=self._tab, url=url, wait="complete")

    def evaluate(self, function: str, *arguments: Any) -> Any:
        """The result of a function of JavaScript, which may be asynchronous, as plain data."""
        given = ", ".join(json.dumps(argument) for argument in arguments)
        called = f"(async () => JSON.stringify(await ({function})({given})) ?? 'null')()"
        answer = self.send("script.evaluate", expression=called, target={"context": self._tab}, awaitPromise=True)
        assert answer["type"] == "success", answer
        return json.loads(answer["result"]["value"])

    def wait_for(self, function: str, *arguments: Any, seconds: float = 60) -> None:
        """Wait until a function of JavaScript says yes."""
        deadline = time.monotonic() + seconds
        while not self.evaluate(function, *arguments):
            assert time.monotonic() < deadline, f"{function} {arguments} {self.errors}"
            time.sleep(0.2)

    def screenshot(self, path: Path) -> None:
        """Write what the window shows as PNG."""
        path.write_bytes(base64.b64decode(self.send("browsingContext.captureScreenshot", context=self._tab)["data"]))


@contextmanager
def running(folder: Path) -> Iterator[Firefox]:
    """A Firefox with a fresh profile in this folder."""
    port = free_port()
    profile = folder / "profile"
    profile.mkdir()
    lines = (f"user_pref({json.dumps(name)}, {json.dumps(value)});" for name, value in PREFERENCES.items())
    (profile / "user.js").write_text("\n".join(lines))
    with (folder / "firefox.log").open("w") as log:
        process = subprocess.Popen(
            [str(program()), "--headless", "--no-remote", "--profile", str(profile), f"--remote-debugging-port={port}"],
            stdout=log, stderr=subprocess.STDOUT,
        )  # fmt: skip
        try:
            connection = _connected(port)
            yield Firefox(connection)
            connection.close()
        finally:
            end(process)


def _connected(port: int, seconds: float = 60) -> websocket.WebSocket:
    deadline = time.monotonic() + seconds
    while True:
        try:
            return websocket.create_connection(
                f"ws://127.0.0.1:{port}/session", timeout=120, suppress_origin=True, http_no_proxy=["127.0.0.1"]
            )
        except OSError:
            assert time.monotonic() < deadline, "Firefox did not answer"
            time.sleep(0.3)
