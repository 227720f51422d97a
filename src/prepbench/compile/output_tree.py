"""The nesting of inputs and outputs as JSON: enough to check a call and to rebuild a result in another process."""

from __future__ import annotations

import collections
import importlib
from collections.abc import Iterator, Sequence
from typing import Any

from prepbench._torch_compat import pytree

Tree = dict[str, Any]

# Result classes of this package may be imported to rebuild a loaded model's outputs; nothing else that a file names is.
_TRUSTED = "transformers."


def tree_of(spec: pytree.TreeSpec) -> Tree:
    """A pytree spec as JSON."""
    if spec.is_leaf():
        return {"kind": "leaf"}
    children = [tree_of(child) for child in spec.children()]
    kind, context = spec.type, spec.context
    if kind in (tuple, list):
        return {"kind": kind.__name__, "items": children}
    if kind in (dict, collections.OrderedDict, collections.defaultdict):
        keys = context if kind is not collections.defaultdict else context[1]
        return {"kind": "dict", "keys": list(keys), "items": children}
    name = f"{getattr(kind, '__module__', '')}.{getattr(kind, '__qualname__', kind)}"
    if kind is collections.namedtuple:
        return {"kind": "namedtuple", "type": context.__name__, "keys": list(context._fields), "items": children}
    return {"kind": "object", "type": name, "keys": _keys(context, len(children)), "items": children}


def _keys(context: Any, count: int) -> list[str]:
    """Names of an object's parts: those its registration keeps, else numbers."""
    names = getattr(context, "names", context)
    if isinstance(names, list | tuple) and len(names) == count and all(isinstance(name, str) for name in names):
        return list(names)
    return [str(i) for i in range(count)]


def rebuild(tree: Tree, leaves: Iterator[Any]) -> Any:
    """Put leaves back into the nesting that ``tree`` describes.

    Result classes of ``transformers`` are rebuilt if that package is installed; other objects become dicts of their
    parts.
    """
    kind = tree["kind"]
    if kind == "leaf":
        return next(leaves)
    items = [rebuild(item, leaves) for item in tree["items"]]
    if kind == "tuple":
        return tuple(items)
    if kind == "list":
        return items
    if kind == "namedtuple":
        return collections.namedtuple(tree["type"], tree["keys"])(*items)
    parts = dict(zip(tree["keys"], items, strict=True))
    if kind == "object" and (result_class := _result_class(tree["type"])) is not None:
        return result_class(**parts)
    return parts


def _result_class(name: str) -> type | None:
    module, _, attribute = name.rpartition(".")
    if not name.startswith(_TRUSTED):
        return None
    try:
        found = getattr(importlib.import_module(module), attribute, None)
    except ImportError:
        return None
    return found if isinstance(found, type) and issubclass(found, dict) else None


def leaf_names(tree: Tree, name: str = "output") -> list[str]:
    """A name for each leaf from the keys and positions that lead to it, e.g. ``"logits"`` or ``"output_1"``."""
    if tree["kind"] == "leaf":
        return [name]
    keys: Sequence[Any] = tree.get("keys") or range(len(tree["items"]))
    names = []
    for key, item in zip(keys, tree["items"], strict=True):
        whole = str(key) if name == "output" and isinstance(key, str) and not key.isdigit() else f"{name}_{key}"
        names += leaf_names(item, whole)
    return names
