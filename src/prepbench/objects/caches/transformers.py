"""Caches of ``transformers``: what they tell of themselves, and their code that branches on sizes.

A sliding window branches on whether it is full, so that a graph would hold for one answer only. One formula covers
both: the number of stored keys tells the number of entries, full or not. Where a window has a fixed length, only a
number tells that. Graphs get it as a tensor (:func:`tensor_numbers`), and entries are then picked by computed indices.

Code of the library is replaced while a model is exported, each part behind a feature check. Where a version has it in
another form, its own code runs: the graph then holds for windows that are as full as those of the samples.
"""

from __future__ import annotations

import functools
import inspect
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from prepbench.packages import installed, tested_range
from prepbench.patching import patched_here


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
    return _told("get_seq_length", given, caches)


def room_of(given: Mapping[str, Any], caches: Mapping[str, Any]) -> int:
    """Return the capacity of fixed-length caches; less than one for growing ones."""
    return _told("get_max_length", given, caches)


def _told(method: str, given: Mapping[str, Any], caches: Mapping[str, Any]) -> int:
    for name in caches:
        if callable(tell := getattr(given[name], method, None)):
            try:
                return int(tell())
            except ValueError:  # it has no layers yet, or states without keys to count
                return 0
    return 0


def records_past(value: Any) -> bool:
    """Return whether a cache keeps all entries until it is cropped, so that generation can take tokens back."""
    parts = [value, *getattr(value, "layers", ()), *getattr(getattr(value, "self_attention_cache", None), "layers", ())]
    return any(getattr(part, "record_past", False) is True for part in parts)


@dataclass(frozen=True)
class Window:
    """The tokens that layers of one kind see.

    Attributes:
        size: of how many tokens each sees only the last; 0 for all.
        is_chunk: whether these are those of its chunk, which begin at multiples of the size.
        room: how many entries the cache of these layers keeps; 0 for all.
    """

    size: int = 0
    is_chunk: bool = False
    room: int = 0


_SIZES = {"sliding_attention": "sliding_window", "chunked_attention": "attention_chunk_size"}


def windows_of(given: Mapping[str, Any], caches: Mapping[str, Any], config: Any) -> dict[str, Window]:
    """Return the windows of a model's layers by kind, such as "sliding_attention"; there is at least one.

    The configuration tells what layers see, and a cache which entries the mask of a kind has.
    """
    text = config.get_text_config(decoder=True) if hasattr(config, "get_text_config") else config
    sizes = {kind: getattr(text, name, None) or 0 for kind, name in _SIZES.items()}
    listed = list(getattr(text, "layer_types", None) or [])
    uniform = next((kind for kind, size in sizes.items() if size), "full_attention")
    layers = [layer for name in caches for layer in getattr(given[name], "layers", [])]
    kinds = listed or [uniform] * max(len(layers), 1)
    rooms = dict.fromkeys(kinds, 0)
    for kind, layer in zip(kinds, layers, strict=False):
        if getattr(layer, "is_sliding", False):
            rooms[kind] = rooms[kind] or int(layer.get_max_length())
    return {
        kind: Window(
            size=sizes.get(kind) or (room and (sizes["sliding_attention"] or room)),
            is_chunk=kind == "chunked_attention",
            room=room,
        )
        for kind, room in rooms.items()
    }


def tensor_numbers(kind: Any) -> frozenset[str]:
    """Return the attributes of a class that hold integers which graphs take and return as tensors, because no size
    determines them and each call changes them.

    A static cache of a sliding window counts its seen tokens in one, because its code branches on whether the window is
    full; it runs without the branch here.
    """
    return _of_bases(kind)


@functools.cache
def _of_bases(kind: Any) -> frozenset[str]:
    bases = [(base.__module__, base.__qualname__) for base in kind.__mro__]
    return frozenset().union(*(part.numbers for part in _PARTS.values() if (part.home, part.name) in bases))


# -- code without branches on sizes


def _mask_sizes(original: Any) -> Any:
    def mask_sizes(layer: Any, query_length: int) -> tuple[Any, Any]:
        """Return the number of entries that the queries see, and the position of the first one."""
        if getattr(layer, "keys", None) is None or getattr(layer, "record_past", False) or layer.keys.dim() != 4:
            sizes: tuple[Any, Any] = original(layer, query_length)
            return sizes
        held = layer.keys.shape[-2]
        return held + query_length, layer.cumulative_length - held

    return mask_sizes


def _static_mask_sizes(original: Any) -> Any:
    def mask_sizes(layer: Any, query_length: int) -> tuple[Any, Any]:
        """Return the largest number of entries; the causal mask excludes those that are empty."""
        seen, room = layer.cumulative_length_int, layer.max_cache_len
        if not isinstance(seen, torch.Tensor):
            sizes: tuple[Any, Any] = original(layer, query_length)
            return sizes
        return room + query_length - 1, (seen - room + 1).clamp(min=0)

    return mask_sizes


def _static_update(original: Any) -> Any:
    def update(layer: Any, keys: Any, values: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        """Write new entries, and return what the queries may see: the window of the first query and all after it."""
        seen = layer.cumulative_length_int
        if not isinstance(seen, torch.Tensor):
            states: tuple[Any, Any] = original(layer, keys, values, *args, **kwargs)
            return states
        room, new = layer.keys.shape[-2], keys.shape[-2]
        held = seen.clamp(max=room)
        kept, places = torch.arange(room), torch.arange(room) + (held + new - room).clamp(min=0)
        kept = torch.where(places < held + new, _source(places, held, room), kept)
        given = kept  # for one new entry, both are the same
        if not (isinstance(new, int) and new == 1):
            places = torch.arange(room + new - 1) + (seen >= room)
            given = _source(places, held, room).clamp(max=room + new - 1)
        found = []
        for name, added in (("keys", keys), ("values", values)):
            before = getattr(layer, name)
            both = torch.cat([before, added], -2)
            found.append(both.index_select(-2, given))
            before.copy_(found[-1] if given is kept else both.index_select(-2, kept))
        layer.cumulative_length_int = seen + new
        # the library stops counting here when the window is full
        layer.cumulative_length.add_(torch.where(seen + new <= room, new, 0))
        return found[0], found[1]

    return update


def _source(places: torch.Tensor, held: torch.Tensor, room: int) -> torch.Tensor:
    """Return the indices of the entries at these sequence positions, of which ``room`` lie before the new ones."""
    return torch.where(places < held, places, places - held + room)


def _never(original: Any) -> Any:
    # its result is constant under export, but it branches before returning it
    return lambda *args, **kwargs: False


def _padding_mask(original: Any) -> Any:
    def padding_mask(mask: Any, kv_length: Any, kv_offset: Any) -> Any:
        """Return a mask that covers all positions of the keys."""
        if mask is None or not isinstance(kv_offset, torch.Tensor):
            return original(mask, kv_length, kv_offset)
        return torch.nn.functional.pad(mask, (0, kv_length))

    return padding_mask


@dataclass(frozen=True)
class _Part:
    """The place of a part, and what its replacement relies on.

    Attributes:
        home: the module.
        name: a class or a function.
        replaced: by method, or "" for the function itself: its parameters, which further ones may follow, and what
            makes the replacement of the original.
        attributes: the attributes that methods of the class use.
        numbers: those of them that graphs take and return as tensors, see :func:`tensor_numbers`.
    """

    home: str
    name: str
    replaced: Mapping[str, tuple[tuple[str, ...], Callable[[Any], Any]]]
    attributes: frozenset[str] = frozenset()
    numbers: frozenset[str] = frozenset()


_PARTS = {
    "window": _Part(
        "transformers.cache_utils",
        "DynamicSlidingWindowLayer",
        {"get_mask_sizes": (("self", "query_length"), _mask_sizes)},
        frozenset({"cumulative_length", "keys"}),
    ),
    "static window": _Part(
        "transformers.cache_utils",
        "StaticSlidingWindowLayer",
        {
            "get_mask_sizes": (("self", "query_length"), _static_mask_sizes),
            "update": (("self", "key_states", "value_states"), _static_update),
        },
        frozenset({"cumulative_length", "cumulative_length_int", "max_cache_len", "keys", "values"}),
        numbers=frozenset({"cumulative_length_int"}),
    ),
    "causal mask": _Part("transformers.masking_utils", "_ignore_causal_mask_sdpa", {"": ((), _never)}),
    "padding mask": _Part(
        "transformers.masking_utils",
        "prepare_padding_mask",
        {"": (("attention_mask", "kv_length", "kv_offset"), _padding_mask)},
    ),
}


@contextmanager
def one_answer_for_all_sizes() -> Iterator[None]:
    """Keep this thread's caches and masks from branching on sizes on which samples may differ, during the block.

    Nothing happens where ``transformers`` is not imported, or where its parts have another form.
    """
    with ExitStack() as stack:
        for key, found in replaceable_parts().items():
            for method, (_, made) in _PARTS[key].replaced.items():
                name = method or _PARTS[key].name
                stack.enter_context(patched_here(found, name, made(getattr(found, name))))
        yield


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
    for method, (parameters, _) in part.replaced.items():
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
