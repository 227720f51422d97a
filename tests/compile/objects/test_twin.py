"""Twins: the same computation, nothing of the original is called or written to."""

from __future__ import annotations

import collections
import functools
import types
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

import prepbench as pb
from prepbench.objects.copy import Twin


class Meter:
    """State in a plain object, which also leads back to the model."""

    def __init__(self, owner: nn.Module) -> None:
        self.owner = owner
        self.seen: list[float] = []

    def note(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.append(float(x.shape[0]))
        return self.owner.inner(x)


class Tangled(nn.Module):
    """Modules in lists, closures, partials, hooks and objects; shared and tied ones; buffers that share memory."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 3)
        self.again = self.inner
        self.tied = nn.Linear(3, 3)
        self.tied.weight = self.inner.weight
        self.parametrized = parametrizations.weight_norm(nn.Linear(3, 3))
        self.hidden = [nn.Linear(3, 3)]
        self.meter = Meter(self)
        old = self.tied.forward
        self.tied.forward = lambda x: old(x) + 1
        self.call = functools.partial(
            self.hidden[0],
        )
        self.register_buffer("steps", torch.zeros(4))
        self.register_buffer("first", self.steps[:2])
        self.cache: dict[str, Any] = {}
        self.register_forward_hook(self.hook)

    def hook(self, module: nn.Module, args: Any, output: torch.Tensor) -> torch.Tensor:
        self.cache["last"] = output
        return output * 2

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.steps += 1
        return self.call(self.parametrized(self.tied(self.meter.note(x)))) + self.first.sum()


def test_computes_the_same_and_writes_nowhere_else() -> None:
    model, x = Tangled(), torch.ones(2, 3)
    twin = Twin(model).model
    found = twin(x)
    assert (model.steps.tolist(), model.cache, model.meter.seen) == ([0.0] * 4, {}, [])
    assert torch.equal(found, model(x))


def test_nothing_of_the_original_is_called() -> None:
    model = Tangled()
    twin = Twin(model).model
    called: list[nn.Module] = []
    for module in (*model.modules(), model.hidden[0]):
        module.register_forward_pre_hook(lambda module, args: called.append(module))
    twin(torch.ones(2, 3))
    assert not called


def test_sharing_stays_and_parts_are_found_again() -> None:
    model = Tangled()
    twin = Twin(model)
    copy = twin.model
    assert copy.again is copy.inner is not model.inner
    assert copy.tied.weight is copy.inner.weight is model.inner.weight
    assert copy.meter.owner is copy
    assert copy.first.data_ptr() == copy.steps.data_ptr() != model.steps.data_ptr()
    assert twin.original(copy.hidden[0]) is model.hidden[0]
    assert twin.of(model.inner) is copy.inner
    assert twin.original(copy.steps) is model.steps
    assert list(vars(copy)) == list(vars(model))


@pytest.mark.parametrize("kind", ["scripted", "compiled", "traced"])
def test_modules_that_others_made(kind: str) -> None:
    layer = nn.Linear(3, 3)
    if kind == "compiled":
        made: Any = torch.compile(layer, backend="eager")
    elif kind == "traced":
        made = torch.fx.symbolic_trace(layer)
    else:
        with pytest.warns(DeprecationWarning, match="script"):
            made = torch.jit.script(layer)
    model = nn.Sequential(made, nn.ReLU())
    x = torch.ones(2, 3)
    assert torch.equal(Twin(model).model(x), model(x))


def test_functions_lead_to_twins_of_what_they_close_over() -> None:
    layer = nn.BatchNorm1d(3)

    def function(x: torch.Tensor) -> torch.Tensor:
        return layer(x)

    twin = Twin(function)
    twin.model(torch.ones(2, 3))
    assert int(layer.num_batches_tracked) == 0
    assert int(twin.of(layer).num_batches_tracked) == 1


class Named(dict[str, Any]):
    """A dict with attributes."""


def held_by(layer: nn.Module) -> dict[str, Any]:
    """Everything that a model may hold a module in, as functions that call it."""
    named, array, space = Named(), np.array([layer, None]), types.SimpleNamespace(layer=layer)
    named.layer = layer  # type: ignore[attr-defined]
    method = types.MethodType(lambda self, x: layer(x), {})
    frozen, several = frozenset([layer]), collections.deque([layer])
    return {
        "a default": lambda x, layer=layer: layer(x),
        "a keyword's default": lambda x, *, layer=layer: layer(x),
        "a method's closure": method,
        "an attribute of a dict": lambda x: named.layer(x),  # type: ignore[attr-defined]
        "an array": lambda x: array[0](x),
        "a frozen set": lambda x: next(iter(frozen))(x),
        "a deque": lambda x: several[0](x),
        "a namespace": lambda x: space.layer(x),
    }


@pytest.mark.parametrize("place", held_by(nn.Identity()))
def test_a_module_is_reached_wherever_it_is_held(place: str) -> None:
    layer = nn.BatchNorm1d(3)
    twin = Twin(held_by(layer)[place])
    twin.model(torch.ones(2, 3))
    assert int(layer.num_batches_tracked) == 0
    assert int(twin.of(layer).num_batches_tracked) == 1


def test_functions_that_hold_no_modules_stay_themselves() -> None:
    def function(x: torch.Tensor, size: tuple[int, int] = (1, 2), *, by: float = 1.0) -> torch.Tensor:
        return x.reshape(size) * by

    assert Twin([function]).model == [function]


def test_results_hold_the_users_own_tensors() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)).eval()
    program = pb.capture(model, [torch.ones(2, 3), torch.ones(4, 3)]).program
    for name, tensor in model.state_dict(keep_vars=True).items():
        assert program.state_dict[name] is tensor
