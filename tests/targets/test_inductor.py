"""Inductor: int8 kernels, a dynamic batch, a fresh process, leaves, and what is missing."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch
from torch import nn

import prepbench as pb
from prepbench.errors import MissingPackageError


def noise(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def small_net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(64, 8)
    ).eval()


@pytest.fixture(scope="module")
def compiled() -> pb.CompiledModel:
    return pb.compile_model(
        small_net(),
        tracing_inputs=[noise(2, 3, 8, 8), noise(3, 3, 8, 8)],
        calibration_inputs=[noise(16, 3, 8, 8)],
        deployment_settings=pb.InductorDeployment(),
        quantization_settings=pb.QuantizationSettings(),
    )


def test_int8_is_close_at_batches_never_shown(compiled: pb.CompiledModel) -> None:
    net = small_net()
    for batch in (1, 7):
        x = noise(batch, 3, 8, 8)
        expected = net(x)
        assert float((compiled(x) - expected).pow(2).sum() / expected.pow(2).sum()) < 10**-2.5


def test_int8_kernels_do_the_work(compiled: pb.CompiledModel, tmp_path: Path) -> None:
    compiled.save(tmp_path / "saved")
    with zipfile.ZipFile(tmp_path / "saved" / "model.pt2") as archive:
        code = b"".join(archive.read(name) for name in archive.namelist() if name.endswith((".cpp", ".so")))
    assert b"qconv_pointwise" in code or b"qconv2d_pointwise" in code
    assert b"qlinear_pointwise" in code


def test_a_fresh_process_computes_the_same(compiled: pb.CompiledModel, tmp_path: Path) -> None:
    compiled.save(tmp_path / "saved")
    x = noise(5, 3, 8, 8)
    torch.save(x, tmp_path / "in.pt")
    code = (
        "import sys, torch, prepbench as pb; "
        "torch.save(pb.load_compiled(sys.argv[1])(torch.load(sys.argv[2])), sys.argv[3])"
    )
    files = [str(tmp_path / name) for name in ("saved", "in.pt", "out.pt")]
    subprocess.run([sys.executable, "-c", code, *files], capture_output=True, text=True, check=True)
    torch.testing.assert_close(torch.load(tmp_path / "out.pt"), compiled(x))


class Branches(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x if x.sum() > 0 else -x


def test_a_graph_with_leaves_compiles_and_keeps_its_batch_dynamic() -> None:
    net = nn.Sequential(nn.Linear(4, 4), Branches(), nn.Linear(4, 2)).eval()
    compiled = pb.compile_model(
        net,
        tracing_inputs=[noise(2, 4), noise(3, 4)],
        deployment_settings=pb.InductorDeployment(),
        fullgraph=False,
    )
    for batch in (1, 7):
        torch.testing.assert_close(compiled(noise(batch, 4)), net(noise(batch, 4)))


def test_without_a_compiler_the_error_says_how_to_get_one(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor import cpp_builder

    def none() -> str:
        raise RuntimeError("no compiler")

    monkeypatch.setattr(cpp_builder, "get_cpp_compiler", none)
    with pytest.raises(MissingPackageError, match=r"needs a C\+\+ compiler.*apt-get install g\+\+.*CXX"):
        pb.compile_model(nn.Linear(2, 2), tracing_inputs=[noise(2, 2)], deployment_settings=pb.InductorDeployment())
