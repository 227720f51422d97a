"""Parts of ``transformers`` whose code prepbench replaces while a model is exported, each behind a feature check.

They are caches of sliding windows and what makes their masks (``capture/sizes/size_forms.py``). Where a version has
them in another form, its own code runs: the graph then holds for windows that are as full as those of the samples.
"""

from __future__ import annotations

import functools
import inspect
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from prepbench.packages import installed, tested_range


@dataclass(frozen=True)
class _Part:
    """The place of a part, and the attributes that its replacement relies on.

    Attributes:
        home: the module.
        name: a class or a function.
        parameters: those of the function, or of methods by their names; further ones may follow.
        attributes: the attributes that methods of the class use.
    """

    home: str
    name: str
    parameters: tuple[tuple[str, tuple[str, ...]], ...]
    attributes: frozenset[str] = frozenset()


_PARTS = {
    "window": _Part(
        "transformers.cache_utils",
        "DynamicSlidingWindowLayer",
        (("get_mask_sizes", ("self", "query_length")),),
        frozenset({"cumulative_length", "keys"}),
    ),
    "static window": _Part(
        "transformers.cache_utils",
        "StaticSlidingWindowLayer",
        (("get_mask_sizes", ("self", "query_length")), ("update", ("self", "key_states", "value_states"))),
        frozenset({"cumulative_length", "cumulative_length_int", "max_cache_len", "keys", "values"}),
    ),
    "causal mask": _Part("transformers.masking_utils", "_ignore_causal_mask_sdpa", (("", ()),)),
    "padding mask": _Part(
        "transformers.masking_utils", "prepare_padding_mask", (("", ("attention_mask", "kv_length", "kv_offset")),)
    ),
}


def replaceable_parts() -> dict[str, Any]:
    """Return, for each part that is imported and has the known form, the object to patch: a class, or the module of a
    function.

    An imported part of another form is reported once.
    """
    found, lacking = {}, []
    for key, part in _PARTS.items():
        home = sys.modules.get(part.home)
        if home is None:
            continue
        if _lacks(home, part):
            lacking.append(f"{part.home}.{part.name}")
        else:
            found[key] = getattr(home, part.name) if part.attributes else home
    if lacking:
        _say(tuple(lacking))
    return found


def missing_parts() -> list[str]:
    """Return in words the parts that the installed ``transformers`` lacks; imports it."""
    import transformers.cache_utils
    import transformers.masking_utils  # noqa: F401

    return [lack for part in _PARTS.values() if (lack := _lacks(sys.modules[part.home], part))]


def _lacks(home: Any, part: _Part) -> str:
    found = getattr(home, part.name, None)
    place = f"{part.home}.{part.name}"
    if found is None:
        return place
    for method, parameters in part.parameters:
        function = getattr(found, method, None) if method else found
        if not callable(function) or not _takes(function, parameters):
            return f"{place}{f'.{method}' if method else ''}({', '.join(parameters)})"
    lost = sorted(part.attributes - _names_in(found)) if part.attributes else []
    return f"{place}.{lost[0]}" if lost else ""


def _takes(function: Callable[..., Any], parameters: tuple[str, ...]) -> bool:
    try:
        return tuple(inspect.signature(function).parameters)[: len(parameters)] == parameters
    except (TypeError, ValueError):  # without a signature
        return False


def _names_in(kind: type) -> set[str]:
    """Return the attribute names that the methods of a class and of its bases use."""
    functions = (value for base in kind.__mro__ for value in vars(base).values() if inspect.isfunction(value))
    return {name for function in functions for name in function.__code__.co_names}


@functools.cache
def _say(lacking: tuple[str, ...]) -> None:
    warnings.warn(
        f"transformers {installed('transformers')} has another form of {', '.join(lacking)}. Graphs of models with "
        "sliding windows hold for windows that are as full as those of the samples; everything else is unaffected. "
        f"prepbench is tested with transformers {tested_range('transformers')}.",
        UserWarning,
        stacklevel=2,
    )
