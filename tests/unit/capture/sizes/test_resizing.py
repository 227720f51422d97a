from __future__ import annotations

import torch
from torch import nn

from prepbench.capture.sizes.dynamic_axes import DynamicAxes
from prepbench.capture.sizes.resizing import base_sample, linked_axes, resized_to_fit, sizes_in, with_sums
from prepbench.running.given_samples import normalize_samples


class Join(nn.Module):
    def forward(self, cache: torch.Tensor, new: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return torch.cat([cache, new], 1) * mask


class Apart(nn.Module):
    """Takes any sizes, but ``z`` only in multiples of 4."""

    def forward(self, x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        return x.sum() + y.sum() + z.unflatten(1, (-1, 4)).sum()


def lengths(*rows: tuple[int, int, int]) -> list[tuple[torch.Tensor, ...]]:
    return [tuple(torch.ones(2, size) for size in row) for row in rows]


def test_a_sum_follows_its_parts_and_a_part_follows_the_sum() -> None:
    samples = normalize_samples(Join(), lengths((0, 5, 5), (5, 1, 6)))
    groups = linked_axes(DynamicAxes.infer(samples, Join()))
    cache, new, mask = groups
    sizes = sizes_in(Join(), samples[0])
    assert with_sums({new: 2}, groups, sizes) == {new: 2, mask: 2}
    assert with_sums({cache: 1, new: 2}, groups, sizes) == {cache: 1, new: 2, mask: 3}
    # an empty cache cannot get longer by repeating its entries
    assert with_sums({mask: 3}, groups, sizes) == {new: 3, mask: 3}
    assert with_sums({mask: 3}, groups, sizes_in(Join(), samples[1])) == {cache: 3, mask: 3}


def test_the_base_sample_is_one_that_the_model_takes() -> None:
    samples = normalize_samples(Join(), lengths((0, 5, 5), (5, 1, 6)))
    base = base_sample(Join(), samples, DynamicAxes.infer(samples, Join()))
    cache, new, mask = (leaf.shape[1] for leaf in base.args)
    assert cache + new == mask
    assert min(cache, new) >= 2


def test_a_sum_by_chance_does_not_follow_where_the_model_refuses_it() -> None:
    samples = normalize_samples(Apart(), lengths((1, 3, 4), (3, 5, 8)))
    groups = linked_axes(DynamicAxes.infer(samples, Apart()))
    first = next(iter(groups))
    made = resized_to_fit(Apart(), samples[0], {first: 1}, groups)
    assert made.args[2].shape[1] % 4 == 0
