"""compile_model: what goes in, what comes out, what stays as it was, and every error message."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import prepbench as pb
from prepbench.errors import CalibrationError, InputError, SettingsError
from prepbench.objects.compare import sqnr
from prepbench.package.report import CompileReport
from tests.compile.compile.models import images, int8, unchanged


def test_float_equals_the_model_at_batches_never_shown(net: nn.Module) -> None:
    compiled = pb.compile_model(net, tracing_inputs=[images(1), images(2)])
    assert compiled.target == "onnxruntime"
    for batch in (1, 7):
        torch.testing.assert_close(compiled(images(batch)), net(images(batch)), rtol=1e-4, atol=1e-5)


def test_int8_is_close_to_the_model_at_batches_never_shown(net: nn.Module) -> None:
    compiled = int8(net)
    for batch in (1, 7):
        assert sqnr(net(images(batch)), compiled(images(batch))) > 20


def test_the_model_is_not_changed(net: nn.Module) -> None:
    net.train()
    net.head.eval()
    with unchanged(net):
        int8(net)


def test_weights_that_stay_in_float_keep_their_gradients() -> None:
    model = nn.Sequential(nn.Embedding(10, 8), nn.Linear(8, 8), nn.LayerNorm(8)).eval()
    samples = [torch.arange(n) for n in (3, 5)]
    int8(model, tracing_inputs=samples, calibration_inputs=samples)
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_batch_norms_that_stay_cost_no_exports_of_training_patterns(
    net: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torchao.quantization.pt2e import qat_utils

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a pattern is exported")

    monkeypatch.setattr(qat_utils, "_get_aten_graph_module_for_pattern", refuse)
    compiled = int8(net, pb.EagerDeployment(), fold_batch_norm=False)
    assert sqnr(net(images(7)), compiled(images(7))) > 20


def test_the_model_is_not_changed_when_a_stage_fails(net: nn.Module) -> None:
    def fail(progress: pb.Progress) -> None:
        if (progress.stage, progress.done) == ("calibrate", 1):
            raise KeyboardInterrupt

    net.train()
    with unchanged(net), pytest.raises(KeyboardInterrupt):
        int8(net, progress=fail)
    assert int8(net).report.layers


def test_stages_report_progress_in_order_and_calibration_each_sample(net: nn.Module) -> None:
    seen: list[pb.Progress] = []
    report = int8(net, progress=seen.append).report
    stages = ["capture", "insert observers", "calibrate", "measure", "convert", "lower"]
    assert list(report.seconds) == stages
    assert [(p.done, p.total) for p in seen if p.stage == "calibrate"] == [(0, 2), (1, 2), (2, 2)]
    assert list(dict.fromkeys(p.stage for p in seen)) == stages


def test_a_job_can_be_cancelled_between_batches(net: nn.Module) -> None:
    from prepbench.jobs import Job

    def cancel(progress: pb.Progress) -> None:
        if progress.stage == "calibrate":
            job.cancel()

    with unchanged(net):
        job: Job[Any] = Job(lambda step: int8(net, progress=step), cancel)
        with pytest.raises(pb.Cancelled, match="Nothing was changed"):
            job.result()


def test_settings_of_a_layer_change_the_report_and_the_result(net: nn.Module) -> None:
    skip = pb.LayerQuantizationSettings(skip_quantization=True)
    everything = int8(net)
    for key in ("head", "h*d"):
        compiled = int8(net, layer_quantization_settings={key: skip})
        rows = {row.fqn: row for row in compiled.report.layers}
        assert rows["head"].summary == f"float: skipped by rule {key!r}"
        assert rows["stem.0"].quantized
        assert not torch.equal(compiled(images(4)), everything(images(4)))


def test_the_report_tells_sizes_layers_and_times(net: nn.Module) -> None:
    report = int8(
        net, layer_quantization_settings={"head": pb.LayerQuantizationSettings(skip_quantization=True)}
    ).report
    assert report.float_bytes == sum(t.numel() * t.element_size() for t in [*net.parameters(), *net.buffers()])
    assert report.size_bytes
    text = repr(report)
    assert "3 of 4 layers quantized" in text
    assert "head: float: skipped by rule 'head'" in text
    assert "weights_format" not in report.table(), "bits alone say which"
    assert list(report.table()["fqn" if "fqn" in report.table() else report.table().columns[0]])


def test_int8_weights_are_smaller_on_disk() -> None:
    wide = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 256))
    samples = [torch.randn(4, 256), torch.randn(5, 256)]
    keywords = {"tracing_inputs": samples, "calibration_inputs": samples}
    small = int8(wide, **keywords)
    full = pb.compile_model(wide, tracing_inputs=samples)
    assert small.size_bytes is not None
    assert full.size_bytes is not None
    assert small.size_bytes < 0.3 * full.size_bytes


def test_a_generator_is_read_once_for_both_purposes(net: nn.Module) -> None:
    compiled = int8(net, tracing_inputs=None, calibration_inputs=(images(n) for n in (2, 3)))
    assert compiled(images(5)).shape == (5, 10)


def test_data_transform_fn_picks_the_images_of_a_loader(net: nn.Module) -> None:
    data = torch.utils.data.TensorDataset(images(10), torch.zeros(10))
    loader = torch.utils.data.DataLoader(data, batch_size=4)
    compiled = int8(net, tracing_inputs=None, calibration_inputs=loader, data_transform_fn=lambda batch: batch[0])
    assert compiled(images(5)).shape == (5, 10)


def test_dynamic_false_fixes_the_sizes_of_the_first_sample(net: nn.Module) -> None:
    compiled = pb.compile_model(net, tracing_inputs=[images(2), images(3)], dynamic=False)
    assert compiled(images(2)).shape == (2, 10)
    with pytest.raises(InputError, match=r"shape \(2, 1, 8, 8\), got shape \(3, 1, 8, 8\)"):
        compiled(images(3))


def test_dynamic_axes_can_be_given(net: nn.Module) -> None:
    samples = [images(2), images(3)]
    axes = pb.DynamicAxes.infer(samples, net)
    (axis,) = axes.dynamic
    compiled = pb.compile_model(net, tracing_inputs=samples, dynamic_axes=axes.set(axis.path, axis.dim, False))
    with pytest.raises(InputError):
        compiled(images(3))


def test_disable_returns_the_model_itself(net: nn.Module) -> None:
    assert pb.compile_model(net, disable=True) is net


def test_skip_eval_set_mode_compiles_the_model_in_its_own_mode() -> None:
    net = nn.Sequential(nn.BatchNorm1d(4, track_running_stats=False)).train()
    x = torch.randn(6, 4) * 3
    kept = pb.compile_model(
        nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)).train(),
        tracing_inputs=[x, x[:3]],
        deployment_settings=pb.EagerDeployment(),
        skip_eval_set_mode=True,
    )
    assert not torch.equal(kept(x), kept(x))
    assert net.training


class Shares(nn.Module):
    """``forward(batch, y)``: a tensor within a dict and another one, of one dynamic size."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, batch: dict[str, torch.Tensor], y: torch.Tensor) -> torch.Tensor:
        return self.layer(batch["x"]) + y


@pytest.mark.parametrize("target", [pb.OnnxRuntimeDeployment(), pb.OpenVinoDeployment(), pb.EagerDeployment()])
def test_a_size_may_be_shared_with_a_tensor_within_a_dict(target: pb.DeploymentSettings) -> None:
    net = Shares().eval()
    samples = [({"x": torch.randn(n, 4)}, torch.randn(n, 4)) for n in (2, 3, 5)]
    compiled = pb.compile_model(net, tracing_inputs=samples[:2], deployment_settings=target)
    with torch.no_grad():
        assert torch.allclose(compiled(*samples[2]), net(*samples[2]), atol=1e-5)


def test_a_function_and_a_method_can_be_compiled() -> None:
    class Owner(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def infer(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x).softmax(-1)

    owner, x = Owner(), torch.randn(5, 4)
    method = pb.compile_model(owner.infer, tracing_inputs=[x[:2], x[:3]])
    torch.testing.assert_close(method(x), owner.infer(x))
    function = pb.compile_model(lambda a, b: a @ b, tracing_inputs=[(x[:2], x[:4]), (x[:3], x[:4])])
    torch.testing.assert_close(function(x, x[:4]), x @ x[:4])


@pytest.mark.parametrize(
    "change, message",
    [
        ({"calibration_inputs": None}, "quantization_settings needs calibration_inputs"),
        ({"deployment_settings": None}, r"quantization_settings needs deployment_settings.*OnnxRuntimeDeployment\(\)"),
        (
            {"quantization_settings": None, "layer_quantization_settings": {"0": pb.LayerQuantizationSettings()}},
            "without quantization_settings",
        ),
        ({"layer_quantization_settings": {"9": pb.LayerQuantizationSettings()}}, r"\['9'\] matches no module"),
        ({"deployment_settings": "onnx"}, "must be of type DeploymentSettings"),
        ({"quantization_settings": "int8"}, "must be of type QuantizationSettings"),
        ({"tracing_inputs": None, "calibration_inputs": None, "quantization_settings": None}, "Give tracing_inputs"),
    ],
)
def test_a_missing_or_wrong_argument_is_named(change: dict[str, Any], message: str) -> None:
    x = torch.randn(2, 4)
    arguments = {
        "tracing_inputs": [x],
        "calibration_inputs": [x],
        "deployment_settings": pb.OnnxRuntimeDeployment(),
        "quantization_settings": pb.QuantizationSettings(),
        **change,
    }
    with pytest.raises(SettingsError, match=message) as caught:
        pb.compile_model(nn.Sequential(nn.Linear(4, 4)), **arguments)
    assert isinstance(caught.value, ValueError)


def test_an_unknown_argument_is_an_error(net: nn.Module) -> None:
    with pytest.raises(SettingsError, match=r"'quantisation_settings'. Did you mean 'quantization_settings'\?"):
        pb.compile_model(net, tracing_inputs=[images(2)], quantisation_settings=None)


def test_a_bad_calibration_sample_is_named(net: nn.Module) -> None:
    with pytest.raises(CalibrationError, match=r"calibration_inputs\[1\]: x holds 256 NaN"):
        int8(net, calibration_inputs=[images(4), images(4) * float("nan")])
    with pytest.raises(CalibrationError, match=r"calibration_inputs\[0\]: x holds infinite values"):
        int8(net, calibration_inputs=[images(4) * float("inf")])
    with pytest.raises(CalibrationError, match=r"cannot run on calibration_inputs\[1\] \(x \(4, 2, 8, 8\)\)"):
        int8(net, calibration_inputs=[images(4), images(4).expand(4, 2, 8, 8)])


def test_a_model_without_layers_is_no_model_to_quantize() -> None:
    keywords: dict[str, Any] = {
        "tracing_inputs": [images(1)],
        "calibration_inputs": [images(1)],
        "deployment_settings": pb.OnnxRuntimeDeployment(),
        "quantization_settings": pb.QuantizationSettings(),
    }
    with pytest.raises(SettingsError, match="Nothing would be quantized: the model has no layer with a weight"):
        pb.compile_model(nn.ReLU(), **keywords)
    report = pb.compile_model(nn.ReLU(), is_dry_run=True, **keywords)
    assert "Nothing would be quantized" in report.problem


def test_a_dry_run_says_what_only_measuring_decides() -> None:
    settings = pb.QuantizationSettings(weights_num_bits=[8, 4], prefer_weights_only_quantization=True)
    options: dict[str, Any] = {
        "tracing_inputs": [images(1)],
        "calibration_inputs": [images(1)],
        "deployment_settings": pb.OnnxRuntimeDeployment(),
        "is_dry_run": True,
    }
    model = nn.Sequential(nn.Flatten(), nn.Linear(images(1).numel(), 4))
    report = pb.compile_model(model, quantization_settings=settings, **options)
    assert [row.summary for row in report.layers] == ["4 or 8 bits, to be measured"]
    assert "at least" in repr(report)
    assert "1: 4 or 8 bits, to be measured" in repr(report)
    assert CompileReport.from_dict(report.to_dict()) == report
    report = pb.compile_model(model, quantization_settings=settings, is_model_pretrained=False, **options)
    assert [row.summary for row in report.layers] == ["int4 weights"]


def test_a_class_is_no_model() -> None:
    with pytest.raises(InputError, match=r"got the class ReLU\. Give an instance"):
        pb.compile_model(nn.ReLU, tracing_inputs=[images(1)])
