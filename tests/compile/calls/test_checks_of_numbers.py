"""What a graph asserts of numbers that it reads from tensors is a condition of the compiled model on every target."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import prepbench as pb
from prepbench.errors import ConditionError, InputError, TargetError
from tests.turns import one_pair_each


class Equal(nn.Module):
    def forward(self, x: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        number = counts.sum().item()
        torch._check(number == 3)
        return x * number


class More(nn.Module):
    def forward(self, x: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        number = counts.sum().item()
        torch._check(number > 2)
        return x * number


class Truth(nn.Module):
    def forward(self, x: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        is_any = (counts > 0).any().item()
        torch._check(is_any)
        return x * 2 if is_any else x


class Found(nn.Module):
    """A size that values decide."""

    def forward(self, x: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        found = counts[counts > 0]
        torch._check(found.shape[0] <= 3)
        return x.sum() + found.sum()


SAMPLES = [(torch.randn(3, 3), torch.tensor([1, 1, 1, 0])), (torch.randn(2, 3), torch.tensor([1, 2, 0, 0]))]
CASES: dict[type[nn.Module], tuple[list[int], str]] = {
    Equal: ([0, 0, 0, 0], "a number that is read from a tensor must equal 3"),
    More: ([1, 1, 0, 0], "a number that is read from a tensor must be more than 2"),
    Truth: ([0, 0, 0, 0], "a check of values passes"),
    Found: ([1, 1, 1, 1], "a size that values decide must be at most 3"),
}
# Inductor's own code refuses numbers out of range before it computes
REFUSED = (ConditionError, InputError)
TARGETS = (
    pb.EagerDeployment,
    pb.OnnxRuntimeDeployment,
    pb.OpenVinoDeployment,
    pb.InductorDeployment,
    pb.ExecuTorchDeployment,
)


@pytest.mark.parametrize(
    ("make", "target"),
    one_pair_each({make.__name__: make for make in CASES}, {target.__name__: target for target in TARGETS}),
)
def test_a_call_that_breaks_it_is_refused(make: type[nn.Module], target: Any, tmp_path: Any) -> None:
    values, words = CASES[make]
    model = make().eval()
    if make is Found and target is pb.ExecuTorchDeployment:
        with pytest.raises(TargetError, match="depends on data"):  # it plans memory ahead
            pb.compile_model(model, tracing_inputs=SAMPLES, deployment_settings=target())
        return
    refused, told = (REFUSED, None) if target is pb.InductorDeployment else (ConditionError, words)
    compiled = pb.compile_model(model, tracing_inputs=SAMPLES, deployment_settings=target())
    assert [condition.text for condition in compiled.conditions] == [words]
    for sample in SAMPLES:
        torch.testing.assert_close(compiled(*sample), model(*sample))
    with pytest.raises(refused, match=told):
        compiled(SAMPLES[0][0], torch.tensor(values))
    compiled.save(tmp_path / "saved")
    with pytest.raises(refused, match=told):
        pb.load_compiled(tmp_path / "saved", allow_code=True)(SAMPLES[0][0], torch.tensor(values))


def test_what_always_holds_is_no_condition() -> None:
    class Selects(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            rows = x[x.sum(1) > 0]
            return rows, x[: (x > 0).sum().item()], torch.repeat_interleave(x, (x[:, 0] > 0).long(), dim=0)

    model = Selects().eval()
    compiled = pb.compile_model(
        model, tracing_inputs=[torch.randn(3, 2), torch.randn(4, 2)], deployment_settings=pb.OnnxRuntimeDeployment()
    )
    assert compiled.conditions == ()
    for x in (torch.randn(5, 2), -torch.ones(3, 2), torch.ones(2, 2)):
        torch.testing.assert_close(compiled(x), model(x))
