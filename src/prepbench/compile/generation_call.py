"""Calls as generation makes them, in the form that was compiled: caches that are updated in place, masks left out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from prepbench.compile.attached import own_forward
from prepbench.compile.call_spec import CallSpec
from prepbench.compile.generation_masks import flat_masks, has_squares, is_square, square_mask
from prepbench.compile.output_tree import Tree
from prepbench.compile.result_classes import class_named, filled
from prepbench.errors import InputError
from prepbench.running.nested_values import attributes, collect
from prepbench.running.object_nodes import fixed_numbers, is_mark

_TOKENS = ("input_ids", "decoder_input_ids", "inputs_embeds", "decoder_inputs_embeds")
_MASKS = ("attention_mask", "decoder_attention_mask")
_POSITIONS = ("position_ids", "decoder_position_ids")
_WHOLE = (*_TOKENS[:2], *_MASKS, *_POSITIONS)
"""What models take as integers of any size, and masks as truth values, too; those of generation have 64 bits."""


class GenerationCalls:
    """A forward for generation loops: takes their calls, and writes new keys and values into the caches given.

    Generation leaves out masks that are all ones, adds flags, and expects its own cache back.

    Args:
        run: the compiled model.
        spec: the calls that it takes.
        model: whose configuration says what flags are by default.
    """

    def __init__(self, run: Callable[..., Any], spec: CallSpec, model: nn.Module) -> None:
        self._run, self._spec, self._own = run, spec, own_forward(model)
        self._names = (*spec.parameters[: spec.positional], *spec.keywords)
        self._caches = _caches(spec, self._names)
        self._kinds = _classes(spec, self._names, self._caches)
        self._marks = {path: value for path, value in spec.object_numbers.items() if is_mark(path, value)}
        self._config = getattr(model, "config", None)
        self._kinds_of_layers = _kinds_of_layers(self._config)
        values = {spec.paths[index]: value for index, value in spec.input_constants.items()}
        self._constants = {name: value for name, value in values.items() if name in self._names}
        self._tensors = {path: tensor for path, tensor in zip(spec.paths, spec.tensors, strict=True) if tensor}
        self._takes_one = any(self._tensors[name]["shape"][1:2] == [1] for name in _TOKENS if name in self._tensors)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run one step.

        Raises:
            InputError: the compiled graph cannot take this call as the model would.
        """
        given = {**dict(zip(self._spec.parameters, args, strict=False)), **kwargs}
        given |= {name: value.long() for name, value in given.items() if name in _WHOLE and _is_narrow(value)}
        self._check_caches(given)
        missing, new = [name for name in self._caches if given.get(name) is None], _tokens(given)
        if missing or self._fills_cache(given, new):
            result = self._own(*args, **kwargs)
            self._check_made(result, missing)
            return result
        past = _past(given, self._caches)
        if new is not None:
            self._complete(given, new, past)
        keep = self._last_only(given)
        caches = {name: given[name] for name in self._caches}
        result = self._run(*args[len(self._spec.parameters) :], **self._without_defaults(given))
        for name, cache in caches.items():
            _update(cache, _part(result, name), self._caches[name])
            _set_part(result, name, cache)
        if keep:
            _set_part(result, "logits", _part(result, "logits")[:, -keep:])
        return result

    def _fills_cache(self, given: dict[str, Any], new: torch.Tensor | None) -> bool:
        """Whether a first step fills a cache in a way that the graph, made for later ones, does not have."""
        caches = {name: value for name, value in given.items() if name in self._caches}
        if self._takes_one and new is not None and new.shape[1] > 1 and _past(given, caches) == 0:
            return True
        if self._marks:
            found = fixed_numbers((), (), caches)
            return any(found.get(path) is not value for path, value in self._marks.items())
        # such as an image, whose states are in the cache afterwards
        further = {name for name in given if name not in self._names} - {*_MASKS, *_POSITIONS, *_TOKENS}
        return _past(given, caches) == 0 and any(collect(given[name]) for name in further)

    def _check_caches(self, given: dict[str, Any]) -> None:
        if given.get("use_cache") is False:
            self._check_made(None, list(self._caches))
        for name, kind in self._kinds.items():
            if _is_cache(given.get(name)) and not isinstance(given[name], kind):
                raise InputError(
                    f"{name}: generation hands in a {type(given[name]).__name__}, and the model was compiled with a "
                    f"{kind.__name__}. Leave out cache_implementation=, or compile with tracing inputs that hold "
                    "caches of this class, such as record_inputs makes of a generation with it."
                )
        for name, value in given.items():
            if name not in self._names and _is_cache(value):
                raise InputError(
                    f"{name}: generation hands in a {type(value).__name__}, and the model was compiled without a "
                    f"cache. Generate with use_cache=False, which computes all tokens in each step, or compile with "
                    f"{name}= in the tracing inputs, empty in some and filled in others."
                )

    def _check_made(self, result: Any, names: list[str]) -> None:
        """The model's own first step makes the caches that it is not given."""
        made = result if isinstance(result, Mapping) else getattr(result, "__dict__", {})
        missing = [name for name in names if made.get(name) is None]
        if missing:
            raise InputError(
                f"{missing[0]}: generation runs without a cache here, and the model was compiled with one. Leave out "
                "use_cache=False (and look at use_cache in the model's generation_config), or compile with tracing "
                "inputs that hold no cache."
            )

    def _complete(self, given: dict[str, Any], new: torch.Tensor, past: int) -> None:
        """Masks and positions as the graph has them; what generation left out means no padding."""
        batch, count = int(new.shape[0]), int(new.shape[1])
        counted = past + torch.arange(count).expand(batch, count)
        for name, positions in zip(_MASKS, _POSITIONS, strict=True):
            mask = given.get(name)
            if has_squares(mask) and not self._is_square(name):
                windows = _windows(given, self._caches, self._kinds_of_layers)
                mask = given[name] = flat_masks(name, mask, past, count, windows)
            if mask is None and self._constants.get(name, mask) is None and name in self._constants:
                continue  # the graph is one without a mask
            if positions in self._names and given.get(positions) is None:
                given[positions] = counted if mask is None else _positions(mask)[:, -count:]
            elif positions not in self._names and given.get(positions) is not None:
                self._check_positions(given.pop(positions), counted, positions)
            if name in self._names and mask is None:
                # the mask of an encoder-decoder model under the first name is for the encoder's states
                length = _encoded(given) if name == _MASKS[0] else None
                given[name] = (
                    square_mask(self._tensors[name], batch, past, count, _room(given, self._caches))
                    if self._is_square(name)
                    else torch.ones(batch, past + count if length is None else length, dtype=torch.long)
                )
            elif name not in self._names and mask is not None:
                if not bool((mask == 1).all()):
                    raise InputError(
                        f"{name}: these prompts are padded, and the model was compiled without a mask. Generate from "
                        f"prompts of one length, or compile with {name}= in the tracing inputs."
                    )
                del given[name]

    def _is_square(self, name: str) -> bool:
        """Whether the graph takes a row of the mask for each new token, or such a mask for each kind of layer."""
        mask = self._tensors.get(name)
        return len(mask["shape"]) == 4 if mask else any(path.startswith(f"{name}[") for path in self._tensors)

    def _check_positions(self, found: torch.Tensor, counted: torch.Tensor, name: str) -> None:
        if not torch.equal(found.expand_as(counted), counted):
            raise InputError(
                f"{name}: the prompts are padded, so their tokens stand at other positions than the compiled graph "
                f"counts, which would give other tokens than the model. Compile with {name}= in the tracing inputs, "
                "or generate from prompts of one length."
            )

    def _last_only(self, given: dict[str, Any]) -> int:
        """How many of the last logits are wanted, where the graph gives all; 0 for all."""
        keep = given.get("logits_to_keep")
        if type(keep) is not int:
            return 0
        if "logits_to_keep" not in self._names:
            del given["logits_to_keep"]
            return keep
        made = self._constants.get("logits_to_keep")
        if type(made) is not int or made == keep:
            return 0
        if made and not 0 < keep < made:
            raise InputError(
                f"logits_to_keep: generation asks for the logits of {keep or 'all'} tokens here (assisted generation "
                f"and prompt lookup check several at once), and the model was compiled for {made}. Compile with "
                "tracing inputs without logits_to_keep=, whose graph gives all logits."
            )
        given["logits_to_keep"] = made
        return keep

    def _without_defaults(self, given: dict[str, Any]) -> dict[str, Any]:
        """The arguments that the graph takes, and those that it lacks and that would change the result."""
        kept = {}
        for name, value in given.items():
            if name in self._names or not (isinstance(value, bool) and value is self._flag(name)):
                kept[name] = value
        return {**self._constants, **kept}

    def _flag(self, name: str) -> bool | None:
        """What a flag is for the graph, as far as that is known."""
        if name == "use_cache":
            return bool(self._caches)
        if name == "return_dict":
            return bool(self._spec.outputs["kind"] == "object")
        value = getattr(self._config, name, None)
        return value if isinstance(value, bool) else None


def _trees(spec: CallSpec, names: tuple[str, ...]) -> dict[str, Tree]:
    positional, keywords = spec.inputs["items"]
    return dict(zip(names, [*positional["items"], *keywords["items"]], strict=False))


def _classes(spec: CallSpec, names: tuple[str, ...], caches: Mapping[str, Tree]) -> dict[str, type]:
    """The classes of the caches, as far as they are known here."""
    trees = _trees(spec, names)
    found = {name: class_named(trees[name]["type"]) for name in caches if trees[name]["kind"] == "object"}
    return {name: kind for name, kind in found.items() if kind is not None}


def _caches(spec: CallSpec, names: tuple[str, ...]) -> dict[str, Tree]:
    """The arguments that the result holds again under the same name, and their nesting there."""
    nested = {name for name, tree in _trees(spec, names).items() if tree["kind"] != "leaf"}
    if spec.outputs["kind"] not in ("object", "dict"):
        return {}
    outputs = dict(zip(spec.outputs["keys"], spec.outputs["items"], strict=True))
    return {name: outputs[name] for name in names if name in nested and name in outputs}


def _is_cache(value: Any) -> bool:
    return callable(getattr(value, "get_seq_length", None))


def _is_narrow(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype in (torch.bool, torch.int32) and not is_square(value)


def _past(given: Mapping[str, Any], caches: Mapping[str, Any]) -> int:
    for name in caches:
        if _is_cache(given[name]):
            try:
                return int(given[name].get_seq_length())
            except ValueError:  # it holds states, and no keys that could be counted
                return 0
    return 0


def _kinds_of_layers(config: Any) -> list[str]:
    """What configurations call the attention of each layer, such as "sliding_attention", where they tell it."""
    text = config.get_text_config(decoder=True) if hasattr(config, "get_text_config") else config
    return list(getattr(text, "layer_types", None) or [])


def _windows(given: Mapping[str, Any], caches: Mapping[str, Any], kinds: Sequence[str]) -> dict[str, int]:
    """How many entries the windows of caches of a fixed length have, by kind of layer; "" where all layers have one."""
    found: dict[str, int] = {}
    for name in caches:
        layers = getattr(given[name], "layers", [])
        sizes = [layer.get_max_length() if getattr(layer, "is_sliding", False) else 0 for layer in layers]
        found |= dict(reversed(list(zip(kinds, sizes, strict=False))))
        if sizes and all(sizes):
            found[""] = sizes[0]
    return found


def _room(given: Mapping[str, Any], caches: Mapping[str, Any]) -> int:
    """How many entries caches of a fixed length have; less than one for those that grow."""
    for name in caches:
        if callable(getattr(given[name], "get_max_length", None)):
            try:
                return int(given[name].get_max_length())
            except ValueError:  # it has no layers yet
                return 0
    return 0


def _tokens(given: Mapping[str, Any]) -> torch.Tensor | None:
    """The new tokens, or their embeddings; those of the decoder where there are two."""
    found = [given[name] for name in _TOKENS if isinstance(given.get(name), torch.Tensor)]
    decoder = given.get("decoder_input_ids")
    value = decoder if isinstance(decoder, torch.Tensor) else (found[0] if found else None)
    return value if value is not None and value.dim() >= 2 else None


def _encoded(given: Mapping[str, Any]) -> int | None:
    """The length of the encoder's states; None without an encoder."""
    states = given.get("encoder_outputs")
    if states is None:
        return None
    first = states[0] if isinstance(states, tuple | list) else next(iter(states.values()))
    return int(first.shape[1])


def _positions(mask: torch.Tensor) -> torch.Tensor:
    """Positions that do not count what the mask leaves out, as ``transformers`` has them."""
    return (mask.long().cumsum(-1) - 1).masked_fill(mask == 0, 0)


def _part(result: Any, name: str) -> Any:
    return result[name] if isinstance(result, Mapping) else getattr(result, name)


def _set_part(result: Any, name: str, value: Any) -> None:
    if type(result) is dict:
        result[name] = value
    else:
        setattr(result, name, value)


def _update(old: Any, new: Any, tree: Tree) -> Any:
    """Write what ``new`` holds into the objects and lists of ``old``; what has no place there is given back.

    Args:
        old: the caller's cache, or a part of it.
        new: the same part of a result, in which objects may have become dicts.
        tree: its nesting.
    """
    if tree["kind"] == "list" and isinstance(old, list):
        items = [
            _update(old[i] if i < len(old) else None, part, item)
            for i, (part, item) in enumerate(zip(new, tree["items"], strict=True))
        ]
        old[: len(items)] = items
        return old
    if tree["kind"] == "dict" and isinstance(old, dict):
        old.update({key: _update(old.get(key), new[key], tree["items"][i]) for i, key in enumerate(tree["keys"])})
        return old
    if tree["kind"] != "object":
        return new
    inner = dict(zip(tree["keys"], tree["items"], strict=True))
    held = new if type(new) is dict else attributes(new)
    mine = attributes(old) if old is not None else {}
    parts = {name: _update(mine.get(name), held[name], item) for name, item in inner.items()}
    # what counts or marks what is there; settings of the caller's cache stay
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
