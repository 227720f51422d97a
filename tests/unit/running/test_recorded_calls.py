"""Every submodule call is recorded without data, and the run leaves nothing behind."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from prepbench._torch_compat.fake_tensors import device_of
from prepbench.inputs import Sample
from prepbench.running.recorded_calls import Given, Undescribed, record_calls, record_run, wrapped_name


def samples(*tensors: torch.Tensor) -> list[Sample]:
    return [Sample((tensor,), {}, index) for index, tensor in enumerate(tensors)]


class Restless(nn.Module):
    """Changes everything that a forward can change."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.calls = 0
        self.cache: dict[str, Any] = {}
        self.register_buffer("steps", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.steps += 1
        self.cache["x"] = x
        x.mul_(2)
        return nn.functional.dropout(self.norm(x))


def test_recording_leaves_nothing_behind() -> None:
    model, x = Restless(), torch.randn(3, 4)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    original, state = x.clone(), torch.get_rng_state()
    calls = record_calls(model, samples(x))
    assert set(calls) == {"", "norm"}
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert (model.calls, model.cache, model.training) == (0, {}, True)
    assert torch.equal(x, original)
    assert torch.equal(torch.get_rng_state(), state)
    assert all("forward" not in vars(module) for module in model.modules())
    assert calls[""][0].changed == {0}
    assert not calls["norm"][0].changed


def test_no_data_is_kept() -> None:
    call = record_calls(nn.Linear(4, 2), samples(torch.randn(3, 4)))[""][0]
    for leaf, shape in ((call.inputs[0], (3, 4)), (call.outputs[0], (3, 2))):
        assert leaf.is_meta
        assert (leaf.shape, leaf.dtype, device_of(leaf)) == (shape, torch.float32, torch.device("cpu"))
    assert call.as_sample().args[0].shape == (3, 4)


class Cache:
    def __init__(self, keys: torch.Tensor, fixed: torch.Tensor) -> None:
        self.keys, self.fixed, self.steps = keys, fixed, 0


class Grow(nn.Module):
    def forward(self, x: torch.Tensor, cache: Cache) -> torch.Tensor:
        cache.keys = torch.cat([cache.keys, x])
        cache.steps += 1
        return x.clone()


def test_arguments_that_the_call_changed_are_part_of_the_result() -> None:
    cache = Cache(torch.ones(2, 3), torch.ones(3))
    (call,) = record_calls(Grow(), [Sample((torch.ones(1, 3), cache))])[""]
    assert call.restructured
    assert [leaf.shape for leaf in call.inputs] == [(1, 3), (2, 3), (3,)]
    output, x, fixed, keys, steps = call.outputs
    assert (output.shape, keys.shape, steps) == ((1, 3), (3, 3), 1)
    assert (x, fixed) == (Given(0), Given(2))
    assert (cache.keys.shape, cache.steps) == ((2, 3), 0), "the caller's object was changed"


@pytest.mark.parametrize(
    "function, shared",
    [
        (lambda x, y: x, "returns its argument"),
        (lambda x, y: x[0], "returns a view of its argument"),
        (lambda x, y: (x + 1).split(1), "returns two tensors that share memory"),
        (lambda x, y: y.add_(1).clone(), "writes into one of two arguments that share memory"),
        (lambda x, y: x + y, ""),
    ],
)
def test_shared_memory_is_told(function: Any, shared: str) -> None:
    class Part(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
            return function(x, y)

    class Whole(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.part = Part()

        def forward(self, x: torch.Tensor) -> Any:
            self.part(x, x[:1])
            return None

    assert record_calls(Whole(), samples(torch.ones(2, 3)))["part"][0].shared == shared


@torch.fx.wrap
def halved(x: torch.Tensor) -> torch.Tensor:
    return x[: len(x) // 2]


class Hooked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Identity()
        self.layer.register_forward_hook(lambda module, args, output: output[:1])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return halved(self.layer(x))


def test_calls_are_recorded_as_the_forward_or_as_the_caller_sees_them() -> None:
    (sample,) = samples(torch.ones(4, 2))
    inner, outer = record_run(Hooked(), sample).calls, record_run(Hooked(), sample, as_called=True).calls
    assert inner["layer"][0].outputs[0].shape == (4, 2)
    assert outer["layer"][0].outputs[0].shape == (1, 2)
    assert set(inner) == {"", "layer"}
    assert set(outer) == {"", "layer", wrapped_name(halved)}


def test_a_run_that_raises_has_the_calls_that_finished() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(4, 3))
    run = record_run(model, samples(torch.ones(2, 4))[0])
    assert set(run.calls) == {"0"}
    assert isinstance(run.error, RuntimeError)
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        record_calls(model, samples(torch.ones(2, 4)))


def test_scripted_modules_are_recorded_whole() -> None:
    model = nn.Sequential(torch.jit.script(nn.Sequential(nn.Linear(4, 3))), nn.ReLU())
    for as_called in (False, True):
        run = record_run(model, samples(torch.ones(2, 4))[0], as_called=as_called)
        assert {fqn: seen[0].outputs[0].shape for fqn, seen in run.calls.items()} == dict.fromkeys(
            ("0", "1", ""), (2, 3)
        )
    assert isinstance(model[0], torch.jit.ScriptModule)


def test_tensors_without_sizes_do_not_stop_the_recording() -> None:
    class Nested(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.nested.nested_tensor([x, x[:1]])

    model = nn.Sequential(nn.Linear(4, 3), Nested())
    calls = record_calls(model, samples(torch.ones(2, 4)))
    assert calls["0"][0].outputs[0].shape == (2, 3)
    assert calls["1"][0].outputs == (Undescribed("Tensor"),)
