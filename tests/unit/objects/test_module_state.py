"""What a forward leaves on its modules is put back: attributes, containers, buffers, parameters."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from prepbench.objects.restore import replaced_buffers, restored, same_bits


class Stateful(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.register_buffer("steps", torch.zeros(2))
        self.seen: list[int] = [1]
        self.cache: dict[str, Any] = {"a": 1, "b": 2}
        self.names = {"x"}


def change(model: Stateful) -> None:
    model.steps += 1
    model.seen.append(2)
    del model.cache["a"]
    model.cache["c"] = 3
    model.names.clear()
    model.added = 1
    del model.layer.bias
    model.layer.weight.requires_grad_(False)
    model.layer.weight.data = torch.zeros(2, 2)


@pytest.mark.parametrize("fails", [False, True])
def test_changes_are_undone(fails: bool) -> None:
    model = Stateful()
    state = {name: value.clone() for name, value in model.state_dict().items()}
    order = list(vars(model))
    containers = model.seen, model.cache, model.names
    try:
        with restored(model) as buffers:
            assert list(buffers) == ["steps"]
            change(model)
            if fails:
                raise ZeroDivisionError
    except ZeroDivisionError:
        pass
    assert {name: value.tolist() for name, value in model.state_dict().items()} == {
        name: value.tolist() for name, value in state.items()
    }
    assert list(vars(model)) == order
    assert (model.seen, list(model.cache.items()), model.names) == ([1], [("a", 1), ("b", 2)], {"x"})
    assert all(now is before for now, before in zip((model.seen, model.cache, model.names), containers, strict=True))
    assert model.layer.weight.requires_grad


def test_what_did_not_change_is_not_written_to() -> None:
    model = Stateful()
    version = model.steps._version
    with restored(model):
        model.seen.append(2)
    assert model.steps._version == version


def test_buffers_that_were_assigned_anew_are_found() -> None:
    model = Stateful()
    with restored(model) as buffers:
        old = model.steps
        model.steps = model.steps + 1
        ((before, after),) = replaced_buffers(model, buffers)
        assert before is old
        assert after is model.steps
        model.steps = torch.zeros(3)
        assert replaced_buffers(model, buffers) == [], "a buffer of another size cannot be written back"
    assert model.steps is old


def test_nan_is_the_same_as_nan() -> None:
    nan = torch.tensor([1.0, float("nan")])
    assert same_bits(nan, nan.clone())
    assert not same_bits(nan, torch.tensor([float("nan"), 1.0]))
