"""Merge samples into one call on fake tensors, whose varying sizes are symbols with readable names."""

from __future__ import annotations

import inspect
import itertools
import operator
import re
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any

import torch

from prepbench._torch_compat.fake_tensors import FakeTensorMode, fake_input, readable_number
from prepbench.capture.sizes.axis import Axis, with_symbols
from prepbench.errors import InputError
from prepbench.inputs import Sample, forward_of, named_leaves, positional_names
from prepbench.objects.flatten import map_values, tensors_in


@dataclass(frozen=True)
class InputSize:
    """A symbolic number of the inputs: a size, or the integer in a tensor of one element.

    Attributes:
        path: of the tensor among the arguments.
        dim: the dim of the size; ``None`` for the integer in it.
        sizes: the values in the samples.
        name: the name in shapes.
        hint: the value that is traced with.
    """

    path: str
    dim: int | None
    sizes: tuple[int, ...]
    name: str
    hint: int

    @property
    def text(self) -> str:
        """The expression for it in the model's code, e.g. ``"x.size(1)"``."""
        return f"{self.path}.item()" if self.dim is None else f"{self.path}.size({self.dim})"

    @property
    def varies(self) -> bool:
        """Whether it differs between samples."""
        return len(set(self.sizes)) > 1

    def of(self, tensor: torch.Tensor) -> int | None:
        """Return its value for a tensor at this path; ``None`` if the tensor has no such dim."""
        if self.dim is None:
            return int(tensor) if tensor.numel() == 1 else None
        return tensor.shape[self.dim] if self.dim < tensor.dim() else None


@dataclass
class FakeInputs:
    """The arguments of one call as fake tensors, in the order of the signature."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    names: list[str]
    sizes: dict[Any, InputSize] = field(default_factory=dict)

    @property
    def values(self) -> list[Any]:
        """The arguments in the order of ``names``."""
        return [*self.args, *self.kwargs.values()]


def base_samples(function: Any, samples: Sequence[Sample]) -> list[int]:
    """Return the samples to trace with, best first.

    The sample with the fewest varying axes of size 0 or 1, and numbers that may become such sizes, is first, because
    torch specialises these. A second one helps if a size happens to equal a static one of the model, which torch would
    then unify.
    """
    leaves = [_tensors(_in_signature_order(function, sample)) for sample in samples]
    _check_alike(leaves)
    order = sorted(range(len(samples)), key=lambda index: _short_axes(leaves, index))
    shapes = {index: [tuple(tensor.shape) for tensor in leaves[index]] for index in order}
    different = [index for index in order[1:] if shapes[index] != shapes[order[0]]]
    return [order[0], *different[:1]]


def _short_axes(leaves: list[list[torch.Tensor]], index: int) -> int:
    numbers = [_numbers(leaves, number) for number in range(len(leaves[index]))]
    small = sum(values[index] < 2 and len(set(values)) > 1 for values in numbers if values)
    return small + sum(
        size < 2 and any(other[number].shape[dim] != size for other in leaves)
        for number, tensor in enumerate(leaves[index])
        for dim, size in enumerate(tensor.shape)
    )


def fake_inputs(function: Any, samples: Sequence[Sample], mode: FakeTensorMode, base: int) -> FakeInputs:
    """Return the call that stands for all ``samples``: sizes that differ between them are symbols, others are
    constants.

    ``base`` is the sample whose sizes decide branches.

    Raises:
        InputError: the samples do not have the same tensors.
    """
    samples = [_in_signature_order(function, sample) for sample in samples]
    leaves = [_tensors(sample) for sample in samples]
    names = [name.replace("[", "_").replace("]", "") for name in positional_names(function, len(samples[0].args))]
    names += list(samples[0].kwargs)
    paths = _paths(function, samples[base], names)
    names_of_sizes = _size_names(paths, leaves)
    result = FakeInputs((), {}, names)
    hints = _hints(leaves, base)
    position = iter(range(len(leaves[base])))

    def fake(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        # one tensor given twice is two inputs, which other calls may give different values
        index = next(position)
        return _fake(leaf, index, paths[index], leaves, base, hints, mode, names_of_sizes, result.sizes)

    result.args, result.kwargs = map_values((samples[base].args, samples[base].kwargs), fake)
    return result


def _fake(
    leaf: torch.Tensor,
    index: int,
    path: str,
    leaves: list[list[torch.Tensor]],
    base: int,
    hints: Mapping[tuple[int, int], int],
    mode: FakeTensorMode,
    names: Mapping[tuple[str, int], str],
    sizes: dict[Any, InputSize],
) -> torch.Tensor:
    varying = {}
    for dim in range(leaf.dim()):
        values = tuple(tensors[index].shape[dim] for tensors in leaves)
        if len(set(values)) > 1:
            varying[dim] = values
    result = fake_input(mode, leaf, {dim: hints[index, dim] for dim in varying}, path)
    for dim, values in varying.items():
        symbol = result.shape[dim].node.expr  # type: ignore[attr-defined]
        sizes[symbol] = InputSize(path, dim, values, names[path, dim], hints[index, dim])
    numbers = _numbers(leaves, index)
    if numbers:
        # torch specialises on 0 and 1 where numbers become sizes
        fixed = len(set(numbers)) == 1 or leaf.dtype is torch.bool
        hint = numbers[base] if fixed or numbers[base] not in (0, 1) else 2
        symbol = readable_number(mode, result, hint, path)
        used = {*names.values(), *(size.name for size in sizes.values())}
        name = _unused(re.sub(r"\W+", "_", path).strip("_"), used)
        sizes[symbol] = InputSize(path, None, numbers, name, hint)
    return result


_DISCRETE = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)


def _numbers(leaves: list[list[torch.Tensor]], index: int) -> tuple[int, ...]:
    """Return the integer in a tensor of one element in each sample; empty if unknown."""
    tensors = [sample[index] for sample in leaves]
    known = all(
        tensor.numel() == 1 and tensor.dtype in _DISCRETE and tensor.device.type != "meta" for tensor in tensors
    )
    return tuple(int(tensor) for tensor in tensors) if known else ()


def _hints(leaves: list[list[torch.Tensor]], base: int) -> dict[tuple[int, int], int]:
    """Return the hint of each symbolic axis, by the number of its tensor and its dim.

    Sizes 0 and 1 broadcast and are special to torch, so that no axis is traced as that short. Where the base sample has
    such axes, the sizes of samples are added up with whole numbers, which keeps what holds between sizes in all of
    them: that a mask is as long as the cache and the new tokens together.
    """
    axes = [(index, dim) for index, leaf in enumerate(leaves[base]) for dim in range(leaf.dim())]
    sizes = {(index, dim): tuple(tensors[index].shape[dim] for tensors in leaves) for index, dim in axes}
    varying = {axis: values for axis, values in sizes.items() if len(set(values)) > 1}
    given = list(dict.fromkeys(zip(*varying.values(), strict=True)))  # the sizes of each sample, once
    first = tuple(values[base] for values in varying.values())
    some = [first, *(other for other in given if other != first)][:_SAMPLES_ADDED]
    if min(first, default=2) > 1:
        return dict(zip(varying, first, strict=True))
    sums = [[sum(map(operator.mul, ws, of_axis)) for of_axis in zip(*some, strict=True)] for ws in _weights(len(some))]
    long = [total for total in sums if min(total) > 1]
    # two sizes that are equal by chance would be taken for one
    apart = [total for total in long if len(set(total)) == len(set(varying.values()))]
    if long:
        return dict(zip(varying, (apart or long)[0], strict=True))
    return {axis: next((size for size in (values[base], *values) if size > 1), 2) for axis, values in varying.items()}


_SAMPLES_ADDED = 3
_WEIGHTS = range(-2, 4)


def _weights(count: int) -> list[tuple[int, ...]]:
    """Return weights for adding up the sizes of samples, the simplest first.

    Weights that add up to 1 keep also what holds with a constant, such as one more token in a mask than in a cache.
    """
    ways = [weights for weights in itertools.product(_WEIGHTS, repeat=count) if sum(weights) > 0]
    return sorted(ways, key=lambda weights: (sum(weights), sum(map(abs, weights)), [-weight for weight in weights]))


def _size_names(paths: list[str], leaves: list[list[torch.Tensor]]) -> dict[tuple[str, int], str]:
    """Return the displayed name of each varying size, by path and dim: the same names as those of dynamic axes."""
    axes = []
    for index, path in enumerate(paths):
        for dim, sizes in enumerate(zip(*(tensors[index].shape for tensors in leaves), strict=True)):
            axes.append(Axis(path, dim, tuple(sizes), len(set(sizes)) > 1))
    return {(axis.path, axis.dim): axis.short_name for axis in with_symbols(axes)}


def _unused(name: str, used: AbstractSet[str]) -> str:
    candidates = [name, *(f"{name}{number}" for number in range(2, 100))]
    return next(candidate for candidate in candidates if candidate not in used)


def _in_signature_order(function: Any, sample: Sample) -> Sample:
    try:
        order = list(inspect.signature(forward_of(function)).parameters)
    except (TypeError, ValueError):  # builtins without a signature
        return sample
    rank = {name: index for index, name in enumerate(order)}
    kwargs = dict(sorted(sample.kwargs.items(), key=lambda item: rank.get(item[0], len(rank))))
    return Sample(sample.args, kwargs, sample.index)


def _tensors(value: Any) -> list[torch.Tensor]:
    return tensors_in((value.args, value.kwargs) if isinstance(value, Sample) else value)


def _paths(function: Any, sample: Sample, names: list[str]) -> list[str]:
    """Return the path of each tensor; inside of objects that are no containers of torch it is a number."""
    known = [(path, leaf) for path, leaf in named_leaves(function, sample) if isinstance(leaf, torch.Tensor)]
    tensors = _tensors(sample)
    if len(known) == len(tensors) and all(one is other for (_, one), other in zip(known, tensors, strict=True)):
        return [path for path, _ in known]
    paths = []
    for name, value in zip(names, [*sample.args, *sample.kwargs.values()], strict=True):
        count = len(_tensors(value))
        paths += [name] if isinstance(value, torch.Tensor) else [f"{name}[{index}]" for index in range(count)]
    return paths


def _check_alike(leaves: list[list[torch.Tensor]]) -> None:
    for index, tensors in enumerate(leaves):
        if [tensor.dim() for tensor in tensors] != [tensor.dim() for tensor in leaves[0]]:
            raise InputError(
                f"inputs[{index}] holds {len(tensors)} tensors of ranks {[t.dim() for t in tensors]}, inputs[0] holds "
                f"{len(leaves[0])} of ranks {[t.dim() for t in leaves[0]]}. All samples must have the same structure: "
                "trace once per structure, or give every sample the same arguments."
            )
