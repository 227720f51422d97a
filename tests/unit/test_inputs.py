"""Sample inputs: every documented form, and the errors for the others."""

from __future__ import annotations

from collections import UserDict
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from prepbench.errors import InputError
from prepbench.inputs import Sample, named_leaves, positional_names
from prepbench.running.given_samples import normalize_samples


class OneArgument(nn.Module):
    def forward(self, x: Any) -> Any:
        return x


class Language(nn.Module):
    def forward(self, input_ids: Any, attention_mask: Any = None, **kwargs: Any) -> Any:
        return input_ids


class Many(nn.Module):
    def forward(self, *inputs: Any) -> Any:
        return inputs[0]


class WholeBatch(nn.Module):
    def forward(self, batch: dict[str, Any]) -> Any:
        return batch["input_ids"]


T = torch.ones(2, 3)


@pytest.mark.parametrize(
    ("model", "element", "args", "kwargs"),
    [
        (OneArgument(), T, (T,), {}),
        (OneArgument(), (T,), (T,), {}),
        (OneArgument(), [T, T], ([T, T],), {}),
        (OneArgument(), {"x": T}, (), {"x": T}),
        (Language(), (T, T), (T, T), {}),
        (Language(), (T, {"attention_mask": T}), (T,), {"attention_mask": T}),
        (Language(), {"input_ids": T, "offset": 3}, (), {"input_ids": T, "offset": 3}),
        (Language(), UserDict(input_ids=T), (), {"input_ids": T}),
        (Many(), (T, T, T), (T, T, T), {}),
        (Many(), [T, T], (T, T), {}),
        (WholeBatch(), {"input_ids": T}, ({"input_ids": T},), {}),
    ],
)
def test_forms(model: nn.Module, element: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    (sample,) = normalize_samples(model, [element])
    assert sample.args == args
    assert sample.kwargs == kwargs


def test_named_tuple_is_one_argument() -> None:
    class Pair(NamedTuple):
        left: torch.Tensor
        right: torch.Tensor

    (sample,) = normalize_samples(OneArgument(), [Pair(T, T)])
    assert isinstance(sample.args[0], Pair)


def test_lone_tensor_is_one_sample_not_its_rows() -> None:
    assert len(normalize_samples(OneArgument(), torch.ones(5, 2))) == 1


def test_generator_is_read_once_and_transformed() -> None:
    reads = []

    def loader() -> Any:
        for i in range(3):
            reads.append(i)
            yield torch.full((1,), float(i)), "label"

    samples = normalize_samples(OneArgument(), loader(), data_transform_fn=lambda batch: batch[0])
    assert reads == [0, 1, 2]
    assert [s.index for s in samples] == [0, 1, 2]
    assert samples[2].args[0].item() == 2.0


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        ([], ["calibration_inputs is empty"]),
        (3, ["calibration_inputs must be an iterable", "got 3"]),
        ([T, (T, T)], ["calibration_inputs[1]", "OneArgument", "transform=..."]),
        ([(T, {"y": T})], ["calibration_inputs[0]"]),
    ],
)
def test_errors_name_argument_and_index(inputs: Any, words: list[str]) -> None:
    with pytest.raises(InputError) as caught:
        normalize_samples(OneArgument(), inputs, name="calibration_inputs")
    for word in words:
        assert word in str(caught.value)


def test_paths_follow_the_signature_and_the_structure() -> None:
    sample = Sample((T, {"mask": [T, T]}), {"extra": {"k": 1}})
    assert [path for path, _ in named_leaves(Language(), sample)] == [
        "input_ids",
        "attention_mask['mask'][0]",
        "attention_mask['mask'][1]",
        "extra['k']",
    ]
    assert positional_names(Many(), 2) == ["inputs[0]", "inputs[1]"]


@given(
    st.recursive(st.integers(), lambda s: st.lists(s, max_size=3) | st.dictionaries(st.text(max_size=3), s, max_size=3))
)
def test_leaf_order_is_that_of_pytree(value: Any) -> None:
    from torch.utils import _pytree as pytree

    sample = Sample((value,), {"k": value})
    assert [leaf for _, leaf in named_leaves(OneArgument(), sample)] == pytree.tree_leaves((sample.args, sample.kwargs))
