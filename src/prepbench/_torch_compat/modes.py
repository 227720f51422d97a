"""Global modes that a thread may be in: autocast, function transforms and fast paths of layers."""

from __future__ import annotations

import importlib
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch

from prepbench._torch_compat.checks import needed_for
from prepbench.patching import patched_together

with needed_for("seeing operators and function transforms"):
    from torch.utils._python_dispatch import TorchDispatchMode as _TorchDispatchMode

    _innermost_transform = torch._C._functorch.peek_interpreter_stack


def fast_paths_off() -> AbstractContextManager[None]:
    """A context in which torch's own encoder layers compute in evaluation what they do in training, and in a graph.

    Their fast path of inference drops padded tokens and returns 0 in their places.
    """
    return patched_together(torch.backends.mha, "_is_fastpath_enabled", False)


class OperatorMode(_TorchDispatchMode):
    """A mode whose ``__torch_dispatch__`` sees every operator, also ``torch.cond`` and similar ones, which have no
    schema.

    Under a mode dynamo compiles nothing and skips those functions for ever. A user's compiled function would then
    run without its graph from then on, and ``torch.cond`` would raise. Here it skips them only this time.
    """

    supports_higher_order_operators = True

    def __enter__(self) -> Any:
        _skipping.enter()
        return super().__enter__()  # type: ignore[no-untyped-call]

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        _skipping.leave()


class _Skipping:
    """Limits dynamo's skips in threads with an :class:`OperatorMode` to the current call."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._threads: Counter[int] = Counter()
        self._replaced: list[tuple[Any, str, Any]] = []

    def enter(self) -> None:
        with self._lock:
            self._threads[threading.get_ident()] += 1
            if not self._replaced:
                operators: Any = importlib.import_module("torch._higher_order_ops.utils")
                if hasattr(operators, "_hop_compile_and_call"):
                    self._replace(operators, "_hop_compile_and_call", self._loading_dynamo)
                else:  # torch 2.11: nothing tells that dynamo is about to be loaded, so it is loaded now
                    importlib.import_module("torch._dynamo.convert_frame")
                self._watch_dynamo()

    def leave(self) -> None:
        with self._lock:
            self._threads[threading.get_ident()] -= 1
            self._threads = +self._threads
            while self._replaced and not self._threads:
                setattr(*self._replaced.pop())

    def _watch_dynamo(self) -> None:
        frames = sys.modules.get("torch._dynamo.convert_frame")
        if frames is not None and not any(name == "__call__" for _, name, _ in self._replaced):
            with needed_for("seeing operators of compiled functions"):
                self._replace(frames.CatchErrorsWrapper, "__call__", self._skipping_once)

    def _replace(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        original = getattr(owner, name)
        self._replaced.append((owner, name, original))
        setattr(owner, name, make(original))

    def _loading_dynamo(self, original: Any) -> Any:
        def compile_and_call(*args: Any, **kwargs: Any) -> Any:
            importlib.import_module("torch._dynamo.convert_frame")  # it would load it, too
            with self._lock:
                if self._threads:
                    self._watch_dynamo()
            return original(*args, **kwargs)

        return compile_and_call

    def _skipping_once(self, original: Any) -> Any:
        def convert_frame(wrapper: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(wrapper, *args, **kwargs)
            if threading.get_ident() in self._threads:
                result.apply_to_code = False
            return result

        return convert_frame


_skipping = _Skipping()


def in_functorch() -> bool:
    """Return whether a function transform (vmap, grad) is running in this thread."""
    return _innermost_transform() is not None


def transforms() -> tuple[tuple[Any, str], ...]:
    """Return the location of the functions that run every ``torch.vmap`` and ``torch.func.grad``: module and name."""
    with needed_for("seeing torch.vmap and torch.func.grad"):
        apis = importlib.import_module("torch._functorch.apis")
        eager = importlib.import_module("torch._functorch.eager_transforms")
        found = (apis, "vmap_impl"), (eager, "grad_impl"), (eager, "grad_and_value_impl")
        _ = [getattr(module, name) for module, name in found]
    return found


def autocast_functions() -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Return the functions that enter and leave autocast, for use as nodes of a graph."""
    with needed_for("recording autocast"):
        from torch.amp.autocast_mode import _enter_autocast, _exit_autocast
    return _enter_autocast, _exit_autocast


def autocast_state() -> tuple[tuple[str, bool, torch.dtype], ...]:
    """Return ``(device, enabled, dtype)`` of autocast in this thread."""
    return tuple(
        (device, torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)) for device in ("cpu", "cuda")
    )


# The levels of ``torch.vmap`` and similar transforms that operators of a graph open.


@contextmanager
def functorch_levels_kept() -> Iterator[None]:
    """Restore the number of open levels after the block.

    In a captured graph one operator opens a level and another closes it. An exception between them leaves it open,
    and every later call of torch in this thread would run under the transform.
    """
    before = _depth()
    try:
        yield
    finally:
        while _depth() > before:
            torch._C._functorch.pop_dynamic_layer_stack()


def _depth() -> int:
    return len(torch._C._functorch.get_interpreter_stack() or ())
