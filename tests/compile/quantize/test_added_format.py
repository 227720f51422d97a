"""A format of weights that is added to the table of a target and to that of the settings needs nothing else."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from torch import nn

import prepbench as pb
from prepbench.errors import SettingsError
from prepbench.search.inspection import decided_by
from prepbench.settings import quantization
from prepbench.settings.numbers import FLOAT8
from prepbench.targets.eager import EagerTarget


class Mixed(nn.Module):
    """A table, a convolution, a matrix with the outputs first, and one with them last."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.conv, self.head = nn.Embedding(32, 16), nn.Conv1d(16, 12, 3), nn.Linear(12, 6)
        self.last = nn.Parameter(torch.randn(6, 5))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(torch.relu(self.conv(self.embed(ids).transpose(1, 2))).transpose(1, 2)) @ self.last


@pytest.fixture(autouse=True)
def _float8(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = (*EagerTarget.placement.weights_only, FLOAT8)
    monkeypatch.setattr(EagerTarget, "placement", dataclasses.replace(EagerTarget.placement, weights_only=taken))
    monkeypatch.setattr(quantization, "BITS", (*quantization.BITS, FLOAT8.asked))


def settings(**more: object) -> pb.QuantizationSettings:
    return pb.QuantizationSettings(weights_num_bits="float8", prefer_weights_only_quantization=True, **more)  # type: ignore[arg-type]


def compiled(model: nn.Module, wanted: pb.QuantizationSettings, target: pb.DeploymentSettings) -> pb.CompiledModel:
    torch.manual_seed(1)
    samples = [torch.randint(0, 32, (2, 7)) for _ in range(3)]
    return pb.compile_model(
        model,
        calibration_inputs=samples,
        deployment_settings=target,
        quantization_settings=wanted,
        compile_options=pb.CompileOptions(bias_correction=False),
        discard_input_model=False,
    )


def rounded(weight: torch.Tensor, per_channel: bool) -> torch.Tensor:
    rows = weight.flatten(1) if per_channel else weight.reshape(1, -1)
    scale = (rows.abs().amax(1) / 448).reshape(-1, *[1] * (weight.ndim - 1))
    return (weight / scale).to(torch.float8_e4m3fn).float() * scale


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"per_channel": False},
        {"weights_algorithm": "gptq"},
        {"weights_algorithm": "hqq"},
        {"weights_symmetric": False},
    ],
    ids=str,
)
def test_weights_are_the_nearest_numbers_of_the_format(more: dict[str, object], tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Mixed().eval()
    result = compiled(model, settings(**more), pb.EagerDeployment())
    rows = {row.fqn: row for row in result.report.layers}
    assert {fqn: row.summary for fqn, row in rows.items() if row.quantized} == dict.fromkeys(
        ("embed", "conv", "head"), "float8 weights"
    )
    assert "output channels first" in rows["last"].reason
    assert [rows[fqn].stored_bits for fqn in ("embed", "conv", "head")] == [8, 8, 8]
    assert decided_by(rows["head"], None).settings == pb.QuantizationSettings(
        weights_num_bits="float8", prefer_weights_only_quantization=True
    )
    ids = torch.randint(0, 32, (2, 7))
    with torch.no_grad():
        for part in (model.embed, model.conv, model.head):
            part.weight.copy_(rounded(part.weight, bool(more.get("per_channel", True))))
        expected = model(ids)
    torch.testing.assert_close(result(ids), expected)
    assert set(result.report.table()["weights_format"]) == {"float8", ""}
    result.save(tmp_path / "saved")
    loaded = pb.load_compiled(tmp_path / "saved")
    assert loaded.report.layers == result.report.layers
    torch.testing.assert_close(loaded(ids), expected)


def test_a_target_without_it_says_what_it_has() -> None:
    with pytest.raises(SettingsError, match=r"does not support float8 weights.*It supports: weights of 4 or 8 bits"):
        compiled(Mixed(), settings(), pb.OnnxRuntimeDeployment())
