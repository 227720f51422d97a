"""What failed parts return on the samples: recorded when asked for, told for sizes that no sample has."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import prepbench as pb
from prepbench.capture.modules.sample_runs import SampleRuns
from prepbench.capture.sizes.learned_outputs import UnknownOutputsError
from prepbench.inputs import Sample


class Pool(nn.Module):
    def forward(self, x: torch.Tensor, keep: int) -> torch.Tensor:
        return x[:, ::2] * (1 if x.sum() > 0 else 2) if keep > 1 else x[:, :1]


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.pool, self.runs = Pool(), 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.runs += 1
        return self.pool(x, 2).sum() + self.pool(x, 1).sum()


def runs_of(model: Any, *tensors: torch.Tensor) -> SampleRuns:
    return SampleRuns(model, [Sample((tensor,), {}, index) for index, tensor in enumerate(tensors)])


def empty(seen: torch.Tensor, sizes: list[Any]) -> torch.Tensor:
    return torch.empty(sizes)


def output(runs: SampleRuns, number: int, *inputs: Any, fqn: str = "pool") -> Any:
    return runs.output(fqn, number, (inputs, {}), empty, lambda: 99)[0]


def test_the_model_runs_only_when_asked() -> None:
    model = Twice()
    runs = runs_of(model, torch.ones(2, 8))
    assert (runs.recorded, runs.count("pool"), runs.error) == (False, 0, None)
    runs.record()
    assert (runs.recorded, runs.count("pool"), runs.count("other")) == (True, 2, 0)
    assert model.runs == 0


def test_each_call_of_a_module_has_outputs_of_its_own() -> None:
    runs = runs_of(Twice(), torch.ones(2, 8), torch.ones(3, 10))
    runs.record()
    assert output(runs, 0, torch.ones(5, 20), 2).shape == (5, 10)
    assert output(runs, 1, torch.ones(5, 20), 1).shape == (5, 1)
    assert output(runs, 9, torch.ones(5, 20), 1).shape == (5, 1), "further calls are like the last"


def test_a_call_unlike_those_on_the_samples_has_unknown_sizes() -> None:
    runs = runs_of(Twice(), torch.ones(2, 8), torch.ones(3, 10))
    runs.record()
    assert output(runs, 1, torch.ones(5)).shape == (99, 1)


def test_inputs_of_parts_become_samples_without_data() -> None:
    runs = runs_of(Twice(), torch.ones(2, 8), torch.ones(3, 10))
    samples = runs.samples_for("pool")
    assert [(sample.args[0].shape, sample.args[0].is_meta, sample.index) for sample in samples] == [
        ((2, 8), True, 0), ((3, 10), True, 1),
    ]  # fmt: skip
    assert runs.samples_for("other") == []


def test_an_error_of_the_model_is_kept_with_what_ran_before() -> None:
    model = nn.Sequential(nn.Linear(8, 4), nn.Linear(8, 4))
    runs = runs_of(model, torch.ones(2, 8))
    runs.record()
    assert isinstance(runs.error, RuntimeError)
    assert (runs.count("0"), runs.count("1")) == (1, 0)


class Grow(nn.Module):
    def forward(self, x: torch.Tensor, cache: list[torch.Tensor]) -> torch.Tensor:
        cache.append(x)
        return x


class Yields(nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        return (row for row in x)


class Around(nn.Module):
    def __init__(self, pool: nn.Module, *more: Any) -> None:
        super().__init__()
        self.pool, self.more = pool, more

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.pool(x, *self.more)
        return x


def test_what_cannot_be_known_is_an_error() -> None:
    runs = runs_of(Around(Grow(), []), torch.ones(2, 8))
    runs.record()
    with pytest.raises(UnknownOutputsError, match="arguments are mutated"):
        output(runs, 0, torch.ones(2, 8), [])
    runs = runs_of(Around(Yields()), torch.ones(2, 8))
    runs.record()
    with pytest.raises(UnknownOutputsError, match="returns an iterator"):
        next(output(runs, 0, torch.ones(2, 8)))


@torch.fx.wrap
def chosen(x: torch.Tensor) -> torch.Tensor:
    return x[:1] if x.sum() > 0 else x[1:2]


def doubled(x: torch.Tensor) -> torch.Tensor:
    return chosen(x) * 2


def test_wrapped_functions_in_a_plain_function_are_known_too() -> None:
    collection = pb.recursive_trace(doubled, inputs=[torch.ones(3, 2), torch.ones(4, 2)])
    assert collection.failures == ()
    assert collection.graph_module()(torch.ones(6, 2)).tolist() == [[2, 2]]
