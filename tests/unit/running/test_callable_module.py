"""Functions and bound methods become modules; parameters and their names stay those of the owner."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch import nn

from prepbench.errors import InputError
from prepbench.running.callable_module import as_module, with_forward_fn


class Coder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Linear(4, 3), nn.Linear(3, 4)

    def decode(self, x: torch.Tensor) -> torch.Tensor:
        return self.decoder(x)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.decode(self.encoder(x))


def test_a_module_is_itself() -> None:
    model = Coder()
    assert as_module(model) is model


def test_a_bound_method_is_the_owner_with_another_forward() -> None:
    model, x = Coder(), torch.ones(2, 3)
    module = as_module(model.decode)
    assert torch.equal(module(x), model.decode(x))
    assert dict(module.named_parameters()).keys() == dict(model.named_parameters()).keys()
    assert module.decoder.weight is model.decoder.weight
    assert "forward" not in vars(model)


@pytest.mark.parametrize("partial", [False, True])
def test_modules_that_a_function_refers_to_are_its_children(partial: bool) -> None:
    layer = nn.Linear(4, 3)

    def function(x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        return layer(x) * scale

    module = as_module(functools.partial(function, scale=1.0) if partial else function)
    assert dict(module.named_children()) == {"layer": layer}
    assert torch.equal(module(torch.ones(1, 4)), layer(torch.ones(1, 4)))


def test_a_scripted_module_is_called_from_python() -> None:
    scripted = torch.jit.script(nn.Linear(4, 3))
    module = as_module(scripted)
    assert not isinstance(module, torch.jit.ScriptModule)
    assert torch.equal(module(torch.ones(1, 4)), scripted(torch.ones(1, 4)))


@pytest.mark.parametrize(("wrong", "text"), [(nn.ReLU, "Create one with ReLU"), (3, "got 3"), ("x", "got 'x'")])
def test_other_things_are_refused(wrong: Any, text: str) -> None:
    with pytest.raises(InputError, match=text):
        as_module(wrong)


def test_forward_fn_gets_the_model_as_it_was() -> None:
    model, x = Coder(), torch.ones(2, 4)
    module = with_forward_fn(model, lambda inner, args, kwargs: inner(*args, **kwargs) + inner.encoder.out_features)
    assert torch.equal(module(x), model(x) + 3)
    assert dict(module.named_parameters()).keys() == dict(model.named_parameters()).keys()
    assert "forward" not in vars(model)
