"""A disk that fails: the n-th write, opening or renaming of a call raises, and so do the writes that follow."""

from __future__ import annotations

import builtins
import errno
import io
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

_OPENED = ("w", "a", "x", "+")
_CALLS = (
    *((os, name) for name in ("write", "fsync", "mkdir", "chmod")),
    *((shutil, name) for name in ("copyfile", "copyfileobj")),
    *((tempfile, name) for name in ("mkstemp", "mkdtemp")),
)


class Disk:
    """Counts what writes; from the ``failing``-th on, each raises.

    Args:
        failing: the first that fails, counted from 0; None for none.
        number: of the error, e.g. ``errno.ENOSPC``.
    """

    def __init__(self, failing: int | None = None, number: int = errno.ENOSPC) -> None:
        self.count = 0
        self._failing, self._number = failing, number

    def touch(self, *, only_this: bool = False) -> None:
        """Something is about to be written; with ``only_this`` a later one works, as renaming does on a full disk."""
        self.count += 1
        is_over = self._failing is not None and self.count > self._failing
        if is_over and not (only_this and self.count != (self._failing or 0) + 1):
            raise OSError(self._number, os.strerror(self._number))

    def _around(self, original: Callable[..., Any], *, only_this: bool = False) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            self.touch(only_this=only_this)
            return original(*args, **kwargs)

        return call

    def _opening(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
            is_device = isinstance(file, str | os.PathLike) and os.fspath(file) == os.devnull
            is_pipe = isinstance(file, int) and stat.S_ISFIFO(os.fstat(file).st_mode)
            if any(letter in mode for letter in _OPENED) and not is_device and not is_pipe:
                self.touch()
            return original(file, mode, *args, **kwargs)

        return call

    @contextmanager
    def used(self) -> Iterator[Disk]:
        """Inside the block this process writes to this disk; what C++ writes itself does not."""
        with ExitStack() as stack:
            for owner, name in _CALLS:
                stack.enter_context(mock.patch.object(owner, name, self._around(getattr(owner, name))))
            for name in ("rename", "replace"):
                renamed = self._around(getattr(os, name), only_this=True)
                stack.enter_context(mock.patch.object(os, name, renamed))
            stack.enter_context(mock.patch.object(builtins, "open", self._opening(builtins.open)))
            stack.enter_context(mock.patch.object(io, "open", self._opening(io.open)))
            yield self
