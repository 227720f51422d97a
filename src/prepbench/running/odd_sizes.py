"""Find sizes that are inconsistent in one sample and consistent in all others."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from prepbench.inputs import Sample, named_leaves

_Axis = tuple[str, int]


def odd_sizes(function: Callable[..., Any], samples: Sequence[Sample], sample: Sample) -> str:
    """Return the sizes of a sample that break a rule of all others (two are equal, or one is the sum of two); "" if
    there are none.

    What holds in one other sample only may be chance: then just the first sizes of tensors are compared.

    Example:
        >>> samples = [Sample((torch.ones(n, 4), torch.ones(m, 4))) for n, m in ((2, 2), (3, 3), (5, 4))]
        >>> odd_sizes(torch.add, samples, samples[2])
        'args[1].shape[0] is 4 and args[0].shape[0] is 5; in all other samples they are equal.'
    """
    mine = _sizes(function, sample)
    others = [_sizes(function, other) for other in samples if other is not sample]
    axes = [axis for axis in mine if others and all(axis in other for other in others)]
    is_sure = len(others) > 1
    if not is_sure:
        axes = [axis for axis in axes if axis[1] == 0]
    varying = [axis for axis in axes if not is_sure or len({other[axis] for other in others}) > 1]
    for one, two in itertools.combinations(varying, 2):
        if mine[one] != mine[two] and all(other[one] == other[two] for other in others):
            return f"{_text(two, mine)} and {_text(one, mine)}; in all other samples they are equal."
    for one, two in itertools.combinations(varying, 2) if is_sure else ():
        for total in varying:
            wrong = mine[total] != mine[one] + mine[two]
            if wrong and all(other[total] == other[one] + other[two] for other in others):
                return (
                    f"{_text(total, mine)}, {_text(one, mine)} and {_text(two, mine)}; in all other samples the first "
                    "is the sum of the others."
                )
    return ""


def _sizes(function: Callable[..., Any], sample: Sample) -> dict[_Axis, int]:
    return {
        (path, dim): int(size)
        for path, leaf in named_leaves(function, sample)
        if isinstance(leaf, torch.Tensor)
        for dim, size in enumerate(leaf.shape)
    }


def _text(axis: _Axis, sizes: dict[_Axis, int]) -> str:
    return f"{axis[0]}.shape[{axis[1]}] is {sizes[axis]}"
