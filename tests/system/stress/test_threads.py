"""Many threads at once: all results equal the sequential ones, nothing stays replaced, and the model runs meanwhile."""

from __future__ import annotations

import copy
import itertools
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import nn

from tests.system.stress.models import STEPS, Small, fingerprint, prepare, replaceable, same, samples, trace

THREADS = 8


def _run(runs: int) -> None:
    jobs = [(STEPS[number % len(STEPS)], number % THREADS) for number in range(runs)]
    # made here, because threads that seed and draw share one generator, with or without prepbench
    models = [Small(number).eval() for number in range(THREADS)]
    expected = {job: job[0](copy.deepcopy(models[job[1]])) for job in dict.fromkeys(jobs)}
    before = replaceable()
    with ThreadPoolExecutor(THREADS) as pool:
        found = list(pool.map(lambda job: job[0](copy.deepcopy(models[job[1]])), jobs))
    wrong = [
        (job[0].__name__, job[1]) for job, result in zip(jobs, found, strict=True) if not same(result, expected[job])
    ]
    assert not wrong
    assert before == replaceable()


def test_results_of_threads_equal_sequential_ones() -> None:
    _run(THREADS)


@pytest.mark.stress
@pytest.mark.timeout(3600)
def test_two_hundred_runs_in_threads() -> None:
    _run(200)


# dynamo itself puts the generator back for each frame that it traces, as in every torch.compile
@pytest.mark.parametrize("step", [trace, prepare], ids=lambda step: step.__name__)
def test_another_thread_draws_random_numbers_meanwhile(step: Callable[[nn.Module], Any]) -> None:
    """A thread that seeds gets the numbers of its seed, whatever is put back in between."""
    model, stop, wrong = Small(1).eval(), threading.Event(), []

    def draw() -> None:
        for seed in itertools.count(1000):
            torch.manual_seed(seed)
            time.sleep(0.001)
            found = torch.rand(4)
            if not torch.equal(found, torch.rand(4, generator=torch.Generator().manual_seed(seed))):
                wrong.append(seed)
            if stop.is_set():
                return

    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(draw)
        try:
            step(model)
        finally:
            stop.set()
        future.result()
    assert not wrong


def _meanwhile(step: Callable[[nn.Module], Any], times: int = 1) -> None:
    model, x = Small(1).eval(), samples()[0]
    before, expected = fingerprint(model), model(x)
    stop, wrong = threading.Event(), []

    def call() -> None:
        while not stop.is_set():
            try:
                if not torch.equal(model(x), expected) or any(part.training for part in model.modules()):
                    wrong.append("another result")
            except Exception as error:
                wrong.append(repr(error))

    with torch.no_grad(), ThreadPoolExecutor(1) as pool:
        future = pool.submit(call)
        try:
            for _ in range(times):
                step(model)
        finally:
            stop.set()
        future.result()
    assert not wrong, wrong[:3]
    assert same(before, fingerprint(model))


@pytest.mark.parametrize("step", STEPS[:4], ids=lambda step: step.__name__)
def test_another_thread_runs_the_model_meanwhile(step: Callable[[nn.Module], Any]) -> None:
    _meanwhile(step)


@pytest.mark.stress
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.__name__)
def test_another_thread_runs_the_model_for_long(step: Callable[[nn.Module], Any]) -> None:
    _meanwhile(step, 20)
