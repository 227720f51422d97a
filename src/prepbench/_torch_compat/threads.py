"""Limit torch's global replacements and switches during tracing to the tracing thread."""

from __future__ import annotations

import builtins
import functools
import importlib
import math
import os
import signal
import subprocess
import sys
import threading
import types
from collections.abc import Callable, Container, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from torch import fx

from prepbench._torch_compat.checks import needed_for
from prepbench._torch_compat.generators import generators_preserved_here
from prepbench._torch_compat.operators import cached_operators
from prepbench._torch_compat.symbolic_fx import thread_local_fx_traces
from prepbench.patching import flag_only_in_this_thread, only_here, patched, patched_item

_OURS = threading.RLock()


def locks(with_dynamo: bool) -> list[Any]:
    """Return the locks to acquire, in this order, so that only one thread traces.

    Dynamo's own lock comes first, because ``torch.compile`` holds it when it calls a backend, and the backend
    traces. ``with_dynamo`` says that the traced code may use dynamo, which takes seconds to load.
    """
    if with_dynamo:
        with needed_for("waiting for dynamo in other threads"):
            for name in ("torch._dynamo.convert_frame", "torch.export._trace"):
                importlib.import_module(name)
    dynamo = getattr(sys.modules.get("torch._dynamo.convert_frame"), "compile_lock", None)
    return [_OURS] if dynamo is None else [dynamo, _OURS]


@contextmanager
def others_wait() -> Iterator[None]:
    """Make other threads wait at ``torch.export.export`` and ``torch.fx.symbolic_trace`` during the block."""
    with ExitStack() as stack:
        for owner, name, original in _entries():
            stack.enter_context(patched(owner, name, _waiting(original)))
        yield


def is_traced_elsewhere(ignored: Container[int] = ()) -> bool:
    """Return whether another thread is inside these functions of torch, except for some threads."""
    frames = sys._current_frames()
    frames.pop(threading.get_ident())
    return any(_is_tracing(frame) for ident, frame in frames.items() if ident not in ignored)


def _is_tracing(frame: types.FrameType | None) -> bool:
    codes = {code for *_, original in _entries() for code in _codes(original)}
    while frame is not None:
        if frame.f_code in codes:
            return True
        frame = frame.f_back
    return False


def _entries() -> list[tuple[Any, str, Callable[..., Any]]]:
    """Return the entry points of users' own tracing: the owners of the functions, their names, and the functions."""
    with needed_for("waiting for traces in other threads"):
        from torch.fx import Tracer
    owners = [(Tracer, "trace"), *((sys.modules.get(name), "_export") for name in _EXPORTERS)]
    found = [(owner, name, getattr(owner, name, None)) for owner, name in owners]
    return [(owner, name, getattr(function, _OF_TORCH, function)) for owner, name, function in found if function]


_EXPORTERS = ("torch.export._trace", "torch.export._draft_export")
_OF_TORCH = "_prepbench_original"


def _codes(function: Any) -> Iterator[types.CodeType]:
    while function is not None:
        if isinstance(function, types.FunctionType):
            yield function.__code__
        function = getattr(function, "__wrapped__", None)


def _waiting(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ``original`` so that other threads wait until nothing is traced here; calls that have begun continue."""
    here = threading.get_ident()

    @functools.wraps(original)
    def wait(*args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() == here or _is_tracing(sys._getframe(1)):
            return original(*args, **kwargs)
        with ExitStack() as stack:
            for lock in locks(with_dynamo=True):
                stack.enter_context(lock)
            return original(*args, **kwargs)

    setattr(wait, _OF_TORCH, original)
    return wait


@contextmanager
def torch_traces_here() -> Iterator[None]:
    """Hide the effects of torch's tracing in the block from other threads.

    FX replaces ``Module.__call__``, ``Module.__getattr__`` and wrapped functions; export replaces ``max``, ``min``
    and ``math.pow``; both set flags by which models and torch's own compiled functions choose their path. Export
    also restores the random number generator, and has modes that all threads share.
    """
    with ExitStack() as stack:
        own = (
            _modes_before_autograd(),
            _thread_local_node_metadata(),
            thread_local_fx_traces(),
            *_flags(),
            *_builtins_of_export(),
            *generators_preserved_here(),
            cached_operators(),
        )
        for entered in own:
            stack.enter_context(entered)
        yield


def _modes_before_autograd() -> AbstractContextManager[None]:
    """Give each thread its own pre-autograd modes of tracing, which torch keeps in one place for all threads.

    A thread that prints a tensor takes all modes off for a moment: it would take off those of an export in another
    thread.
    """
    with needed_for("tracing before autograd in one thread only"):
        ops = importlib.import_module("torch._ops")
        of_torch, kind = ops.mode_stack_state_for_pre_dispatch, ops._ModeStackStateForPreDispatch
    others = threading.local()

    def of_others() -> Any:
        if not hasattr(others, "modes"):
            others.modes = kind()
        return others.modes

    return patched(ops, "mode_stack_state_for_pre_dispatch", only_here(of_others, of_torch))


def _thread_local_node_metadata() -> AbstractContextManager[None]:
    """Give each thread its own metadata of the interpreter's current node, which torch keeps in one place for all
    threads.

    A trace writes its annotations into them: an interpreter in another thread would replace them by its own.
    """
    with needed_for("keeping the details of nodes in one thread only"):
        from torch.fx import traceback

        of_torch = traceback.set_current_meta
    return patched(traceback, "set_current_meta", only_here(lambda *_, **__: nullcontext(), of_torch))


_FLAGS = [
    function
    for owner, names in (
        (torch.compiler, ("is_compiling", "is_exporting")),
        (torch.fx._symbolic_trace, ("is_fx_tracing", "is_fx_symbolic_tracing")),
    )
    for name in names
    if (function := getattr(owner, name, None)) is not None
]
"""torch's own functions, read before anything replaces them for a while."""


def _flags() -> list[AbstractContextManager[None]]:
    return [flag_only_in_this_thread(function) for function in _FLAGS]


_REPLACED_BY_EXPORT = ((builtins, "max"), (builtins, "min"), (math, "pow"))


def _builtins_of_export() -> list[AbstractContextManager[None]]:
    name = "_override_builtin_ops"
    users = ("torch._export.non_strict_utils", "torch.export._trace")
    spaces = [vars(sys.modules[user]) for user in users if user in sys.modules]
    return [patched_item(space, name, _overriding(space[name])) for space in spaces if name in space]


def _overriding(original: Callable[[], AbstractContextManager[None]]) -> Callable[[], AbstractContextManager[None]]:
    @contextmanager
    def override() -> Iterator[None]:
        before = [getattr(owner, name) for owner, name in _REPLACED_BY_EXPORT]
        with original(), ExitStack() as stack:
            for (owner, name), function in zip(_REPLACED_BY_EXPORT, before, strict=True):
                stack.enter_context(patched(owner, name, only_here(function, getattr(owner, name))))
            yield

    return override


# Places inside torch's long calls where an interrupt may be raised: each stops torch like a model's error.


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
