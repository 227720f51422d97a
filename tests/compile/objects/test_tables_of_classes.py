"""A dict whose class makes an instance of each entry that is read, as tables of activations do."""

from __future__ import annotations

import collections
from typing import Any

import torch
from torch import nn

import prepbench as pb
from prepbench.objects.copy import Twin


class Table(collections.OrderedDict):
    made = 0

    def __getitem__(self, key: str) -> Any:
        Table.made += 1
        return super().__getitem__(key)()


TABLE = Table({"gelu": nn.GELU, "relu": nn.ReLU})


class Slotted(dict):
    """No ``__dict__``, and a ``__new__`` of its own."""

    __slots__ = ("scale",)

    def __new__(cls, entries: Any) -> Any:
        return super().__new__(cls)

    def __init__(self, entries: Any) -> None:
        super().__init__(entries)
        self.scale = 2.0

    def __getitem__(self, key: str) -> Any:
        return super().__getitem__(key)()


class Uses(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.own = nn.Linear(4, 4), Table({"tanh": nn.Tanh})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.own["tanh"](TABLE["gelu"](self.linear(x)))


def test_entries_stay_classes_and_are_not_made_by_reading() -> None:
    model = Uses().eval()
    Table.made = 0
    twin = Twin(model).model
    assert Table.made == 0
    assert type(twin.own) is Table
    assert dict.__getitem__(twin.own, "tanh") is nn.Tanh
    assert dict.__getitem__(TABLE, "gelu") is nn.GELU
    x = torch.randn(3, 4)
    torch.testing.assert_close(twin(x), model(x))


def test_what_a_table_has_beside_its_entries_is_copied() -> None:
    model = nn.Module()
    model.table = Slotted({"relu": nn.ReLU})
    twin = Twin(model).model
    assert twin.table is not model.table
    assert twin.table.scale == 2.0
    assert isinstance(twin.table["relu"], nn.ReLU)


def test_such_a_model_is_captured_and_compiled() -> None:
    model = Uses().eval()
    samples = [torch.randn(2, 4), torch.randn(3, 4)]
    compiled = pb.compile_model(model, tracing_inputs=samples)
    x = torch.randn(5, 4)
    torch.testing.assert_close(compiled(x), model(x))
    assert list(TABLE) == ["gelu", "relu"]
