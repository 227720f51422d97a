"""What the user's code prints while prepbench runs it: one folded block in a notebook, instead of an output a run.

A capture or a compile runs ``forward`` many times. What it prints is kept until the call is done, each line once with
its count. Nothing is held back in a script or a terminal, from a debugger, of warnings, and where somebody is asked
for input.
"""

from __future__ import annotations

import contextvars
import html
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from prepbench.strict_pages import for_strict_pages

_LINES = 200  # different ones that are kept

_kept: contextvars.ContextVar[_Kept | None] = contextvars.ContextVar("what the user's code has printed", default=None)
_lock = threading.Lock()
_open = 0  # calls whose streams are replaced


class _Kept:
    """Lines in the order of their first appearance, with their counts."""

    def __init__(self) -> None:
        self.lines: Counter[str] = Counter()
        self.displays = 0
        self._parts: dict[str, str] = {}

    def write(self, stream: str, text: str) -> None:
        *whole, self._parts[stream] = (self._parts.get(stream, "") + text).split("\n")
        for line in whole:
            self._add(line)

    def _add(self, line: str) -> None:
        line = line.rstrip("\r").rpartition("\r")[2].rstrip()  # of a bar its last state
        if line and (line in self.lines or len(self.lines) < _LINES):
            self.lines[line] += 1
        elif line:
            self.lines["…"] += 1

    def end(self) -> None:
        for rest in self._parts.values():
            self._add(rest)
        self._parts.clear()


class _Stream:
    """A stream whose text is kept where a call keeps it; everything else is that of the stream behind it."""

    def __init__(self, name: str, behind: TextIO) -> None:
        self._name = name
        self._behind = behind

    def write(self, text: str) -> int:
        kept = _kept.get()
        caller = sys._getframe(1).f_globals.get("__name__")
        if kept is None or sys.gettrace() is not None or caller == "warnings":
            return self._behind.write(text)
        kept.write(self._name, text)
        return len(text)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._behind, name)


@contextmanager
def folded_output() -> Iterator[None]:
    """Keep what the user's code prints in this thread, and show it at the end as one folded block."""
    shell: Any = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    if getattr(shell, "kernel", None) is None or _kept.get() is not None:
        yield
        return
    kept = _Kept()
    token = _kept.set(kept)
    hook = _counting(kept)
    shell.display_pub.register_hook(hook)
    _replace_streams(1)
    try:
        yield
    finally:
        _replace_streams(-1)
        shell.display_pub.unregister_hook(hook)
        _kept.reset(token)
        kept.end()
        if kept.lines or kept.displays:
            sys.modules["IPython"].display.display(_bundle(kept), raw=True)


@contextmanager
def shown_at_once() -> Iterator[None]:
    """Hold nothing back: the user is asked or told by what runs inside."""
    token = _kept.set(None)
    try:
        yield
    finally:
        _kept.reset(token)


def _replace_streams(count: int) -> None:
    """Put streams in the place of the process's while any call is open; code of other threads writes as before."""
    global _open
    with _lock:
        _open += count
        for name in ("stdout", "stderr"):
            now = getattr(sys, name)
            if _open and not isinstance(now, _Stream):
                setattr(sys, name, _Stream(name, now))
            elif not _open and isinstance(now, _Stream):
                setattr(sys, name, now._behind)


def _counting(kept: _Kept) -> Callable[[Any], Any]:
    def hook(message: Any) -> Any:
        if _kept.get() is not kept:
            return message
        kept.displays += message.get("header", {}).get("msg_type") == "display_data"
        return None

    return hook


def _bundle(kept: _Kept) -> dict[str, str]:
    count = kept.lines.total()
    parts = [f"{count} line{'s' * (count != 1)}"] * bool(count)
    parts += [f"{kept.displays} display{'s' * (kept.displays != 1)}"] * bool(kept.displays)
    title = f"Your code printed {' and '.join(parts)} while prepbench ran it"
    lines = [f"{line}  (×{times})" if times > 1 else line for line, times in kept.lines.items()]
    text = html.escape("\n".join(lines))
    body = f"<pre>{text}</pre>" if lines else ""
    return {
        "text/plain": "\n".join([title, *(f"  {line}" for line in lines)]),
        "text/html": for_strict_pages(f"<details><summary>{html.escape(title)}</summary>{body}</details>"),
    }
