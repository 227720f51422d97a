"""Greedy generation without a library: on the leaves of a compiled model, or on a model with a cache argument.

It makes a fixed number of tokens, so that times can be compared, and notes when each of them was there.
"""

from __future__ import annotations

import functools
import inspect
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from prepbench.calls.call_spec import CallSpec, Lowered, outputs_of, runtime_and_calls
from prepbench.calls.tensor_specs import with_empty_tensors
from prepbench.errors import InputError
from prepbench.generate.attached import Notices, attached_forward, model_to_attach
from prepbench.generate.calls import GenerationCalls
from prepbench.objects.copy import clones
from prepbench.objects.flatten import is_mark

_MASK, _POSITIONS = "attention_mask", "position_ids"


@dataclass(frozen=True)
class Generated:
    """The generated tokens and the time of each step.

    Attributes:
        tokens: the new ones, of shape (batch, new tokens).
        times_ns: nanoseconds from the start, or from the token before, until each token was there.
    """

    tokens: torch.Tensor
    times_ns: tuple[int, ...]


class CompiledSteps:
    """The steps of generation on a compiled model.

    Caches are passed from step to step as tensors, by their names among arguments and results.

    Args:
        compiled: takes tokens, and further only a mask, positions and a cache that it returns under the same name.

    Raises:
        InputError: it takes something else, or predicts no tokens.
    """

    def __init__(self, compiled: Lowered) -> None:
        self._run: Callable[[Sequence[Any]], Sequence[Any]] = functools.partial(outputs_of, compiled)
        self._spec = runtime_and_calls(compiled)[1]
        self._tokens = _token_leaf(self._spec)
        names, outputs = self._spec.input_names, self._spec.output_names
        self._caches = {index: outputs.index(name) for index, name in enumerate(names) if name in outputs}
        self._logits = outputs.index("logits") if "logits" in outputs else 0
        roles = {self._tokens, *self._caches, *self._spec.input_constants}
        for index, path in enumerate(self._spec.paths):
            if index not in roles and path not in (_MASK, _POSITIONS):
                raise InputError(
                    f"{path}: generation gives tokens, {_MASK}, {_POSITIONS} and a cache, and the compiled model takes "
                    "this too. Compile it with tracing inputs that leave it out."
                )
            if path == _MASK and len((self._spec.tensors[index] or {"shape": ()})["shape"]) == 4:
                raise InputError(
                    f"{path}: the compiled model takes a row for each new token. Compile it with masks of (batch, past "
                    "and new tokens) in the tracing inputs, or with none."
                )

    @property
    def has_cache(self) -> bool:
        """Whether each step computes the new tokens only."""
        return bool(self._caches)

    @property
    def takes(self) -> frozenset[str]:
        """The names of the arguments."""
        return frozenset(self._spec.paths)

    def generate(self, ids: torch.Tensor, mask: torch.Tensor, new_tokens: int) -> Generated:
        """Prefill ``ids``, and append the likeliest token ``new_tokens`` times.

        Args:
            ids: of shape (batch, tokens).
            mask: of the same shape, 0 where there is padding.
            new_tokens: at least 1.

        Raises:
            InputError: the compiled model does not take a step of these sizes.
        """
        caches: dict[int, torch.Tensor] | None = None
        lengths = self._fixed_lengths(int(ids.shape[1]) + new_tokens)

        def step(ids: torch.Tensor, mask: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
            nonlocal caches
            given = {self._spec.paths[self._tokens]: ids, _MASK: mask, _POSITIONS: positions}
            leaves = [given.get(path, self._spec.input_constants.get(i)) for i, path in enumerate(self._spec.paths)]
            leaves = [(caches or {}).get(i, leaf) for i, leaf in enumerate(leaves)]
            if caches is None and self._caches:
                missing = [i in self._caches for i in range(len(leaves))]
                leaves = with_empty_tensors(leaves, missing, self._spec.tensors, lengths)
            outputs = self._run(leaves)
            caches = {index: outputs[place] for index, place in self._caches.items()}
            logits: torch.Tensor = outputs[self._logits]
            return logits

        return _generate(step, ids, mask, new_tokens, has_cache=self.has_cache)

    def _fixed_lengths(self, tokens: int) -> dict[str, int]:
        """Return the length of caches with room for all tokens from the start, by symbol.

        Such a cache counts its tokens in a tensor without dims. Sliding windows have a second count, because the first
        one stops when they are full, and need no room for more.
        """
        paths, specs = self._spec.paths, self._spec.tensors
        held = {paths[index]: spec for index in self._caches if (spec := specs[index]) is not None}
        counts = Counter(path.rpartition(".")[0] for path, spec in held.items() if not spec["shape"])
        counting = {owner for owner, count in counts.items() if count == 1}
        found: dict[str, int] = {}
        for path, spec in held.items():
            if path.rpartition(".")[0] not in counting or len(spec["shape"]) != 4:
                continue
            room = spec["shape"][2]
            if room is not None and room < tokens:
                raise InputError(
                    f"{path} has room for {room} tokens in all tracing inputs, and prompt and new tokens are {tokens}. "
                    "Generate fewer, or compile with caches of several lengths."
                )
            found |= {spec["symbols"][2]: tokens} if room is None else {}
        return found


class ModelSteps:
    """The steps of generation on a PyTorch model, called as ``transformers`` generation calls it."""

    has_cache = True

    def __init__(self, model: Callable[..., Any]) -> None:
        self._model = model
        self.takes = frozenset(inspect.signature(getattr(model, "forward", model)).parameters)

    def generate(self, ids: torch.Tensor, mask: torch.Tensor, new_tokens: int) -> Generated:
        """Generate as :class:`CompiledSteps` does.

        Raises:
            InputError: the model does not return logits and a cache.
        """
        cache: Any = None

        def step(ids: torch.Tensor, mask: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
            nonlocal cache
            given = {_MASK: mask, _POSITIONS: positions, "past_key_values": cache, "use_cache": True}
            result = self._model(input_ids=ids, **{name: part for name, part in given.items() if name in self.takes})
            cache = getattr(result, "past_key_values", None)
            if cache is None or getattr(result, "logits", None) is None:
                raise InputError(
                    f"{type(self._model).__name__}: generation needs logits and past_key_values in the result, got "
                    f"{type(result).__name__}. Give a model that is called like the causal language models of "
                    "transformers, with use_cache=True."
                )
            logits: torch.Tensor = result.logits
            return logits

        return _generate(step, ids, mask, new_tokens, has_cache=True)


Step = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


@torch.no_grad()
def _generate(step: Step, ids: torch.Tensor, mask: torch.Tensor, new_tokens: int, *, has_cache: bool) -> Generated:
    tokens, times, new = [], [], ids
    start = time.perf_counter_ns()
    for _ in range(new_tokens):
        positions = (mask.cumsum(-1) - 1).clamp(min=0)[:, -new.shape[1] :]
        token = step(new, mask, positions)[:, -1].argmax(-1, keepdim=True)
        now = time.perf_counter_ns()
        times.append(now - start)
        start = now
        tokens.append(token)
        mask = torch.cat([mask, mask.new_ones(len(mask), 1)], -1)
        new = token if has_cache else torch.cat([new, token], -1)
    return Generated(torch.cat(tokens, -1), tuple(times))


def _token_leaf(spec: CallSpec) -> int:
    """Return the leaf that holds tokens: ``input_ids``, or the one that indexes a table."""
    if "input_ids" in spec.paths:
        return spec.paths.index("input_ids")
    found = [i for i, one in enumerate(spec.tensors) if _indexes(one) and spec.paths[i] != _POSITIONS]
    if len(found) != 1:
        raise InputError(
            f"arguments: no tokens among {', '.join(spec.paths)}. Generation takes models whose forward has input_ids, "
            "or one argument of token numbers."
        )
    return found[0]


def _indexes(spec: Mapping[str, Any] | None) -> bool:
    return spec is not None and "below" in spec and len(spec["shape"]) == 2


# The later steps of generation, on the leaves of a compiled model.
#
# Models with an encoder, with states in place of keys and values, or with images compute a different graph in the first
# step. The model itself runs that step then; the compiled steps after it start from plain tensors, also in another
# process.


TOKENS, CACHE, SAME, NEXT, LONGER = "tokens", "cache", "same", "next", "longer"
"""The update of a leaf from step to step: the new tokens, what the step returned, itself, itself plus 1, or itself
with a column of ones behind it."""
_OTHER_FIRST_STEP = ("encoder_outputs", "decoder_input_ids")


@dataclass(frozen=True)
class Begun:
    """A generation after its first step.

    Attributes:
        leaves: of the first call of the compiled model, in the order in which it takes them.
        roles: the update of each of them in later calls.
    """

    leaves: tuple[Any, ...]
    roles: tuple[str, ...]


def attached_quietly(compiled: Lowered, model: nn.Module) -> AbstractContextManager[None]:
    """Attach ``compiled.attached(model)`` without warnings, for results that report themselves what runs in PyTorch."""
    return _attached(compiled, runtime_and_calls(compiled)[1], model)


def _attached(run: Callable[..., Any], spec: CallSpec, model: nn.Module) -> AbstractContextManager[None]:
    model = model_to_attach(model, spec.parameters)
    notices = Notices(quiet=True)
    return attached_forward(model, GenerationCalls(run, spec, model, notices), notices)


class LaterSteps:
    """The later steps of generation on a compiled model: greedy, a fixed number.

    Raises:
        InputError: it returns no cache that it takes.
    """

    def __init__(self, compiled: Lowered) -> None:
        self._compiled, self._spec = compiled, runtime_and_calls(compiled)[1]
        names, outputs = self._spec.input_names, self._spec.output_names
        self._caches = {index: outputs.index(name) for index, name in enumerate(names) if name in outputs}
        self._logits = outputs.index("logits") if "logits" in outputs else 0
        if not self._caches:
            raise InputError(
                f"results: generation goes on from a cache, and the compiled model returns {', '.join(outputs)}. "
                "Compile it with tracing inputs of later steps, whose cache is filled."
            )

    @staticmethod
    def are_all_of(compiled: Lowered) -> bool:
        """Return whether a compiled model takes no first steps, because they are another graph."""
        spec = runtime_and_calls(compiled)[1]
        names = {*spec.parameters[: spec.positional], *spec.keywords}
        marks = [value for path, value in spec.object_numbers.items() if is_mark(path, value)]
        return any(marks) or not names.isdisjoint(_OTHER_FIRST_STEP)

    def begun(self, model: nn.Module, prompt: Mapping[str, torch.Tensor]) -> Begun:
        """Generate three tokens with ``model.generate``, and infer from its calls the update of each leaf between
        steps.

        Raises:
            InputError: the first step is not the model's own, or a leaf changes in a way that is not known.
        """
        calls: list[list[Any]] = []

        def run(*args: Any, **kwargs: Any) -> Any:
            leaves = self._spec.flatten(args, kwargs)
            calls.append(clones(leaves))
            return self._spec.result(outputs_of(self._compiled, leaves))

        with _attached(run, self._spec, model):
            model.generate(**prompt, max_new_tokens=3, min_new_tokens=3, do_sample=False, num_beams=1)  # type: ignore[operator]
        if len(calls) != 2:
            raise InputError(
                f"calls: {len(calls)} of the first 3 steps run compiled, expected those after the first. Compile with "
                "samples of later steps only: [s for s in samples if s.kwargs['input_ids'].shape[1] == 1]."
            )
        roles = tuple(self._role(index, *(call[index] for call in calls)) for index in range(len(self._spec.paths)))
        return Begun(tuple(calls[0]), roles)

    def _role(self, index: int, one: Any, two: Any) -> str:
        path = self._spec.paths[index]
        if index in self._caches:
            return CACHE
        if not isinstance(one, torch.Tensor):
            return SAME
        if path == self._token_path:
            return TOKENS
        if one.shape == two.shape:
            if torch.equal(one, two):
                return SAME
            if not one.is_floating_point() and torch.equal(one + 1, two):
                return NEXT
        if one.shape[:-1] == two.shape[:-1] and torch.equal(_longer(one), two):
            return LONGER
        raise InputError(
            f"{path}: it changes between steps in a way that is not known, from shape {tuple(one.shape)} to "
            f"{tuple(two.shape)}; known are tokens, caches, positions that grow by 1 and masks that get a column of "
            "ones. Leave it out of the tracing inputs, or give calls as data in place of the Generation."
        )

    @property
    def _token_path(self) -> str:
        names = ("decoder_input_ids", "input_ids")
        return next((name for name in names if name in self._spec.paths), self._spec.paths[0])

    @torch.no_grad()
    def generate(self, begun: Begun, steps: int) -> tuple[torch.Tensor, tuple[int, ...]]:
        """Append the likeliest token ``steps`` times.

        Returns:
            The tokens, of shape (batch, steps), and the nanoseconds of each step.

        Raises:
            InputError: the compiled model does not take a step of these sizes.
        """
        leaves, made, times = list(begun.leaves), [], []
        start = time.perf_counter_ns()
        for _ in range(steps):
            outputs = outputs_of(self._compiled, leaves)
            token = outputs[self._logits][:, -1].argmax(-1, keepdim=True)
            now = time.perf_counter_ns()
            times.append(now - start)
            start = now
            made.append(token)
            leaves = self._next(leaves, begun.roles, outputs, token)
        tokens = torch.cat(made, -1) if made else torch.zeros(0, 0, dtype=torch.long)
        return tokens, tuple(times)

    def _next(self, leaves: Sequence[Any], roles: Sequence[str], outputs: Sequence[Any], token: Any) -> list[Any]:
        made = list(leaves)
        for index, (role, leaf) in enumerate(zip(roles, leaves, strict=True)):
            if role == CACHE:
                made[index] = outputs[self._caches[index]]
            elif role == TOKENS:
                made[index] = token.to(leaf.dtype)
            elif role == NEXT:
                made[index] = leaf + 1
            elif role == LONGER:
                made[index] = _longer(leaf)
        return made


def _longer(mask: torch.Tensor) -> torch.Tensor:
    return torch.cat([mask, mask.new_ones(*mask.shape[:-1], 1)], -1)
