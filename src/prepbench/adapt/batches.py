"""What a model is trained on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from prepbench.checks import described
from prepbench.errors import InputError
from prepbench.inputs import Sample, normalize_samples


@dataclass(frozen=True)
class Batch:
    """The inputs of a call, and what its output should be, if that is known."""

    sample: Sample
    target: Any

    def call(self, model: Callable[..., Any]) -> Any:
        """Call ``model`` with the inputs."""
        try:
            return self.sample.call(model)
        except InputError as error:
            if self.target is not None or len(self.sample.args) != 2:
                raise
            raise _misfit(error) from error


def read_batches(model: nn.Module, data: Iterable[Any], with_targets: bool, name: str) -> Iterator[Batch]:
    """The batches of ``data``, one after the other; errors call it ``name``."""
    for index, element in enumerate(data):
        given, target = element, None
        if with_targets:
            if not isinstance(element, tuple | list) or len(element) != 2:
                raise InputError(
                    f"{name}[{index}] must be a pair (input, target), because a loss or a metric is given, got "
                    f"{described(element)}. Several inputs go into one tuple: ((a, b), target)."
                )
            given, target = element
        try:
            [sample] = normalize_samples(model, [given], name=name)
        except InputError as error:
            if with_targets or not isinstance(element, tuple | list) or len(element) != 2:
                raise
            raise _misfit(error) from error
        yield Batch(replace(sample, index=index), target)


def _misfit(error: InputError) -> InputError:
    """What is said of a pair that does not fit the call."""
    return InputError(
        f"{error} Without a loss or a metric, data holds inputs of calls alone. If these are pairs (input, target), "
        "give loss= or metric=, or only the inputs."
    )


class Batches:
    """The batches of data, again and again where it can be read again."""

    def __init__(self, model: nn.Module, data: Iterable[Any], with_targets: bool) -> None:
        self._model, self._data, self._with_targets = model, data, with_targets
        self._is_once = iter(data) is data
        self._ahead: list[Batch] = []
        self._source = self._new()

    def _new(self) -> Iterator[Batch]:
        return read_batches(self._model, self._data, self._with_targets, "data")

    def first(self, count: int) -> list[Batch]:
        """The first batches, which come again."""
        while len(self._ahead) < count and (batch := next(self._source, None)) is not None:
            self._ahead.append(batch)
        if not self._ahead:
            raise InputError("data is empty: give at least one batch. A generator is read only once; make a new one.")
        return list(self._ahead)

    def __iter__(self) -> Iterator[Batch]:
        yield from self._ahead
        yield from self._source
        while not self._is_once:
            yield from self._new()
