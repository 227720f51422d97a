"""Calls that come back to where they began: ``generate`` calls ``self(x)``, and means the model's own forward."""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
import threading
import types
from collections.abc import Callable
from typing import Any

import torch

from prepbench.running.source_lines import is_user_file


class EnteredOnce:
    """Tells the first call in a thread from those inside of it."""

    def __init__(self) -> None:
        self._running: set[int] = set()

    def call(self, first: Callable[[], Any], again: Callable[[], Any]) -> Any:
        """Call ``first``; inside of that, ``again`` in its place."""
        if torch.compiler.is_dynamo_compiling():
            return first()
        thread = threading.get_ident()
        if thread in self._running:
            return again()
        self._running.add(thread)
        try:
            return first()
        finally:
            self._running.discard(thread)


def as_forward(method: types.MethodType) -> Callable[..., Any]:
    """A method that stands in the place of its owner's forward, which it may call itself."""
    owner, function = method.__self__, method.__func__
    kind: Any = type(owner)
    if not _calls_owner(kind, function):
        return method
    own, once = kind.forward, EnteredOnce()

    @functools.wraps(method)
    def forward(*args: Any, **kwargs: Any) -> Any:
        return once.call(lambda: function(owner, *args, **kwargs), lambda: own(owner, *args, **kwargs))

    return forward


def _calls_owner(kind: type, function: Any) -> bool:
    """Whether a method, or one that it names, calls the module or its forward."""
    waiting, seen = [function], set()
    while waiting:
        code = getattr(waiting.pop(), "__code__", None)
        if code is None or code in seen or not is_user_file(code.co_filename):
            continue
        seen.add(code)
        if "forward" in code.co_names or _calls_first_argument(code):
            return True
        waiting += [getattr(kind, name, None) for name in code.co_names]
    return False


def _calls_first_argument(code: types.CodeType) -> bool:
    """Whether ``self(...)`` stands in a method; where there is no source to read, it may."""
    owner = code.co_varnames[:1]
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(code)))
    except (OSError, TypeError, SyntaxError):
        return bool(owner)
    calls = (node.func for node in ast.walk(tree) if isinstance(node, ast.Call))
    return any(isinstance(called, ast.Name) and called.id in owner for called in calls)
