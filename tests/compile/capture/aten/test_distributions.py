"""``torch.distributions`` asks values of its arguments; the graph asserts what it asks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import distributions, nn

import prepbench as pb


class Density(nn.Module):
    """Constants, parameters and samples are checked."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Linear(4, 8)
        self.scale = nn.Parameter(torch.rand(4) + 0.1)

    def forward(self, x: torch.Tensor) -> Any:
        mean, deviation = self.encode(x).chunk(2, -1)
        given = distributions.Normal(mean, (0.5 * deviation).exp())
        apart = distributions.kl_divergence(given, distributions.Normal(torch.zeros_like(mean), self.scale))
        return apart.sum(-1), distributions.Independent(distributions.Normal(0.0, 1.0).expand((4,)), 1).log_prob(mean)


class Policy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scores = nn.Linear(4, 8)

    def forward(self, x: torch.Tensor, action: torch.Tensor) -> Any:
        chances = distributions.Categorical(logits=self.scores(x))
        return chances.log_prob(action), chances.entropy()


def seen(rows: int) -> tuple[torch.Tensor, ...]:
    return (torch.randn(rows, 4),)


def acted(rows: int) -> tuple[torch.Tensor, ...]:
    return torch.randn(rows, 4), torch.arange(rows) % 8


CASES = {
    "density": (Density, seen, (torch.full((2, 4), torch.nan),), "values that the distribution does not take"),
    "policy": (Policy, acted, (torch.ones(1, 4), torch.tensor([8])), "action"),
}


@pytest.fixture(autouse=True)
def _validated() -> Iterator[None]:
    """Have distributions check their values, which torch.compile turns off for the whole process."""
    before = distributions.Distribution._validate_args
    distributions.Distribution.set_default_validate_args(True)
    yield
    distributions.Distribution.set_default_validate_args(before)


@pytest.mark.parametrize("target", [pb.EagerDeployment(), pb.OnnxRuntimeDeployment()], ids=["eager", "onnxruntime"])
@pytest.mark.parametrize("name", CASES)
def test_values_that_it_refuses_are_refused(name: str, target: Any) -> None:
    kind, made, refused, said = CASES[name]
    torch.manual_seed(0)
    model = kind().eval()
    compiled = pb.compile_model(
        model, tracing_inputs=[made(2), made(5)], deployment_settings=target, discard_input_model=False
    )
    for rows in (1, 7):
        call = made(rows)
        torch.testing.assert_close(compiled(*call), model(*call), atol=1e-5, rtol=1e-4)
    with pytest.raises(ValueError, match="invalid values"):
        model(*refused)
    with pytest.raises(pb.PrepbenchError, match=said):
        compiled(*refused)
    with pytest.raises(ValueError, match="invalid values"):  # torch's own checks are as they were
        model(*refused)
