"""Each argument of ``compile_model`` changes something, and says so when it cannot."""

from __future__ import annotations

import errno
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import prepbench as pb
from prepbench.compile.request import CompileRequest
from prepbench.compile.simulation import Simulation
from prepbench.errors import CalibrationError, InputError, SettingsError, StorageError
from prepbench.jobs import report_nothing
from prepbench.objects.copy import Twin
from prepbench.running import given_samples

EAGER = pb.EagerDeployment()


def noise(*shape: int) -> torch.Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(sum(shape))) * 2 - 1


class Net(nn.Module):
    """Two linear layers; scale and offset are arguments that a user would fix."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.drop, self.two = nn.Linear(8, 16), nn.Dropout(0.5), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor, scale: float = 1.0, offset: int = 0) -> torch.Tensor:
        return self.two(self.drop(self.one(x).relu())) * scale + offset


@pytest.fixture
def net() -> Net:
    torch.manual_seed(0)
    return Net().eval()


def int8(model: nn.Module, **changes: Any) -> Any:
    arguments: dict[str, Any] = {
        "tracing_inputs": [noise(2, 8), noise(3, 8)],
        "calibration_inputs": [noise(16, 8), noise(8, 8)],
        "deployment_settings": EAGER,
        "quantization_settings": pb.QuantizationSettings(),
        **changes,
    }
    return pb.compile_model(model, **arguments)


class Whole(nn.Module):
    """``forward`` takes a mapping whole."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 4)

    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return self.layer(batch["x"]) * batch["gain"]


@pytest.mark.parametrize(
    "sample, call",
    [
        (lambda n: noise(n, 8), lambda model, n: model(noise(n, 8))),
        (lambda n: (noise(n, 8),), lambda model, n: model(noise(n, 8))),
        (lambda n: (noise(n, 8), {"scale": 2.0}), lambda model, n: model(noise(n, 8), scale=2.0)),
        (lambda n: {"x": noise(n, 8), "offset": 3}, lambda model, n: model(x=noise(n, 8), offset=3)),
    ],
    ids=["tensor", "tuple", "tuple ending in a dict", "dict by keyword"],
)
def test_samples_come_in_all_forms(net: Net, sample: Any, call: Any) -> None:
    compiled = int8(net, tracing_inputs=[sample(2), sample(3)], calibration_inputs=[sample(16)])
    assert float((call(compiled, 7) - call(net, 7)).detach().abs().max()) < 0.1


def test_a_mapping_that_forward_takes_whole() -> None:
    model = Whole().eval()
    samples = [{"x": noise(n, 8), "gain": noise(n, 1)} for n in (2, 3, 16)]
    compiled = int8(model, tracing_inputs=samples[:2], calibration_inputs=samples[2:])
    x = {"x": noise(5, 8), "gain": noise(5, 1)}
    assert float((compiled(x) - model(x)).detach().abs().max()) < 0.1


def test_a_generator_and_a_data_loader_are_read_once(net: Net) -> None:
    reads = []

    def batches() -> Iterator[torch.Tensor]:
        for n in (16, 8):
            reads.append(n)
            yield noise(n, 8)

    assert int8(net, tracing_inputs=None, calibration_inputs=batches()).report.layers
    assert reads == [16, 8]
    data = torch.utils.data.TensorDataset(noise(20, 8), torch.arange(20))
    loader = torch.utils.data.DataLoader(data, batch_size=8)
    compiled = int8(net, tracing_inputs=loader, calibration_inputs=loader, data_transform_fn=lambda batch: batch[0])
    assert compiled(noise(9, 8)).shape == (9, 4)
    used = batches()
    list(used)
    with pytest.raises(InputError, match=r"calibration_inputs is empty.*a generator, which can be read only once"):
        int8(net, calibration_inputs=used)


def test_forward_fn_adds_arguments_and_keeps_names(net: Net) -> None:
    compiled = int8(net, forward_fn=lambda model, args, kwargs: model(*args, **kwargs, scale=3.0, offset=5))
    x = noise(7, 8)
    assert float((compiled(x) - net(x, 3.0, 5)).detach().abs().max()) < 0.2
    assert [row.fqn for row in compiled.report.layers if row.quantized] == ["one", "two"]
    by_keyword = int8(
        net,
        tracing_inputs=[{"x": noise(2, 8)}, {"x": noise(3, 8)}],
        calibration_inputs=[{"x": noise(16, 8)}],
        forward_fn=lambda model, args, kwargs: model(**kwargs, offset=model.two.out_features),
    )
    assert float((by_keyword(x=x) - net(x, offset=4)).detach().abs().max()) < 0.1


def test_discard_input_model_decides_who_owns_the_weights(net: Net) -> None:
    x = noise(4, 8)
    for discard in (True, False):
        compiled = pb.compile_model(
            net, tracing_inputs=[noise(2, 8), noise(3, 8)], deployment_settings=EAGER, discard_input_model=discard
        )
        before = compiled(x)
        with torch.no_grad():
            net.two.bias.add_(1)
        assert torch.allclose(compiled(x), before + 1 if discard else before)


def test_without_discarding_the_model_is_bit_identical(net: Net) -> None:
    state = {name: value.clone() for name, value in net.state_dict().items()}
    handle = net.one.register_forward_hook(lambda *_: None)
    net.train()
    net.two.eval()
    int8(net, discard_input_model=False)
    assert all(torch.equal(value, state[name]) for name, value in net.state_dict().items())
    assert net.training
    assert not net.two.training
    assert list(net.one._forward_hooks) == [handle.id]


def test_weights_that_mean_nothing_are_not_measured(net: Net) -> None:
    with torch.no_grad():
        net.one.weight[0] *= 1e4  # one scale for all channels: the rest is rounded away
    ruined = {"layer_quantization_settings": {"one": pb.LayerQuantizationSettings(per_channel=False)}}
    measured, not_measured = int8(net, layer_sqnr_floor=60, **ruined), int8(net, is_model_pretrained=False, **ruined)
    assert not measured.report.layers[0].quantized
    assert "below the floor of 60 dB" in measured.report.layers[0].reason
    assert not_measured.report.layers[0].quantized
    assert "measure" not in not_measured.report.seconds
    assert not_measured.report.model_sqnr is None


def test_skip_eval_set_mode_compiles_the_mode_that_the_model_is_in(net: Net) -> None:
    net.train()
    arguments: dict[str, Any] = {"tracing_inputs": [noise(2, 8), noise(3, 8)], "deployment_settings": EAGER}
    x = noise(64, 8)
    dropped = pb.compile_model(net, skip_eval_set_mode=True, **arguments)
    assert not torch.equal(dropped(x), dropped(x))
    kept = pb.compile_model(net, **arguments)
    assert torch.equal(kept(x), kept(x))
    assert net.training


def test_graph_name_is_found_in_report_log_and_diagram(net: Net, tmp_path: Path) -> None:
    compiled = int8(net, graph_name="first head", logs_dir=tmp_path)
    assert compiled.report.name == "first head"
    assert "first head" in (tmp_path / "compile.log").read_text()
    assert compiled.document().model_type == "first head"
    assert int8(net).report.name == "Net"


def test_dynamic_false_fixes_all_sizes(net: Net) -> None:
    with pytest.raises(InputError, match=r"x must be a torch.float32 tensor of shape \(2, 8\)"):
        int8(net, dynamic=False)(noise(5, 8))


def test_disable_returns_what_was_given(net: Net) -> None:
    assert pb.compile_model(net, disable=True) is net


def test_logs_tell_people_and_programs_what_happened(net: Net, tmp_path: Path) -> None:
    compiled = int8(net, logs_dir=tmp_path / "deep" / "logs")
    events = [json.loads(line) for line in (tmp_path / "deep" / "logs" / "events.jsonl").read_text().splitlines()]
    assert events[0]["event"] == "start"
    assert events[0]["quantization_settings"]["weights_num_bits"] == 8
    assert [event["stage"] for event in events if event["event"] == "stage"] == list(compiled.report.seconds)
    assert [event["done"] for event in events if event.get("stage") == "calibrate" and "done" in event][-1] == 2
    assert events[-1]["event"] == "done"
    assert events[-1]["report"]["layers"][0]["fqn"] == "one"
    text = (tmp_path / "deep" / "logs" / "compile.log").read_text()
    assert "calibrate: " in text
    assert "2 of 2 layers quantized" in text
    with pytest.raises(SettingsError):
        int8(
            net,
            logs_dir=tmp_path / "deep" / "logs",
            layer_quantization_settings={"zzz": pb.LayerQuantizationSettings()},
        )


def test_a_failure_is_logged(net: Net, tmp_path: Path) -> None:
    with pytest.raises(CalibrationError):
        int8(net, logs_dir=tmp_path, calibration_inputs=[noise(4, 8), noise(4, 8) * float("nan")])
    assert "failed: CalibrationError: calibration_inputs[1]: x holds 32 NaN" in (tmp_path / "compile.log").read_text()


def test_a_log_that_cannot_be_written_stops_the_compile_and_leaves_the_model(
    net: Net, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match=r"logs_dir=.*cannot be written.*the model is unchanged"):
        int8(net, logs_dir=tmp_path / "file")

    def full(*_: Any, **__: Any) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    net.train()
    monkeypatch.setattr(Path, "open", full)
    with pytest.raises(StorageError, match=r"[Nn]o space left on device"):
        int8(net, logs_dir=tmp_path / "logs")
    assert net.training
    monkeypatch.undo()
    assert int8(net, logs_dir=tmp_path / "logs").report.layers


def test_extra_options_set_fields_of_target_and_options(net: Net) -> None:
    compiled = pb.compile_model(net, tracing_inputs=[noise(2, 8), noise(3, 8)], intra_op_threads=1)
    assert compiled.deployment_settings == pb.OnnxRuntimeDeployment(intra_op_threads=1)
    assert int8(net, layer_sqnr_floor=200, model_sqnr_floor=0).report.layers[0].weights_bits == 32
    with pytest.raises(SettingsError, match=r"no argument 'smoothquant'. Did you mean 'smooth_quant'\?"):
        int8(net, smoothquant=True)
    with pytest.raises(SettingsError, match="intra_op_threads must be None or a positive number"):
        pb.compile_model(net, tracing_inputs=[noise(2, 8)], intra_op_threads=0)
    with pytest.raises(SettingsError, match="compile_options must be of type CompileOptions, got dict"):
        int8(net, compile_options={"smooth_quant": True})


def test_a_dry_run_is_the_plan_of_all_layers_and_compiles_nothing(net: Net) -> None:
    rules = {"two": pb.LayerQuantizationSettings(skip_quantization=True)}
    seen: list[str] = []
    plan = int8(net, is_dry_run=True, layer_quantization_settings=rules, progress=lambda p: seen.append(p.stage))
    assert isinstance(plan, type(int8(net).report))
    assert plan.dry_run
    assert {row.fqn: row.weights_bits for row in plan.layers} == {"one": 8, "two": 32}
    weights = sum(p.numel() for p in net.parameters())
    assert plan.float_bytes == 4 * weights
    rows, columns = net.one.weight.shape  # integers with a scale for each row; biases stay in float
    assert plan.estimated_bytes == 4 * weights - 3 * rows * columns + 4 * rows
    four = pb.QuantizationSettings(weights_num_bits=4)
    same = int8(net, is_dry_run=True, layer_quantization_settings=rules, quantization_settings=four)
    assert same.estimated_bytes == plan.estimated_bytes  # kernels of integers read weights of 8 bits
    assert {"calibrate", "convert", "lower"}.isdisjoint(seen)
    assert "1 of 2 layers quantized" in repr(plan)


class Odd(nn.Module):
    """An operator that ONNX does not have, between two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        y = self.one(x.float().to(x.dtype))  # the graph asserts the number type
        return {"spectrum": torch.linalg.svdvals(y.T @ y), "out": self.two(y).view(x.shape[0], 2, 2)}


class Branches(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x if x.sum() > 0 else -x


BRANCH = Branches.forward.__code__.co_firstlineno + 1


def test_a_dry_run_lists_what_the_target_cannot_take() -> None:
    plan = int8(Odd().eval(), deployment_settings=pb.OnnxRuntimeDeployment(), is_dry_run=True)
    (operator,) = plan.unsupported
    assert "linalg_svd" in operator
    leaf = nn.Sequential(nn.Linear(8, 8), Branches(), nn.Linear(8, 4))
    plan = int8(leaf, is_dry_run=True)
    assert plan.leaves == (f"line {BRANCH} of 1",)
    assert plan.unsupported[0].startswith(f"line {BRANCH} of 1: ")


def test_an_operator_that_the_target_does_not_support_is_named_or_falls_back_to_pytorch(tmp_path: Path) -> None:
    model, onnx = Odd().eval(), pb.OnnxRuntimeDeployment()
    with pytest.raises(
        pb.PrepbenchError, match=r"does not support: the model: aten.linalg_svdvals. With fullgraph=False"
    ):
        int8(model, deployment_settings=onnx)
    compiled = int8(model, deployment_settings=onnx, fullgraph=False)
    assert compiled.report.fallbacks == ("the model: aten.linalg_svdvals",)
    assert all(row.quantized for row in compiled.report.layers)
    x = noise(7, 8)
    right, got = model(x), compiled(x)
    assert list(got) == ["spectrum", "out"]
    assert float((got["out"] - right["out"]).detach().abs().max()) < 0.1
    compiled.save(tmp_path / "parts")
    loaded = pb.load_compiled(tmp_path / "parts")
    assert torch.equal(loaded(x)["out"], got["out"])
    assert loaded.report.fallbacks == compiled.report.fallbacks


def test_a_module_that_cannot_be_captured_runs_between_parts_on_any_target() -> None:
    model = nn.Sequential(nn.Linear(8, 8), Branches(), nn.Linear(8, 4)).eval()
    compiled = int8(model, deployment_settings=pb.OnnxRuntimeDeployment(), fullgraph=False)
    for sign in (1, -1):
        x = sign * noise(6, 8).abs()
        assert float((compiled(x) - model(x)).detach().abs().max()) < 0.1


def test_a_float_compile_can_be_quantized_later(net: Net) -> None:
    compiled = pb.compile_model(net, tracing_inputs=[noise(2, 8), noise(3, 8)], deployment_settings=EAGER)
    x = noise(5, 8)
    assert torch.allclose(compiled(x), net(x))

    def cancel(progress: pb.Progress) -> None:
        if progress.stage == "calibrate":
            raise pb.Cancelled("stop")

    with pytest.raises(pb.Cancelled):
        compiled.initialize_algorithms([noise(16, 8)], progress=cancel)
    assert torch.allclose(compiled(x), net(x))
    rules = {"two": pb.LayerQuantizationSettings(skip_quantization=True)}
    same = compiled.initialize_algorithms([noise(16, 8)], layer_quantization_settings=rules)
    assert same is compiled
    assert [row.weights_bits for row in compiled.report.layers] == [8, 32]
    assert torch.equal(compiled(x), int8(net, calibration_inputs=[noise(16, 8)], layer_quantization_settings=rules)(x))
    with pytest.raises(SettingsError, match="is quantized already"):
        compiled.initialize_algorithms([noise(16, 8)])


def test_a_structure_that_changes_between_samples_is_named(net: Net) -> None:
    with pytest.raises(InputError, match=r"calibration_inputs\[1\]: .*scale"):
        int8(net, calibration_inputs=[noise(4, 8), (noise(4, 8), {"scale": 2.0})])


def test_values_that_become_infinite_are_traced_to_sample_and_line() -> None:
    class Divides(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(1 / x)

    with pytest.raises(CalibrationError, match=r"calibration_inputs\[1\] gives .*test_arguments.py:\d+"):
        int8(Divides(), calibration_inputs=[noise(4, 8), torch.zeros(4, 8)])


@pytest.mark.parametrize(
    "settings, message",
    [
        (
            {"weights_num_bits": 4},
            "does not support 4-bit weights with quantized activations.*It supports: weights of 8 bits",
        ),
        ({"activations_num_bits": 16}, "does not support 16-bit activations"),
    ],
)
def test_unsupported_bits_are_refused_with_those_that_the_target_has(net: Net, settings: Any, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        int8(
            net,
            deployment_settings=pb.TensorRtDeployment(),
            quantization_settings=pb.QuantizationSettings(**settings),
            is_dry_run=True,
        )


# Samples are normalised once, whatever compiles, trains, prunes or simulates the model.


INT8, HALF = pb.QuantizationSettings(), pb.PruningSettings(mask_type="channels")
SAMPLES = [torch.linspace(-1, 1, 6 * count).reshape(count, 6) for count in (2, 5)]


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """How often samples are normalised, and how often a twin of the user's model is made."""
    counts = {"samples": 0, "twins": 0}
    normalize, make = given_samples.normalize_samples, Twin.__init__

    def normalized(*args: Any, **kwargs: Any) -> Any:
        counts["samples"] += 1
        return normalize(*args, **kwargs)

    def made(self: Twin, model: Any) -> None:
        counts["twins"] += isinstance(model, nn.Module)
        make(self, model)

    for name, module in list(sys.modules.items()):
        if name.startswith("prepbench") and vars(module).get("normalize_samples") is normalize:
            monkeypatch.setattr(module, "normalize_samples", normalized)
    monkeypatch.setattr(Twin, "__init__", made)
    return counts


def compiled(model: nn.Module) -> Any:
    return pb.compile_model(model, calibration_inputs=SAMPLES, deployment_settings=EAGER, quantization_settings=INT8)


def prepared(model: nn.Module) -> Any:
    return pb.trainable(
        model,
        calibration_inputs=SAMPLES,
        deployment_settings=EAGER,
        quantization_settings=INT8,
        pruning_settings=HALF,
    )


def pruned(model: nn.Module) -> Any:
    return pb.prune(model, SAMPLES, HALF)


def simulated(model: nn.Module) -> Any:
    return Simulation.of(model, SAMPLES, deployment_settings=EAGER)


@pytest.mark.parametrize(("make", "twins"), [(compiled, 2), (prepared, 7), (pruned, 3), (simulated, 2)])
def test_samples_are_normalised_once(make: Callable[[nn.Module], Any], twins: int, counted: dict[str, int]) -> None:
    """Of twins there is one that what follows the capture reads, and one that is traced, for each capture."""
    make(nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)))
    assert counted == {"samples": 1, "twins": twins}


def test_a_request_that_was_read_is_simulated_for_several_targets(counted: dict[str, int]) -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    request = CompileRequest(model=model, calibration_inputs=iter(SAMPLES), quantization_settings=INT8).read()
    for target in (pb.EagerDeployment(), pb.OnnxRuntimeDeployment()):
        assert Simulation.captured(replace(request, deployment_settings=target), report_nothing).layers == ("0", "2")
    assert counted["samples"] == 1


class Heads(nn.Module):
    """The head is named by a text; one name is that of the input, too."""

    def __init__(self) -> None:
        super().__init__()
        self.heads = nn.ModuleDict({"x": nn.Linear(4, 2), "other": nn.Linear(4, 3)})

    def forward(self, x: torch.Tensor, head: str = "other") -> torch.Tensor:
        return self.heads[head](x)


@pytest.mark.parametrize("target", [pb.OnnxRuntimeDeployment(), pb.OpenVinoDeployment()], ids=["ort", "openvino"])
@pytest.mark.parametrize("head", ["x", "other"])
def test_an_argument_that_is_a_text_is_no_input_of_the_graph(head: str, target: Any) -> None:
    model = Heads().eval()
    samples = [(torch.randn(rows, 4), head) for rows in (2, 3)]
    compiled = pb.compile_model(model, tracing_inputs=samples, deployment_settings=target)
    x = torch.randn(5, 4)
    torch.testing.assert_close(compiled(x, head), model(x, head))
    with pytest.raises(pb.PrepbenchError, match="head"):
        compiled(x, "x" if head == "other" else "other")


def test_a_compiled_model_is_not_compiled_again() -> None:
    samples = [torch.randn(2, 4), torch.randn(3, 4)]
    compiled = pb.compile_model(torch.nn.Linear(4, 4), tracing_inputs=samples)
    for call in (
        lambda: pb.capture(compiled, samples),
        lambda: pb.compile_model(compiled, tracing_inputs=samples),
        lambda: pb.recursive_trace(compiled, inputs=samples),
        lambda: pb.fix(compiled, samples),
        lambda: pb.check_traceability(compiled, samples),
        lambda: pb.sensitivity(compiled, samples),
        lambda: pb.search(compiled, samples, budget=pb.Budget(min_metric=20.0)),
        lambda: pb.prepare_model(compiled),
    ):
        with pytest.raises(pb.errors.InputError, match=r"is a compiled model"):
            call()
