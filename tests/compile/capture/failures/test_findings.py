"""A capture lists what it assumes: nothing is silent, and models that assume nothing give no noise."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import prepbench as pb
from prepbench.document.codec import from_json, to_json
from tests.benchmarks.models import build

SAMPLES = [torch.randn(2, 4), torch.randn(3, 4)]


class Trained(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.dropout(x, 0.5, self.training)


class Counter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("steps", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.steps.add_(1)
        return x + self.steps


class Remembers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.mask: Any = None
        self.seen: list[int] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.seen.append(1)
        if self.mask is None:
            self.mask = torch.ones(4)
        return x * self.mask


class Doubles(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x.mul_(2)
        return x + 1


class Noisy(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.rand_like(x)


class Scaled(nn.Module):
    def forward(self, x: torch.Tensor, scale: float = 1.0, mode: str = "a") -> torch.Tensor:
        return x * scale


class Catches(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        try:
            return torch.linalg.cholesky(x.T @ x + torch.eye(4))
        except RuntimeError:
            return x.T @ x


class CatchesToTell(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        try:
            return torch.linalg.cholesky(x.T @ x + torch.eye(4))
        except RuntimeError as error:
            raise ValueError("not positive definite") from error


CASES: dict[str, tuple[Any, Any, str, str]] = {
    "caught": (Catches, SAMPLES, "errors are not caught", "no sample raised it: the graph has no handler"),
    "training": (Trained, SAMPLES, "training flag fixed", "self.training, which is False"),
    "buffer": (Counter, SAMPLES, "state changed", "buffer 1.steps"),
    "input": (Doubles, SAMPLES, "input changed in place", "argument"),
    "random": (Noisy, SAMPLES, "random numbers", "rand_like"),
}


@pytest.mark.parametrize("name", CASES)
def test_what_is_taken_for_granted_is_told(name: str) -> None:
    make, samples, kind, text = CASES[name]
    model = nn.Sequential(nn.Identity(), make()).eval()
    captured = pb.capture(model, samples)
    (finding,) = captured.findings
    assert finding.kind == kind
    assert text in finding.message
    assert finding.remedy
    assert finding.source is not None
    assert finding.source.file.endswith("test_findings.py")
    assert "> " in finding.frame
    assert finding.message in repr(captured)
    assert from_json(to_json(captured.document())).findings == captured.findings
    assert finding.kind in captured._repr_mimebundle_()["text/html"]


def test_attributes_that_forward_changes_are_named() -> None:
    model = nn.Sequential(nn.Identity(), Remembers()).eval()
    collection = pb.recursive_trace(model, inputs=SAMPLES)
    assert {finding.message.split()[4].rstrip(":") for finding in collection.findings} == {
        "1.calls",
        "1.mask",
        "1.seen",
    }
    assert {finding.source.code for finding in collection.findings if finding.source} >= {"self.calls += 1"}
    assert collection.document().findings == collection.findings
    assert model[1].calls == 0
    assert model[1].seen == []


def test_values_among_the_inputs_are_fixed() -> None:
    samples = [(sample, {"scale": 3.0, "mode": "b"}) for sample in SAMPLES]
    captured = pb.capture(Scaled(), samples)
    assert [finding.message.split(":")[0] for finding in captured.findings] == [
        "The argument scale is fixed to 3.0",
        "The argument mode is fixed to 'b'",
    ]


def test_layers_in_training_mode_are_told() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5)).train()
    kinds = [finding.kind for finding in pb.capture(model, SAMPLES).findings]
    assert kinds.count("state changed") >= 2
    assert "random numbers" in kinds
    assert pb.capture(model.eval(), SAMPLES).findings == ()


@pytest.mark.parametrize("name", ["resnet", "mobilenet", "mlp"])
def test_plain_models_have_no_findings(name: str) -> None:
    model, samples = build(name)
    assert pb.capture(model, samples).findings == ()
    assert pb.recursive_trace(model, inputs=samples).findings == ()


def test_the_same_model_gives_the_same_text() -> None:
    model = nn.Sequential(Trained(), Counter(), Noisy()).eval()
    random.seed(1)
    assert pb.capture(model, SAMPLES).findings == pb.capture(model, SAMPLES).findings


def test_a_handler_that_raises_itself_is_nothing_to_tell() -> None:
    assert pb.capture(CatchesToTell(), SAMPLES).findings == ()
