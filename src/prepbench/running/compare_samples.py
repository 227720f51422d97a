"""Compare samples leaf by leaf: sizes may differ, all else must agree; errors name the differing leaf by its path."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from prepbench.checks import described
from prepbench.errors import InputError
from prepbench.inputs import Sample, named_leaves, positional_names
from prepbench.objects.parts import NO_DATA
from prepbench.running.object_nodes import classes_in, fixed_numbers, is_mark
from prepbench.running.tensor_numbers import tensor_numbers

Shapes = dict[str, list[tuple[int, ...]]]


def tensor_shapes(function: Callable[..., Any], samples: Sequence[Sample], *, with_counted: bool = False) -> Shapes:
    """Return the shape of every tensor argument in each sample, by path.

    Args:
        function: the callee.
        samples: one after the other, compared with the first.
        with_counted: whether numbers that follow from sizes may differ.

    Raises:
        InputError: the samples differ in something that no dynamic axis can express.
    """
    named = [dict(named_leaves(function, sample)) for sample in samples]
    for sample, leaves in zip(samples[1:], named[1:], strict=True):
        _check_marks(function, samples[0], sample)
        _check_windows(samples[0], named[0], sample, leaves)
        _check_structure(samples[0], named[0], sample, leaves)
        for path, leaf in named[0].items():
            _check_leaf(path, samples[0].index, leaf, sample.index, leaves[path], _steps(samples[0], sample))
        _check_numbers(function, samples[0], sample, {number.path for number in sample.counted if with_counted})
    return {
        path: [tuple(int(size) for size in leaves[path].shape) for leaves in named]
        for path, leaf in named[0].items()
        if isinstance(leaf, torch.Tensor)
    }


def _check_marks(function: Callable[..., Any], first: Sample, other: Sample) -> None:
    """Check that the samples agree in a cache's marks, such as filled encoder states, because they decide the
    computation.
    """
    one, two = _numbers(function, first), _numbers(function, other)
    for path in sorted(one.keys() & two.keys()):
        if is_mark(path, one[path]) and one[path] != two[path]:
            begun, new = (first, other) if one[path] is True else (other, first)
            raise InputError(
                f"{path!r} is False in sample {new.index} and True in sample {begun.index}: this cache marks what was "
                "computed once and is then read, and the model computes other things before and after. Give the "
                "samples in which it is True. Generation with compiled.attached(model) then runs its first step, which "
                "fills the cache, in PyTorch, and all others compiled."
            )


def _check_windows(first: Sample, leaves: dict[str, Any], other: Sample, others: dict[str, Any]) -> None:
    """Check that samples agree in how full a fixed-length window is, which decides the columns of a mask with a row per
    new token.
    """
    if not any(tensor_numbers(kind) for kind in classes_in((first.args, first.kwargs))):
        return
    for path, mask in leaves.items():
        is_square = "mask" in path and isinstance(mask, torch.Tensor) and mask.dim() == 4
        if is_square and path in others and mask.shape[2:3] != getattr(others[path], "shape", ())[2:3]:
            raise InputError(
                f"{path!r} has rows for {mask.shape[2]} new tokens in sample {first.index} and for "
                f"{others[path].shape[2]} in sample {other.index}, beside a sliding window of a fixed length: how many "
                "columns it has then depends on the tokens seen before. Give the later steps of a generation alone, "
                "of one new token each (compiled.attached(model) runs the first step in PyTorch), or masks with one "
                "entry for each token, which work for all steps."
            )


def _numbers(function: Callable[..., Any], sample: Sample) -> dict[str, Any]:
    return fixed_numbers(positional_names(function, len(sample.args)), sample.args, sample.kwargs)


def _check_numbers(function: Callable[..., Any], first: Sample, other: Sample, counted: set[str]) -> None:
    """Check the numbers that caches and other objects count: they are in no leaf, and constants in a graph."""
    one, two = _numbers(function, first), _numbers(function, other)
    for path in sorted((one.keys() & two.keys()) - counted):
        _check_leaf(path, first.index, one[path], other.index, two[path])


def _check_structure(first: Sample, leaves: dict[str, Any], other: Sample, others: dict[str, Any]) -> None:
    missing = [path for path in leaves if path not in others]
    extra = [path for path in others if path not in leaves]
    if not missing and not extra:
        return
    for path in missing + extra:
        empty, full, there = (first, other, others) if path in missing else (other, first, leaves)
        if (leaves | others)[path] is None and any(name.startswith((f"{path}.", f"{path}[")) for name in there):
            raise InputError(_none_in_one(path, empty.index, "value that holds others", full.index))
    if missing:
        path, present, absent, there = missing[0], first.index, other.index, others
    else:
        path, present, absent, there = extra[0], other.index, first.index, leaves
    container = path[: max(path.rfind("["), path.rfind("."))] if "[" in path or "." in path else ""
    siblings = [name for name in there if container and name.startswith(container)]
    if container and siblings:
        counts = (
            sum(name.startswith(container) for name in leaves),
            len([n for n in others if n.startswith(container)]),
        )
        raise InputError(
            f"Argument {container!r} differs in its contents: {path!r} is given in sample {present} but not in "
            f"sample {absent} ({counts[0]} values in sample {first.index}, {counts[1]} in sample {other.index}). "
            "The number of values and the keys of an argument must be the same in all samples: one graph is "
            "one structure. Give samples of the same structure, and capture once for each structure."
        )
    raise InputError(
        f"Argument {path!r} is given in sample {present} but not in sample {absent}. One graph has one set of "
        f"arguments: give {path!r} in every sample or in none; for both uses, capture twice{_steps(first, other)}."
    )


def _steps(first: Sample, other: Sample) -> str:
    """Return a further remedy if the samples are the calls of a generation."""
    return ", or give the later steps of a generation alone" if _has_cache(first) and _has_cache(other) else ""


def _has_cache(sample: Sample) -> bool:
    return any(hasattr(value, "get_seq_length") for value in (*sample.args, *sample.kwargs.values()))


def _check_leaf(path: str, index: int, leaf: Any, other_index: int, other: Any, steps: str = "") -> None:
    where = f"Argument {path!r} differs between sample {index} and sample {other_index}"
    if (leaf is None) != (other is None):
        empty, full = (index, other_index) if leaf is None else (other_index, index)
        raise InputError(_none_in_one(path, empty, type(leaf if other is None else other).__name__, full, steps))
    if isinstance(leaf, torch.Tensor) and isinstance(other, torch.Tensor):
        _check_tensors(where, leaf, other)
    elif type(leaf) is not type(other):
        raise InputError(
            f"{where} in its type: {type(leaf).__name__} and {type(other).__name__}. "
            "Give the same type in every sample."
        )
    elif not isinstance(leaf, torch.Tensor) and not is_same(leaf, other):
        raise InputError(
            f"{where}: {described(leaf)} and {described(other)}. Python values are fixed in a graph: give the same "
            "value in every sample, capture once for each value, or pass it as a tensor if the model takes one."
        )


def _none_in_one(path: str, empty: int, kind: str, full: int, steps: str = "") -> str:
    return (
        f"Argument {path!r} is None in sample {empty} but a {kind} in sample {full}. Give a value in every sample or "
        f"in none; for both uses, capture twice{steps}. An empty cache may also be one of tensors of size 0."
    )


def _check_tensors(where: str, leaf: torch.Tensor, other: torch.Tensor) -> None:
    if leaf.dim() != other.dim():
        raise InputError(
            f"{where} in its rank: shapes {tuple(leaf.shape)} and {tuple(other.shape)}. The number of dims is fixed "
            "in a graph: add or remove dims (unsqueeze, squeeze) so that all samples have the same rank."
        )
    if leaf.dtype != other.dtype:
        raise InputError(
            f"{where} in its dtype: {leaf.dtype} and {other.dtype}. Convert all samples to one dtype with .to(dtype)."
        )


def is_same(leaf: Any, other: Any) -> bool:
    """Return whether two Python values are the same object, equal, or objects of one class with the same plain values;
    false where ``==`` is undefined. Cyclic objects are the same if all else is.
    """
    try:
        return _is_same(leaf, other, set())
    except RecursionError:  # a chain of a thousand objects
        return False


def _is_same(leaf: Any, other: Any, begun: set[tuple[int, int]]) -> bool:
    """Return :func:`is_same`, with ``begun``, the pairs of objects whose comparison is in progress."""
    if leaf is other or (id(leaf), id(other)) in begun:
        return True
    try:
        if leaf == other:
            return True
    except (RuntimeError, TypeError, ValueError):  # objects such as arrays whose == has no truth value
        return False
    if type(leaf) is not type(other):
        return False
    begun = {*begun, (id(leaf), id(other))}
    if type(leaf) in (list, tuple):
        return len(leaf) == len(other) and all(_is_same(one, two, begun) for one, two in zip(leaf, other, strict=True))
    if type(leaf) is dict:
        return leaf.keys() == other.keys() and all(_is_same(leaf[key], other[key], begun) for key in leaf)
    # a cache that a model takes and never fills, or a layer of it that has none
    has_equality = getattr(type(leaf), "__eq__", None) is not getattr(object, "__eq__", None)
    if has_equality or isinstance(leaf, NO_DATA) or not hasattr(leaf, "__dict__"):
        return False
    return _is_same(vars(leaf), vars(other), begun)
