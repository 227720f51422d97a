"""Axes are called by what they are for, and inputs that are alike are said once."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import prepbench as pb
from prepbench.capture.sizes.axis import short_names
from prepbench.errors import InputError


def cached(*images: Any, **more: Any) -> None:
    """A function with the arguments of a language model."""


def sample(batch: int, new: int, past: int, layers: int = 3, heads: int = 2) -> dict[str, Any]:
    caches = [[torch.ones(batch, heads, past, 8) for _ in "kv"] for _ in range(layers)]
    ids = torch.ones(batch, new, dtype=torch.long)
    return {"ids": ids, "mask": torch.ones(batch, past + new), "cache": caches}


def symbols(axes: pb.DynamicAxes) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for axis in axes.axes:
        found[axis.path] = (*found.get(axis.path, ()), axis.symbol)
    return found


@pytest.mark.parametrize("heads", [2, 12])
def test_caches_have_a_past_and_masks_the_total(heads: int) -> None:
    axes = pb.DynamicAxes.infer([sample(2, 3, 5, heads=heads), sample(3, 7, 11, heads=heads)], cached)
    found = symbols(axes)
    assert found["ids"] == ("batch", "sequence")
    assert found["mask"] == ("batch", "total")
    assert {found[path] for path in found if path.startswith("cache")} == {("batch", "", "past", "")}
    assert repr(axes).count("cache") == 1
    assert "cache[*][*] (6): (batch, " in repr(axes)


def test_images_keep_height_and_width_also_in_lists() -> None:
    def images(batch: int, size: int) -> Any:
        return ([torch.ones(batch, 3, size, size + batch)],)

    (found,) = symbols(pb.DynamicAxes.infer([images(1, 32), images(2, 48)], cached)).values()
    assert found == ("batch", "", "height", "width")
    one = pb.DynamicAxes.infer([torch.ones(2, 3, 32, 32), torch.ones(3, 3, 48, 32)], torch.nn.Conv2d(3, 3, 3))
    assert [axis.symbol for axis in one.dynamic] == ["batch", "height"]


def test_a_lone_tensor_in_a_list_has_no_height() -> None:
    axes = pb.DynamicAxes.infer([([torch.ones(2, 2, 5, 8)],), ([torch.ones(2, 2, 7, 8)],)], cached)
    assert [axis.symbol for axis in axes.dynamic] == ["sequence"]


def test_a_given_name_keeps_its_size_apart_from_short_ones() -> None:
    axes = pb.DynamicAxes.infer([torch.ones(2, 3, 32, 32), torch.ones(3, 3, 40, 48)], torch.nn.Conv2d(3, 3, 3))
    assert short_names(axes.dynamic) == {"batch": "B", "height": "H", "width": "W"}
    assert short_names(axes.rename("input", 3, "H").dynamic) == {"H": "H", "batch": "B", "height": "height"}


def test_a_star_means_every_index() -> None:
    axes = pb.DynamicAxes.infer([sample(2, 3, 5)], cached)
    dynamic = axes.set("cache[*][*]", 2)
    assert [axis.path for axis in dynamic.dynamic] == [f"cache[{i}][{j}]" for i in range(3) for j in range(2)]
    assert {axis.symbol for axis in axes.rename("cache[*][0]", 2, "length").dynamic} == {"length"}
    assert {axis.path for axis in axes.set("cache[*][1]", -2).dynamic} == {f"cache[{i}][1]" for i in range(3)}
    limited = axes.limit("cache[*][*]", 2, min=1, max=64)
    assert {axis.limits for axis in limited.dynamic} == {"1 to 64"}
    with pytest.raises(InputError, match="no tensor argument"):
        axes.set("cash[*]", 2)
    with pytest.raises(InputError, match="outside of"):
        axes.limit("cache[*][*]", 2, max=4)
    with pytest.raises(InputError, match="vary differently"):
        pb.DynamicAxes.infer(
            [{"a": [torch.ones(2), torch.ones(3)]}, {"a": [torch.ones(3), torch.ones(7)]}], cached
        ).rename("a[*]", 0, "n")
