"""Convert the calls of generation to the compiled form: caches that are updated in place, omitted masks."""

from __future__ import annotations

import copy
import dataclasses
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from prepbench.calls.call_spec import CallSpec, adapter_layers, adapters_in_use
from prepbench.calls.output_tree import Tree, class_named, filled
from prepbench.errors import InputError
from prepbench.generate.attached import Notices, own_forward
from prepbench.objects.caches.transformers import (
    Window,
    empty_cache,
    is_cache,
    past_length,
    records_past,
    room_of,
    windows_of,
)
from prepbench.objects.flatten import collect, fixed_numbers, is_mark
from prepbench.objects.parts import attributes

_TOKENS = ("input_ids", "decoder_input_ids", "inputs_embeds", "decoder_inputs_embeds")
_MASKS = ("attention_mask", "decoder_attention_mask")
_POSITIONS = ("position_ids", "decoder_position_ids")
_WHOLE = (*_TOKENS[:2], *_MASKS, *_POSITIONS)
"""Arguments that models take as integers of any size, masks also as booleans; those of generation are int64."""


_IMPLEMENTATIONS = {"StaticCache": "static", "QuantizedCache": "quantized"}
"""What generation calls the caches that it makes only where it is asked for them."""

_ASKS = "output_"
"""Flags of this name ask for a further part of the result, ``output_attentions`` for ``attentions``."""
_PLAIN = (bool, int, float, str, type(None))


class _OwnCall(Exception):
    """A call that the model's own forward has to run: the reason, the remedy, and whether it creates the cache."""

    def __init__(self, reason: str, remedy: str, *, makes_cache: bool = False) -> None:
        super().__init__(reason)
        self.reason, self.remedy, self.makes_cache = reason, remedy, makes_cache


class GenerationCalls:
    """A forward for generation loops: converts their calls, and writes new keys and values into the given caches.

    Generation leaves out masks that are all ones, adds flags, and expects its own cache back. Evaluation gives no cache
    and may give labels: it gets an empty cache, and the loss of the compiled logits.

    Args:
        run: the compiled model.
        spec: the calls that it takes.
        model: whose configuration says what flags are by default.
        notices: says which calls the model's own forward runs.
    """

    def __init__(self, run: Callable[..., Any], spec: CallSpec, model: nn.Module, notices: Notices) -> None:
        self._run, self._spec, self._own = run, spec, own_forward(model)
        self._model, self._notices = model, notices
        self._names = (*spec.parameters[: spec.positional], *spec.keywords)
        self._caches = caches_of(spec, self._names)
        self._kinds = classes_of_caches(spec, self._names, self._caches)
        self._marks = {path: value for path, value in spec.object_numbers.items() if is_mark(path, value)}
        self._config = getattr(model, "config", None)
        self._records_past = any(path.endswith(".record_past") and n for path, n in spec.object_numbers.items())
        values = {spec.paths[index]: value for index, value in spec.input_constants.items()}
        self._constants = {name: value for name, value in values.items() if name in self._names}
        self._tensors = {path: tensor for path, tensor in zip(spec.paths, spec.tensors, strict=True) if tensor}
        self._takes_one = any(self._tensors[name]["shape"][1:2] == [1] for name in _TOKENS if name in self._tensors)
        self._adapter_layers = adapter_layers(model)
        self._loss = LossOfLogits(model, self._own)
        self._counted_as: list[_Positions] | None = None
        self._is_causal: bool | None = None
        self._has_weights = False
        self._outputs = tuple(map(str, spec.outputs.get("keys", ())))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run one step.

        Raises:
            InputError: the compiled graph cannot take this call as the model would, or the model's own forward has to
                run and lacks the weights that were compiled.
        """
        given = self._given(args, kwargs)
        try:
            self._check_adapters()
            self._check_caches(given)
            self._check_recording(given)
            labels, loss_options = self._labels(given)
            keeps_cache = self._wants_cache(given)
            missing = self._add_caches(given)
            new = _tokens(given)
            if self._fills_cache(given, new):
                raise _OwnCall(
                    "its first step is another graph than the later ones, which were compiled.",
                    "For models with an encoder, images or states there is no other way; else give tracing inputs "
                    "with several tokens, too.",
                    makes_cache=True,
                )
            keep = self._last_only(given, new, is_own_cache=bool(missing))
            if labels is not None and not self._loss.is_known(args, kwargs, loss_options):
                raise _OwnCall(
                    "labels= were given, and this model computes its loss in another way than from logits alone.",
                    "Call it without labels= and compute the loss from the logits.",
                )
            if new is not None:
                self._complete(given, new, past_length(given, self._caches))
        except _OwnCall as own:
            return self._in_pytorch(own, given, args, kwargs)
        caches = {name: given[name] for name in self._caches}
        result = self._run(*args[len(self._spec.parameters) :], **self._without_defaults(given))
        for name, cache in caches.items():
            write_back(cache, _part(result, name), self._caches[name])
            _set_part(result, name, cache)
        if keep:
            _set_part(result, "logits", _part(result, "logits")[:, -keep:])
        if labels is not None:
            result = _with_parts(result, loss=self._loss(_part(result, "logits"), labels, loss_options))
        return result if keeps_cache else _with_parts(result, **dict.fromkeys(caches))

    def _given(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments by name, without those that no forward uses."""
        given = {**dict(zip(self._spec.parameters, args, strict=False)), **kwargs}
        given |= {name: value.long() for name, value in given.items() if name in _WHOLE and _is_narrow(value)}
        known = {*self._spec.parameters, *self._names}
        for name, value in list(given.items()):
            if name not in known and not isinstance(value, _PLAIN) and not collect(value):
                del given[name]  # generation passes on arguments for its own settings, such as a tokenizer
            if name in _TOKENS and isinstance(value, Mapping):
                raise InputError(
                    f"{name}: expected a tensor of token numbers, got a {type(value).__name__} of "
                    f"{', '.join(map(str, value))}. Call model(**encoding), which the model itself needs, too."
                )
        return given

    def _in_pytorch(
        self, own: _OwnCall, given: Mapping[str, Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run the call on the model's own forward."""
        self._notices(own.reason, own.remedy)
        if not self._has_weights:
            if self._spec.identity.has_other_weights(self._model):
                raise InputError(
                    f"model: {own.reason} So the model's own forward has to run, and the weights of this "
                    f"{type(self._model).__name__} are not those that were compiled. Load the checkpoint into it, "
                    "from_pretrained in place of a model made of the configuration alone."
                )
            self._has_weights = True
        result = self._own(*args, **kwargs)
        if own.makes_cache and kwargs.get("labels") is None:
            self._check_made(result, [name for name in self._caches if given.get(name) is None])
        return result

    def _check_adapters(self) -> None:
        """Check that the adapters of the compile are in use."""
        then = self._spec.identity.adapters
        if self._adapter_layers and self._spec.identity.weights:
            now, then = adapters_in_use(self._adapter_layers), then or ("none",)
            if now != then:
                raise _OwnCall(
                    f"it uses the adapter {', '.join(now or ())}, and was compiled with {', '.join(then)}.",
                    "Compile again after set_adapter(), one compiled model for each adapter.",
                )

    def _labels(self, given: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Return the labels, which only the loss takes; it is computed from logits, unless the graph has it."""
        if given.get("labels") is None or "labels" in self._names:
            return None, {}
        if self._model.training and torch.is_grad_enabled():
            raise _OwnCall(
                "labels= were given in training mode, and compiled models do not learn.",
                "Call model.eval() and torch.no_grad() to evaluate.",
            )
        options = {name: given.pop(name) for name in self._loss.options if name in given and name not in self._names}
        return given.pop("labels"), options

    def _wants_cache(self, given: dict[str, Any]) -> bool:
        """Return whether the result includes the caches; else each call computes all tokens, with an empty cache."""
        wanted = given.get("use_cache")
        wanted = getattr(self._config, "use_cache", True) if wanted is None else wanted
        if not self._caches or wanted is not False:
            return True
        given.pop("use_cache", None)
        return False

    def _add_caches(self, given: dict[str, Any]) -> list[str]:
        """Add empty caches, as the model creates them, for missing ones; return their names."""
        missing = [name for name in self._caches if given.get(name) is None]
        for name in missing:
            cache = empty_cache(self._kinds.get(name), self._config)
            if cache is None:
                raise _OwnCall(
                    f"it gives no {name}, and the model was compiled with one that the model does not make by itself.",
                    f"Give {name}=, made as in the tracing inputs.",
                    makes_cache=True,
                )
            given[name] = cache
        return missing

    def _fills_cache(self, given: dict[str, Any], new: torch.Tensor | None) -> bool:
        """Return whether a first step fills a cache differently than the graph, which was captured for later steps."""
        caches = {name: value for name, value in given.items() if name in self._caches}
        if self._takes_one and new is not None and new.shape[1] > 1 and past_length(given, caches) == 0:
            return True
        if self._marks:
            found = fixed_numbers((), (), caches)
            return any(found.get(path) is not value for path, value in self._marks.items())
        # such as an image, whose states are in the cache afterwards
        further = {name for name in given if name not in self._names} - {*_MASKS, *_POSITIONS, *_TOKENS}
        return bool(caches) and past_length(given, caches) == 0 and any(collect(given[name]) for name in further)

    def _check_caches(self, given: dict[str, Any]) -> None:
        for path, kind in self._kinds.items():
            name, *parts = path.split(".")
            value = given.get(name)
            for part in parts:
                value = getattr(value, part, None)
            if not is_cache(value) or isinstance(value, kind):
                continue
            if empty_cache(kind, self._config) is not None:
                remedy = "Leave out cache_implementation="
            else:
                asked = _IMPLEMENTATIONS.get(kind.__name__)
                remedy = f"Give cache_implementation={asked!r}" if asked else "Generate with a cache of this class"
            raise InputError(
                f"{path}: generation hands in a {type(value).__name__}, and the model was compiled with a "
                f"{kind.__name__}. {remedy}, or compile with tracing inputs that hold a {type(value).__name__}, such "
                "as record_inputs makes of a generation like this one."
            )
        for name, value in given.items():
            if name not in self._names and is_cache(value):
                raise InputError(
                    f"{name}: generation hands in a {type(value).__name__}, and the model was compiled without a "
                    f"cache. Generate with use_cache=False, which computes all tokens in each step, or compile with "
                    f"{name}= in the tracing inputs, empty in some and filled in others."
                )

    def _check_recording(self, given: Mapping[str, Any]) -> None:
        """Check that caches keep what is outside of windows if they did in the tracing inputs, and else do not."""
        for name in self._caches:
            keeps = given.get(name) is not None and records_past(given[name])
            if keeps and not self._records_past:
                raise _OwnCall(
                    f"generation takes tokens back from {name}, which keeps those outside of its windows for that, and "
                    "the compiled graph drops them.",
                    "Assisted generation and prompt lookup run in PyTorch for models with sliding windows or states.",
                )
            if given.get(name) is not None and not keeps and self._records_past:
                raise _OwnCall(
                    f"{name} drops tokens outside of its windows, and the compiled graph keeps them.",
                    "Compile with tracing inputs of generation without candidates (assistants, prompt lookup).",
                )

    def _check_made(self, result: Any, names: list[str]) -> None:
        """Raise if caches are missing that the model's own first step has to create."""
        made = result if isinstance(result, Mapping) else getattr(result, "__dict__", {})
        missing = [name for name in names if made.get(name) is None]
        if missing:
            raise InputError(
                f"{missing[0]}: generation runs without a cache here, and the model was compiled with one. Leave out "
                "use_cache=False (and look at use_cache in the model's generation_config), or compile with tracing "
                "inputs that hold no cache."
            )

    def _complete(self, given: dict[str, Any], new: torch.Tensor, past: int) -> None:
        """Complete masks and positions for the graph; if generation omits them there is no padding."""
        batch, count = int(new.shape[0]), int(new.shape[1])
        counted = past + torch.arange(count).expand(batch, count)
        for name, positions in zip(_MASKS, _POSITIONS, strict=True):
            mask, is_rows = given.get(name), has_squares(given.get(name))
            if is_rows and not self._is_square(name):
                if not self._sees_those_before(name):
                    raise InputError(_not_flat(name, mask))
                mask = flat_masks(name, mask, past, count, windows_of(given, self._caches, self._config))
                mask = given[name] = mask if mask is None else mask.expand(batch, -1)
            if mask is None and self._constants.get(name, mask) is None and name in self._constants:
                continue  # the graph is one without a mask
            if positions in self._names and given.get(positions) is None:
                given[positions] = self._positions(name, positions, mask, counted, is_rows=is_rows)
            elif positions not in self._names and given.get(positions) is not None:
                self._check_positions(given.pop(positions), counted, positions)
            if name in self._names and mask is None:
                # the mask of an encoder-decoder model under the first name is for the encoder's states
                length = _encoded(given) if name == _MASKS[0] else None
                windows = windows_of(given, self._caches, self._config) if self._is_square(name) else {}
                if any(0 < window.size < past + count for window in windows.values()):
                    raise InputError(
                        f"{name}: the model hides tokens outside of windows from each new one, and was compiled with a "
                        f"mask of a row for each. Give {name}=, or compile without it in the tracing inputs."
                    )
                given[name] = (
                    square_mask(self._tensors[name], batch, past, count, room_of(given, self._caches))
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
        """Return whether the graph takes a mask row for each new token, or such a mask for each kind of layer."""
        mask = self._tensors.get(name)
        return len(mask["shape"]) == 4 if mask else any(path.startswith(f"{name}[") for path in self._tensors)

    def _check_positions(self, found: torch.Tensor, counted: torch.Tensor, name: str) -> None:
        if not torch.equal(found.expand_as(counted), counted):
            raise InputError(
                f"{name}: the prompts are padded, so their tokens stand at other positions than the compiled graph "
                f"counts, which would give other tokens than the model. Compile with {name}= in the tracing inputs, "
                "or generate from prompts of one length."
            )

    def _positions(
        self, mask: str, name: str, given: torch.Tensor | None, counted: torch.Tensor, *, is_rows: bool
    ) -> torch.Tensor:
        """Return the positions that the model computes for itself where a call leaves them out.

        Raises:
            _OwnCall: in a way that is not known.
        """
        if self._counted_as is None:
            self._counted_as = self._ways_to_count(name) if mask == _MASKS[0] else [*_POSITIONS_OF_MASKS]
        if given is None:
            given = torch.ones(len(counted), int(counted[0, -1]) + 1, dtype=torch.long)
        is_padded = not bool((given == 1).all())
        found = [of_mask(given)[:, -counted.shape[1] :] for of_mask in self._counted_as]
        # a mask with rows tells the model other positions than one of an entry for each token
        is_told = not (is_rows and is_padded) or _counted in self._counted_as
        if found and is_told and all(torch.equal(found[0], one) for one in found):
            return found[0]
        raise _OwnCall(
            f"it gives no {name}, and how this model computes them is not known.", f"Give {name}= in the call."
        )

    def _ways_to_count(self, name: str) -> list[_Positions]:
        """Return the first way to count positions that gives the model's own results, found by trying; all where that
        cannot be tried.
        """
        if self._model.training:  # its results are random
            return [*_POSITIONS_OF_MASKS]
        mask = torch.tensor([[1, 1, 1, 1, 1, 1], [0, 0, 1, 1, 0, 1]])
        call = {_TOKENS[0]: torch.arange(6).expand(2, -1) % 3, _MASKS[0]: mask}
        expected = self._tried(call)
        if expected is None:
            return [*_POSITIONS_OF_MASKS]
        for of_mask in _POSITIONS_OF_MASKS:
            found = self._tried({**call, name: of_mask(mask)})
            if found is not None and torch.equal(found, expected):
                return [of_mask]
        return []

    def _tried(self, call: Mapping[str, torch.Tensor]) -> torch.Tensor | None:
        """Return the first result of the model's own forward; None where it takes no such call."""
        try:
            with torch.no_grad():
                return _logits(self._own(**call)).nan_to_num()
        except Exception:  # of any kind: it needs further arguments, or refuses positions that other models have
            return None

    def _sees_those_before(self, name: str) -> bool:
        """Return whether a mask of one entry for each token means that tokens see those before them, found by trying.

        In graphs with a cache it does: what was computed for a token does not change any more.
        """
        if name == _MASKS[0] and any(names in self._names for names in _TOKENS[1::2]):
            return False  # it is for the encoder
        if self._caches or name != _MASKS[0]:
            return True
        if self._is_causal is None:
            tokens = torch.tensor([[0, 1, 2], [0, 1, 1]])
            found = self._tried({_TOKENS[0]: tokens, name: torch.ones_like(tokens)})
            self._is_causal = found is not None and torch.equal(found[0, :2], found[1, :2])
        return self._is_causal

    def _last_only(self, given: dict[str, Any], new: torch.Tensor | None, *, is_own_cache: bool) -> int:
        """Return the number of requested last logits, if the graph returns all; 0 for all."""
        made = self._constants.get("logits_to_keep")
        keep = given.get("logits_to_keep", 0 if type(made) is int else None)
        if type(keep) is not int:
            return 0
        if "logits_to_keep" not in self._names:
            del given["logits_to_keep"]
            return keep
        if type(made) is not int or made == keep:
            return 0
        count = made if new is None else int(new.shape[1])
        if made and count > made and not 0 < keep < made:
            if is_own_cache:
                raise _OwnCall(
                    f"it asks for the logits of {keep or 'all'} tokens, and the compiled graph gives those of {made}.",
                    "Compile with tracing inputs without logits_to_keep=, whose graph gives all logits.",
                )
            raise InputError(
                f"logits_to_keep: generation asks for the logits of {keep or 'all'} tokens here (assisted generation "
                f"and prompt lookup check several at once), and the model was compiled for {made}. Compile with "
                "tracing inputs without logits_to_keep=, whose graph gives all logits."
            )
        given["logits_to_keep"] = made
        return keep

    def _without_defaults(self, given: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments that the graph takes, and the missing ones that would change the result."""
        kept = {}
        for name, value in given.items():
            if name in self._names or not (isinstance(value, bool) and value is self._flag(name)):
                kept[name] = value
            if value is True and name.startswith(_ASKS) and name not in self._names and self._flag(name) is False:
                raise InputError(
                    f"{name}=True: the compiled graph gives {', '.join(self._outputs)}. Compile with {name}=True in "
                    "the tracing inputs, or call the model outside of the block."
                )
        return {**self._constants, **kept}

    def _flag(self, name: str) -> bool | None:
        """Return the graph's value of a flag, if it is known."""
        if name == "use_cache":
            return bool(self._caches)
        if name == "return_dict":
            return bool(self._spec.outputs["kind"] == "object")
        if name.startswith(_ASKS):  # the configuration may have changed since
            return any(output.endswith(name.removeprefix(_ASKS)) for output in self._outputs)
        value = getattr(self._config, name, None)
        return value if isinstance(value, bool) else None


def _is_narrow(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype in (torch.bool, torch.int32) and not is_square(value)


def _tokens(given: Mapping[str, Any]) -> torch.Tensor | None:
    """Return the new tokens, or their embeddings; those of the decoder where there are two."""
    found = [given[name] for name in _TOKENS if isinstance(given.get(name), torch.Tensor)]
    decoder = given.get("decoder_input_ids")
    value = decoder if isinstance(decoder, torch.Tensor) else (found[0] if found else None)
    return value if value is not None and value.dim() >= 2 else None


def _encoded(given: Mapping[str, Any]) -> int | None:
    """Return the length of the encoder's states; None without an encoder."""
    states = given.get("encoder_outputs")
    if states is None:
        return None
    first = states[0] if isinstance(states, tuple | list) else next(iter(states.values()))
    return int(first.shape[1])


_Positions = Callable[[torch.Tensor], torch.Tensor]
"""Gives the positions of tokens for a mask of one entry for each."""


def _counted(mask: torch.Tensor) -> torch.Tensor:
    return torch.arange(mask.shape[-1]).expand(mask.shape)


def _skipping(mask: torch.Tensor) -> torch.Tensor:
    return mask.long().cumsum(-1) - 1


_POSITIONS_OF_MASKS: tuple[_Positions, ...] = (
    _counted,
    lambda mask: _skipping(mask).masked_fill(mask == 0, 0),
    lambda mask: _skipping(mask).masked_fill(mask == 0, 1),
    lambda mask: _skipping(mask).masked_fill(mask == 0, -1),
    lambda mask: _skipping(mask).clamp(min=0),
)
"""The ways in which models count: padding, too, or without it, which then has one of a few positions."""


def _part(result: Any, name: str) -> Any:
    return result[name] if isinstance(result, Mapping) else getattr(result, name)


def _set_part(result: Any, name: str, value: Any) -> None:
    if type(result) is dict:
        result[name] = value
    else:
        setattr(result, name, value)


def _with_parts(result: Any, **parts: Any) -> Any:
    """Return the result with replaced parts; None removes one."""
    if dataclasses.is_dataclass(result) and not isinstance(result, type):
        return dataclasses.replace(result, **parts)
    found = {**parts, **result, **parts}
    return {name: value for name, value in found.items() if value is not None or name not in parts}


def _logits(result: Any) -> torch.Tensor:
    found: torch.Tensor = collect(result)[0]
    return found


# Masks of generation in the two forms that models take: one entry for each token, or a row for each new token.
#
# ``transformers`` makes the second form itself where a cache has a fixed length, and leaves it out where nothing is
# padded and the cache is empty.


def is_square(mask: Any) -> bool:
    """Return whether it is a mask of (batch, heads or 1, new tokens, entries of the cache)."""
    return isinstance(mask, torch.Tensor) and mask.dim() == 4


def has_squares(mask: Any) -> bool:
    """Return whether it is such a mask, or a dict of one for each kind of layer."""
    return any(map(is_square, mask.values())) if isinstance(mask, Mapping) else is_square(mask)


def flat_masks(
    name: str, masks: Any, past: int, new: int, windows: Mapping[str, Window] | None = None
) -> torch.Tensor | None:
    """Return the equivalent mask of (batch, past + new), which hides padding alone; None if all are omitted.

    What no token sees any more counts as seen.

    Args:
        name: of the argument.
        masks: of (batch, 1, new, entries): true, or 0 where it is added to scores, where a token is seen. A dict has
            one for each kind of layers, and a single one is for all kinds.
        past: tokens in the cache.
        new: further tokens.
        windows: by kind of layers; by default all tokens are seen.

    Raises:
        InputError: they say something else.

    Example:
        >>> mask = torch.ones(1, 1, 2, 5, dtype=torch.bool).tril(1)
        >>> flat_masks("attention_mask", mask, 1, 2).tolist()
        [[1, 1, 1]]
    """
    windows = windows or {"": Window()}
    kinds = dict(masks) if isinstance(masks, Mapping) else dict.fromkeys(windows, masks)
    rows = [
        (f"{name}[{kind!r}]" if isinstance(masks, Mapping) else name, mask, windows.get(kind, Window()))
        for kind, mask in kinds.items()
        if mask is not None
    ]
    if not rows:
        return None
    # that of all tokens tells most, where there is one
    rows.sort(key=lambda row: row[2].size)
    first, mask, window = rows[0]
    flat = _padding(first, mask, past, new, window)
    bare = [kind for kind, mask in kinds.items() if mask is None]
    if any(kind == "full_attention" or windows.get(kind, Window()).size for kind in bare):
        flat = torch.ones_like(flat)  # for layers without a mask nothing is padded
    for path, mask, window in rows:
        seen, expected = _seen(path, mask), _visible(flat, past, new, mask.shape[-1], window)
        if mask.shape[-2] != new or not torch.equal(seen, expected.expand_as(seen)):
            raise InputError(_not_flat(path, mask))
    return flat


def _not_flat(name: str, mask: Any) -> str:
    shape = next(value.shape for value in (mask.values() if isinstance(mask, Mapping) else [mask]) if is_square(value))
    return (
        f"{name}: tokens see others than those before them here (in their window, where layers have one), and the "
        "model was compiled with a mask of one entry for each token, or none. Compile with "
        f"{name.partition('[')[0]}= of this form, {tuple(shape)}, in the tracing inputs."
    )


_HIDING = -1e4
"""What is added to the scores of hidden tokens is at most this; nothing of them is left after softmax."""


def _seen(name: str, mask: torch.Tensor) -> torch.Tensor:
    """Return where a mask shows tokens."""
    if mask.dim() != 4 or not (mask.dtype == torch.bool or bool(((mask == 0) | (mask <= _HIDING)).all())):
        raise InputError(
            f"{name}: expected a mask of (batch, 1, new tokens, entries) that is true, or 0 if it is added to scores, "
            f"where tokens are seen, and false, or {_HIDING:g} or less, elsewhere, got one of {tuple(mask.shape)} "
            "with other values. The model was compiled with a mask of one entry for each token, or none. Compile with "
            f"{name.partition('[')[0]}= of this form in the tracing inputs."
        )
    return mask if mask.dtype == torch.bool else mask == 0


def _padding(name: str, mask: torch.Tensor, past: int, new: int, window: Window) -> torch.Tensor:
    """Return which tokens a mask shows to any other, of (batch, past + new)."""
    seen, before = _seen(name, mask)[:, 0].any(1), _held_from(past, window)
    flat = torch.ones(len(seen), past + new, dtype=torch.long)
    if seen.shape[-1] < past + new - before:
        raise InputError(_not_flat(name, mask))
    hidden = max(past - window.size + 1, 0) if window.size else 0  # those that are too far back for all new tokens
    first = max(before, hidden)
    flat[:, first:] = seen[:, first - before : past + new - before].long()
    if window.is_chunk and past >= window.size:  # the same for those in earlier chunks
        flat[:, first:] |= (flat[:, first:].cumsum(-1) == 0).long()
    return flat


def _held_from(past: int, window: Window) -> int:
    """Return the position of the first entry of a mask."""
    return max(past - window.room + 1, 0) if window.room else 0


def _visible(flat: torch.Tensor, past: int, new: int, entries: int, window: Window) -> torch.Tensor:
    """Return which entries new tokens see, of (batch, 1, new, entries), for a mask of one entry for each token."""
    keys = _held_from(past, window) + torch.arange(entries)
    queries = past + torch.arange(new)[:, None]
    seen = (keys <= queries)[None]
    if window.is_chunk:
        padding = (flat.cumsum(-1) == 0).sum(-1)[:, None, None]
        seen = seen & ((keys - padding) // window.size == (queries - padding) // window.size)
    elif window.size:
        seen = seen & (keys > queries - window.size)
    shown = flat[:, keys.clamp(max=flat.shape[-1] - 1)].bool()
    return (seen & shown[:, None])[:, None]


def square_mask(spec: Mapping[str, Any], batch: int, past: int, new: int, room: int) -> torch.Tensor:
    """Return the causal mask of (batch, 1, new, entries) for tokens without padding.

    Args:
        spec: of the mask that the graph takes.
        batch: number of rows.
        past: tokens in the cache.
        new: further tokens.
        room: entries of a cache of a fixed length; less than the tokens for one that grows.
    """
    seen = torch.arange(max(room, past + new)) <= past + torch.arange(new)[:, None]
    seen = seen.expand(batch, 1, -1, -1)
    dtype = getattr(torch, spec["dtype"])
    if dtype == torch.bool:
        return seen.clone()
    return torch.zeros(seen.shape, dtype=dtype).masked_fill(~seen, torch.finfo(dtype).min)


# The loss of compiled logits, by the function that a model of ``transformers`` has for it.


_FROM_THE_MODEL = frozenset({"logits", "labels", "vocab_size"})


class LossOfLogits:
    """Computes a model's loss from logits, if the model does so itself, which is found by trying.

    Attributes:
        options: arguments of a call that only the loss takes, such as ``num_items_in_batch``.
    """

    def __init__(self, model: nn.Module, own: Callable[..., Any]) -> None:
        self._own, self._config = own, getattr(model, "config", None)
        self._function = _loss_function(model)
        self._known: dict[frozenset[str], bool] = {}
        parameters = {} if self._function is None else inspect.signature(self._function).parameters
        named = {name for name, one in parameters.items() if one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL)}
        self.options = tuple(sorted(named - _FROM_THE_MODEL))

    def __call__(self, logits: torch.Tensor, labels: torch.Tensor, options: Mapping[str, Any]) -> torch.Tensor:
        """Return the loss."""
        assert self._function is not None
        config: Any = self._config
        text = config.get_text_config() if hasattr(config, "get_text_config") else config
        vocabulary = getattr(text, "vocab_size", logits.shape[-1])
        loss: torch.Tensor = self._function(logits=logits, labels=labels, vocab_size=vocabulary, **options)
        return loss

    @torch.no_grad()
    def is_known(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], options: Mapping[str, Any]) -> bool:
        """Return whether the model's own logits and loss of a call are consistent; tested once for each set of options.

        The model's weights do not matter for that. One whose loss needs more, such as that of its experts, or is
        computed in another way, has another value.
        """
        if self._function is None:
            return False
        key = frozenset(options)
        if key not in self._known:
            # a copy, because the model writes to the caches that it is given
            given_args, given = copy.deepcopy((args, dict(kwargs)))
            result = self._own(*given_args, **given)
            loss, logits = getattr(result, "loss", None), getattr(result, "logits", None)
            self._known[key] = (
                isinstance(loss, torch.Tensor)
                and isinstance(logits, torch.Tensor)
                and torch.allclose(loss, self(logits, kwargs["labels"], options), rtol=1e-5, equal_nan=True)
            )
        return self._known[key]


def _loss_function(model: nn.Module) -> Callable[..., torch.Tensor] | None:
    try:
        function = getattr(model, "loss_function", None)
    except Exception:  # a property of a third-party class may raise anything
        return None
    return function if callable(function) else None


def _trees(spec: CallSpec, names: tuple[str, ...]) -> dict[str, Tree]:
    positional, keywords = spec.inputs["items"]
    return dict(zip(names, [*positional["items"], *keywords["items"]], strict=False))


def classes_of_caches(spec: CallSpec, names: tuple[str, ...], caches: Mapping[str, Tree]) -> dict[str, type]:
    """Return the known classes of the caches, and of those that a cache holds, by name or path of the argument."""
    trees = _trees(spec, names)
    trees = {name: trees[name] for name in caches if trees[name]["kind"] == "object"}
    for name, tree in list(trees.items()):
        parts = zip(tree["keys"], tree["items"], strict=True)
        trees |= {f"{name}.{part}": inner for part, inner in parts if inner["kind"] == "object"}
    found = {path: class_named(tree["type"]) for path, tree in trees.items()}
    return {path: kind for path, kind in found.items() if kind is not None}


def caches_of(spec: CallSpec, names: tuple[str, ...]) -> dict[str, Tree]:
    """Return the arguments that the result contains under the same name, and their structure there."""
    nested = {name for name, tree in _trees(spec, names).items() if tree["kind"] != "leaf"}
    if spec.outputs["kind"] not in ("object", "dict"):
        return {}
    outputs = dict(zip(spec.outputs["keys"], spec.outputs["items"], strict=True))
    return {name: outputs[name] for name in names if name in nested and name in outputs}


def write_back(old: Any, new: Any, tree: Tree) -> Any:
    """Write the contents of ``new`` into the objects and lists of the cache ``old``; return those without a place."""
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
