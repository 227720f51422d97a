"""The demonstration: a trained network within seconds, the same in each call, and the whole path without a screen."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest
import torch

import prepbench as pb


@pytest.fixture(scope="module")
def bench() -> pb.Bench:
    return pb.demo()


def test_it_reads_digits(bench: pb.Bench) -> None:
    assert isinstance(bench.data, list)
    right = sum(int((bench.model(image).argmax(1) == digit).sum()) for image, digit in bench.data)
    assert right / 512 > 0.97


@pytest.mark.stress
def test_it_is_the_same_each_time(bench: pb.Bench) -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    started = time.process_time()
    again = pb.demo()
    assert time.process_time() - started < 40, "20 s on two cores"
    assert torch.equal(before, torch.get_rng_state())
    for one, two in zip(bench.model.parameters(), again.model.parameters(), strict=True):
        assert torch.equal(one, two)


def test_nothing_fails_and_nothing_is_to_be_said(bench: pb.Bench) -> None:
    summary = bench.summary()
    assert not summary.failures
    assert not summary.notes
    assert bench.metric is pb.metrics.accuracy
    assert all(step.kind != "bad" for step in summary.steps)


def test_text_without_a_screen(bench: pb.Bench) -> None:
    assert "Bench(DigitsNet)" in str(bench)
    assert "bench.search(" in str(bench), "the next step"


@pytest.mark.stress
def test_a_script_prints_it() -> None:
    line = "import prepbench as pb; print(pb.demo())"
    done = subprocess.run([sys.executable, "-c", line], capture_output=True, text=True, check=True)
    assert "Bench(DigitsNet)" in done.stdout


def test_the_page_without_a_kernel_shows_it(bench: pb.Bench) -> None:
    bundle = bench._repr_mimebundle_()
    assert "DigitsNet" in bundle["text/plain"]
