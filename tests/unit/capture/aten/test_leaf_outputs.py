"""The outputs of a leaf module as those of an operator: learned sizes, checked results."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn

from prepbench.capture.aten.leaf_operators import LeafOutputs
from prepbench.capture.sizes.learned_outputs import UnknownOutputsError
from prepbench.inputs import Sample
from prepbench.running.recorded_calls import record_calls


def samples(*tensors: torch.Tensor) -> list[Sample]:
    return [Sample((tensor,), {}, index) for index, tensor in enumerate(tensors)]


@pytest.mark.parametrize(
    "module, inputs, unseen",
    [
        (nn.Conv2d(3, 8, 3, 2, 1), [(1, 3, 33, 47), (2, 3, 40, 34), (3, 3, 41, 50)], (5, 3, 64, 21)),
        (nn.Flatten(), [(2, 3, 4), (3, 3, 6)], (5, 3, 7)),
        (nn.Flatten(0, 1), [(2, 3, 4), (4, 5, 4)], (7, 6, 4)),
        (nn.MaxPool1d(2), [(2, 3, 9), (2, 3, 12)], (2, 3, 21)),
        (nn.AdaptiveAvgPool2d(2), [(2, 3, 9, 9), (1, 3, 12, 8)], (4, 3, 5, 6)),
        (nn.ConstantPad1d(2, 0.0), [(2, 3, 9), (2, 3, 12)], (2, 3, 20)),
    ],
)
def test_learned_sizes_hold_at_unseen_sizes(module: nn.Module, inputs: list[Any], unseen: tuple[int, ...]) -> None:
    calls = record_calls(module, samples(*(torch.randn(size) for size in inputs)))
    x = torch.randn(unseen)
    assert LeafOutputs.learn(calls[""]).fake([x]).shape == module(x).shape


@dataclass
class Result:
    features: torch.Tensor
    size: tuple[int, int]
    aux: Any = None


class Many(nn.Module):
    def forward(self, x: torch.Tensor, *, scale: float = 1.0) -> Any:
        return {"all": [x * scale, (x.sum(-1), None)], "size": (x.shape[0], x.shape[1])}


def test_nested_outputs_keep_their_structure_and_numbers() -> None:
    calls = record_calls(Many(), samples(torch.randn(2, 4), torch.randn(3, 6)))
    output = LeafOutputs.learn(calls[""]).fake([torch.empty(5, 9)])
    assert output["all"][0].shape == (5, 9)
    assert output["all"][1][0].shape == (5,)
    assert output["all"][1][1] is None
    assert output["size"] == (5, 9)


def test_channels_last_outputs_stay_so() -> None:
    x = [torch.randn(n, 3, 8, 8).to(memory_format=torch.channels_last) for n in (2, 3)]
    learned = LeafOutputs.learn(record_calls(nn.ReLU(), samples(*x))[""])
    assert learned.fake([x[0]]).is_contiguous(memory_format=torch.channels_last)


def test_a_size_without_a_rule_is_an_error_that_says_so() -> None:
    class Positive(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x[x > 0]

    calls = record_calls(Positive(), samples(torch.tensor([1.0, -1, 2]), torch.tensor([-1.0, -1, -1, 5])))
    learned = LeafOutputs.learn(calls[""], "positive")
    assert "unknown" in learned.learned.describe()
    with pytest.raises(UnknownOutputsError, match="positive returns follows from no input size"):
        learned.fake([torch.empty(7)])
    assert learned.fake([torch.empty(7)], unknown_size=lambda: 3).shape == (3,)


def test_a_number_that_depends_on_data_is_read_from_a_tensor() -> None:
    class Sum(nn.Module):
        def forward(self, x: torch.Tensor) -> float:
            return float(x.sum())

    learned = LeafOutputs.learn(record_calls(Sum(), samples(torch.ones(2), torch.ones(3)))[""])
    assert learned.count_tensors([torch.empty(4)]) == 1
    assert learned.rebuild([torch.empty(4)], iter([torch.tensor(7.0)])) == 7.0


def test_text_that_differs_from_call_to_call_is_an_error() -> None:
    class Name(nn.Module):
        def forward(self, x: torch.Tensor) -> str:
            return "a" * x.shape[0]

    with pytest.raises(UnknownOutputsError, match=r"Python value from a tensor \('aa', 'aaa' on the samples"):
        LeafOutputs.learn(record_calls(Name(), samples(torch.ones(2), torch.ones(3)))[""])


def test_a_call_unlike_those_on_the_samples_is_refused() -> None:
    class Many(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return x.sum() if x.sum() > 100 else x

    learned = LeafOutputs.learn(record_calls(Many(), samples(torch.ones(2), torch.ones(3)))[""], "many")
    x = torch.full((2,), 100.0)
    with pytest.raises(UnknownOutputsError, match=r"many returned .*rank 0.* where the captured graph was made for"):
        learned.tensors_of([x], x.sum(), ((x,), {}))


def test_calls_of_another_kind_are_learned_apart() -> None:
    calls = record_calls(nn.Identity(), samples(torch.randn(2, 3), torch.randn(2, 3, 4), torch.randn(5, 3)))
    learned = LeafOutputs.learn(calls[""])
    assert learned.fake([torch.empty(7, 3)]).shape == (7, 3)
    assert learned.fake([torch.empty(2, 3, 4)]).shape == (2, 3, 4)
    with pytest.raises(UnknownOutputsError, match="float32 of rank 1"):
        learned.fake([torch.empty(2)])
