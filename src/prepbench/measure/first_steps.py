"""Generation whose first step runs in the caller's PyTorch model, because its graph differs from that of later
steps.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from prepbench.compile import CompiledModel
from prepbench.compile.attached import model_to_attach
from prepbench.compile.compiled import runtime_and_calls
from prepbench.compile.greedy import Generated
from prepbench.compile.later_steps import Begun, LaterSteps, attached_quietly
from prepbench.errors import InputError
from prepbench.inputs import Sample
from prepbench.measure.artifacts import load_candidate
from prepbench.measure.generation import Generation, Prompt
from prepbench.measure.transfer import load_sample, save_sample
from prepbench.running.record_inputs import record_inputs

NOTE = "its first step runs in PyTorch, in this process"


class PyTorchFirst:
    """Generation by ``model.generate``: its first step is the model's own, and all further ones run compiled where
    possible.

    Tokens that the model's generation_config suppresses are not generated, nor is an end-of-text token.

    Args:
        name: of the candidate.
        model: runs the first step.
        compiled: runs the others; None for the model itself.

    Raises:
        InputError: the model has no ``generate``, or is called differently from the compiled one.
    """

    has_cache = True

    def __init__(self, name: str, model: Any, compiled: CompiledModel | None) -> None:
        if not callable(getattr(model, "generate", None)):
            raise InputError(
                f"candidate {name!r}: {type(model).__name__} has no method generate, which makes the first step of "
                "models with encoders, states or images. Give a model of transformers that generates, or calls as "
                "data instead of the Generation."
            )
        self._model, self._compiled = model, compiled
        self.takes = frozenset(inspect.signature(model.forward).parameters)
        if compiled is not None:
            self.takes = frozenset(runtime_and_calls(compiled)[1].paths)
            model_to_attach(model, runtime_and_calls(compiled)[1].parameters)

    def generate(self, prompt: Prompt, new_tokens: int) -> Generated:
        """Generate greedily.

        Raises:
            InputError: generation made another number of tokens.
        """
        times: list[int] = []
        hook = self._model.register_forward_hook(lambda *_: times.append(time.perf_counter_ns()))
        start = time.perf_counter_ns()
        try:
            if self._compiled is None:
                found = self._made(prompt, new_tokens)
            else:
                with attached_quietly(self._compiled, self._model):
                    found = self._made(prompt, new_tokens)
        finally:
            hook.remove()
        if len(times) != new_tokens or found.shape[-1] < new_tokens:
            raise InputError(
                f"{type(self._model).__name__}.generate took {len(times)} steps, expected one for each of "
                f"{new_tokens} tokens. Look at the model's generation_config: beams and assistants take others."
            )
        return Generated(found[:, -new_tokens:], tuple(b - a for a, b in zip([start, *times], times, strict=False)))

    def _made(self, prompt: Prompt, new_tokens: int) -> torch.Tensor:
        options = {"max_new_tokens": new_tokens, "min_new_tokens": new_tokens, "do_sample": False, "num_beams": 1}
        with torch.no_grad():
            made: torch.Tensor = self._model.generate(**prompt.given, **options)
        return made

    def samples(self, workload: Generation) -> list[Sample]:
        """Return later steps of the model itself, one of each form, from which it can be captured."""
        found: list[Sample] = []
        for prompt in workload.batches:
            with record_inputs(self._model) as recorded:
                self._made(prompt, 3)
            found += recorded.samples[1:]
        return found

    def save_begun(self, workload: Generation, artifact: Path, folder: Path) -> None:
        """Write the state after each prompt for the process that runs the later steps."""
        compiled = load_candidate(artifact) if self._compiled is None else self._compiled
        steps = LaterSteps(compiled)
        save_sample(Sample(()), folder)
        for index, prompt in enumerate(workload.batches):
            begun = steps.begun(self._model, prompt.given)
            save_sample(Sample(begun.leaves, {"roles": list(begun.roles)}), folder / str(index))


def load_begun(inputs: Path, prompt: int) -> Begun | None:
    """Read the state after a prompt that :meth:`PyTorchFirst.save_begun` wrote; None where nothing was written."""
    folder = inputs / str(prompt)
    if not folder.exists():
        return None
    sample = load_sample(folder)
    return Begun(sample.args, tuple(sample.kwargs["roles"]))


def needs_first_step(candidate: Any, workload: Generation) -> bool:
    """Return whether a candidate's first step needs another graph than the others."""
    if workload.has_further:
        return True
    if isinstance(candidate, CompiledModel):
        return LaterSteps.are_all_of(candidate)
    takes = inspect.signature(getattr(candidate, "forward", candidate)).parameters
    is_other = "decoder_input_ids" in takes or "past_key_values" not in takes
    return is_other and callable(getattr(candidate, "generate", None))


def loops_with_first_step(candidates: Mapping[str, Any]) -> dict[str, PyTorchFirst]:
    """Return a loop for each candidate; compiled ones take the first step from the first PyTorch model among them.

    Raises:
        InputError: there is none.
    """
    models = [one for one in candidates.values() if isinstance(one, nn.Module) and not isinstance(one, CompiledModel)]
    loops = {}
    for name, one in candidates.items():
        compiled = one if isinstance(one, CompiledModel) else None
        if compiled is not None and not models:
            raise InputError(
                f"candidate {name!r}: the first step of this model (an encoder, states, images) is another graph than "
                "the later ones and runs in PyTorch, and no candidate is a PyTorch model. Give the model itself as a "
                f"candidate, too: pb.compare({{'PyTorch': model, {name!r}: compiled}}, ...)."
            )
        try:
            loops[name] = PyTorchFirst(name, one if compiled is None else models[0], compiled)
        except InputError as error:
            raise InputError(str(error) if name in str(error) else f"candidate {name!r}: {error}") from error
    return loops
