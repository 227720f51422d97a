"""Every target that is installed here takes the models of the zoo: numbers, dynamic sizes, saving, loading, export."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

import prepbench as pb
from prepbench.errors import MissingPackageError, TargetError
from prepbench.running.given_samples import normalize_samples
from prepbench.settings import quantizable_layers
from prepbench.targets import target_for
from tests.turns import one_pair_each
from tests.zoo import ZOO

# one of each kind
NETWORKS = [
    "experts_by_einsum",
    "selective_scan_of_fixed_length",
    "attention_over_lengths",
    "recurrent_cells",
    "feature_pyramid",
    "fourier_layer",
    "rotary_positions",
    "tied_weights_and_loss",
    "shifted_windows",
    "vision_transformer_of_any_size",
    "diffusion_step",
    "sorting_and_gathering",
]
# what a target cannot take even in parts, and the words that say so
# no layer of theirs has an integer form
FLOAT = {"recurrent_cells", "fourier_layer"}
# in the short form each network is for one of them; OpenVINO's own precision is coarser than what is asserted here
TARGETS = {
    "OnnxRuntime": pb.OnnxRuntimeDeployment(),
    "OpenVino": pb.OpenVinoDeployment(inference_precision="f32"),
    "Inductor": pb.InductorDeployment(),
    "ExecuTorch": pb.ExecuTorchDeployment(),
    "TensorRt": pb.TensorRtDeployment(),
}


def installed(target: pb.DeploymentSettings) -> bool:
    try:
        target_for(target).check_available()
    except MissingPackageError:
        return False
    return True


def leaves_of(value: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def sqnr(right: Any, got: Any) -> float:
    """The worst over all floating outputs, in dB."""
    worst = 300.0
    for one, other in zip(leaves_of(right), leaves_of(got), strict=True):
        assert one.shape == other.shape
        assert one.dtype == other.dtype
        if one.is_floating_point() and one.numel():
            same = (one == other) | (one.isnan() & other.isnan())
            noise = torch.where(same, 0.0, one - other).double().square().sum()
            signal = torch.where(one.isfinite(), one, 0.0).double().square().sum()
            if float(noise) > 0:
                worst = min(worst, float(10 * torch.log10(signal / noise)))
    return worst


@pytest.mark.parametrize(("name", "target"), one_pair_each({name: name for name in NETWORKS}, TARGETS, 2))
def test_a_network_of_the_zoo(name: str, target: pb.DeploymentSettings, tmp_path: Path) -> None:
    if not installed(target):
        pytest.skip(f"{type(target).__name__} is not installed here")
    case = ZOO[name]
    torch.manual_seed(0)
    model = case.make()
    if isinstance(model, nn.Module):
        model.eval()
    quantizable = isinstance(model, nn.Module) and bool(quantizable_layers(model))
    arguments: dict[str, Any] = {"tracing_inputs": case.samples, "deployment_settings": target}
    if quantizable and name not in FLOAT:
        arguments |= {"calibration_inputs": case.samples, "quantization_settings": pb.QuantizationSettings()}
    try:
        compiled = pb.compile_model(model, **arguments)
    except TargetError as error:
        assert "fullgraph=False" in str(error), error  # noqa: PT017 (a target may lack an operator, if it says which)
        compiled = pb.compile_model(model, **arguments, fullgraph=False)
        assert compiled.report.fallbacks
    program = compiled._origin.lowering.program.module(check_guards=False)
    samples = normalize_samples(model, [*case.samples, *case.unseen])
    with torch.no_grad():
        for sample in samples:
            sample = sample.map(lambda leaf: leaf.clone() if isinstance(leaf, torch.Tensor) else leaf)
            leaves = compiled._call_spec.flatten(sample.args, sample.kwargs)
            outputs = compiled._call_spec.checked_outputs(program(*leaves))
            expected = compiled._call_spec.result(outputs, compiled._out_spec)
            before = [leaf.clone() for leaf in leaves_of((sample.args, sample.kwargs))]
            got = sample.call(compiled)
            after = leaves_of((sample.args, sample.kwargs))
            assert all(torch.equal(a, b) or a.isnan().any() for a, b in zip(before, after, strict=True)), (
                "inputs changed"
            )
            assert sqnr(expected, got) > 25, f"against the converted graph, on sample {sample.index}"
    compiled.save(tmp_path / "saved")
    loaded = pb.load_compiled(tmp_path / "saved", allow_code=True)
    again = samples[0].call(loaded)
    first = samples[0].call(compiled)
    assert all(torch.equal(a, b) for a, b in zip(leaves_of(first), leaves_of(again), strict=True))
    if not compiled.report.fallbacks and not isinstance(target, pb.TensorRtDeployment):
        import onnx

        onnx.checker.check_model(str(compiled.export(tmp_path / "model.onnx")))
