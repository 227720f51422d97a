"""Parts of symbolic tracing (``torch.fx``)."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from prepbench._torch_compat.checks import needed_for


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
