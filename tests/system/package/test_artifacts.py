"""Saving and loading: equal in a fresh process without the model's code, no pickle, damage found, writes whole."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import prepbench as pb
from prepbench.errors import ArtifactError, SettingsError
from tests.compile.compile.models import images, int8


@pytest.mark.parametrize("target", [pb.OnnxRuntimeDeployment(), pb.EagerDeployment()], ids=["onnxruntime", "eager"])
def test_a_fresh_process_computes_the_same(
    net: nn.Module, target: pb.DeploymentSettings, in_fresh_process: Callable[..., torch.Tensor]
) -> None:
    compiled = int8(net, target)
    result = in_fresh_process(compiled, images(5))
    torch.testing.assert_close(result, compiled(images(5)), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("target", [pb.OnnxRuntimeDeployment(), pb.EagerDeployment()], ids=["onnxruntime", "eager"])
def test_nothing_saved_is_a_pickle_or_tells_where_it_was_made(
    net: nn.Module, target: pb.DeploymentSettings, tmp_path: Path
) -> None:
    import pickletools
    import zipfile

    int8(net, target).save(tmp_path / "saved")
    for path in (tmp_path / "saved").rglob("*"):
        members = {path.name: path.read_bytes()}
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                members = {name: archive.read(name) for name in archive.namelist()}
        for name, content in members.items():
            if content[:1] == b"\x80":  # a pickle of protocol 2 or newer starts with this byte
                with pytest.raises(ValueError):
                    list(pickletools.genops(content))
            assert not name.endswith((".pkl", ".pickle"))
            if isinstance(target, pb.OnnxRuntimeDeployment):
                assert b"conftest.py" not in content


def test_what_is_loaded_can_be_saved_again(net: nn.Module, tmp_path: Path) -> None:
    compiled = int8(net)
    compiled.save(tmp_path / "one")
    pb.load_compiled(tmp_path / "one").save(tmp_path / "two")
    again = pb.load_compiled(tmp_path / "two")
    assert torch.equal(again(images(3)), compiled(images(3)))
    assert again.report == pb.load_compiled(tmp_path / "one").report


def test_saving_replaces_a_compiled_model_and_leaves_other_folders_alone(net: nn.Module, tmp_path: Path) -> None:
    compiled = pb.compile_model(net, tracing_inputs=[images(2)])
    compiled.save(tmp_path / "saved")
    compiled.save(tmp_path / "saved")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("keep")
    with pytest.raises(ArtifactError, match="left alone"):
        compiled.save(tmp_path / "mine")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine", "saved"]


def test_a_save_that_fails_leaves_the_earlier_one(
    net: nn.Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = pb.compile_model(net, tracing_inputs=[images(2)])
    compiled.save(tmp_path / "saved")

    def full(folder: Path) -> None:
        (folder / "half").write_text("half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(compiled._runtime, "save", full)
    with pytest.raises(OSError, match="no space left"):
        compiled.save(tmp_path / "saved")
    assert [path.name for path in tmp_path.iterdir()] == ["saved"]
    pb.load_compiled(tmp_path / "saved")


def test_damage_is_found(net: nn.Module, tmp_path: Path) -> None:
    folder = tmp_path / "saved"
    compiled = pb.compile_model(net, tracing_inputs=[images(2)])
    manifest = folder / "manifest.json"

    def check(message: str) -> None:
        with pytest.raises(ArtifactError, match=message):
            pb.load_compiled(folder)
        compiled.save(folder)

    check("holds no manifest.json")
    data = bytearray((folder / "model.onnx").read_bytes())
    data[len(data) // 2] ^= 1
    (folder / "model.onnx").write_bytes(data)
    check("model.onnx is damaged")
    (folder / "model.onnx").unlink()
    check("model.onnx is missing")
    manifest.write_text("{")
    check("cannot be read")
    manifest.write_text("[]")
    check("does not describe a compiled model")
    for field, value, message in [
        ("version", "1.0", "of version 1.0; this prepbench reads 2"),
        ("target", "abacus", "target 'abacus', which this version does not have"),
        ("calls", {}, "manifest is damaged"),
        ("deployment_settings", {"speed": 9}, "manifest is damaged"),
    ]:
        manifest.write_text(json.dumps({**json.loads(manifest.read_text()), field: value}))
        check(message)
    pb.load_compiled(folder)


def test_export_writes_one_onnx_file_with_names_and_dynamic_dims(net: nn.Module, tmp_path: Path) -> None:
    import onnx

    path = int8(net).export(tmp_path / "deep" / "net.onnx")
    graph = onnx.load(path).graph
    (x,) = graph.input
    assert x.name == "x"
    dims = x.type.tensor_type.shape.dim
    assert dims[0].dim_param
    assert [d.dim_value for d in dims[1:]] == [1, 8, 8]
    eager = int8(net, pb.EagerDeployment())
    assert onnx.load(eager.export(tmp_path / "other.onnx")).graph.input[0].name == "x"
    eager.save(tmp_path / "eager")
    with pytest.raises(SettingsError, match=r"loaded for eager cannot be exported.*OnnxRuntimeDeployment\(\)"):
        pb.load_compiled(tmp_path / "eager").export(tmp_path / "loaded.onnx")
    assert not (tmp_path / "loaded.onnx").exists()


class Branches(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x if x.sum() > 0 else -x


BRANCH = Branches.forward.__code__.co_firstlineno + 1


def with_leaf() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), Branches(), nn.Linear(4, 2)).eval()


def test_leaves_run_in_pytorch_between_parts_in_onnx_runtime() -> None:
    samples = [torch.randn(2, 4), torch.randn(3, 4)]
    model = with_leaf()
    compiled = pb.compile_model(model, tracing_inputs=samples, fullgraph=False)
    assert [text.partition(":")[0] for text in compiled.report.fallbacks] == ["1"]
    x = torch.randn(7, 4)
    assert torch.allclose(compiled(x), model(x), atol=1e-5)
    assert torch.allclose(compiled(-x), model(-x), atol=1e-5)


def test_a_quantized_model_with_leaves_is_saved_and_needs_the_model(tmp_path: Path) -> None:
    samples = [torch.randn(2, 4), torch.randn(3, 4)]
    model = with_leaf()
    compiled = int8(model, pb.EagerDeployment(), tracing_inputs=samples, calibration_inputs=samples, fullgraph=False)
    assert compiled.report.leaves == (f"line {BRANCH} of 1",)
    assert compiled.size_bytes
    x = torch.randn(7, 4)
    compiled.save(tmp_path / "saved")
    with pytest.raises(ArtifactError, match=rf"line {BRANCH} of 1 \(.*Branches\).*model=model"):
        pb.load_compiled(tmp_path / "saved")
    loaded = pb.load_compiled(tmp_path / "saved", model=model)
    for sign in (1, -1):
        assert torch.equal(loaded(sign * x), compiled(sign * x))
