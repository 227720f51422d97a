"""check_traceability: every way of tracing, every reason, its line and remedy; nothing is changed by checking."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
import torch
from torch import nn

import prepbench as pb
from prepbench.errors import CaptureError
from prepbench.interrupts import TimeLimit, TimeLimitReached

SAMPLES = [torch.randn(2, 4), torch.randn(3, 4)]


class Gate(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:
            return x * 2
        return -x


class Speaks(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        print("called")  # noqa: T201
        return x * x.max().item()


class Parts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.linear, self.speaks = Gate(), nn.Linear(4, 4), Speaks()
        self.register_buffer("calls", torch.zeros(1))
        self.count = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.count += 1
        return self.speaks(self.linear(self.gate(x)))


@pytest.fixture(scope="module")
def report() -> Any:
    torch.manual_seed(0)
    return pb.check_traceability(Parts(), SAMPLES)


def test_a_plain_model_passes_every_check() -> None:
    report = pb.check_traceability(
        nn.Sequential(nn.Linear(4, 4), nn.ReLU()), SAMPLES, target=pb.OnnxRuntimeDeployment()
    )
    assert report.passed
    assert [check.name for check in report.checks] == [
        "dynamo", "torch.export", "symbolic trace", "trace with inputs", "operators of onnxruntime",
    ]  # fmt: skip
    assert all(check.passed and not check.failures for check in report.checks)
    assert report.verified == ("dynamo", "torch.export", "symbolic trace", "trace with inputs")
    assert "equals it on all samples (2)" in repr(report)
    assert repr(report).count("passed, equal on all samples") == 4
    assert set(report.table()["equal"][:4]) == {True}


class Unlike(nn.Module):
    """Symbolic tracing sees one side of a branch and does not notice."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if isinstance(x, torch.Tensor) and x.sum() > 0 else -x


def test_a_way_whose_graph_differs_from_the_model_does_not_pass() -> None:
    report = pb.check_traceability(Unlike(), [torch.ones(2, 4), torch.ones(3, 4)])
    symbolic = report["symbolic trace"]
    assert (symbolic.passed, symbolic.equal) == (False, False)
    assert [failure.kind for failure in symbolic.failures] == ["graph differs from the model"]
    assert "expected 2, got -1" in symbolic.failures[0].message
    assert report["dynamo"].equal is None
    assert report.verified == ()
    assert not report.passed
    assert "symbolic trace: failed, differs from the model" in repr(report)
    assert "differs from the model" in report._repr_mimebundle_()["text/html"]


@pytest.mark.stress
def test_one_sample_that_differs_is_enough() -> None:
    samples = [-torch.ones(2, 4), -torch.ones(3, 4), torch.ones(3, 4)]
    assert not pb.check_traceability(Unlike(), samples)["symbolic trace"].passed
    assert pb.check_traceability(Unlike(), samples[:2])["symbolic trace"].passed


@torch.fx.wrap
def decides(x: torch.Tensor) -> torch.Tensor:
    return x * 2 if x.sum() > 0 else -x


class Wrapped(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return decides(x)


def test_with_a_target_the_graph_that_it_gets_must_pass() -> None:
    without = pb.check_traceability(Wrapped(), SAMPLES)
    assert without.passed
    assert without.verified == ("symbolic trace", "trace with inputs")
    report = pb.check_traceability(Wrapped(), SAMPLES, target=pb.InductorDeployment())
    assert report.verified == without.verified
    assert not report.passed


def test_all_breaks_are_listed_with_module_line_kind_and_remedy(report: Any) -> None:
    found = {(failure.fqn, failure.kind) for failure in report["dynamo"].failures}
    assert found == {
        ("gate", "data-dependent branch"),
        ("speaks", "Python side effect"),
        ("speaks", "item() / Python number from a tensor"),
    }
    for failure in report.failures:
        assert failure.source is not None
        assert failure.source.file.endswith("test_traceability.py")
        assert f"> {failure.source.line} | " in failure.frame
        assert failure.remedy
    assert not report.passed
    assert [failure.fqn for failure in report["torch.export"].failures] == ["gate"]


def test_the_report_reads_the_same_twice_and_shows_itself(report: Any) -> None:
    torch.manual_seed(0)
    again = pb.check_traceability(Parts(), SAMPLES)
    assert again == report
    assert repr(again) == repr(report)
    assert "if x.sum() > 0:" in repr(report)
    bundle = report._repr_mimebundle_()
    assert "if x.sum() &gt; 0:" in bundle["text/html"]
    table = report.table()
    assert set(table["check"]) == {check.name for check in report.checks}
    with pytest.raises(KeyError, match="there is no check"):
        report["dynamos"]


def test_checking_changes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    model = Parts()
    other = torch.compile(nn.Linear(4, 4), backend="eager")
    expected = other(SAMPLES[0])
    inputs = [sample.clone() for sample in SAMPLES]
    state, random = {k: v.clone() for k, v in model.state_dict().items()}, torch.get_rng_state()
    pb.check_traceability(model, inputs)
    assert model.count == 0
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), random)
    assert all(torch.equal(a, b) for a, b in zip(inputs, SAMPLES, strict=True))
    assert capsys.readouterr().out == ""
    torch.testing.assert_close(other(SAMPLES[0]), expected)


class Endless(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if torch.compiler.is_compiling() or isinstance(x, torch.fx.Proxy):
            while True:
                time.sleep(0.01)
        return x + 1


@pytest.mark.parametrize("threaded", [False, True])
def test_a_check_that_takes_too_long_is_ended(threaded: bool) -> None:
    reports: list[Any] = []

    def check() -> None:
        reports.append(pb.check_traceability(Endless(), [torch.ones(2, 2), torch.ones(3, 2)], time_limit=0.5))

    if threaded:
        thread = threading.Thread(target=check)
        thread.start()
        thread.join(60)
    else:
        check()
    ended = reports[0]["torch.export"]
    assert ended.timed_out
    assert not ended.passed
    assert "0.5 s" in ended.failures[0].message
    assert reports[0]["trace with inputs"].passed


def test_the_limit_never_fires_after_its_block() -> None:
    for _ in range(50):
        try:
            with TimeLimit(0.002):
                time.sleep(0.0019)
        except TimeLimitReached:
            pass
    time.sleep(0.01)


@torch.library.custom_op("prepbench_tests::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@twice.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


class Custom(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return twice(x) + 1


def test_operators_that_a_target_lacks_are_listed_the_same_way() -> None:
    model = nn.Sequential(nn.Linear(4, 4), Custom())
    report = pb.check_traceability(model, SAMPLES, target=pb.OnnxRuntimeDeployment())
    (failure,) = report["operators of onnxruntime"].failures
    assert failure.fqn == "1"
    assert failure.kind == "unsupported operator"
    assert "prepbench_tests.twice" in failure.message
    assert failure.source is not None
    assert "twice(x)" in failure.source.code
    assert not report.passed
    assert pb.check_traceability(model, SAMPLES, target=pb.InductorDeployment()).passed


def test_functions_and_methods_are_checked() -> None:
    assert pb.check_traceability(lambda x: x * 2, SAMPLES).passed
    assert not pb.check_traceability(Gate().forward, SAMPLES).passed


def test_a_model_that_raises_is_told_before_any_tracing() -> None:
    with pytest.raises(CaptureError, match=r"itself raises on inputs\[1\]") as caught:
        pb.check_traceability(nn.Linear(4, 4), [torch.ones(2, 4), torch.ones(2, 5)])
    assert isinstance(caught.value.__cause__, RuntimeError)
