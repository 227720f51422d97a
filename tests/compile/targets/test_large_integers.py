"""Reports say where a target rounds integers that the model computes from those of the call."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import prepbench as pb


class Hashes(nn.Module):
    """Looks up rows of a small table by a hash of large ids."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.Embedding(97, 4)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.rows((ids * 31 + 7) % 97)
        return out


SMALL, LARGE = [torch.arange(4), torch.arange(6)], torch.tensor([2**24 + 1, 2**24 + 3, 5])


def compiled(model: nn.Module, deployment: pb.DeploymentSettings) -> pb.CompiledModel:
    return pb.compile_model(model.eval(), tracing_inputs=SMALL, deployment_settings=deployment)


def test_openvino_is_exact_for_small_ones_and_says_so() -> None:
    model = Hashes()
    run = compiled(model, pb.OpenVinoDeployment())
    (remark,) = [text for text in run.report.remarks if "integers" in text]
    assert "mul (test_large_integers.py:" in remark
    assert "16,777,216" in remark
    torch.testing.assert_close(run(torch.arange(500, 600)), model(torch.arange(500, 600)))
    if torch.equal(run(LARGE), model(LARGE)):
        pytest.fail("OpenVINO is exact now: the remark is out of date")


def test_others_are_exact() -> None:
    model = Hashes()
    run = compiled(model, pb.OnnxRuntimeDeployment())
    assert not [text for text in run.report.remarks if "integers" in text]
    torch.testing.assert_close(run(LARGE), model(LARGE))


class Looks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.Embedding(97, 4)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.rows(ids + 1) * torch.arange(ids.shape[0] * 2)[::2].unsqueeze(1)
        return out


def test_ids_and_positions_alone_are_no_remark() -> None:
    run = compiled(Looks(), pb.OpenVinoDeployment())
    assert not [text for text in run.report.remarks if "integers" in text]
