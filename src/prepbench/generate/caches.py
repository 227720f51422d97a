"""Caches among the arguments of a generation: which ones results contain, and writing results back into them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from prepbench.calls.call_spec import CallSpec
from prepbench.calls.output_tree import Tree, class_named, filled
from prepbench.errors import InputError
from prepbench.objects.parts import attributes


def _trees(spec: CallSpec, names: tuple[str, ...]) -> dict[str, Tree]:
    positional, keywords = spec.inputs["items"]
    return dict(zip(names, [*positional["items"], *keywords["items"]], strict=False))


def classes_of_caches(spec: CallSpec, names: tuple[str, ...], caches: Mapping[str, Tree]) -> dict[str, type]:
    """Return the known classes of the caches."""
    trees = _trees(spec, names)
    found = {name: class_named(trees[name]["type"]) for name in caches if trees[name]["kind"] == "object"}
    return {name: kind for name, kind in found.items() if kind is not None}


def caches_of(spec: CallSpec, names: tuple[str, ...]) -> dict[str, Tree]:
    """Return the arguments that the result contains under the same name, and their structure there."""
    nested = {name for name, tree in _trees(spec, names).items() if tree["kind"] != "leaf"}
    if spec.outputs["kind"] not in ("object", "dict"):
        return {}
    outputs = dict(zip(spec.outputs["keys"], spec.outputs["items"], strict=True))
    return {name: outputs[name] for name in names if name in nested and name in outputs}


def write_back(old: Any, new: Any, tree: Tree) -> Any:
    """Write the contents of ``new`` into the objects and lists of ``old``; return those without a place there.

    Args:
        old: the caller's cache, or a part of it.
        new: the same part of a result, in which objects may have become dicts.
        tree: its nesting.
    """
    if tree["kind"] == "list" and isinstance(old, list):
        items = [
            write_back(old[i] if i < len(old) else None, part, item)
            for i, (part, item) in enumerate(zip(new, tree["items"], strict=True))
        ]
        old[: len(items)] = items
        return old
    if tree["kind"] == "dict" and isinstance(old, dict):
        old.update({key: write_back(old.get(key), new[key], tree["items"][i]) for i, key in enumerate(tree["keys"])})
        return old
    if tree["kind"] != "object":
        return new
    inner = dict(zip(tree["keys"], tree["items"], strict=True))
    held = new if type(new) is dict else attributes(new)
    mine = attributes(old) if old is not None else {}
    parts = {name: write_back(mine.get(name), held[name], item) for name, item in inner.items()}
    # counters and marks are updated; settings of the caller's cache stay
    parts |= {name: value for name, value in held.items() if name not in inner and _is_state(value, mine.get(name))}
    if old is None:
        return new if type(new) is not dict else _made(tree, parts)
    for name, value in parts.items():
        object.__setattr__(old, name, value)
    return old


def _is_state(value: Any, before: Any) -> bool:
    return before is None or (isinstance(value, bool | int | torch.dtype | torch.device | dict) and value != before)


def _made(tree: Tree, parts: dict[str, Any]) -> Any:
    kind = class_named(tree["type"])
    if kind is None:
        raise InputError(
            f"{tree['type']}: the cache that was given is empty, and this class for its parts is not known here. "
            "Import its module, or give a cache made from the model's configuration."
        )
    return filled(kind, parts)
