"""Caches of generation: their contents, empty ones as models create them, and writing results back into them."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
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


def is_cache(value: Any) -> bool:
    """Return whether a value is a cache of ``transformers``."""
    return callable(getattr(value, "get_seq_length", None))


def empty_cache(kind: type | None, config: Any) -> Any:
    """Return an empty cache as the model creates it by default, if it is of this class; None otherwise.

    Only classes of ``transformers`` are made, because a folder may name any. One that needs to know more than the
    configuration, such as a length, is none that a model makes for itself.
    """
    if kind is None or config is None or not kind.__module__.startswith("transformers."):
        return None
    parameters = inspect.signature(kind).parameters
    needed = [
        p for p in parameters.values() if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]
    return kind(config=config) if "config" in parameters and not needed else None


def past_length(given: Mapping[str, Any], caches: Mapping[str, Any]) -> int:
    """Return the number of tokens in the caches of a call."""
    for name in caches:
        if is_cache(given[name]):
            try:
                return int(given[name].get_seq_length())
            except ValueError:  # it holds states, but no keys to count
                return 0
    return 0


def kinds_of_layers(config: Any) -> list[str]:
    """Return the attention kind of each layer in the configuration, such as "sliding_attention", if it is given."""
    text = config.get_text_config(decoder=True) if hasattr(config, "get_text_config") else config
    return list(getattr(text, "layer_types", None) or [])


def windows_of(given: Mapping[str, Any], caches: Mapping[str, Any], kinds: Sequence[str]) -> dict[str, int]:
    """Return the number of entries in the windows of fixed-length caches, by kind of layer; "" if all layers have
    one.
    """
    found: dict[str, int] = {}
    for name in caches:
        layers = getattr(given[name], "layers", [])
        sizes = [layer.get_max_length() if getattr(layer, "is_sliding", False) else 0 for layer in layers]
        found |= dict(reversed(list(zip(kinds, sizes, strict=False))))
        if sizes and all(sizes):
            found[""] = sizes[0]
    return found


def room_of(given: Mapping[str, Any], caches: Mapping[str, Any]) -> int:
    """Return the capacity of fixed-length caches; less than one for growing ones."""
    for name in caches:
        if callable(getattr(given[name], "get_max_length", None)):
            try:
                return int(given[name].get_max_length())
            except ValueError:  # it has no layers yet
                return 0
    return 0


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
