"""Masks on weights: how many go, which, and what stays of them in integers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import prepbench as pb
from prepbench.errors import SettingsError
from prepbench.views.overlays import make_overlay

SAMPLES = [torch.randn(4, 16, generator=torch.Generator().manual_seed(1)), torch.randn(6, 16)]


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 6)).eval()


def compiled(settings: pb.PruningSettings, **further: object) -> pb.CompiledModel:
    further = {"deployment_settings": pb.EagerDeployment(), "calibration_inputs": SAMPLES, **further}
    return pb.compile_model(network(), pruning_settings=settings, **further)  # type: ignore[no-any-return]


def weight(model: pb.CompiledModel, name: str = "0.weight") -> torch.Tensor:
    assert model._origin is not None
    return model._origin.lowering.program.state_dict[name].detach()


@pytest.mark.parametrize("score", ["magnitude", "activations"])
def test_single_weights(score: str) -> None:
    made = compiled(pb.PruningSettings(amount=0.25, score=score))
    found, before = weight(made), network()[0].weight
    assert (found == 0).float().mean() == 0.25
    assert torch.equal(found[found != 0], before[found != 0])
    if score == "magnitude":
        assert before[found == 0].abs().max() <= before[found != 0].abs().min()
    assert made.report.sparsity["0"] == pytest.approx(0.25 * 512 / 544)


def test_patterns_and_what_does_not_fit_them() -> None:
    made = compiled(pb.PruningSettings(mask_type="2:4"))
    assert ((weight(made).reshape(32, 4, 4) != 0).sum(-1) == 2).all()
    made = compiled(pb.PruningSettings(mask_type="1:3"), layer_pruning_settings={
        "2": pb.LayerPruningSettings(mask_type="1:4")})  # fmt: skip
    assert "16 inputs cannot be divided by 3" in made.report.pruned[0].reason
    assert made.report.pruned[1].zeros == 144
    with pytest.raises(SettingsError, match=r"would prune nothing. 0: its 16 inputs cannot be divided by 5"):
        compiled(pb.PruningSettings(mask_type="2:5"))


def test_threshold_prunes_less() -> None:
    free = compiled(pb.PruningSettings(amount=0.8)).report.pruned[0].zeros
    limited = compiled(pb.PruningSettings(amount=0.8, pruning_sensitivity_threshold=0.01)).report.pruned[0].zeros
    assert 0 < limited < free


@pytest.mark.parametrize("algorithm", ["nearest", "gptq", "hqq", "adaround"])
@pytest.mark.parametrize("symmetric", [True, False])
def test_zeros_stay_in_integers(algorithm: str, symmetric: bool) -> None:
    if algorithm == "adaround" and not symmetric:
        algorithm = "awq"
    settings = pb.QuantizationSettings(
        weights_num_bits=4,
        prefer_weights_only_quantization=True,
        weights_algorithm=algorithm,
        weights_symmetric=symmetric,
    )
    torch.manual_seed(0)
    layer, mask = nn.Linear(16, 32), torch.ones(32, 16, dtype=torch.bool)
    made = pb.compile_model(
        layer,
        calibration_inputs=SAMPLES,
        deployment_settings=pb.EagerDeployment(),
        quantization_settings=settings,
        pruning_settings=pb.PruningSettings(),
    )
    mask.view(-1)[layer.weight.abs().flatten().argsort()[:256]] = False
    stands_for = (made(torch.eye(16)) - made(torch.zeros(1, 16))).t()
    assert stands_for[~mask].abs().max() < 1e-6
    assert stands_for[mask].abs().max() > 0.1


def test_report_says_what_masks_gain(tmp_path: Path) -> None:
    made = compiled(pb.PruningSettings(), quantization_settings=pb.QuantizationSettings())
    assert "masks gain size only" in repr(made.report)
    assert "50% of the weights are zero (1:1)" in repr(made.report)
    assert make_overlay(made.report.sparsity, [made.document()], name="sparsity").combine == "mean"
    made.save(tmp_path / "model")
    loaded = pb.load_compiled(tmp_path / "model")
    assert loaded.report.pruned == made.report.pruned
    assert list(loaded.report.table()["sparsity"]) == [row.sparsity for row in made.report.pruned]


@pytest.mark.parametrize("target", [pb.EagerDeployment(), pb.OnnxRuntimeDeployment(), pb.OpenVinoDeployment()])
def test_channels_on_targets(target: pb.DeploymentSettings) -> None:
    settings = pb.PruningSettings(mask_type="channels")
    made = compiled(settings, deployment_settings=target, quantization_settings=pb.QuantizationSettings())
    assert made(torch.randn(9, 16)).shape == (9, 6)
    first = made.report.pruned[0]
    assert (first.removed_channels, first.channels, made.report.layers[0].parameters) == (16, 32, 16 * 17)
    assert made.report.float_bytes == sum(p.numel() for p in network().parameters()) * 4


def test_dry_run_and_later_quantization() -> None:
    plan = compiled(pb.PruningSettings(mask_type="channels"), is_dry_run=True)
    assert plan.pruned[0].removed_channels == 16  # type: ignore[attr-defined]
    made = compiled(pb.PruningSettings(mask_type="channels"))
    assert made.initialize_algorithms(SAMPLES).report.pruned[0].removed_channels == 16


def test_backend_of_torch_compile() -> None:
    options = {"pruning_settings": pb.PruningSettings(mask_type="channels"), "tracing_inputs": SAMPLES}
    made = torch.compile(network(), backend="prepbench", options=options)
    expected = compiled(pb.PruningSettings(mask_type="channels"))
    assert torch.allclose(made(SAMPLES[0]), expected(SAMPLES[0]), atol=1e-5)


def test_the_model_is_left_alone() -> None:
    model = network()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    pb.compile_model(model, tracing_inputs=SAMPLES, deployment_settings=pb.EagerDeployment(),
                     pruning_settings=pb.PruningSettings())  # fmt: skip
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_weights_that_are_nan_stay_and_say_so() -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    with torch.no_grad():
        model[2].weight[0, 0] = torch.nan
    rows = {row.fqn: row for row in pb.prune(model, [torch.randn(2, 8)], pb.PruningSettings()).layers}
    assert (rows["2"].zeros, rows["2"].reason) == (0, "its weights hold NaN or infinite numbers, which no score orders")
    assert rows["0"].zeros


def test_samples_are_called_as_the_argument_is() -> None:
    with pytest.raises(pb.PrepbenchError, match=r"^inputs is empty"):
        pb.prune(nn.Linear(2, 2), [], pb.PruningSettings())


def test_share_is_that_of_the_weights() -> None:
    model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 8)).eval()
    pruned = pb.prune(model, [torch.randn(4, 8)], pruning_settings=pb.PruningSettings(mask_type="2:4"))
    assert repr(pruned).count("50% of the weights are zero (2:4)") == 2, "biases are never pruned"
