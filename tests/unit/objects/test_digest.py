"""A digest changes with everything that it stands for and with nothing else, and those in files keep their bytes."""

from __future__ import annotations

import collections
import functools
import time
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from prepbench.objects.digest import (
    data_digest,
    leaves_digest,
    model_digest,
    state_digest,
    tensor_digest,
    value_mark,
)
from prepbench.objects.function_digest import read_function

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
    before = state_digest(net)
    assert state_digest(net) == before
    change(net)
    after = state_digest(net)
    assert after != before
    assert state_digest(net) == after


@pytest.mark.parametrize(
    ("owner", "name", "value"),
    [(Net, "kind", "other"), (SPACE, "factor", 3.0), ("module", "SCALE", 3.0), (Net, "forward", lambda self, x: x)],
    ids=["class attribute", "object that is a global", "global", "method of the class"],
)
def test_a_change_outside_of_the_model_is_seen(
    owner: Any, name: str, value: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = Net()
    before = state_digest(net)
    if owner == "module":
        monkeypatch.setitem(globals(), name, value)
    else:
        monkeypatch.setattr(owner, name, value)
    assert state_digest(net) != before


def test_a_run_changes_nothing() -> None:
    net = Net().eval()
    before = state_digest(net)
    net(torch.randn(3, 4))
    assert state_digest(net) == before


def test_samples_are_compared_by_value() -> None:
    one, other = ({"x": [torch.arange(3.0), 2]} for _ in range(2))
    assert state_digest(one, by_value=True) == state_digest(other, by_value=True)
    assert state_digest(one) != state_digest(other)
    other["x"][0][1] += 1
    assert state_digest(one, by_value=True) != state_digest(other, by_value=True)
    assert state_digest([torch.ones(2, 3)], by_value=True) != state_digest([torch.ones(3, 2)], by_value=True)
    assert state_digest([torch.ones(2)], by_value=True) != state_digest([torch.ones(2).double()], by_value=True)


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
    assert state_digest(deep, odd) == state_digest(deep, odd)


def test_functions_are_read_through_their_closure() -> None:
    net = Net()
    function = lambda x: net(x)  # noqa: E731 (a closure is what is tested)
    before = state_digest(function)
    write(net)
    assert state_digest(function) != before


class Kept(torch.Tensor):
    """A tensor of another class, that no operator is defined for."""

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(function, "__name__", "") in ("reshape", "__getitem__", "view", "cpu"):
            raise NotImplementedError(function)
        return super().__torch_function__(function, types, args, kwargs or {})


def holding(value: torch.Tensor) -> nn.Module:
    module = nn.Module()
    module.register_buffer("value", value)
    return module


@pytest.mark.parametrize(
    "value",
    [
        torch.randn(3, 5),
        torch.randn(5, 3).t(),
        torch.randn(2, 3, 4, 5).permute(3, 1, 0, 2),
        torch.tensor(2.0),
        torch.tensor([True, False]),
        torch.randn(4, dtype=torch.complex64).conj(),
        torch.randn(300).bfloat16(),
    ],
    ids=["plain", "transposed", "permuted", "number", "bool", "conjugated", "half"],
)
def test_a_write_that_torch_does_not_see_is_seen(value: torch.Tensor) -> None:
    module = holding(value)
    before = value_mark(module)
    assert value_mark(module) == before
    value.data[...] = 0
    assert value_mark(module) != before


@pytest.mark.parametrize(
    "value",
    [torch.empty(0, 3), torch.empty(2, device="meta"), torch.eye(2).to_sparse(), torch.ones(2).as_subclass(Kept)],
)
def test_what_has_no_plain_values_has_a_mark(value: torch.Tensor) -> None:
    assert value_mark(holding(value)) == value_mark(holding(value))


def test_a_large_transposed_tensor_is_not_copied() -> None:
    module = holding(torch.zeros(4000, 8000).t())
    copied, taken = [], []
    for call, times in ((lambda: module.value.contiguous(), copied), (lambda: value_mark(module), taken)):
        for _ in range(3):
            start = time.perf_counter()
            call()
            times.append(time.perf_counter() - start)
    assert min(taken) < min(copied) / 5


TURNED = torch.arange(6.0).reshape(2, 3).t()
WRITTEN = [
    ((TURNED, {"mask": torch.tensor([True, False]), "n": [1, 2.5, None, "a", b"b"], 3: (torch.float16, ...)}), "68d0"),
    (collections.OrderedDict(a=torch.tensor(1 + 2j), b=np.arange(3)), "220b"),
    (collections.deque([torch.ones(2).bfloat16()]), "5384"),
    ({"s"}, "6772"),
    (np.array([1, "x"], dtype=object), "efdc"),
    (torch.eye(2).to_sparse(), "ec9b"),
    (torch.empty(0), "4495"),
    (np.float32(2.0), "179f"),
    (range(3), "7d05"),
    (torch.Size([2]), "d2cc"),
]


@pytest.mark.parametrize(("value", "begin"), WRITTEN, ids=[type(value).__name__ for value, _ in WRITTEN])
def test_digests_of_data_are_those_of_earlier_versions(value: Any, begin: str) -> None:
    assert data_digest([value])[:4] == begin


def test_digests_of_all_data_models_and_calls_are_those_of_earlier_versions() -> None:
    """They stand in journals, benches and manifests, which would no longer be recognised."""
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 1, bias=False))
    with torch.no_grad():
        for number, parameter in enumerate(model.parameters()):
            parameter.copy_(torch.arange(parameter.numel()).reshape(parameter.shape) / 8 + number)
    model.register_buffer("factor", torch.tensor(2.5))
    model.register_buffer("empty", torch.empty(0, 3))
    model.register_buffer("away", torch.ones(2, device="meta"))
    model.register_buffer("low", TURNED.T.bfloat16().t())
    assert data_digest(value for value, _ in WRITTEN) == "eb5ec5283afc2035"
    assert model_digest(model) == "218687796b7f5415-ba62df9b04f6eda9"
    call = [TURNED, 1, "a", None, {"b": torch.empty(0)}]
    assert leaves_digest([call, torch.ones(2).bfloat16()]) == "544ba2e635ed5e66"
    assert read_function(functools.partial(max, 1)).digest() == "abc7b8ddfcf0f6f9"
    assert read_function(functools.partial(max, 1, key=abs)).digest() == "84c0d57256fe64c2"
    tensors = [model[0].weight, model.factor, model.low, model.away, torch.eye(2).to_sparse()]
    assert [tensor_digest(value)[:8] for value in tensors] == ["259a2e23", "072e3304", "ccfdab2b", "", ""]


def test_a_tensor_is_read_in_blocks_and_in_index_order(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = tensor_digest(TURNED)
    assert whole == tensor_digest(TURNED.contiguous()) != tensor_digest(TURNED.T)
    monkeypatch.setattr("prepbench.objects.digest._BLOCK", 5)
    assert tensor_digest(TURNED) == whole


class Holder:
    __slots__ = ("__state",)

    def __init__(self) -> None:
        self.__state = [1]

    def write(self) -> None:
        self.__state.append(2)


def test_private_slots_and_slices_count() -> None:
    net, holder = Net(), Holder()
    net.holder = holder
    before = state_digest(net)
    holder.write()
    assert state_digest(net) != before
    assert state_digest(slice(1, 2)) == state_digest(slice(1, 2)) != state_digest(slice(1, 3))
