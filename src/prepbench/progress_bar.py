"""What long calls show: a bar after two seconds, which disappears at the end, and the output of the user's code."""

from __future__ import annotations

import contextvars
import functools
import html
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, ParamSpec, TextIO, TypeVar

from prepbench._display import is_asked_by_program
from prepbench._torch_compat.symbolic_fx import thread_local_fx_traces
from prepbench.checks import check_switch
from prepbench.internal_errors import internal_errors_told
from prepbench.jobs import Progress, ProgressCallback, report_nothing, stage_words
from prepbench.strict_pages import for_strict_pages

P = ParamSpec("P")
R = TypeVar("R")

DELAY = 2.0
"""Seconds after which a call shows a bar."""

_EVERY = 0.2
_VARIABLE = "PREPBENCH_PROGRESS"

_wanted = True
_inside: contextvars.ContextVar[bool] = contextvars.ContextVar("inside a call that shows its progress", default=False)


def show_progress(on: bool) -> None:
    """Choose whether long calls show a progress bar; they do by default.

    A bar appears after two seconds, in a terminal or a notebook, and is gone when the call is done. A call that is
    given ``progress=`` shows none, nor does any where standard error is not a terminal, where a program such as
    nbconvert runs the notebook, or where the environment
    variable ``PREPBENCH_PROGRESS`` is ``0``.

    Args:
        on: False for no bars in this process.

    Raises:
        SettingsError: ``on`` is not a boolean.

    Example:
        >>> show_progress(False)
        >>> show_progress(True)
    """
    check_switch("on", on)
    global _wanted
    _wanted = on


def shows_progress(title: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Make a public function show a bar while it runs; nested public functions show none.

    Other threads may trace with FX meanwhile: their tracing does not reach the function. prepbench's own errors in it
    become :class:`prepbench.InternalError`.

    Args:
        title: the bar's text in front of the stage, e.g. ``"compile"``.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            given = kwargs.get("progress", report_nothing)
            if _inside.get():
                return function(*args, **kwargs)
            token = _inside.set(True)
            try:
                with ExitStack() as stack:
                    stack.enter_context(thread_local_fx_traces())
                    if given is report_nothing and _can_show():
                        report = stack.enter_context(_bar(title))
                        if "progress" in _parameters(function):
                            kwargs["progress"] = report
                    elif given is not report_nothing and callable(given) and not isinstance(given, type):
                        kwargs["progress"] = _told_at_once(given)
                    with folded_output(), internal_errors_told():
                        return function(*args, **kwargs)
            finally:
                _inside.reset(token)

        return call

    return decorate


def _told_at_once(progress: Any) -> ProgressCallback:
    """Return a callback whose prints are seen while the call goes on, unlike those of the model."""

    @functools.wraps(progress)
    def tell(step: Progress) -> None:
        with shown_at_once():
            progress(step)

    return tell


@functools.cache
def _parameters(function: Callable[..., Any]) -> frozenset[str]:
    code = function.__code__
    return frozenset(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount])


def _can_show() -> bool:
    if not _wanted or os.environ.get(_VARIABLE) == "0":
        return False
    if _in_kernel():
        return not is_asked_by_program()  # nobody looks, and a slow machine would leave other outputs than a fast one
    return bool(getattr(sys.stderr, "isatty", bool)())


def _in_kernel() -> bool:
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return getattr(shell, "kernel", None) is not None


@contextmanager
def _bar(title: str) -> Iterator[ProgressCallback]:
    """Draw the bar from another thread, because patches during tracing apply to the tracing thread only."""
    latest, ended = [Progress("")], threading.Event()
    draw = functools.partial(_draw, title, latest, ended, time.time(), sys.stderr)
    # in the caller's context, so that a notebook shows the bar below the cell that is running
    thread = threading.Thread(target=contextvars.copy_context().run, args=(draw,), daemon=True)
    thread.start()
    try:
        yield lambda step: latest.__setitem__(0, step)
    finally:
        ended.set()
        thread.join(DELAY)


def _draw(title: str, latest: list[Progress], ended: threading.Event, start: float, stream: Any) -> None:
    if ended.wait(DELAY):
        return
    bar = (_notebook_bar() if _in_kernel() else _terminal_bar())(
        desc=title, file=stream, leave=False, dynamic_ncols=True, bar_format=_TIMED
    )
    bar.start_t = start
    try:
        while not ended.wait(_EVERY):
            step = latest[0]
            stage = " · ".join(filter(None, (title, stage_words(step))))
            counted = step.total > 1
            bar.total, bar.n = (step.total, min(step.done, step.total)) if counted else (None, 0)
            bar.bar_format = _COUNTED if counted else _TIMED
            bar.set_description_str(stage, refresh=True)
    finally:
        bar.close()


_COUNTED = "{desc} |{bar}| {n_fmt}/{total_fmt} [{elapsed}]"
_TIMED = "{desc} [{elapsed}]"


@functools.cache
def _terminal_bar() -> Any:
    from tqdm.std import tqdm

    class TerminalBar(tqdm):  # type: ignore[misc]
        monitor_interval = 0  # no further thread, which would outlive the call

    return TerminalBar


@functools.cache
def _notebook_bar() -> Any:
    """Return the same bar as text in an output of its own, of which an empty output remains: it has no text that a
    reader or a comparison of outputs would find.
    """
    from IPython import display as ipython

    show: Any = ipython.display

    class NotebookBar(_terminal_bar()):  # type: ignore[misc]
        _handle: Any = None

        def display(self, msg: str | None = None, pos: int | None = None) -> None:
            self._show({"text/plain": str(self) if msg is None else msg})

        def close(self) -> None:
            self.disable = True
            self._show({})

        def _show(self, bundle: dict[str, str]) -> None:
            if self._handle is None:
                self._handle = show(bundle, raw=True, display_id=True)
            else:
                self._handle.update(bundle, raw=True)

    return NotebookBar


# What the user's code prints while prepbench runs it: one folded block in a notebook, instead of an output a run.


_LINES = 200  # different ones that are kept

_kept: contextvars.ContextVar[_Kept | None] = contextvars.ContextVar("what the user's code has printed", default=None)
_lock = threading.Lock()
_open = 0  # calls whose streams are replaced


# A capture or a compile runs `forward` many times. What it prints is kept until the call is done, each line once with
# its count. Nothing is held back in a script or a terminal, from a debugger, of warnings, and where somebody is asked
# for input.


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
