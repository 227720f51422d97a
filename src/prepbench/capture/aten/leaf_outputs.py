"""The outputs of a leaf as those of one operator, which takes and returns tensors only."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from prepbench._torch_compat.fake_tensors import device_of
from prepbench.capture.sizes.learned_outputs import (
    CONSTANTS,
    CallsAlike,
    LearnedOutputs,
    Rules,
    UnknownOutputsError,
    kinds_of,
    kinds_text,
)
from prepbench.running.recorded_calls import Given, RecordedCall, flatten_result

_NUMBERS = {int: torch.int64, float: torch.float64}
"""The dtypes of tensors that carry Python numbers which only the call itself determines."""


@dataclass(frozen=True)
class LeafOutputs:
    """The outputs of one module as a function of its inputs' sizes.

    Example:
        >>> from prepbench.running.recorded_calls import record_calls
        >>> calls = record_calls(nn.Linear(4, 2), [pb.Sample((torch.ones(n, 4),)) for n in (2, 5)])
        >>> LeafOutputs.learn(calls[""]).fake([torch.ones(7, 4)]).shape
        torch.Size([7, 2])
    """

    name: str
    learned: LearnedOutputs

    @classmethod
    def learn(
        cls, calls: Sequence[RecordedCall], name: str = "the module", *, are_statements: bool = False
    ) -> LeafOutputs:
        """Learn from all calls of one module, or of some statements.

        Args:
            are_statements: a Python number that they make is known to the call alone, even where all samples give the
                same; and a truth value decides what comes next, so it must not leave them.

        Raises:
            UnknownOutputsError: the module was never called, writes into arguments that share memory, or returns
                something other than tensors and constants.
        """
        if not calls:
            raise UnknownOutputsError(f"{name} is never called on the samples, so its outputs are not known.")
        for call in calls:
            _check_describable(call, name)
        learned = LearnedOutputs.learn(calls, name)
        if are_statements:
            learned = replace(learned, variants=tuple(map(_with_numbers_unknown, learned.variants)))
        for variant in learned.variants:
            for index in variant.unknown:
                if type(variant.calls[0].outputs[index]) not in _NUMBERS:
                    variant.refuse_number(index)
        return cls(name, learned)

    def for_call(self, flat_inputs: Sequence[Any]) -> LeafOutputs:
        """Return the part that was learned from calls like this one."""
        return LeafOutputs(self.name, LearnedOutputs(self.name, (self._variant(flat_inputs),)))

    def fake(self, flat_inputs: Sequence[Any], *, unknown_size: Callable[[], Any] | None = None) -> Any:
        """Return outputs without data for these inputs: the same pytree, with tensors of the learned sizes.

        Args:
            flat_inputs: the flattened ``(args, kwargs)``; sizes may be symbolic.
            unknown_size: makes a size that no rule explains; without it such a size is an error.
        """
        tensors = iter(self.fake_tensors(flat_inputs, unknown_size=unknown_size))
        return self.rebuild(flat_inputs, tensors)

    def fake_tensors(
        self, flat_inputs: Sequence[Any], *, unknown_size: Callable[[], Any] | None = None
    ) -> list[torch.Tensor]:
        """Return the tensors among the outputs, without data."""
        variant = self._variant(flat_inputs)
        now, then = _first_device(flat_inputs), _first_device(variant.calls[0].inputs)
        made: list[torch.Tensor] = []

        def tensor(index: int, seen: torch.Tensor, rules: Rules) -> torch.Tensor:
            shape = variant.sizes(rules, flat_inputs, unknown_size)
            device = now if now is not None and then == device_of(seen) else device_of(seen)
            layout = _memory_format(variant, index)
            made.append(torch.empty(shape, dtype=seen.dtype, device=device, memory_format=layout))
            return made[-1]

        def number(index: int) -> torch.Tensor:
            made.append(torch.empty((), dtype=_NUMBERS[type(variant.calls[0].outputs[index])]))
            return made[-1]

        variant.build(flat_inputs, tensor, number)
        return made

    def rebuild(self, flat_inputs: Sequence[Any], tensors: Iterator[torch.Tensor]) -> Any:
        """Return the result with these tensors in it; Python numbers are computed from the inputs' sizes, or read from
        tensors.

        Where :meth:`restructures` says so, the result is a pair: the output, and the arguments after the call.
        """
        variant = self._variant(flat_inputs)
        return variant.build(flat_inputs, lambda index, seen, rules: next(tensors), lambda index: next(tensors).item())

    def tensors_of(self, flat_inputs: Sequence[Any], output: Any, arguments: Any) -> list[torch.Tensor]:
        """Return the operator's tensors for the result of a real call, checked against the learned outputs.

        Args:
            flat_inputs: the flattened arguments before the call.
            output: the module's result.
            arguments: ``(args, kwargs)`` after the call.

        Raises:
            UnknownOutputsError: this call returned something else than those on the samples.
        """
        variant = self._variant(flat_inputs)
        call = variant.calls[0]
        flat, spec = flatten_result(output, arguments if call.restructured else None)
        if spec != call.output_spec:
            raise self._not_as_learned(f"{len(flat)} values", f"{len(call.outputs)} in one structure")
        tensors = []
        for index, (leaf, wanted) in enumerate(zip(flat, call.outputs, strict=True)):
            if index in variant.unknown and type(leaf) in _NUMBERS:
                tensors.append(torch.tensor(leaf, dtype=_NUMBERS[type(wanted)]))
            elif isinstance(wanted, torch.Tensor):
                if not isinstance(leaf, torch.Tensor) or kinds_of([leaf]) != kinds_of([wanted]):
                    raise self._not_as_learned(kinds_text(kinds_of([leaf])), kinds_text(kinds_of([wanted])))
                variant.check_sizes(index, leaf, flat_inputs)
                tensors.append(leaf.detach().contiguous(memory_format=_memory_format(variant, index)))
            elif isinstance(wanted, Given):
                if leaf is not flat_inputs[wanted.index]:
                    raise self._not_as_learned("a new value", "an argument left where it was")
            else:
                promised = variant.value(index, flat_inputs)
                if leaf is not promised and leaf != promised:
                    raise self._not_as_learned(repr(leaf), repr(promised))
        return tensors

    def _not_as_learned(self, got: str, wanted: str) -> UnknownOutputsError:
        return UnknownOutputsError(
            f"{self.name} returned {got} where the captured graph was made for {wanted}, as on the samples. Capture "
            "again with a sample like this input."
        )

    def restructures(self, flat_inputs: Sequence[Any]) -> bool:
        """Return whether the module puts other tensors into its own arguments (a cache that grows)."""
        return self._variant(flat_inputs).calls[0].restructured

    @property
    def shared(self) -> str:
        """The tensors of some call that share memory, in words."""
        return next((call.shared for variant in self.learned.variants for call in variant.calls if call.shared), "")

    def count_tensors(self, flat_inputs: Sequence[Any]) -> int:
        """Return the number of tensors that the operator returns for the module's outputs."""
        variant = self._variant(flat_inputs)
        outputs = variant.calls[0].outputs
        return sum(index in variant.unknown or isinstance(leaf, torch.Tensor) for index, leaf in enumerate(outputs))

    def changed_inputs(self, flat_inputs: Sequence[Any]) -> list[int]:
        """Return the positions of the inputs that the module writes into."""
        return sorted(set().union(*(call.changed for call in self._variant(flat_inputs).calls)))

    def _variant(self, flat_inputs: Sequence[Any]) -> CallsAlike:
        found = self.learned.find(flat_inputs)
        if found is None:
            seen = " or ".join(kinds_text(kinds_of(variant.calls[0].inputs)) for variant in self.learned.variants)
            raise UnknownOutputsError(
                f"{self.name} is called with {kinds_text(kinds_of(flat_inputs))}, but on the samples only with {seen}. "
                "Add a sample that makes this call."
            )
        return found


def _with_numbers_unknown(variant: CallsAlike) -> CallsAlike:
    outputs = variant.calls[0].outputs
    truths = [index for index, value in enumerate(outputs) if isinstance(value, bool)]
    if truths:
        variant.refuse_number(truths[0])
    fixed = {index for index, value in enumerate(outputs) if variant.is_fixed_number(index)}
    return replace(variant, unknown=variant.unknown | fixed)


def _memory_format(variant: CallsAlike, index: int) -> torch.memory_format:
    outputs = [call.outputs[index] for call in variant.calls]
    return torch.channels_last if all(map(_is_channels_last, outputs)) else torch.contiguous_format


def _is_channels_last(tensor: torch.Tensor) -> bool:
    return (
        tensor.layout is torch.strided
        and tensor.dim() == 4
        and tensor.is_contiguous(memory_format=torch.channels_last)
        and not tensor.is_contiguous()
    )


def _first_device(leaves: Sequence[Any]) -> torch.device | None:
    return next((device_of(leaf) for leaf in leaves if isinstance(leaf, torch.Tensor)), None)


def _check_describable(call: RecordedCall, name: str) -> None:
    if call.shared.startswith("writes"):
        raise UnknownOutputsError(
            f"{name} {call.shared}, which one operator cannot do. Make an enclosing module the leaf."
        )
    for leaf in call.outputs:
        if not isinstance(leaf, (torch.Tensor, Given, *CONSTANTS)):
            raise UnknownOutputsError(
                f"{name} returns a {type(leaf).__name__}, which is neither a tensor nor a constant. Use tensors in "
                "tuples, lists, dicts or dataclasses, or register the class with "
                "torch.utils._pytree.register_pytree_node."
            )
