"""Parts of symbolic tracing (``torch.fx``)."""

from __future__ import annotations

import builtins
import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from prepbench._torch_compat.checks import needed_for
from prepbench.patching import only_here, patched_together


def taking_tuple(function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any], rest: Any) -> Any:
    """Return ``function`` with its ``*args`` as one ordinary last parameter, so that a proxy can stand for the
    tuple.

    Keyword-only parameters become positional, in front of it. ``args``, ``kwargs`` and ``rest`` are its future
    arguments.

    Raises:
        TypeError: the function has no Python code of its own (it is wrapped, or built in).
    """
    with needed_for("tracing functions that take *args"):
        from torch.fx._symbolic_trace import _patch_function
    plain: Any = getattr(function, "__func__", function)
    code = getattr(plain, "__code__", None)
    if code is None or not code.co_flags & inspect.CO_VARARGS or code.co_flags & inspect.CO_VARKEYWORDS:
        raise TypeError(
            "forward takes *args, and nothing says how many there are: missing 1 required positional argument; pass "
            "inputs=[...]."
        )
    own = [function.__self__] if hasattr(function, "__self__") else []
    patched = _patch_function(plain, len(own) + len(args) + len(kwargs) + 1)
    return lambda *given: patched(*own, *given)


def wrapped_functions() -> list[tuple[dict[str, Any], str, Callable[..., Any]]]:
    """Return the functions that were passed to ``torch.fx.wrap``: the namespace, the name in it, and the function."""
    import builtins

    with needed_for("seeing functions given to torch.fx.wrap"):
        from torch.fx._symbolic_trace import _wrapped_fns_to_patch
    found = []
    for (_, name), namespace in list(_wrapped_fns_to_patch.items()):
        function = namespace.get(name, getattr(builtins, name, None))
        if callable(function):
            found.append((namespace, name, function))
    return found


# Limit FX's replacements during a trace to the tracing thread.


_OF_TORCH = "_prepbench_original"


@contextmanager
def thread_local_fx_traces() -> Iterator[None]:
    """Inside the block, FX's replacements during a trace act only in the thread that traces, whichever that is.

    Otherwise a model that runs in one thread would be recorded by a trace in another. Without torch loaded, nothing
    traces.
    """
    if "torch" not in sys.modules:
        yield
        return
    with needed_for("tracing in one thread only"):
        from torch.fx._symbolic_trace import _Patcher

        patch = getattr(_Patcher.patch, _OF_TORCH, _Patcher.patch)
        patch_method = getattr(_Patcher.patch_method, _OF_TORCH, _Patcher.patch_method)

    def patch_here(
        self: Any, space: dict[str, Any], name: str, new: Callable[..., Any], deduplicate: bool = True
    ) -> None:
        original = space[name] if name in space else getattr(builtins, name)
        patch(self, space, name, only_here(original, new), deduplicate)

    def patch_method_here(self: Any, cls: type, name: str, new: Callable[..., Any], deduplicate: bool = True) -> None:
        patch_method(self, cls, name, only_here(getattr(cls, name), new), deduplicate)

    setattr(patch_here, _OF_TORCH, patch)
    setattr(patch_method_here, _OF_TORCH, patch_method)
    with (
        patched_together(_Patcher, "patch", patch_here),
        patched_together(_Patcher, "patch_method", patch_method_here),
    ):
        yield
