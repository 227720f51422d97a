"""The later steps of generation, on the leaves of a compiled model.

Models with an encoder, with states in place of keys and values, or with images compute a different graph in the first
step. The model itself runs that step then; the compiled steps after it start from plain tensors, also in another
process.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from prepbench.compile.attached import Notices, attached_forward, model_to_attach
from prepbench.compile.call_spec import CallSpec
from prepbench.compile.compiled import CompiledModel, outputs_of, runtime_and_calls
from prepbench.compile.generation_call import GenerationCalls
from prepbench.errors import InputError
from prepbench.running.object_nodes import is_mark

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


def attached_quietly(compiled: CompiledModel, model: nn.Module) -> AbstractContextManager[None]:
    """Attach ``compiled.attached(model)`` without warnings, for results that report themselves what runs in PyTorch."""
    return _attached(compiled, runtime_and_calls(compiled)[1], model)


def _attached(run: Callable[..., Any], spec: CallSpec, model: nn.Module) -> AbstractContextManager[None]:
    model = model_to_attach(model, spec.parameters)
    notices = Notices(quiet=True)
    return attached_forward(model, GenerationCalls(run, spec, model, notices), notices)


class LaterSteps:
    """The later steps of generation on a compiled model: greedy, a fixed number.

    Args:
        compiled: takes the calls of later steps.

    Raises:
        InputError: it returns no cache that it takes.
    """

    def __init__(self, compiled: CompiledModel) -> None:
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
    def are_all_of(compiled: CompiledModel) -> bool:
        """Return whether a compiled model takes no first steps, because they are another graph."""
        spec = runtime_and_calls(compiled)[1]
        names = {*spec.parameters[: spec.positional], *spec.keywords}
        marks = [value for path, value in spec.object_numbers.items() if is_mark(path, value)]
        return any(marks) or not names.isdisjoint(_OTHER_FIRST_STEP)

    def begun(self, model: nn.Module, prompt: Mapping[str, torch.Tensor]) -> Begun:
        """Generate three tokens with ``model.generate``, and infer from its calls the update of each leaf between
        steps.

        Args:
            model: runs the first step; it is called like the compiled one.
            prompt: the arguments of ``generate``.

        Raises:
            InputError: the first step is not the model's own, or a leaf changes in a way that is not known.
        """
        calls: list[list[Any]] = []

        def run(*args: Any, **kwargs: Any) -> Any:
            leaves = self._spec.flatten(args, kwargs)
            calls.append([leaf.clone() if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves])
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
