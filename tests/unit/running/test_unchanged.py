"""A run leaves nothing behind: not in the model, not in the caller's tensors, not in the random numbers."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from prepbench.errors import InputError
from prepbench.inputs import Sample
from prepbench.running.unchanged import NotedState, dense_copy, detached_copy, own_copy, unchanged


class Restless(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.table = torch.ones(2)
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.table.add_(1)
        self.train(not self.training)
        random.random(), np.random.rand(), torch.rand(1)
        return self.norm(x)


@pytest.mark.parametrize("fails", [False, True])
def test_everything_is_put_back(fails: bool) -> None:
    model = Restless()
    state = {name: value.clone() for name, value in model.state_dict().items()}
    numbers = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()
    try:
        with unchanged(model), torch.no_grad():
            model(torch.randn(3, 4))
            assert model.calls == 1
            if fails:
                raise ZeroDivisionError
    except ZeroDivisionError:
        pass
    assert (model.calls, model.training, model.table.tolist()) == (0, True, [1, 1])
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert random.getstate() == numbers[0]
    assert np.random.get_state()[1].tolist() == numbers[1]
    assert torch.equal(torch.get_rng_state(), numbers[2])


def test_a_lazy_module_that_never_ran_is_refused() -> None:
    with pytest.raises(InputError, match=r"0\.weight has no size yet"), unchanged(nn.Sequential(nn.LazyLinear(3))):
        pass


class Cache:
    def __init__(self, keys: torch.Tensor) -> None:
        self.keys = keys


def test_own_copies_share_no_memory_and_no_objects_with_the_caller() -> None:
    cache, x = Cache(torch.ones(2)), torch.ones(3, requires_grad=True)
    own = own_copy(Sample((x, cache), {"n": 3}, 4))
    assert (own.kwargs, own.index, own.args[0].requires_grad) == ({"n": 3}, 4, True)
    with torch.no_grad():
        own.args[0].zero_()
    own.args[1].keys = torch.zeros(5)
    assert x.tolist() == [1, 1, 1]
    assert cache.keys.tolist() == [1, 1]


@pytest.mark.parametrize(
    "tensor",
    [torch.ones(4, 6)[:, ::2], torch.ones(2, 3, 4, 4).to(memory_format=torch.channels_last), torch.ones(2, 3).t()],
)
def test_own_copies_have_the_strides_and_dense_ones_no_gaps(tensor: torch.Tensor) -> None:
    (own,), (dense,) = own_copy(Sample((tensor,))).args, dense_copy(Sample((tensor,))).args
    assert own.stride() == tensor.stride()
    assert dense.numel() == dense.untyped_storage().nbytes() // dense.element_size()
    assert torch.equal(own, tensor)
    assert torch.equal(dense, tensor)


def test_expanded_tensors_get_memory_of_their_own() -> None:
    (own,) = own_copy(Sample((torch.ones(1, 3).expand(4, 3),))).args
    own[0].zero_()
    assert own.sum() == 9


def test_detached_copies_have_no_gradients() -> None:
    x = torch.ones(2, requires_grad=True)
    copied: dict[str, Any] = detached_copy({"y": [x * 2], "n": 1})
    assert not copied["y"][0].requires_grad
    assert copied["n"] == 1


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))
        self.log: list[float] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.log.append(float(x.sum()))
        self.last = x
        return x + torch.rand(()) * 0 + len(self.log)


def test_what_was_noted_once_is_put_back_after_each_run() -> None:
    model, x = Counting(), torch.ones(2)
    noted = NotedState(model)
    for _ in range(3):
        start = torch.random.get_rng_state()
        with noted.unchanged():
            assert torch.equal(model(x), x + 1)
        assert model.calls == 0
        assert model.log == []
        assert not hasattr(model, "last")
        assert torch.equal(torch.random.get_rng_state(), start)
