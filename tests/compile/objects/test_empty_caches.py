"""Caches that make their tensors at the first write, empty in one sample and filled in another."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import prepbench as pb
from prepbench.errors import CaptureError, InputError
from prepbench.objects.caches.counted import with_empty_caches_filled
from prepbench.running.check_inputs import alike_samples


class Layer:
    """Keys and values of one layer, which are there once something was written."""

    def __init__(self) -> None:
        self.keys: Any = None
        self.values: Any = None
        self.is_filled = False

    def update(self, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if not self.is_filled:
            self.dtype, self.is_filled = keys.dtype, True
            self.keys, self.values = keys.new_zeros(0), values.new_zeros(0)
        self.keys, self.values = torch.cat([self.keys, keys], 2), torch.cat([self.values, values], 2)
        return self.keys, self.values


class Cache:
    """A layer for each that has written; ``layers`` says how many there are from the beginning."""

    def __init__(self, layers: int = 0) -> None:
        self.layers = [Layer() for _ in range(layers)]

    def update(self, place: int, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        while len(self.layers) <= place:
            self.layers.append(Layer())
        return self.layers[place].update(keys, values)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 24)

    def forward(self, x: torch.Tensor, cache: Cache) -> tuple[torch.Tensor, Cache]:
        for place in range(2):
            query, keys, values = (y.unflatten(-1, (2, 4)).transpose(1, 2) for y in self.layer(x).chunk(3, -1))
            keys, values = cache.update(place, keys, values)
            x = (query @ keys.transpose(2, 3)).softmax(-1).matmul(values).transpose(1, 2).flatten(2)
        return x, cache


def sample(batch: int, new: int, past: int, layers: int = 0) -> tuple[torch.Tensor, Cache]:
    cache = Cache(layers)
    for place in range(2 if past else 0):
        cache.update(place, torch.randn(batch, 2, past, 4), torch.randn(batch, 2, past, 4))
    return torch.randn(batch, new, 8), cache


@pytest.mark.parametrize("layers", [0, 2], ids=["no layers", "layers without tensors"])
def test_an_empty_cache_is_like_a_filled_one(layers: int) -> None:
    given = sample(3, 5, 0, layers)
    filled, empty = alike_samples(Attention(), [sample(2, 1, 7), given])
    made = empty.args[1]
    assert [tuple(layer.keys.shape) for layer in made.layers] == [(3, 2, 0, 4)] * 2
    assert all(layer.is_filled and layer.dtype == torch.float32 for layer in made.layers)
    assert len(given[1].layers) == layers
    assert not any(layer.is_filled for layer in given[1].layers)
    assert filled.args[1].layers[0].keys.shape == (2, 2, 7, 4)


@pytest.mark.parametrize("layers", [0, 2], ids=["no layers", "layers without tensors"])
def test_one_graph_prefills_and_decodes(layers: int, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Attention().eval()
    made = pb.compile_model(model, tracing_inputs=[sample(2, 5, 0, layers), sample(3, 1, 6), sample(2, 2, 4)])
    made.save(tmp_path / "model")
    for compiled in (made, pb.load_compiled(tmp_path / "model")):
        for batch, new, past in ((1, 4, 0), (4, 1, 9), (2, 3, 2)):
            torch.manual_seed(past)
            x, cache = sample(batch, new, past, layers)
            found = compiled(x, cache)[0]
            assert past or not cache.layers or not cache.layers[0].is_filled
            with torch.no_grad():
                torch.testing.assert_close(found, model(x, cache)[0], rtol=1e-4, atol=1e-5)


def test_a_state_whose_size_nothing_tells_is_refused() -> None:
    class State:
        def __init__(self, state: Any) -> None:
            self.state = state

    calls = [((torch.ones(2, 1), State(torch.ones(2, 5))), {}), ((torch.ones(3, 1), State(None)), {})]
    assert with_empty_caches_filled(calls)[1] is calls[1]
    with pytest.raises(InputError, match="state"):
        pb.DynamicAxes.infer([call[0] for call in calls])


def test_arguments_that_are_no_objects_stay_as_they_are() -> None:
    with pytest.raises(InputError, match="None in sample 1"):
        pb.DynamicAxes.infer(
            [{"x": torch.ones(2, 1), "past": torch.ones(2, 2, 3, 4)}, {"x": torch.ones(2, 1), "past": None}]
        )


def test_a_call_that_lacks_an_argument_is_refused() -> None:
    compiled = pb.compile_model(Attention(), tracing_inputs=[sample(2, 5, 0), sample(3, 1, 6)])
    with pytest.raises(InputError, match="nested differently"):
        compiled(torch.ones(2, 1, 8), None)


def test_an_empty_cache_whose_layers_are_of_a_new_class() -> None:
    class OtherLayer(Layer):
        pass

    model = Attention()
    pb.DynamicAxes.infer([sample(2, 3, 0, 2), sample(1, 2, 4)], model)  # the class of the cache is known from here on
    given = [sample(2, 3, 0, 2), sample(1, 2, 4)]
    for _, cache in given:
        for layer in cache.layers:
            layer.__class__ = OtherLayer
    axes = pb.DynamicAxes.infer(given, model)
    assert "cache.* (4): (batch, 2, past, 4)" in repr(axes)
    assert axes.table()["argument"].tolist()[3:] == ["cache.* (4)"] * 4
    assert len(axes.table(alike=False)) == 3 + 4 * 4
    assert not any(axis.dynamic for axis in axes.set("cache.*", 2, False).axes if axis.dim == 2 and "." in axis.path)


def test_a_batch_that_does_not_fit_its_cache_is_told_of_the_right_sample() -> None:
    misfit = (torch.randn(2, 1, 8), sample(3, 1, 6)[1])
    with pytest.raises(CaptureError, match=r"itself raises on inputs\[2\]"):
        pb.capture(Attention(), [sample(2, 5, 0), sample(2, 1, 7), misfit])
