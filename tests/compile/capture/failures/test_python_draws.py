"""Random numbers that forward draws in Python are told, with their line; those of other threads are nobody's."""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import nn

import prepbench as pb
from prepbench.capture.failures.findings import RANDOM_FIXED, findings_of_draws
from prepbench.inputs import Sample

SAMPLES = [torch.randn(size, 4, generator=torch.Generator().manual_seed(size)) for size in (2, 3)]


class DropPath(nn.Module):
    def forward(self, x):
        if self.training and random.random() < 0.5:
            return x * 0
        return x


class Jitters(nn.Module):
    def __init__(self):
        super().__init__()
        self.drop = DropPath()

    def forward(self, x):
        return self.drop(x) * random.uniform(0.5, 1.5) + torch.from_numpy(np.random.randn(4)).float()


class DrawsWithTorch(nn.Module):
    def forward(self, x):
        return x * torch.rand(())


def told(model: nn.Module) -> list[tuple[str, str]]:
    found = [each for each in pb.capture(model, SAMPLES).findings if each.kind == RANDOM_FIXED]
    return [(each.fqn, each.source.code if each.source else "") for each in found]


def test_each_line_that_draws_is_told_with_its_module() -> None:
    places = told(Jitters().train())
    assert [fqn for fqn, _ in places] == ["drop", ""]
    assert "random.random() < 0.5" in places[0][1]
    assert "random.uniform(0.5, 1.5)" in places[1][1]


@pytest.mark.parametrize("model", [DropPath().eval(), DrawsWithTorch().eval()])
def test_models_that_draw_nothing_in_python_are_not_accused(model: nn.Module) -> None:
    assert told(model) == []


@pytest.fixture
def another_thread_draws() -> Iterator[None]:
    stop = threading.Event()

    def draw() -> None:
        while not stop.is_set():
            random.random()
            np.random.rand()

    thread = threading.Thread(target=draw)
    thread.start()
    yield
    stop.set()
    thread.join()


@pytest.mark.usefixtures("another_thread_draws")
def test_what_other_threads_draw_is_not_the_models() -> None:
    assert told(DropPath().eval()) == []


def test_looking_leaves_generators_and_profilers_as_they_were() -> None:
    calls: list[str] = []
    sys.setprofile(lambda *event: calls.append(event[1]))
    profiler, draw = sys.getprofile(), np.random.randn
    before = random.getstate(), np.random.get_state()[2]
    try:
        assert len(list(findings_of_draws(Jitters().train(), [Sample((SAMPLES[0],), {}, 0)]))) == 2
        assert sys.getprofile() is profiler
    finally:
        sys.setprofile(None)
    assert np.random.randn is draw
    assert (random.getstate(), np.random.get_state()[2]) == before
