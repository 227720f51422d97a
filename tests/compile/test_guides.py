"""What a guide says about files that other programs read holds: its own code runs, and gives what the model gives."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import onnxruntime
import pytest
import torch
from torch import nn

import prepbench as pb

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "without-prepbench.md"


def test_files_are_run_by_their_runtimes_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    make, onnx, save, ir = re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).eval()
    values: dict[str, Any] = {"model": model, "calibration": [torch.randn(rows, 8) for rows in (2, 3, 5)]}
    for written, read in ((make, onnx), (save, ir)):
        exec(written, values)  # the project's own
        exec(read, values)
        expected = values["compiled"](values["calibration"][0])
        torch.testing.assert_close(torch.from_numpy(values["scores"]), expected)


class Doubled(nn.Module):
    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        torch._assert_async((x > 0).all())
        return {"twice": x * 2, "sum": x.sum()}


def test_conditions_lie_in_the_file_and_beside_it(tmp_path: Path) -> None:
    samples = [torch.rand(rows, 3) + 1 for rows in (2, 4)]
    compiled = pb.compile_model(Doubled(), tracing_inputs=samples, deployment_settings=pb.OnnxRuntimeDeployment())
    file = compiled.export(tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    assert names[:2] == ["twice", "sum"]
    kept = json.loads((tmp_path / "model.onnx.conditions.json").read_text(encoding="utf-8"))
    assert kept == json.loads(session.get_modelmeta().custom_metadata_map["prepbench.conditions"])
    (holds,) = names[2:]
    (place,) = [session.get_inputs()[0].name]
    assert session.run([holds], {place: (torch.rand(5, 3) + 1).numpy()})[0].all()
    assert not session.run([holds], {place: torch.full((5, 3), -1.0).numpy()})[0].all()
    with pytest.raises(pb.errors.ConditionError):
        compiled(torch.full((5, 3), -1.0))
