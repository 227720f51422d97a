"""Recurrent layers over sequences of dynamic length."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
from torch import nn

import prepbench as pb
from prepbench.capture.aten.capture import capture
from prepbench.capture.aten.captured import Captured
from prepbench.capture.sizes.recurrent import has_recurrent_layers, lstm_layer, recurrent_layer

KINDS = {
    "lstm": nn.LSTM(4, 6, 2, batch_first=True, bidirectional=True),
    "lstm without biases": nn.LSTM(4, 6, bias=False),
    "gru": nn.GRU(4, 6, 2, bidirectional=True),
    "gru batch first": nn.GRU(4, 6, batch_first=True, dropout=0.5, num_layers=2),
    "tanh": nn.RNN(4, 6, 2, bidirectional=True, batch_first=True),
    "relu": nn.RNN(4, 6, nonlinearity="relu"),
    "lstm with projections": nn.LSTM(4, 6, 2, batch_first=True, bidirectional=True, proj_size=5),
    "lstm with projections without biases": nn.LSTM(4, 6, bias=False, proj_size=2),
}


def check(captured: Captured, model: nn.Module, *arguments: Any) -> None:
    with torch.no_grad():
        torch.testing.assert_close(captured.program.module()(*arguments), model(*arguments))


@pytest.mark.parametrize("name", KINDS)
def test_length_and_batch_are_dynamic(name: str) -> None:
    model = KINDS[name].eval()
    captured = capture(model, [torch.randn(2, 7, 4), torch.randn(3, 11, 4)])
    assert captured.leaves == ()
    assert has_recurrent_layers(captured.program)
    assert captured.verify().passed
    for sizes in ((1, 1), (5, 30), (30, 2)):
        check(captured, model, torch.randn(*sizes, 4))


def test_a_given_state() -> None:
    model = nn.LSTM(4, 6, 2).eval()

    def sample(length: int, batch: int) -> tuple[Any, ...]:
        return torch.randn(length, batch, 4), (torch.randn(2, batch, 6), torch.randn(2, batch, 6))

    captured = capture(model, [sample(3, 2), sample(5, 3)])
    assert captured.leaves == ()
    check(captured, model, *sample(9, 1))


def test_a_length_that_is_static_keeps_the_operator_of_torch() -> None:
    captured = capture(nn.GRU(4, 6).eval(), [torch.randn(5, 2, 4), torch.randn(5, 3, 4)])
    assert not has_recurrent_layers(captured.program)


def test_a_sequence_without_a_batch() -> None:
    model = nn.LSTM(4, 6, batch_first=True).eval()
    captured = capture(model, [torch.randn(5, 4), torch.randn(9, 4)])
    check(captured, model, torch.randn(2, 4))


@pytest.mark.parametrize("lengths", [(5, 9), (5, 5)], ids=["dynamic", "static"])
def test_dropout_that_is_active_draws_as_the_layer_does(lengths: tuple[int, int]) -> None:
    model = nn.LSTM(4, 6, 3, dropout=0.5, bidirectional=True).train()
    first, second = (torch.randn(length, 2 + i, 4) for i, length in enumerate(lengths))
    program = capture(model, [first, second]).program.module()
    for x in (first, second):
        torch.manual_seed(3)
        found = program(x)
        torch.manual_seed(3)
        torch.testing.assert_close(found, model(x))
        torch.manual_seed(4)
        assert not torch.allclose(found[0], model(x)[0])


def test_a_long_sequence_costs_no_more_than_a_short_one() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.GRU(4, 6, 2, batch_first=True)).eval()

    def seconds(lengths: tuple[int, int]) -> float:
        start = time.perf_counter()
        capture(model, [torch.randn(2, length, 4) for length in lengths])
        return time.perf_counter() - start

    seconds((5, 7))
    # its steps one by one would take a hundred times as long
    assert seconds((500, 700)) < 5 * seconds((5, 7))


def test_the_operators_say_the_sizes_of_what_they_return() -> None:
    x, h, c = torch.randn(5, 3, 4), torch.randn(2, 3, 6), torch.randn(2, 3, 6)
    weights = [parameter.detach() for parameter in nn.LSTM(4, 6, bidirectional=True).parameters()]
    torch.library.opcheck(lstm_layer, (x, h, c, weights), test_utils=("test_schema", "test_faketensor"))
    weights = [parameter.detach() for parameter in nn.LSTM(4, 6, bidirectional=True, proj_size=2).parameters()]
    arguments = (x, h[..., :2].contiguous(), c, weights)
    torch.library.opcheck(lstm_layer, arguments, test_utils=("test_schema", "test_faketensor"))
    for kind, layer in (("gru", nn.GRU(4, 6)), ("rnn_relu", nn.RNN(4, 6, nonlinearity="relu"))):
        weights = [parameter.detach() for parameter in layer.parameters()]
        arguments = (x, h[:1], weights, kind)
        torch.library.opcheck(recurrent_layer, arguments, test_utils=("test_schema", "test_faketensor"))


@pytest.mark.parametrize("name", KINDS)
def test_a_recurrent_layer_is_seen_whole_in_a_trace_of_modules(name: str) -> None:
    model = nn.Sequential(KINDS[name].eval())
    start = time.process_time()
    traced = pb.recursive_trace(model, inputs=[torch.randn(2, 700, 4), torch.randn(3, 1100, 4)])
    assert time.process_time() - start < 20, "it goes through the steps one by one"
    assert traced.failures == ()
    assert traced.assumptions == (), "no size is fixed"
