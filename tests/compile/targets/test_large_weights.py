"""Weights that are too large for the file of the graph are written beside it, and read from there."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import prepbench as pb
from prepbench.targets.onnx import export, target

FOUR_BITS = pb.QuantizationSettings(
    weights_num_bits=4, prefer_weights_only_quantization=True, weights_only_quantization_block_size=32
)
SAMPLES = [torch.randn(2, 64), torch.randn(3, 64)]


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> pb.CompiledModel:
    monkeypatch.setattr(export, "_LARGE", 1000)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 32))
    result: pb.CompiledModel = pb.compile_model(
        model,
        calibration_inputs=SAMPLES,
        deployment_settings=pb.OnnxRuntimeDeployment(),
        quantization_settings=FOUR_BITS,
    )
    return result


def test_large_weights_are_saved_beside_the_graph_in_half_a_byte_each(
    compiled: pb.CompiledModel, tmp_path: Path
) -> None:
    compiled.save(tmp_path / "saved")
    weights = tmp_path / "saved" / "model.onnx.data"
    assert weights.stat().st_size < (64 * 128 + 128 * 32) // 2 * 1.5
    loaded = pb.load_compiled(tmp_path / "saved")
    assert torch.equal(loaded(SAMPLES[1]), compiled(SAMPLES[1]))


def test_an_exported_file_holds_them(compiled: pb.CompiledModel, tmp_path: Path) -> None:
    import onnx
    import onnxruntime

    compiled.save(tmp_path / "saved")
    for name, model in {"own": compiled, "loaded": pb.load_compiled(tmp_path / "saved")}.items():
        (tmp_path / name).mkdir()
        file = model.export(tmp_path / name / "model.onnx")
        assert [path.name for path in (tmp_path / name).iterdir()] == ["model.onnx"]
        onnx.checker.check_model(str(file), full_check=True)
        session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
        (result,) = session.run(None, {session.get_inputs()[0].name: SAMPLES[0].numpy()})
        assert torch.equal(torch.from_numpy(result), compiled(SAMPLES[0]))


def test_weights_that_no_single_file_can_hold_stay_beside_it(
    compiled: pb.CompiledModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(target, "_LIMIT", 1000)
    compiled.save(tmp_path / "saved")
    with pytest.raises(pb.errors.ArtifactError, match=r"do not fit into one ONNX file \(2 GB\); use save"):
        pb.load_compiled(tmp_path / "saved").export(tmp_path / "model.onnx")
