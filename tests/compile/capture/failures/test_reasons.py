"""Which reason is told for what dynamo and the trace say, and where."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import prepbench as pb
from prepbench.capture.aten.capture import FullGraphError
from prepbench.capture.modules.collection import recursive_trace

SAMPLES = [torch.randn(size, 4, generator=torch.Generator().manual_seed(size)) for size in (2, 3)]


class Recurs(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(4, 4)

    def forward(self, x):
        y, _ = self.rnn(x)
        return y


def test_a_recurrent_layer_is_not_to_be_rewritten() -> None:
    (failure,) = pb.check_traceability(Recurs(), SAMPLES).failures
    assert "take a recurrent layer as one operator" in failure.remedy
    assert pb.capture(Recurs(), SAMPLES).leaves == ()


class Selects(nn.Module):
    def forward(self, x):
        y = x * 2
        for value in (0, 1):
            where = (x > value).nonzero().squeeze(-1)
            if where.numel() == 0:
                continue
            y[where[:, 0]] = 0
        return y


def test_what_dynamo_says_first_is_the_reason_also_inside_a_loop() -> None:
    failures = pb.check_traceability(Selects(), SAMPLES).failures
    kinds = {failure.source.code: failure.kind for failure in failures if failure.source}
    assert kinds["where = (x > value).nonzero().squeeze(-1)"] == "data-dependent shape"


class WritesRows(nn.Module):
    def forward(self, x, lengths):
        mask = torch.zeros_like(x)
        for row, length in enumerate(lengths.tolist()):
            mask[row, :length] = 1
        return x * mask


def test_a_loop_over_rows_has_the_remedy_of_a_loop_in_the_trace_as_in_the_report() -> None:
    samples = [(torch.randn(n, 5), torch.arange(1, n + 1)) for n in (2, 3)]
    (failure,) = recursive_trace(WritesRows(), inputs=samples).failures
    assert failure.source is not None
    assert failure.source.code.startswith("for row, length in")
    assert failure.remedy.startswith("A loop over a size has as many steps")


class Named(nn.Module):
    def __init__(self):
        super().__init__()
        self.graph = nn.Sequential(nn.Linear(4, 4))

    def forward(self, x):
        return self.graph(x)


def test_a_part_whose_name_torch_needs_is_to_be_renamed() -> None:
    with pytest.raises(FullGraphError) as raised:
        pb.capture(Named(), SAMPLES)
    (failure,) = raised.value.failures
    assert "give the attribute of the model another name" in failure.remedy
