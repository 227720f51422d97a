"""Models that write into their arguments, on targets that give each argument memory of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import prepbench as pb
from prepbench.errors import ConditionError


class Doubles(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x[:, 1:].mul_(2)  # through a view
        out: torch.Tensor = self.linear(x) + y
        return out


class Returns(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x.mul_(2)
        return x, y + 1


class ReturnsSome(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x.mul_(2)
        return x[: (y[:, 0] > 0).sum().item()], y + 1


def sample(size: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(size, 4), torch.randn(size, 4)


def compiled(model: nn.Module, deployment: Any) -> pb.CompiledModel:
    return pb.compile_model(model.eval(), tracing_inputs=[sample(2), sample(3)], deployment_settings=deployment)


@pytest.fixture(scope="module")
def on_onnx() -> pb.CompiledModel:
    torch.manual_seed(0)
    return compiled(Doubles(), pb.OnnxRuntimeDeployment())


def test_the_report_says_what_the_caller_does_not_get(on_onnx: pb.CompiledModel) -> None:
    (said,) = [text for text in on_onnx.report.remarks if "writes into" in text]
    assert said.startswith("forward writes into x, and ONNX Runtime leaves the caller's tensor as it is")


def test_arguments_that_share_what_is_written_are_refused(on_onnx: pb.CompiledModel, tmp_path: Path) -> None:
    x = torch.randn(2, 4)
    torch.manual_seed(0)
    model = Doubles().eval()
    on_onnx.save(tmp_path / "net")
    for run in (on_onnx, pb.load_compiled(tmp_path / "net")):
        with pytest.raises(ConditionError, match=r"y shares its memory with x, .* y\.clone\(\)"):
            run(x, x)
        whole = torch.randn(3, 4)
        with pytest.raises(ConditionError, match="shares its memory"):
            run(whole[:2], whole[1:])
        torch.testing.assert_close(run(x, x.clone()), model(x.clone(), x.clone()))
        torch.testing.assert_close(run(whole[:1], whole[1:2]), model(whole.clone()[:1], whole[1:2]))


def test_what_is_returned_or_kept_by_the_target_is_no_remark() -> None:
    x, y = sample(2)
    returned = compiled(Returns(), pb.OnnxRuntimeDeployment())
    assert not [text for text in returned.report.remarks if "writes into" in text]
    torch.testing.assert_close(returned(x.clone(), y), Returns()(x.clone(), y))
    with pytest.raises(ConditionError, match="y shares its memory with x"):
        returned(x, x)
    torch.manual_seed(0)
    model = Doubles().eval()
    eager = compiled(model, pb.EagerDeployment())
    assert not [text for text in eager.report.remarks if "writes into" in text]
    given, same = x.clone(), x.clone()
    torch.testing.assert_close(eager(given, given), model(same, same))
    assert torch.equal(given, same), "the caller's tensor holds what forward wrote"


def test_a_part_of_an_argument_whose_size_the_data_decides_is_not_the_whole() -> None:
    run = compiled(ReturnsSome(), pb.OnnxRuntimeDeployment())
    assert [text for text in run.report.remarks if "writes into x" in text]
    x, y = sample(3)
    torch.testing.assert_close(run(x.clone(), y), ReturnsSome()(x.clone(), y))
