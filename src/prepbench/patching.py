"""Temporary replacements of parts of Python, torch and modules, which are restored in every case."""

from __future__ import annotations

import functools
import logging
import sys
import threading
import time
import types
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from prepbench import interrupts

_ABSENT = object()


class Undo:
    """Restoring steps: each is registered before its change, and they run in reverse order.

    Every step runs, whatever the others raise; the first exception is raised at the end.
    """

    def __init__(self) -> None:
        self._steps: list[Callable[[], Any]] = []

    def add(self, step: Callable[[], Any]) -> None:
        """Register ``step`` to run at the end; it must be harmless if the change was never made."""
        self._steps.append(step)

    def add_all(self, steps: Iterable[Callable[[], Any]]) -> None:
        """Register each step with :meth:`add`; if making one raises, those before it stay registered."""
        self._steps.extend(steps)

    def run(self) -> None:
        """Restore everything."""
        first: BaseException | None = None
        while self._steps:
            try:
                self._run_all()
            except Exception as error:
                self._steps.pop()
                first = first or error
            except BaseException as error:  # an asynchronous exception, such as a time limit: the step runs once more
                first = error
        if first is not None:
            raise first

    def _run_all(self) -> None:
        while self._steps:
            self._steps[-1]()
            self._steps.pop()


@contextmanager
def undoing() -> Iterator[Undo]:
    """Allow changes during the block, each with a step registered first; interrupts wait for safe points."""
    undo = Undo()
    with interrupts.held():
        try:
            yield undo
        finally:
            try:
                with interrupts.restoring():
                    undo.run()
            finally:
                # whatever a time limit may have raised just before the line above
                with interrupts.restoring():
                    undo.run()


@contextmanager
def patched(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Set ``owner.name`` to ``value`` during the block; an inherited attribute is inherited again afterwards.

    For objects that no other thread uses, and for values that handle other threads themselves.
    """
    before = vars(owner).get(name, _ABSENT)
    with undoing() as undo:
        undo.add(lambda: _put_back(owner, name, before))
        setattr(owner, name, value)
        yield


@contextmanager
def patched_together(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Replace ``owner.name`` while any thread is inside such a block for it; blocks may end in any order.

    For values that handle threads themselves: the value of the first block stays until the last one ends. Ctrl-C acts
    inside as it does outside.
    """
    place, inside = (owner, name), [False]

    def end() -> None:
        with _together_lock:
            if inside[0]:
                count, before = _together.pop(place)
                if count > 1:
                    _together[place] = count - 1, before
                else:
                    _put_back(owner, name, before)
                inside[0] = False

    with undoing() as undo:
        undo.add(end)
        with _together_lock:
            count, before = _together.get(place, (0, vars(owner).get(name, _ABSENT)))
            if not count:
                setattr(owner, name, value)
            _together[place] = count + 1, before
            inside[0] = True
        with interrupts.as_around():
            yield


_together: dict[tuple[Any, str], tuple[int, Any]] = {}
"""The number of blocks that replace an attribute, and its original value."""
_together_lock = threading.Lock()


@contextmanager
def patched_here(owner: Any, name: str, function: Callable[..., Any]) -> Iterator[None]:
    """Run ``function`` for calls of ``owner.name`` from this thread during the block; other threads get the
    original. Such blocks of several threads may end in any order.
    """
    layer, here, ident = _Layer(owner, name), threading.get_ident(), threading.get_ident

    def dispatch(*args: Any, **kwargs: Any) -> Any:
        return (function if ident() == here and not layer.is_over else layer.below)(*args, **kwargs)

    with layer.set(functools.update_wrapper(dispatch, function)):
        yield


@dataclass(eq=False)
class _Layer:
    """One of the values that several threads put in the place of the same attribute.

    The one that ends first may lie below others. Putting back what was there before it would undo theirs, and theirs
    would bring it back. So the one above it is tied to what lies below it.
    """

    owner: Any
    name: str
    value: Any = None
    below: Any = None
    """What calls of other threads go to, and all calls once it is over."""
    before: Any = _ABSENT
    is_over: bool = False

    @contextmanager
    def set(self, value: Any) -> Iterator[None]:
        """Set the attribute to this value during the block."""
        self.value = value
        with undoing() as undo:
            undo.add(self._end)
            with _together_lock:
                self.below, self.before = getattr(self.owner, self.name), vars(self.owner).get(self.name, _ABSENT)
                _layers.setdefault((id(self.owner), self.name), []).append(self)
                setattr(self.owner, self.name, value)
            yield

    def _end(self) -> None:
        self.is_over = True
        place = id(self.owner), self.name
        with _together_lock:
            layers = _layers.get(place, [])
            if self not in layers:
                return
            above = layers[layers.index(self) + 1 :]
            if above:
                above[0].below, above[0].before = self.below, self.before
            elif vars(self.owner).get(self.name) is self.value:
                _put_back(self.owner, self.name, self.before)
            layers.remove(self)
            if not layers:
                _layers.pop(place, None)


_layers: dict[tuple[int, str], list[_Layer]] = {}
"""The layers of each attribute, the top one last."""


@contextmanager
def patched_item(owner: dict[Any, Any], name: Any, value: Any) -> Iterator[None]:
    """Set ``owner[name]`` to ``value`` during the block."""
    before = owner.get(name, _ABSENT)

    def put_back() -> None:
        if before is _ABSENT:
            owner.pop(name, None)
        else:
            owner[name] = before

    with undoing() as undo:
        undo.add(put_back)
        owner[name] = value
        yield


def _put_back(owner: Any, name: str, before: Any) -> None:
    if before is not _ABSENT:
        setattr(owner, name, before)
    elif name in vars(owner):
        delattr(owner, name)


def only_here(original: Callable[..., Any], function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that runs ``function`` in the current thread, and ``original`` in all others."""
    here, ident = threading.get_ident(), threading.get_ident

    def dispatch(*args: Any, **kwargs: Any) -> Any:
        return (function if ident() == here else original)(*args, **kwargs)

    return functools.update_wrapper(dispatch, function)


@contextmanager
def flag_only_in_this_thread(function: types.FunctionType) -> Iterator[None]:
    """Make a flag function without parameters return ``False`` in all other threads during the block.

    For functions that read a flag of their module, under whatever name they were imported: their code is replaced.
    """
    here, space = threading.get_ident(), function.__globals__
    before, name = function.__code__, f"_{function.__name__}_by_prepbench"
    original = types.FunctionType(before, space, function.__name__)
    with patched_item(space, name, lambda: threading.get_ident() == here and original()), undoing() as undo:
        undo.add(lambda: setattr(function, "__code__", before))
        function.__code__ = _calling(name)
        yield


@functools.cache
def _calling(name: str) -> types.CodeType:
    made: dict[str, Any] = {}
    exec(f"def function():\n    return {name}()\n", made)
    code: types.CodeType = made["function"].__code__
    return code


class _Stream:
    """Redirects one thread's writes to a stream of its own; other threads' writes are not affected."""

    def __init__(self, own: Any, layer: _Layer) -> None:
        self._own, self._layer, self._here = own, layer, threading.get_ident()

    def __getattr__(self, name: str) -> Any:
        is_own = threading.get_ident() == self._here and not self._layer.is_over
        return getattr(self._own if is_own else self._layer.below, name)


@contextmanager
def output_here(output: Any, errors: Any = None) -> Iterator[None]:
    """Redirect this thread's output during the block to these streams (both to the first if only one is given).

    Such blocks of several threads may end in any order.
    """
    errors = output if errors is None else errors
    out, error = _Layer(sys, "stdout"), _Layer(sys, "stderr")
    streams = _Stream(output, out), _Stream(errors, error)
    try:
        with out.set(streams[0]), error.set(streams[1]):
            yield
    finally:
        now = time.monotonic()
        _ended.append((now, streams))
        while _ended and _ended[0][0] < now - _LONGEST_PRINT:
            _ended.popleft()


# print() does not hold the stream that it writes to (https://github.com/python/cpython/issues/130163, mended in later
# versions): one that another thread takes away meanwhile must live on, or the process ends with a segmentation fault
_ended: deque[tuple[float, tuple[_Stream, _Stream]]] = deque()
_LONGEST_PRINT = 10.0  # seconds


class _Here:
    """Stands in for the pattern of a warnings filter: matches all warnings of this thread during a block."""

    def __init__(self) -> None:
        self.thread = threading.get_ident()

    def match(self, text: str) -> bool:
        return threading.get_ident() == self.thread


@contextmanager
def warnings_ignored_here() -> Iterator[None]:
    """Drop this thread's warnings during the block.

    ``warnings.catch_warnings`` changes the filters of all threads, and two of them that overlap leave them changed.
    """
    here = _Here()
    entry: Any = ("ignore", here, Warning, None, 0)

    def put_back() -> None:
        # a block of catch_warnings in another thread may bring the filter back, which must not match then
        here.thread = 0
        if entry in warnings.filters:
            warnings.filters.remove(entry)  # type: ignore[attr-defined]
        _forget_shown()

    with undoing() as undo:
        undo.add(put_back)
        warnings.filters.insert(0, entry)  # type: ignore[attr-defined]
        _forget_shown()
        yield


@contextmanager
def logs_dropped_here(*names: str, below: int = logging.CRITICAL) -> Iterator[None]:
    """Drop this thread's log records below a level during the block: those of the named loggers, or all."""
    original = logging.Logger.callHandlers

    def call(self: logging.Logger, record: logging.LogRecord) -> None:
        dropped = not names or any(self.name == name or self.name.startswith(f"{name}.") for name in names)
        if not dropped or record.levelno >= below:
            original(self, record)

    with patched_here(logging.Logger, "callHandlers", call):
        yield


def _forget_shown() -> None:
    # as catch_warnings does: reset the once-per-location registries, because the filters have changed
    changed = getattr(warnings, "_filters_mutated", None)
    if changed is not None:
        changed()
