"""Greedy generation without a library: on the leaves of a compiled model, or on a model with a cache argument.

It makes a fixed number of tokens, so that times can be compared, and notes when each of them was there.
"""

from __future__ import annotations

import functools
import inspect
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from prepbench.compile.call_spec import CallSpec
from prepbench.compile.compiled import CompiledModel, outputs_of, runtime_and_calls
from prepbench.compile.tensor_specs import with_empty_tensors
from prepbench.errors import InputError

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

    def __init__(self, compiled: CompiledModel) -> None:
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
