"""The outputs of a module as a function of its inputs' sizes, learned from recorded calls.

From calls of at least two sizes, every output size is explained by input sizes; that is all a graph needs in order to
hold the module as one opaque operator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from prepbench._torch_compat import pytree
from prepbench.capture.sizes.rules import Known, SizeRule, learn_rule
from prepbench.errors import CaptureError
from prepbench.running.object_nodes import closed
from prepbench.running.recorded_calls import Given, RecordedCall, TensorLeaf, flatten_result, record_calls

__all__ = ["LeafOutputs", "LeafOutputsError", "RecordedCall", "TensorLeaf", "record_calls"]

_NUMBERS = {int: torch.int64, float: torch.float64}
"""Python numbers that only the call itself knows travel as tensors of these types."""

_CONSTANTS = (type(None), bool, int, float, complex, str, torch.dtype, torch.device, torch.layout, torch.memory_format)


class LeafOutputsError(CaptureError):
    """The outputs of a module cannot be described by metadata, so it cannot become one operator."""


@dataclass(frozen=True)
class _Variant:
    """The calls that look alike (same structure, ranks and dtypes), and a rule for every output size."""

    calls: tuple[RecordedCall, ...]
    rules: tuple[tuple[SizeRule | None, ...], ...]
    numbers: frozenset[int] = frozenset()
    """The outputs that are Python numbers which depend on data."""

    def is_tensor(self, index: int) -> bool:
        """Whether the operator returns this output as a tensor."""
        return index in self.numbers or isinstance(self.calls[0].outputs[index], TensorLeaf)

    def memory_format(self, index: int) -> torch.memory_format:
        layouts = {call.outputs[index].layout for call in self.calls if isinstance(call.outputs[index], TensorLeaf)}
        return torch.channels_last if layouts == {"channels_last"} else torch.contiguous_format


@dataclass(frozen=True)
class LeafOutputs:
    """The outputs of one module as a function of its inputs' sizes.

    Example:
        >>> calls = record_calls(torch.nn.Linear(4, 2), [Sample((torch.ones(n, 4),)) for n in (2, 5)])
        >>> LeafOutputs.learn(calls[""]).fake([torch.ones(7, 4)]).shape
        torch.Size([7, 2])
    """

    name: str
    variants: tuple[_Variant, ...]

    @classmethod
    def learn(cls, calls: Sequence[RecordedCall], name: str = "") -> LeafOutputs:
        """Learn from all calls of one module; calls with other argument structures are learned apart.

        Raises:
            LeafOutputsError: the module was never called, writes into arguments that share memory, or returns something
                other than tensors and constants.
        """
        if not calls:
            raise LeafOutputsError(f"The module {name!r} is never called on the samples, so its outputs are not known.")
        groups: dict[Any, list[RecordedCall]] = {}
        for call in calls:
            _check_describable(call, name)
            groups.setdefault(kinds_of(call.inputs), []).append(call)
        return cls(name, tuple(_learn_variant(group, name) for group in groups.values()))

    def fake(self, flat_inputs: Sequence[Any], *, unknown_size: Callable[[], Any] | None = None) -> Any:
        """Outputs without data for these inputs: the same pytree, with tensors of the learned sizes.

        Args:
            flat_inputs: the flattened ``(args, kwargs)``; sizes may be symbolic.
            unknown_size: makes a size that no rule explains; without it such a size is an error.
        """
        tensors = iter(self.fake_tensors(flat_inputs, unknown_size=unknown_size))
        return self.rebuild(flat_inputs, tensors)

    def fake_tensors(
        self, flat_inputs: Sequence[Any], *, unknown_size: Callable[[], Any] | None = None
    ) -> list[torch.Tensor]:
        """The tensors among the outputs, without data."""
        variant = self._variant(flat_inputs)
        call, sizes = variant.calls[0], _sizes(flat_inputs)
        device = next((leaf.device for leaf in flat_inputs if isinstance(leaf, torch.Tensor)), None)
        first = next((seen for seen in call.inputs if isinstance(seen, TensorLeaf)), None)
        outputs = []
        for index, (leaf, rules) in enumerate(zip(call.outputs, variant.rules, strict=True)):
            if index in variant.numbers:
                outputs.append(torch.empty((), dtype=_NUMBERS[type(leaf)]))
            if not isinstance(leaf, TensorLeaf):
                continue
            shape = [self._size(rule, sizes, unknown_size, index) for rule in rules]
            follows = device is not None and first is not None and first.device == leaf.device
            outputs.append(
                torch.empty(
                    shape,
                    dtype=leaf.dtype,
                    device=device if follows else leaf.device,
                    memory_format=variant.memory_format(index),
                )
            )
        return outputs

    def rebuild(self, flat_inputs: Sequence[Any], tensors: Iterator[torch.Tensor]) -> Any:
        """The result with these tensors in it; Python numbers follow from the inputs' sizes, or are read from tensors.

        Where :meth:`restructures` says so, the result is a pair: the output, and the arguments after the call.
        """
        variant = self._variant(flat_inputs)
        sizes = _sizes(flat_inputs)
        flat = [
            self._value(variant, index, flat_inputs, sizes, tensors) for index in range(len(variant.calls[0].outputs))
        ]
        return closed(pytree.tree_unflatten(flat, variant.calls[0].output_spec))

    def _value(
        self, variant: _Variant, index: int, flat_inputs: Sequence[Any], sizes: list[Any], tensors: Iterator[Any]
    ) -> Any:
        leaf, rules = variant.calls[0].outputs[index], variant.rules[index]
        if index in variant.numbers:
            return next(tensors).item()
        if isinstance(leaf, TensorLeaf):
            return next(tensors)
        if isinstance(leaf, Given):
            return flat_inputs[leaf.index]
        return self._size(rules[0], sizes, None, index) if rules else leaf

    def tensors_of(self, flat_inputs: Sequence[Any], output: Any, arguments: Any) -> list[torch.Tensor]:
        """The tensors that the operator returns for what a real call returned, checked against what was learned.

        Args:
            flat_inputs: the flattened arguments before the call.
            output: what the module returned.
            arguments: ``(args, kwargs)`` after the call.

        Raises:
            LeafOutputsError: this call returned something else than those on the samples.
        """
        variant, sizes = self._variant(flat_inputs), _sizes(flat_inputs)
        call = variant.calls[0]
        flat, spec = flatten_result(output, arguments if call.restructured else None)
        if spec != call.output_spec:
            raise LeafOutputsError(self._not_as_learned(f"{len(flat)} values", f"{len(call.outputs)} in one structure"))
        tensors = []
        for index, (leaf, wanted) in enumerate(zip(flat, call.outputs, strict=True)):
            if index in variant.numbers and type(leaf) in _NUMBERS:
                tensors.append(torch.tensor(leaf, dtype=_NUMBERS[type(wanted)]))
            elif isinstance(wanted, TensorLeaf):
                if not isinstance(leaf, torch.Tensor) or kinds_of([leaf]) != kinds_of([wanted]):
                    raise LeafOutputsError(
                        self._not_as_learned(_kinds_text(kinds_of([leaf])), _kinds_text(kinds_of([wanted])))
                    )
                tensors.append(leaf.detach().contiguous(memory_format=variant.memory_format(index)))
            elif isinstance(wanted, Given):
                if leaf is not flat_inputs[wanted.index]:
                    raise LeafOutputsError(self._not_as_learned("a new value", "an argument left where it was"))
            else:
                promised = self._value(variant, index, flat_inputs, sizes, iter(()))
                if leaf is not promised and leaf != promised:
                    raise LeafOutputsError(self._not_as_learned(repr(leaf), repr(promised)))
        return tensors

    def _not_as_learned(self, got: str, wanted: str) -> str:
        return (
            f"{self.name or 'The module'} returned {got} where the captured graph was made for {wanted}, as on the "
            "samples. Capture again with a sample like this input."
        )

    def restructures(self, flat_inputs: Sequence[Any]) -> bool:
        """Whether the module puts other tensors into its own arguments (a cache that grows)."""
        return self._variant(flat_inputs).calls[0].restructured

    @property
    def shared(self) -> str:
        """Which tensors of some call share memory, in words."""
        return next((call.shared for variant in self.variants for call in variant.calls if call.shared), "")

    def count_tensors(self, flat_inputs: Sequence[Any]) -> int:
        """How many of the outputs are tensors."""
        variant = self._variant(flat_inputs)
        return sum(map(variant.is_tensor, range(len(variant.calls[0].outputs))))

    def changed_inputs(self, flat_inputs: Sequence[Any]) -> list[int]:
        """Indices of the inputs that the module writes into."""
        calls = self._variant(flat_inputs).calls
        return [
            index
            for index in range(len(flat_inputs))
            if any(isinstance(call.inputs[index], TensorLeaf) and call.inputs[index].changed for call in calls)
        ]

    def describe(self) -> str:
        """The learned sizes in words, one line per output tensor."""
        lines = []
        for variant in self.variants:
            for index, (leaf, rules) in enumerate(zip(variant.calls[0].outputs, variant.rules, strict=True)):
                if isinstance(leaf, TensorLeaf):
                    sizes = ", ".join("unknown" if rule is None else rule.text for rule in rules)
                    lines.append(f"output {index}: ({sizes}) {str(leaf.dtype).removeprefix('torch.')}")
        return "\n".join(lines)

    def _variant(self, flat_inputs: Sequence[Any]) -> _Variant:
        kinds = kinds_of(flat_inputs)
        for variant in self.variants:
            if kinds_of(variant.calls[0].inputs) == kinds:
                return variant
        raise LeafOutputsError(
            f"{self.name or 'The module'} is called with {_kinds_text(kinds)}, but on the samples only with "
            + " or ".join(_kinds_text(kinds_of(variant.calls[0].inputs)) for variant in self.variants)
            + ". Add a sample that makes this call."
        )

    def _size(
        self, rule: SizeRule | None, sizes: list[Any], unknown_size: Callable[[], Any] | None, output: int
    ) -> Any:
        if rule is not None:
            return rule.compute(sizes)
        if unknown_size is not None:
            return unknown_size()
        raise LeafOutputsError(
            f"A size of output {output} of {self.name or 'the module'} follows from no input size on the samples "
            "(it may depend on tensor values). Return a tensor of fixed size, or make an enclosing module the leaf."
        )


def _learn_variant(calls: list[RecordedCall], name: str) -> _Variant:
    first = calls[0]
    for call in calls[1:]:
        if call.output_spec != first.output_spec or kinds_of(call.outputs) != kinds_of(first.outputs):
            raise LeafOutputsError(
                f"{name or 'The module'} returns {_kinds_text(kinds_of(first.outputs))} on sample {first.sample} but "
                f"{_kinds_text(kinds_of(call.outputs))} on sample {call.sample} for inputs of the same structure; one "
                "operator must always return the same structure. Return the same tensors in every case."
            )
    columns = list(zip(*(_sizes(call.inputs) for call in calls), strict=True))
    names = _size_names(first.inputs)
    rules: list[tuple[SizeRule | None, ...]] = []
    numbers: set[int] = set()
    for index, leaf in enumerate(first.outputs):
        found = tuple(_rules(index, leaf, calls, columns, names, name))
        if type(leaf) in _NUMBERS and None in found:
            numbers.add(index)
            found = ()
        rules.append(found)
    return _Variant(tuple(calls), tuple(rules), frozenset(numbers))


def _rules(
    index: int, leaf: Any, calls: list[RecordedCall], columns: list[Any], names: list[str], name: str
) -> Iterable[SizeRule | None]:
    values = [call.outputs[index] for call in calls]
    if isinstance(leaf, TensorLeaf):
        for dim in range(len(leaf.shape)):
            # an output's dim most often follows the same dim of an input
            known = [
                Known(n, column, 0 if n.endswith(f".shape[{dim}]") else 0.75)
                for n, column in zip(names, columns, strict=True)
            ]
            yield learn_rule(tuple(value.shape[dim] for value in values), known)
    elif type(leaf) is int:
        yield learn_rule(tuple(values), [Known(n, column) for n, column in zip(names, columns, strict=True)])
    elif type(leaf) is float:
        if any(value != leaf for value in values):
            yield None
    elif any(value != leaf for value in values):
        raise LeafOutputsError(_varying_constant(name, index, values))


def _varying_constant(name: str, index: int, values: Sequence[Any]) -> str:
    return (
        f"Output {index} of {name or 'the module'} is a Python value that differs from call to call "
        f"({', '.join(sorted({repr(value) for value in values})[:4])}) and follows from no input size. "
        "Return it as a tensor."
    )


def _check_describable(call: RecordedCall, name: str) -> None:
    if call.shared.startswith("writes"):
        raise LeafOutputsError(
            f"{name or 'The module'} {call.shared}, which one operator cannot do. Make an enclosing module the leaf."
        )
    for leaf in call.outputs:
        if not isinstance(leaf, (TensorLeaf, Given, *_CONSTANTS)):
            raise LeafOutputsError(
                f"{name or 'The module'} returns a {type(leaf).__name__}, which is neither a tensor nor a constant. "
                "Use tensors in tuples, lists, dicts or dataclasses, or register the class with "
                "torch.utils._pytree.register_pytree_node."
            )


def _sizes(leaves: Sequence[Any]) -> list[Any]:
    sizes: list[Any] = []
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor | TensorLeaf):
            sizes += leaf.shape
        elif isinstance(leaf, torch.SymInt) or type(leaf) is int:
            sizes.append(leaf)
    return sizes


def _size_names(leaves: Sequence[Any]) -> list[str]:
    names: list[str] = []
    for index, leaf in enumerate(leaves):
        if isinstance(leaf, TensorLeaf):
            names += [f"input{index}.shape[{dim}]" for dim in range(len(leaf.shape))]
        elif type(leaf) is int:
            names.append(f"input{index}")
    return names


def kinds_of(leaves: Sequence[Any]) -> tuple[Any, ...]:
    """What must agree for two calls to be alike: ranks and dtypes of tensors, values of everything but integers."""
    kinds: list[Any] = []
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor | TensorLeaf):
            kinds.append((len(leaf.shape), leaf.dtype))
        elif isinstance(leaf, torch.SymInt) or type(leaf) is int:
            kinds.append("int")
        elif isinstance(leaf, torch.SymFloat | float):
            kinds.append("float")
        else:
            kinds.append(leaf if isinstance(leaf, (Given, *_CONSTANTS)) else type(leaf).__name__)
    return tuple(kinds)


def _kinds_text(kinds: tuple[Any, ...]) -> str:
    return "(" + ", ".join(f"{k[1]} of rank {k[0]}" if isinstance(k, tuple) else repr(k) for k in kinds) + ")"
