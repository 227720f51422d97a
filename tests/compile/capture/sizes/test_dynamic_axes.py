from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import prepbench
from prepbench.capture.aten.capture import capture
from prepbench.capture.sizes.axis import Axis
from prepbench.capture.sizes.dynamic_axes import DynamicAxes
from prepbench.errors import InputError


def shapes(*sizes: tuple[int, ...]) -> list[torch.Tensor]:
    return [torch.randn(size) for size in sizes]


def dynamic(axes: DynamicAxes) -> list[tuple[str, int]]:
    return [(axis.path, axis.dim) for axis in axes.dynamic]


@pytest.mark.parametrize(
    "sizes, dims",
    [
        ([(1, 3, 224, 224), (2, 3, 224, 224)], [0]),
        ([(2, 3, 224, 224), (1, 3, 224, 224)], [0]),
        ([(1, 3, 224, 224), (1, 3, 320, 640)], [2, 3]),
        ([(1, 3, 224, 224), (2, 3, 320, 640)], [0, 2, 3]),
        ([(1, 1), (1, 256)], [1]),
        ([(1, 4), (1, 5), (2, 4)], [0, 1]),
        ([(1, 4), (1, 4)], []),
    ],
)
def test_a_dim_that_differs_between_any_two_samples_is_dynamic(sizes: list[Any], dims: list[int]) -> None:
    axes = DynamicAxes.infer([torch.empty(size) for size in sizes], nn.Identity())
    assert dynamic(axes) == [("input", dim) for dim in dims]
    assert len(axes.axes) == len(sizes[0])


def test_nested_arguments_have_readable_paths_and_share_a_symbol() -> None:
    def forward(x: torch.Tensor, *rest: torch.Tensor, past: Any = None, **extra: Any) -> torch.Tensor:
        return x

    def sample(batch: int, length: int) -> Any:
        past = [{"key": torch.empty(batch, length)}]
        return torch.empty(batch, 3), torch.empty(batch, 5), {"past": past, "z": torch.empty(4)}

    axes = DynamicAxes.infer([sample(1, 6), sample(2, 8), sample(2, 6)], forward)
    assert dynamic(axes) == [("x", 0), ("rest[0]", 0), ("past[0]['key']", 0), ("past[0]['key']", 1)]
    assert len({axis.symbol for axis in axes.dynamic}) == 2
    assert len({axis.symbol for axis in axes.dynamic if axis.dim == 0}) == 1


def test_identical_samples_say_how_to_get_dynamic_axes() -> None:
    text = repr(DynamicAxes.infer(shapes((2, 3), (2, 3)), nn.Identity()))
    assert "Nothing is dynamic" in text
    assert ".set(path, dim)" in text


def test_set_makes_a_new_value() -> None:
    axes = DynamicAxes.infer(shapes((1, 4), (2, 4)), nn.Identity())
    changed = axes.set("input", -1).set("input", 0, False)
    assert dynamic(axes) == [("input", 0)]
    assert dynamic(changed) == [("input", 1)]
    with pytest.raises(InputError, match="Nearest: 'input'"):
        axes.set("imput", 0)
    with pytest.raises(InputError, match="between 0 and 1"):
        axes.set("input", 2)


def test_code_rebuilds_the_axes_from_public_names() -> None:
    axes = DynamicAxes.infer(shapes((1, 4), (2, 4)), nn.Identity()).set("input", 1)
    namespace: dict[str, Any] = {}
    exec(axes.code(), namespace)
    assert namespace["axes"] == axes
    assert "prepbench." not in axes.code()
    exec(axes.code().removeprefix("import prepbench as pb"), {"pb": prepbench})


def test_dynamic_shapes_are_what_export_takes() -> None:
    model = nn.Linear(4, 2)
    samples = shapes((2, 4), (3, 4))
    axes = DynamicAxes.infer(samples, model)
    program = torch.export.export(model, (samples[0],), dynamic_shapes=axes.dynamic_shapes(model))
    assert program.module()(torch.randn(9, 4)).shape == (9, 2)


def test_axes_made_without_samples_need_one_for_export() -> None:
    axes = DynamicAxes((Axis("input", 0, (1, 2), True, "batch"),))
    with pytest.raises(InputError, match="sample="):
        axes.dynamic_shapes(nn.Identity())


def test_axes_of_another_model_are_refused() -> None:
    axes = DynamicAxes((Axis("pixels", 0, (1, 2), True, "batch"),))
    with pytest.raises(InputError, match=r"'pixels'.*Nearest: 'input'"):
        capture(nn.Linear(4, 2), shapes((1, 4)), dynamic_axes=axes)


class Shifted(nn.Module):
    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return x * mask[:, 1:]


def test_linked_axes_are_said_in_words() -> None:
    samples = [(torch.randn(2, 3), torch.randn(2, 4)), (torch.randn(3, 5), torch.randn(3, 6))]
    axes = DynamicAxes.infer(samples, Shifted())
    assert axes.linked == ("mask.shape[1] is x.shape[1] + 1 in every sample",)
    assert axes.linked[0] in repr(axes)


def test_rename_names_all_axes_that_vary_together() -> None:
    samples = [(torch.randn(2, 3), torch.randn(2, 4)), (torch.randn(3, 5), torch.randn(3, 6))]
    axes = DynamicAxes.infer(samples, Shifted()).rename("x", 0, "users")
    assert [(axis.path, axis.dim) for axis in axes.dynamic if axis.symbol == "users"] == [("x", 0), ("mask", 0)]
    assert axes.set("x", 0, True).axes[0].symbol == "users"
    scope: dict[str, Any] = {}
    exec(axes.code(), scope)
    assert scope["axes"] == axes
    with pytest.raises(InputError, match="identifier"):
        axes.rename("x", 0, "my users")
    with pytest.raises(InputError, match="one name is one size"):
        axes.rename("x", 1, "users")


def test_limits_of_an_axis() -> None:
    axes = DynamicAxes.infer(shapes((2, 3), (3, 3)), nn.Identity()).limit("input", 0, min=1, max=4)
    assert axes.axes[0].limits == "1 to 4"
    assert "1 to 4" in repr(axes)
    with pytest.raises(InputError, match="outside of at most 2"):
        axes.limit("input", 0, max=2)
    with pytest.raises(InputError, match="is empty"):
        axes.limit("input", 0, min=5, max=4)
