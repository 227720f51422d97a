"""Numbers in objects that are tensors in graphs."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from prepbench._torch_compat import pytree
from prepbench.inputs import Sample
from prepbench.objects.caches.transformers import tensor_numbers
from prepbench.objects.flatten import register_nodes
from prepbench.running.check_inputs import tensor_shapes

cache_utils = pytest.importorskip("transformers.cache_utils")
COUNT = "cumulative_length_int"


class Further(cache_utils.StaticSlidingWindowLayer):  # type: ignore[misc, name-defined]
    """Somebody's own kind of layer."""


@pytest.mark.parametrize("kind", [cache_utils.StaticSlidingWindowLayer, Further])
def test_they_are_leaves_and_come_back_as_numbers(kind: type) -> None:
    layer = kind(max_cache_len=32, sliding_window=8)  # type: ignore[call-arg]
    setattr(layer, COUNT, 11)
    register_nodes(layer)
    leaves, spec = pytree.tree_flatten(layer)
    assert [int(leaf) for leaf in leaves if isinstance(leaf, torch.Tensor)] == [0, 11]
    back = pytree.tree_unflatten(leaves, spec)
    assert (type(getattr(back, COUNT)), getattr(back, COUNT)) == (int, 11)


def test_they_stay_tensors_while_something_is_traced() -> None:
    layer = cache_utils.StaticSlidingWindowLayer(max_cache_len=32, sliding_window=8)
    register_nodes(layer)
    leaves, spec = pytree.tree_flatten(layer)
    with FakeTensorMode() as mode:
        fake = [mode.from_tensor(leaf) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
    assert isinstance(getattr(pytree.tree_unflatten(fake, spec), COUNT), torch.Tensor)


def test_samples_may_differ_in_them() -> None:
    layers = [cache_utils.StaticSlidingWindowLayer(max_cache_len=32, sliding_window=8) for _ in range(2)]
    layers[1].cumulative_length_int = 9
    register_nodes(layers)
    samples = [Sample((), {"cache": layer}, index) for index, layer in enumerate(layers)]
    assert tensor_shapes(lambda cache: None, samples) == {
        "cache.cumulative_length": [(), ()],
        f"cache.{COUNT}": [(), ()],
    }


def test_other_classes_have_none() -> None:
    assert not tensor_numbers(cache_utils.StaticLayer)
    assert not tensor_numbers(dict)
