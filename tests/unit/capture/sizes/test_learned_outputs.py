"""Sizes and values of outputs are learned from recorded calls, for inputs of any size."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from prepbench.capture.sizes.learned_outputs import LearnedOutputs, Rules, UnknownOutputsError
from prepbench.inputs import Sample
from prepbench.running.recorded_calls import record_calls


class Part(nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any) -> Any:
        return self.function(*args)


def learn(function: Any, *calls: Any) -> LearnedOutputs:
    samples = [Sample(args if isinstance(args, tuple) else (args,), {}, index) for index, args in enumerate(calls)]
    return LearnedOutputs.learn(record_calls(Part(function), samples)[""], "part")


def built(learned: LearnedOutputs, *inputs: Any) -> Any:
    found = learned.find(inputs)
    assert found is not None

    def tensor(index: int, seen: torch.Tensor, rules: Rules) -> torch.Tensor:
        return torch.empty(found.sizes(rules, inputs, lambda: 99), dtype=seen.dtype)

    return found.build(inputs, tensor, found.refuse_number)


class Boxes(list[Any]):
    """Not a pytree node."""


TWO, FIVE, SEVEN = torch.ones(2, 4), torch.ones(5, 4), torch.ones(7, 4)


def test_sizes_follow_from_sizes_and_from_integers() -> None:
    learned = learn(lambda x, n: (x.repeat(1, n), x.sum(0).long()), (TWO, 3), (FIVE, 2))
    y, total = built(learned, SEVEN, 5)
    assert (y.shape, total.shape, total.dtype) == ((7, 20), (4,), torch.int64)
    assert "4*input1" in learned.describe()


def test_numbers_follow_from_sizes() -> None:
    assert built(learn(lambda x: {"n": 2 * len(x), "c": 0.5}, TWO, FIVE), SEVEN) == {"n": 14, "c": 0.5}


def test_tensors_in_objects_that_are_no_pytrees_follow_too() -> None:
    made = built(learn(lambda x: Boxes([x, x[:, 0]]), TWO, FIVE), SEVEN)
    assert type(made) is Boxes
    assert [tensor.shape for tensor in made] == [(7, 4), (7,)]


def test_a_size_that_depends_on_data_is_asked_for() -> None:
    learned = learn(lambda x: x[x > 0], torch.tensor([1.0, -1, 2]), torch.tensor([-1.0, -1, -1, 5]))
    assert built(learned, torch.ones(7)).shape == (99,)
    assert "unknown" in learned.describe()


@pytest.mark.parametrize("function", [lambda x: float(x.sum()), lambda x: len(x) > 2, lambda x: "a" * len(x)])
def test_values_that_depend_on_data_are_refused(function: Any) -> None:
    with pytest.raises(UnknownOutputsError, match=r"part returns a Python value from a tensor \(.*on the samples\)"):
        built(learn(function, TWO, FIVE), SEVEN)


@pytest.mark.parametrize("function", [lambda x: x if len(x) > 2 else x[0], lambda x: [x] * len(x)])
def test_another_structure_on_each_sample_is_refused(function: Any) -> None:
    with pytest.raises(UnknownOutputsError, match=r"on sample 0 but .* on sample 1"):
        learn(function, TWO, FIVE)


def test_calls_with_other_kinds_of_arguments_are_learned_apart() -> None:
    learned = learn(lambda x, flag: x if flag else x[0], (TWO, True), (FIVE, False), (FIVE, True), (TWO, False))
    assert built(learned, SEVEN, True).shape == (7, 4)
    assert built(learned, SEVEN, False).shape == (4,)
    assert learned.find((SEVEN, None)) is None
    assert learned.find((SEVEN.int(), True)) is None


def test_tensors_that_torch_cannot_fake_are_refused() -> None:
    with pytest.raises(UnknownOutputsError, match="has no counterpart without data"):
        learn(lambda x: torch.nested.nested_tensor([x]), TWO)
