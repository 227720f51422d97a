"""Formats of numbers: each entry of the table agrees with torch, and a further one needs nothing but its entry."""

from __future__ import annotations

import pytest
import torch

from prepbench.settings import QuantizationSettings, numbers
from prepbench.settings.numbers import FORMATS, INT4, NumberFormat, format_named, format_of_bits
from prepbench.settings.quantization import activation_format, weight_formats
from prepbench.views.overlays import make_overlay


@pytest.mark.parametrize("one", FORMATS, ids=lambda one: one.name)
def test_a_format_fits_the_type_that_holds_it(one: NumberFormat) -> None:
    ends = torch.tensor([one.low, one.high], dtype=torch.float64)
    assert one.holds(ends)
    assert not one.holds(2 * ends + 1)
    assert torch.equal(ends.to(one.dtype).to(torch.float64), ends)
    assert one.is_float is one.dtype.is_floating_point
    assert one.bits <= 8 * one.dtype.itemsize
    assert one.is_float or one.steps == 2**one.bits - 1


@pytest.mark.parametrize("one", FORMATS, ids=lambda one: one.name)
def test_each_name_is_of_one_format(one: NumberFormat) -> None:
    assert all(format_named(name) is one for name in (one.name, *one.aliases))
    assert str(one.dtype).removeprefix("torch.").startswith(one.name) or one.bits < 8


def test_a_number_of_bits_means_integers_and_32_means_float() -> None:
    assert [format_of_bits(bits).name for bits in (4, 8, 16, 32)] == ["int4", "int8", "int16", "float32"]
    assert [format_of_bits(bits).unsigned.name for bits in (4, 8, 16)] == ["uint4", "uint8", "int16"]
    assert [format_of_bits(bits).name for bits in (0, 7, 64)] == ["int4", "int8", "float32"]  # in reports of others


def test_settings_say_their_formats() -> None:
    settings = QuantizationSettings(weights_num_bits=[8, 4], activations_num_bits=16)
    assert [one.name for one in weight_formats(settings)] == ["int8", "int4"]
    assert activation_format(settings).name == "int16"
    assert activation_format(QuantizationSettings(prefer_weights_only_quantization=True)).is_float


def test_a_further_format_is_one_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    two = NumberFormat("int2", 2, torch.int8, -2, 1, aliases=("i2",))
    monkeypatch.setattr(numbers, "FORMATS", (*FORMATS, two, NumberFormat("uint2", 2, torch.uint8, 0, 3)))
    assert {format_named(text) for text in ("int2", "i2", "2")} == {format_of_bits(2)} == {two}
    assert two.unsigned.name == "uint2"
    assert [one.text for one in make_overlay({"a": "int2 weights", "b": 8}, [], name="bits").values] == [
        "int4 weights",
        "int8",
    ]
    assert format_of_bits(4) is INT4
