"""Places inside torch's long calls where an interrupt may be raised: each stops torch like a model's error."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import fx

from prepbench._torch_compat.checks import needed_for
from prepbench.patching import patched, patched_item

_POLL = 0.1

_CALLED_OFTEN = (
    ("torch.onnx._internal.exporter._registration", "ONNXRegistry._register"),
    ("torch.onnx._internal.exporter._core", "_handle_call_function_node_with_lowering"),
    ("onnxscript._internal.values", "OnnxFunction.function_ir"),
    ("onnxscript._internal.values", "TracedOnnxFunction.function_ir"),
    ("onnxscript.optimizer._constant_folding", "FoldConstantsPass.process_node"),
    ("onnxscript.rewriter._rewrite_rule", "RewriteRule.try_rewrite"),
    ("onnx_ir.passes._pass_infra", "PassBase.__call__"),
)
"""Functions that the ONNX exporter calls often besides tracing. Where one is absent, a cancel is only later."""


@contextmanager
def safe_points(check: Callable[[], None]) -> Iterator[None]:
    """Call ``check`` in this thread for each operation that torch traces or lowers in the block.

    While Inductor runs the C++ compiler it is called ten times a second; if it raises, the compiler is killed.
    """
    here = threading.get_ident()
    with needed_for("acting on interrupts while torch traces"):
        from torch._subclasses.fake_tensor import _DISPATCH_META_HANDLERS, FakeTensorMode

        dispatch = FakeTensorMode.__torch_dispatch__

    def dispatched(self: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # questions about sizes and devices come from C++ that may not take an exception
        if threading.get_ident() == here and func not in _DISPATCH_META_HANDLERS:
            check()
        return dispatch(self, func, types, args, kwargs or {})

    with ExitStack() as stack:
        stack.enter_context(patched(FakeTensorMode, "__torch_dispatch__", dispatched))
        stack.enter_context(patched(fx.Interpreter, "run_node", _checked(fx.Interpreter.run_node, check)))
        for module, name in _CALLED_OFTEN:
            owner = sys.modules.get(module)
            *path, last = name.split(".")
            for part in path:
                owner = getattr(owner, part, None)
            if owner is not None and last in vars(owner):
                stack.enter_context(patched(owner, last, _checked(vars(owner)[last], check)))
        builder = sys.modules.get("torch._inductor.cpp_builder")
        if builder is not None:
            stack.enter_context(patched_item(vars(builder), "subprocess", _Subprocess(check)))
        yield


def _checked(original: Any, check: Callable[[], None]) -> Any:
    """Return a function or property that calls ``check`` first, in this thread."""
    here = threading.get_ident()
    if isinstance(original, property):
        return property(_checked(original.fget, check))

    @functools.wraps(original)
    def checked(*args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() == here:
            check()
        return original(*args, **kwargs)

    return checked


class _Subprocess:
    """The module ``subprocess`` with processes of this thread that can be killed while they run."""

    def __init__(self, check: Callable[[], None]) -> None:
        self._check = check
        self._here = threading.get_ident()

    def __getattr__(self, name: str) -> Any:
        return getattr(subprocess, name)

    def run(self, command: Any, *, check: bool = False, **options: Any) -> Any:
        if threading.get_ident() != self._here or os.name != "posix" or {"input", "capture_output"} & set(options):
            return subprocess.run(command, check=check, **options)
        # a group of its own: a terminal sends Ctrl-C to the whole group, and the compiler would look broken
        with subprocess.Popen(command, start_new_session=True, **options) as process:
            output, errors = self._finished(process)
        if check and process.returncode:
            raise subprocess.CalledProcessError(process.returncode, command, output, errors)
        return subprocess.CompletedProcess(command, process.returncode, output, errors)

    def _finished(self, process: subprocess.Popen[Any]) -> tuple[Any, Any]:
        while True:
            try:
                return process.communicate(timeout=_POLL)
            except subprocess.TimeoutExpired:
                try:
                    self._check()
                except BaseException:
                    os.killpg(process.pid, signal.SIGKILL)
                    raise
