"""A fingerprint changes with everything that a call may depend on, and with nothing else."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from prepbench.running.fingerprint import fingerprint

SCALE = 2.0
SPACE = types.SimpleNamespace(factor=1.0)


class Config:
    def __init__(self) -> None:
        self.use_cache, self.sizes = True, {"hidden": [4, 8]}


class Net(nn.Module):
    kind = "plain"

    def __init__(self) -> None:
        super().__init__()
        self.one, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)
        self.register_buffer("table", torch.arange(4.0))
        self.config, self.bias, self.names = Config(), np.ones(3), {"b", "a", "c"}
        self.activation: Callable[[Any], Any] = torch.relu

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.activation(self.norm(self.one(x))) * SCALE * SPACE.factor


@torch.no_grad()
def write(net: Net) -> None:
    net.one.weight[0, 0] += 1


def write_past_the_counter(net: Net) -> None:
    net.one.weight.data.view(-1)[3] = 7


def write_through_numpy(net: Net) -> None:
    net.table.numpy()[0] = 5


def train_a_step(net: Net) -> None:
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    net(torch.randn(3, 4)).sum().backward()
    optimizer.step()


def change_closure(net: Net) -> None:
    factor = [1.0]
    net.activation = lambda x: x * factor[0]


CHANGES: dict[str, Callable[[Net], Any]] = {
    "in place": write,
    "past the counter": write_past_the_counter,
    "through numpy": write_through_numpy,
    "load_state_dict": lambda net: net.load_state_dict(Net().state_dict()),
    "an optimizer's step": train_a_step,
    "batch norm's statistics": lambda net: net.norm(torch.randn(3, 4)),
    "another parameter of the same value": lambda net: setattr(
        net.one, "weight", nn.Parameter(net.one.weight.detach())
    ),
    "a flag": lambda net: net.norm.eval(),
    "requires_grad": lambda net: net.one.requires_grad_(False),
    "a submodule": lambda net: setattr(net, "one", nn.Linear(4, 4)),
    "a new submodule": lambda net: net.add_module("two", nn.ReLU()),
    "a hook": lambda net: net.one.register_forward_hook(lambda *_: None),
    "a plain attribute": lambda net: setattr(net.norm, "eps", 1e-3),
    "an attribute of an object": lambda net: setattr(net.config, "use_cache", False),
    "a list in a dict in an object": lambda net: net.config.sizes["hidden"].append(1),
    "an array": lambda net: net.bias.fill(2),
    "a set": lambda net: net.names.add("d"),
    "a function": lambda net: setattr(net, "activation", torch.tanh),
    "a closure": change_closure,
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_a_change_is_seen(change: Callable[[Net], Any]) -> None:
    torch.manual_seed(0)
    net = Net().train()
    before = fingerprint(net)
    assert fingerprint(net) == before
    change(net)
    after = fingerprint(net)
    assert after != before
    assert fingerprint(net) == after


@pytest.mark.parametrize(
    ("owner", "name", "value"),
    [(Net, "kind", "other"), (SPACE, "factor", 3.0), ("module", "SCALE", 3.0), (Net, "forward", lambda self, x: x)],
    ids=["class attribute", "object that is a global", "global", "method of the class"],
)
def test_a_change_outside_of_the_model_is_seen(
    owner: Any, name: str, value: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = Net()
    before = fingerprint(net)
    if owner == "module":
        monkeypatch.setitem(globals(), name, value)
    else:
        monkeypatch.setattr(owner, name, value)
    assert fingerprint(net) != before


def test_a_run_changes_nothing() -> None:
    net = Net().eval()
    before = fingerprint(net)
    net(torch.randn(3, 4))
    assert fingerprint(net) == before


def test_samples_are_compared_by_value() -> None:
    one, other = ({"x": [torch.arange(3.0), 2]} for _ in range(2))
    assert fingerprint(one, by_value=True) == fingerprint(other, by_value=True)
    assert fingerprint(one) != fingerprint(other)
    other["x"][0][1] += 1
    assert fingerprint(one, by_value=True) != fingerprint(other, by_value=True)
    assert fingerprint([torch.ones(2, 3)], by_value=True) != fingerprint([torch.ones(3, 2)], by_value=True)
    assert fingerprint([torch.ones(2)], by_value=True) != fingerprint([torch.ones(2).double()], by_value=True)


def test_circles_depth_and_odd_tensors_are_read() -> None:
    deep: list[Any] = []
    deep.append(deep)
    for _ in range(5000):
        deep = [deep]
    odd = [torch.empty(0), torch.ones(3, device="meta"), torch.eye(3).to_sparse(), torch.ones(2).bool().conj()]
    odd += [
        torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.quint8),
        torch.tensor(1 + 2j),
        torch.ones(3).bfloat16(),
    ]
    assert fingerprint(deep, odd) == fingerprint(deep, odd)


def test_functions_are_read_through_their_closure() -> None:
    net = Net()
    function = lambda x: net(x)  # noqa: E731 (a closure is what is tested)
    before = fingerprint(function)
    write(net)
    assert fingerprint(function) != before
