"""What every submodule receives and returns on the samples, and how output sizes follow from input sizes.

One forward per sample is run and only metadata is kept. From at least two samples the sizes of a module's outputs are
learned as functions of the sizes of its inputs; that is all a graph needs to hold the module as one opaque operator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils import _pytree as pytree

from prepbench.capture.patching import patched
from prepbench.capture.size_rules import Known, SizeRule, learn_rule
from prepbench.capture.unchanged import own_copy, unchanged
from prepbench.errors import CaptureError
from prepbench.inputs import Sample

_CONSTANTS = (type(None), bool, int, float, complex, str, torch.dtype, torch.device, torch.layout, torch.memory_format)


class LeafOutputsError(CaptureError):
    """The outputs of a module cannot be described by metadata, so it cannot become one operator."""


@dataclass(frozen=True)
class TensorLeaf:
    """One tensor that was seen: metadata only.

    ``layout`` is ``"contiguous"``, ``"channels_last"`` or ``"strided"``; ``changed`` says that the call wrote into it.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    stride: tuple[int, ...]
    device: torch.device
    layout: str = "contiguous"
    changed: bool = False

    @classmethod
    def of(cls, tensor: torch.Tensor) -> TensorLeaf:
        shape = tuple(int(size) for size in tensor.shape)
        stride = tuple(tensor.stride()) if tensor.layout is torch.strided else ()
        return cls(shape, tensor.dtype, stride, tensor.device, _layout(tensor))


def _layout(tensor: torch.Tensor) -> str:
    if tensor.layout is not torch.strided:
        return str(tensor.layout)
    if tensor.is_contiguous():
        return "contiguous"
    if tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last):
        return "channels_last"
    return "strided"


@dataclass(frozen=True)
class RecordedCall:
    """One call of one submodule.

    Attributes:
        inputs: the flattened ``(args, kwargs)``: a :class:`TensorLeaf` for a tensor, else the Python value.
        input_spec: the pytree of ``(args, kwargs)``.
        outputs: the flattened result, in the same way.
        output_spec: the pytree of the result.
        sample: index of the sample that made the call.
        restructured: the call changed the structure of its own arguments (a cache that grew).
    """

    inputs: tuple[Any, ...]
    input_spec: pytree.TreeSpec
    outputs: tuple[Any, ...]
    output_spec: pytree.TreeSpec
    sample: int = 0
    restructured: bool = False


def record_calls(model: torch.nn.Module, samples: Iterable[Sample]) -> dict[str, list[RecordedCall]]:
    """Run ``model`` once per sample and note what each submodule received and returned, by fully qualified name.

    The model runs in its present mode under ``no_grad``; its buffers, attributes, the random state and the samples'
    tensors are as before afterwards. A module that is registered under several names appears under the first. The name
    of ``model`` itself is "".

    Raises:
        Exception: whatever the model raises on a sample.

    Example:
        >>> calls = record_calls(torch.nn.Sequential(torch.nn.Linear(4, 2)), [Sample((torch.ones(3, 4),))])
        >>> calls["0"][0].outputs[0].shape
        (3, 2)
    """
    calls: dict[str, list[RecordedCall]] = {}
    for sample in samples:
        with unchanged(model), torch.no_grad(), ExitStack() as stack:
            for fqn, module in replaceable_modules(model):
                forward = _recording(module.forward, calls.setdefault(fqn, []), sample.index)
                stack.enter_context(replaced_forward(model, fqn, forward))
            own_copy(sample).call(model)
    return {fqn: seen for fqn, seen in calls.items() if seen}


def replaceable_modules(model: torch.nn.Module) -> list[tuple[str, torch.nn.Module]]:
    """The modules whose forward Python can replace, by name: all but those inside scripted modules."""
    modules = list(model.named_modules())
    scripted = [fqn for fqn, module in modules if isinstance(module, torch.jit.ScriptModule)]
    return [(fqn, module) for fqn, module in modules if not any(fqn.startswith(f"{outer}.") for outer in scripted)]


class _StandIn(torch.nn.Module):
    """Takes the place of a scripted module, whose forward runs outside Python and cannot be replaced on it."""

    def __init__(self, original: torch.nn.Module, forward: Callable[..., Any]) -> None:
        super().__init__()
        self.__dict__["original"] = original
        self.forward = forward

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["original"], name)


@contextmanager
def replaced_forward(model: torch.nn.Module, fqn: str, forward: Callable[..., Any]) -> Iterator[None]:
    """Inside the block, calls of the submodule ``fqn`` run ``forward``."""
    module = model.get_submodule(fqn)
    if not isinstance(module, torch.jit.ScriptModule):
        with patched(module, "forward", forward):
            yield
        return
    parent, _, name = fqn.rpartition(".")
    children = model.get_submodule(parent)._modules
    children[name] = _StandIn(module, forward)
    try:
        yield
    finally:
        children[name] = module


def _recording(forward: Callable[..., Any], calls: list[RecordedCall], sample: int) -> Callable[..., Any]:
    def recorded(*args: Any, **kwargs: Any) -> Any:
        leaves, spec = pytree.tree_flatten((args, kwargs))
        before = [_leaf(leaf) for leaf in leaves]
        versions = [
            leaf._version if isinstance(leaf, torch.Tensor) and not leaf.is_inference() else 0 for leaf in leaves
        ]
        output = forward(*args, **kwargs)
        after, spec_after = pytree.tree_flatten((args, kwargs))
        restructured = spec_after != spec or any(
            a is not b for a, b in zip(after, leaves, strict=True) if isinstance(b, torch.Tensor)
        )
        inputs = tuple(
            replace(seen, changed=True)
            if isinstance(leaf, torch.Tensor) and not leaf.is_inference() and leaf._version != version
            else seen
            for seen, leaf, version in zip(before, leaves, versions, strict=True)
        )
        flat, output_spec = pytree.tree_flatten(output)
        calls.append(RecordedCall(inputs, spec, tuple(map(_leaf, flat)), output_spec, sample, restructured))
        return output

    # code that inspects self.forward must still see the user's signature
    recorded.__wrapped__ = forward  # type: ignore[attr-defined]
    return recorded


def _leaf(leaf: Any) -> Any:
    return TensorLeaf.of(leaf) if isinstance(leaf, torch.Tensor) else leaf


@dataclass(frozen=True)
class _Variant:
    """The calls that look alike (same structure, ranks and dtypes), and a rule for every output size."""

    calls: tuple[RecordedCall, ...]
    rules: tuple[tuple[SizeRule | None, ...], ...]

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
            LeafOutputsError: the module was never called, changes the structure of its arguments, or returns
                something other than tensors and constants.
        """
        if not calls:
            raise LeafOutputsError(f"The module {name!r} is never called on the samples, so its outputs are not known.")
        groups: dict[Any, list[RecordedCall]] = {}
        for call in calls:
            _check_describable(call, name)
            groups.setdefault(_kinds(call.inputs), []).append(call)
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
        """The output with these tensors in it; Python numbers follow from the inputs' sizes."""
        variant = self._variant(flat_inputs)
        call, sizes = variant.calls[0], _sizes(flat_inputs)
        flat = [
            next(tensors)
            if isinstance(leaf, TensorLeaf)
            else self._size(rules[0], sizes, None, index)
            if rules
            else leaf
            for index, (leaf, rules) in enumerate(zip(call.outputs, variant.rules, strict=True))
        ]
        return pytree.tree_unflatten(flat, call.output_spec)

    def count_tensors(self, flat_inputs: Sequence[Any]) -> int:
        """How many of the outputs are tensors."""
        return sum(isinstance(leaf, TensorLeaf) for leaf in self._variant(flat_inputs).calls[0].outputs)

    def memory_formats(self, flat_inputs: Sequence[Any]) -> list[torch.memory_format]:
        """The memory format promised for each output (contiguous unless all calls returned channels-last)."""
        variant = self._variant(flat_inputs)
        return [variant.memory_format(index) for index in range(len(variant.calls[0].outputs))]

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
        kinds = _kinds(flat_inputs)
        for variant in self.variants:
            if _kinds(variant.calls[0].inputs) == kinds:
                return variant
        raise LeafOutputsError(
            f"{self.name or 'The module'} is called with {_kinds_text(kinds)}, but on the samples only with "
            + " or ".join(_kinds_text(_kinds(variant.calls[0].inputs)) for variant in self.variants)
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
        if call.output_spec != first.output_spec or _kinds(call.outputs) != _kinds(first.outputs):
            raise LeafOutputsError(
                f"{name or 'The module'} returns {_kinds_text(_kinds(first.outputs))} on sample {first.sample} but "
                f"{_kinds_text(_kinds(call.outputs))} on sample {call.sample} for inputs of the same structure; one "
                "operator must always return the same structure. Return the same tensors in every case."
            )
    columns = list(zip(*(_sizes(call.inputs) for call in calls), strict=True))
    names = _size_names(first.inputs)
    rules = []
    for index, leaf in enumerate(first.outputs):
        rules.append(tuple(_rules(index, leaf, calls, columns, names, name)))
    return _Variant(tuple(calls), tuple(rules))


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
        rule = learn_rule(tuple(values), [Known(n, column) for n, column in zip(names, columns, strict=True)])
        if rule is None:
            raise LeafOutputsError(_varying_constant(name, index, values))
        yield rule
    elif any(value != leaf for value in values):
        raise LeafOutputsError(_varying_constant(name, index, values))


def _varying_constant(name: str, index: int, values: Sequence[Any]) -> str:
    return (
        f"Output {index} of {name or 'the module'} is a Python value that differs from call to call "
        f"({', '.join(sorted({repr(value) for value in values})[:4])}) and follows from no input size. "
        "Return it as a tensor."
    )


def _check_describable(call: RecordedCall, name: str) -> None:
    if call.restructured:
        raise LeafOutputsError(
            f"{name or 'The module'} changes the structure of its own arguments (such as a cache that grows), which "
            "one operator cannot do. Make an enclosing module the leaf."
        )
    for leaf in call.outputs:
        if not isinstance(leaf, (TensorLeaf, *_CONSTANTS)):
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


def _kinds(leaves: Sequence[Any]) -> tuple[Any, ...]:
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
            kinds.append(leaf if isinstance(leaf, _CONSTANTS) else type(leaf).__name__)
    return tuple(kinds)


def _kinds_text(kinds: tuple[Any, ...]) -> str:
    return "(" + ", ".join(f"{k[1]} of rank {k[0]}" if isinstance(k, tuple) else repr(k) for k in kinds) + ")"
