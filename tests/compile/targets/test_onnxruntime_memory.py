"""Results of ONNX Runtime are in its own memory, which no other result, input or call shares."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

import prepbench as pb


class Ends(nn.Module):
    """Gives back a constant, an input, the same tensor twice, truth values, and nothing of no length."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.arange(4.0))

    def forward(self, x: torch.Tensor, seen: torch.Tensor) -> tuple[torch.Tensor, ...]:
        more = x + 1
        return self.table, x, more, more, ~seen, x.view(-1), x[:0], x.sum()


@pytest.fixture(scope="module")
def compiled() -> pb.CompiledModel:
    return pb.compile_model(Ends(), tracing_inputs=[call(2), call(3)], deployment_settings=pb.OnnxRuntimeDeployment())


def call(rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.arange(3.0 * rows).reshape(rows, 3), torch.arange(rows) > 0


def test_writing_to_a_result_changes_nothing_else(compiled: pb.CompiledModel) -> None:
    given = call(4)
    expected, first = Ends()(*given), compiled(*given)
    second = compiled(*given)
    for one in first:
        one.zero_()
    for found, wanted in zip(second, expected, strict=True):
        torch.testing.assert_close(found, wanted)
    for found, wanted in zip(compiled(*given), expected, strict=True):
        torch.testing.assert_close(found, wanted)
    assert all(map(torch.equal, given, call(4)))


def test_results_outlive_the_model() -> None:
    model = pb.compile_model(
        nn.Linear(3, 2), tracing_inputs=torch.ones(2, 3), deployment_settings=pb.OnnxRuntimeDeployment()
    )
    found = model(torch.ones(2, 3))
    before = found.clone()
    del model
    torch.ones(1000).sum()
    assert torch.equal(found, before)


def test_results_feed_the_next_call_without_a_copy(compiled: pb.CompiledModel) -> None:
    kept = compiled(*call(2))[2]
    found = compiled(kept, call(2)[1])[2]
    torch.testing.assert_close(found, call(2)[0] + 2)


def test_threads_have_results_of_their_own(compiled: pb.CompiledModel) -> None:
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda rows: compiled(*call(rows)), [2 + n % 5 for n in range(40)]))
    for number, results in enumerate(found):
        torch.testing.assert_close(results[2], call(2 + number % 5)[0] + 1)


@pytest.mark.parametrize(
    "x", [torch.ones(3, 2).t(), torch.ones(2, 3, dtype=torch.float64)[::2], torch.ones(2, 3, requires_grad=True)]
)
def test_inputs_of_other_layouts(x: torch.Tensor) -> None:
    model = pb.compile_model(
        nn.ReLU(), tracing_inputs=torch.ones(x.shape, dtype=x.dtype), deployment_settings=pb.OnnxRuntimeDeployment()
    )
    assert torch.equal(model(x), x.detach().relu())
