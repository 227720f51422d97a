"""Data sets as people have them, and the transform that makes of each sample what the model is called with."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset

from prepbench.checks import check_function, described
from prepbench.errors import InputError, PrepbenchError, SettingsError, sentence
from prepbench.inputs import Sample

Transform = Callable[[Any], Any]


def with_transform(data: Any, transform: Transform | None, name: str) -> Any:
    """Return data whose elements go through a transform as they are read; read again, they go through it again.

    Args:
        data: a list, a loader, a data set of torch or of Hugging Face, or a generator, which stays one. What holds no
            elements comes back as it is, for the reader to refuse.
        transform: takes an element; None for none. Elements that are a :class:`Sample` are calls and stay as they are.
        name: the argument, for errors.

    Raises:
        SettingsError: transform is no function.
        InputError: data is a table of several data sets.

    Example:
        >>> list(with_transform([1, 2], lambda number: torch.full((1, 2), number), "data"))
        [tensor([[1, 1]]), tensor([[2, 2]])]
    """
    check_function("transform", transform, "transform(sample)", optional=True)
    check_splits(name, data)
    lone = isinstance(data, torch.Tensor | np.ndarray | Mapping | Sample | str | bytes | type)
    if transform is None or lone or not (is_data_set(data) or isinstance(data, Iterable)):
        return data
    if isinstance(data, Iterator):
        return _applied(transform, data, name)
    return (_SizedTransformed if length_of(data) is not None else Transformed)(data, transform, name)


def chosen_transform(transform: Transform | None, data_transform_fn: Transform | None = None) -> Transform | None:
    """Return the one transform that was given by either name.

    Raises:
        SettingsError: both were given, or one that is no function.
    """
    check_function("transform", transform, "transform(sample)", optional=True)
    if transform is not None and data_transform_fn is not None:
        raise SettingsError("transform and data_transform_fn are two names of one argument. Give transform alone.")
    return data_transform_fn if transform is None else transform


def length_of(data: Any) -> int | None:
    """Return the number of elements of data; None where it has none, as a loader of a streamed data set."""
    try:
        return len(data)
    except TypeError:
        return None


class Transformed:
    """Data whose elements go through a transform as they are read."""

    def __init__(self, data: Any, transform: Transform, name: str) -> None:
        self.data, self._transform, self._name = data, transform, name

    def __iter__(self) -> Iterator[Any]:
        return _applied(self._transform, _elements(self.data), self._name)


class _SizedTransformed(Transformed):
    def __len__(self) -> int:
        return len(self.data)


def _elements(data: Any) -> Iterator[Any]:
    # a data set need not end its places with an IndexError, so it cannot be iterated by them
    return iter(data) if hasattr(type(data), "__iter__") else (data[place] for place in range(len(data)))


def _applied(transform: Transform, elements: Iterable[Any], name: str) -> Iterator[Any]:
    for index, element in enumerate(elements):
        yield element if isinstance(element, Sample) else _result(transform, element, f"{name}[{index}]")


def _result(transform: Transform, element: Any, place: str) -> Any:
    returns = "Return what the model is called with: a tensor, a tuple of positional arguments, or a dict"
    try:
        made = transform(element)
    except PrepbenchError:
        raise
    except Exception as error:
        raise InputError(
            f"transform raises on {place}, which is {in_words(element)}: {type(error).__name__}: {sentence(error)} "
            f"It takes one element as it is there. {returns} of keyword arguments."
        ) from error
    if made is None:
        raise InputError(f"transform returns None for {place}, which is {in_words(element)}. {returns}.")
    return made


def in_words(element: Any) -> str:
    """Describe an element for an error: its keys, its parts, or its shape.

    Example:
        >>> in_words({"pixels": 1}), in_words((torch.ones(3), 2)), in_words(torch.ones(3))
        ("dict with the keys 'pixels'", 'tuple of Tensor (3,), int', 'Tensor (3,)')
    """
    if isinstance(element, Mapping):
        return f"{type(element).__name__} with the keys {', '.join(repr(key)[:40] for key in list(element)[:6])}"
    if isinstance(element, tuple | list):
        return f"{type(element).__name__} of {', '.join(map(_part, element[:6])) or 'nothing'}"
    return _part(element) if hasattr(element, "shape") else described(element)


def _part(value: Any) -> str:
    shape = getattr(value, "shape", None)
    return type(value).__name__ + ("" if shape is None else f" {tuple(shape)}")


# Data sets, whose elements are single samples.


def is_data_set(data: Any) -> bool:
    """Return whether elements of data are single samples: a data set of torch that is read by place, or a table of
    Hugging Face ``datasets``, which need not be installed.
    """
    if isinstance(data, Transformed):
        return is_data_set(data.data)
    if isinstance(data, Dataset):
        return not isinstance(data, IterableDataset) or _is_table(data)
    return _is_table(data)


def _is_table(data: Any) -> bool:
    return not isinstance(data, Mapping | type) and all(hasattr(data, name) for name in ("column_names", "features"))


def check_splits(name: str, data: Any) -> None:
    """Raise ``InputError`` for a dict of data sets, as ``datasets.load_dataset`` returns it without ``split``, and for
    a table of columns.
    """
    check_no_table(name, data)
    if isinstance(data, Mapping) and data and all(map(_is_table, data.values())):
        first = next(iter(data))
        raise InputError(
            f"{name} has several data sets: {', '.join(map(repr, list(data)[:6]))}. Give one of them: "
            f"{name}={name}[{first!r}]."
        )


def check_no_table(name: str, value: Any) -> None:
    """Raise ``InputError`` for a table or column of pandas, polars and the like: iterating one yields its labels.

    Its columns may be inputs, labels or texts, and nothing in it tells which.
    """
    kind = type(value)
    if not (hasattr(kind, "to_numpy") or hasattr(kind, "__dataframe__")):
        return
    table = name if name.isidentifier() else "table"
    raise InputError(
        f"{name} {'is' if name.isidentifier() else 'holds'} a {kind.__name__}, a table whose columns may be inputs or "
        f"labels. Give tensors: torch.as_tensor({table}.to_numpy(), dtype=torch.float32) of the columns that are "
        "inputs; beside a label in a pair, [(inputs, labels)]."
    )


def check_batched(name: str, data: Any) -> None:
    """Raise ``InputError`` for a data set of torch: without a transform, its elements have no batch dimension."""
    if isinstance(data, Dataset) and not isinstance(data, IterableDataset):
        raise InputError(without_batches(name))


def without_batches(name: str) -> str:
    """Return why a data set cannot be read as it is, and how it can."""
    return (
        f"{name} is a data set, whose elements have no batch dimension. Give its batches: "
        f"{name}=torch.utils.data.DataLoader({name}, batch_size=8). Or give transform=, which makes of an element what "
        "the model is called with: transform=lambda sample: (sample[0][None], sample[1])."
    )
