"""Generation as a workload: prompts and the number of new tokens, and the result for a candidate."""

from __future__ import annotations

import inspect
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from prepbench.calls.call_spec import runtime_and_calls
from prepbench.checks import check_count, described
from prepbench.errors import InputError
from prepbench.generate.attached import model_to_attach
from prepbench.generate.greedy import Begun, Generated, LaterSteps, attached_quietly
from prepbench.inputs import Sample
from prepbench.measure.artifacts import load_candidate
from prepbench.measure.transfer import load_sample, save_sample
from prepbench.package import CompiledModel
from prepbench.running.recorded_calls import record_inputs

_KINDS = (torch.int32, torch.int64)


@dataclass(frozen=True)
class Prompt:
    """A batch of prompts of one length.

    Attributes:
        ids: token numbers of shape (batch, tokens), int64; without tokens where the prompt is sound alone.
        mask: of the same shape, 0 where there is padding.
        further: other tensors, such as ``pixel_values`` and ``input_features``, by name.
    """

    ids: torch.Tensor
    mask: torch.Tensor
    further: Mapping[str, torch.Tensor] = field(default_factory=dict)

    @property
    def given(self) -> dict[str, torch.Tensor]:
        """Return the arguments of ``model.generate``."""
        text = {"input_ids": self.ids, "attention_mask": self.mask} if self.ids.numel() else {}
        return {**text, **self.further}


@dataclass(frozen=True)
class Generation:
    """A workload for :func:`prepbench.compare`: greedy generation after each prompt.

    The prompt is read in one step (prefill), and each further step reads the previous token. An end-of-text token
    does not end it, so that all candidates do the same work.

    Models with an encoder (T5, Whisper), with states (Mamba) or with images (LLaVA) need another graph for the first
    step. It then runs in the PyTorch model by ``model.generate``, so that model must be among the candidates and the
    time of the first token is PyTorch's; further tokens are made by each candidate in a process of its own.

    Args:
        prompts: token numbers of shape (batch, tokens), or what a tokenizer or processor returns with
            ``return_tensors="pt"`` (``input_ids`` and ``attention_mask``, ``pixel_values``, ``input_features``); or a
            list of these.
        new_tokens: how many tokens follow each prompt.

    Raises:
        InputError: a prompt is text, has another dtype or shape, holds no token, or its mask does not fit.
        SettingsError: ``new_tokens`` is not a positive integer.

    Example:
        >>> Generation(torch.tensor([[5, 9, 2]]), new_tokens=16).remarks
        ()
    """

    prompts: Any
    new_tokens: int = 64
    batches: tuple[Prompt, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        check_count("new_tokens", self.new_tokens, 1)
        given = self.prompts
        listed = given if isinstance(given, list | tuple) else [given]
        if not listed:
            raise InputError("prompts is empty: give at least one, e.g. tokenizer(text, return_tensors='pt').")
        names = [f"prompts[{index}]" if listed is given else "prompts" for index in range(len(listed))]
        batches = tuple(_prompt(one, name) for one, name in zip(listed, names, strict=True))
        object.__setattr__(self, "batches", batches)

    @property
    def remarks(self) -> tuple[str, ...]:
        """Return warnings about the workload itself: padding after the prompt."""
        right = [index for index, prompt in enumerate(self.batches) if bool((prompt.mask[:, -1:] == 0).any())]
        if not right:
            return ()
        return (
            f"prompts[{right[0]}] is padded on the right, so the model continues padding: set the tokenizer's "
            "padding_side to 'left'",
        )

    @property
    def has_further(self) -> bool:
        """Whether a prompt holds more than text: numbers of images or sound."""
        return any(one.is_floating_point() for prompt in self.batches for one in prompt.further.values())

    @property
    def is_padded(self) -> bool:
        """Whether any prompt has padding."""
        return any(bool((prompt.mask == 0).any()) for prompt in self.batches)


@dataclass(frozen=True)
class GenerationResult:
    """The cost of generating with a candidate.

    Attributes:
        first_token_ms: median time from a prompt to its first token, in milliseconds; that of PyTorch in the calling
            process where the candidate's note says that its first step runs there.
        ms_per_token: median time of a further token; None where only one was asked for.
        tokens_per_second: all new tokens of all prompts over the time for them, prefill included.
        peak_bytes: most memory that the candidate's process held; None where it ran in the caller's.
        tokens: the new tokens of each prompt.
    """

    first_token_ms: float | None
    ms_per_token: float | None
    tokens_per_second: float | None
    peak_bytes: int | None
    tokens: tuple[tuple[tuple[int, ...], ...], ...] = field(repr=False)

    @classmethod
    def of(cls, times_ns: list[list[int]], tokens: list[torch.Tensor], peak_bytes: int | None) -> GenerationResult:
        """Sum up the times of all prompts and rounds.

        Args:
            times_ns: the times of each token, for each prompt of each round; empty where none were timed.
            tokens: the new tokens of each prompt, of shape (batch, new tokens).
            peak_bytes: see above.
        """
        first = [times[0] / 1e6 for times in times_ns]
        later = [time / 1e6 for times in times_ns for time in times[1:]]
        made = sum(int(one.numel()) for one in tokens) * (len(times_ns) // max(len(tokens), 1))
        spent = sum(map(sum, times_ns)) / 1e9
        return cls(
            statistics.median(first) if first else None,
            statistics.median(later) if later else None,
            made / spent if spent else None,
            peak_bytes,
            tuple(tuple(tuple(row) for row in one.tolist()) for one in tokens),
        )


def _prompt(given: Any, name: str) -> Prompt:
    ids = given.get("input_ids") if isinstance(given, Mapping) else given
    further = _further(given) if isinstance(given, Mapping) else {}
    if ids is None and any(one.is_floating_point() for one in further.values()):
        further |= {"attention_mask": given["attention_mask"]} if given.get("attention_mask") is not None else {}
        empty = torch.zeros(len(next(iter(further.values()))), 0, dtype=torch.long)
        return Prompt(empty, empty, further)
    place = f"{name}['input_ids']" if isinstance(given, Mapping) else name
    wanted = f"{place} must be a tensor of token numbers (torch.int64) of shape (batch, tokens)"
    if not isinstance(ids, torch.Tensor):
        raise InputError(f"{wanted}, got {described(ids)}. Give tokenizer(text, return_tensors='pt').")
    if ids.dtype not in _KINDS:
        raise InputError(f"{wanted}, got {ids.dtype}. Convert it: {place}.long().")
    if ids.dim() != 2 or not ids.numel():
        raise InputError(f"{wanted}, got shape {tuple(ids.shape)}. Give one row for each text, e.g. ids[None].")
    if ids.is_meta or ids.layout is not torch.strided:
        raise InputError(f"{wanted}, got one without plain data. Give a dense tensor on the CPU.")
    mask = given.get("attention_mask") if isinstance(given, Mapping) else None
    if mask is None:
        mask = torch.ones_like(ids)
    if not isinstance(mask, torch.Tensor) or mask.shape != ids.shape:
        raise InputError(
            f"{name}['attention_mask'] must be a tensor of the shape of input_ids, {tuple(ids.shape)}, got "
            f"{tuple(mask.shape) if isinstance(mask, torch.Tensor) else described(mask)}. Give both as the tokenizer "
            "returns them."
        )
    return Prompt(ids.detach().long().clone(), mask.detach().long().clone(), further)


def _further(given: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: value.detach().clone()
        for name, value in given.items()
        if name not in ("input_ids", "attention_mask") and isinstance(value, torch.Tensor)
    }


# Generation whose first step runs in the caller's PyTorch model, because its graph differs from that of later
# steps.


NOTE = "its first step runs in PyTorch, in this process"


class PyTorchFirst:
    """Generation by ``model.generate``: its first step is the model's own, and all further ones run compiled where
    possible.

    Tokens that the model's generation_config suppresses are not generated, nor is an end-of-text token.

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
