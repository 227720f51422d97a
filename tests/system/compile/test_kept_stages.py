"""Compiles that reuse stages of earlier ones: they equal fresh compiles, and nothing stale is ever taken."""

from __future__ import annotations

import copy
import dataclasses
import functools
import json
import math
import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import prepbench as pb
from prepbench.errors import SettingsError
from prepbench.quantize.algorithms import channel_groups
from tests.compile.compile.models import SmallNet, images, int8

Layers = dict[str, pb.LayerQuantizationSettings]
FOUR = pb.LayerQuantizationSettings(weights_num_bits=4)
EVERYTHING = ("insert observers", "calibrate", "measure", "convert")


Fresh = Callable[..., pb.CompiledModel]


@pytest.fixture(scope="module")
def fresh() -> Fresh:
    """What compiling ``net`` anew gives for a target, which is compiled once."""

    @functools.cache
    def compile_anew(target: pb.DeploymentSettings | None = None) -> pb.CompiledModel:
        torch.manual_seed(0)
        return int8(SmallNet().eval(), target)

    return compile_anew


@pytest.fixture(scope="module")
def once() -> tuple[nn.Module, pb.KeptStages]:
    """A model that was compiled once, and what was kept of it."""
    torch.manual_seed(0)
    model, kept = SmallNet().eval(), pb.KeptStages(captures=50)
    int8(model, pb.EagerDeployment(), reuse=kept)
    return model, kept


def is_close(one: float | None, other: float | None) -> bool:
    """Whether two SQNRs differ by rounding at most; ``None`` where nothing was measured."""
    return one == other if one is None or other is None else math.isclose(one, other, abs_tol=1e-4)


def assert_same(one: pb.CompiledModel, other: pb.CompiledModel, *inputs: torch.Tensor) -> None:
    """Bit-equal results, and the same report of each layer, but for the rounding of what another thread measured."""
    for layer, expected in zip(one.report.layers, other.report.layers, strict=True):
        assert dataclasses.replace(layer, sqnr=expected.sqnr) == expected
        assert is_close(layer.sqnr, expected.sqnr)
    assert is_close(one.report.model_sqnr, other.report.model_sqnr)
    for x in inputs or (images(1), images(7)):
        torch.testing.assert_close(one(x), other(x), rtol=0, atol=0)


def test_other_bits_measure_only_those_layers_again(net: nn.Module) -> None:
    kept = pb.KeptStages()
    first = int8(net, reuse=kept)
    assert first.report.reused == ()
    changed: Layers = {"head": FOUR}
    second = int8(net, reuse=kept, layer_quantization_settings=changed)
    assert second.report.reused == ("capture", "calibrate", "measure: 3 of 4 layers", "convert: graph", "lower: graph")
    assert_same(second, int8(net, layer_quantization_settings=changed))
    assert list(second.report.seconds) == list(first.report.seconds)
    assert "reused from an earlier compile: capture" in repr(second.report)


def test_an_option_of_the_target_lowers_again_only(net: nn.Module) -> None:
    kept = pb.KeptStages()
    int8(net, reuse=kept)
    target = pb.OnnxRuntimeDeployment(intra_op_threads=1)
    second = int8(net, target, reuse=kept)
    assert second.report.reused == ("capture", *EVERYTHING, "lower: graph")
    assert second.deployment_settings == target
    assert_same(second, int8(net, target))


def test_another_target_takes_the_capture_and_the_ranges_that_it_observes_too(net: nn.Module, fresh: Fresh) -> None:
    kept = pb.KeptStages()
    int8(net, reuse=kept)
    for target in (pb.OpenVinoDeployment(), pb.EagerDeployment(), pb.OnnxRuntimeDeployment()):
        compiled = int8(net, target, reuse=kept)
        assert compiled.report.reused[0] == "capture"
        assert_same(compiled, fresh(target))


def test_float_and_dry_run_take_the_capture(net: nn.Module, fresh: Fresh) -> None:
    kept, target = pb.KeptStages(), pb.EagerDeployment()
    int8(net, target, reuse=kept)
    compiled = pb.compile_model(net, tracing_inputs=[images(1), images(2)], deployment_settings=target, reuse=kept)
    assert compiled.report.reused == ("capture",)
    compiled.initialize_algorithms([images(8), images(16)])
    assert_same(compiled, fresh(target))


@torch.no_grad()
def _write(net: SmallNet) -> None:
    net.head.weight[0] += 1


def _write_past_the_counter(net: SmallNet) -> None:
    net.head.weight.data[0] += 1


def _train(net: SmallNet) -> None:
    optimizer = torch.optim.SGD(net.parameters(), 0.5)
    net(images(4)).square().sum().backward()
    optimizer.step()


CHANGES: dict[str, Callable[[SmallNet], Any]] = {
    "in place": _write,
    "past the counter": _write_past_the_counter,
    "load_state_dict": lambda net: net.load_state_dict(SmallNet().state_dict()),
    "an optimizer's step": _train,
    "batch norm's statistics": lambda net: net.train()(images(4)),
    "a bound": lambda net: setattr(net.body[1], "max_val", 0.1),
    "an attribute": lambda net: setattr(net.stem[1], "eps", 0.5),
    "a submodule": lambda net: setattr(net, "head", nn.Linear(8, 10)),
    "a hook": lambda net: net.head.register_forward_hook(lambda module, args, output: output * 2),
    "forward": lambda net: setattr(net, "forward", lambda x: SmallNet.forward(net, x) * 2),
}
# where nothing was reused, results can be stale in few ways: a change of weights, of a module, of a call
COMPARED = ("past the counter", "an attribute", "forward")


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_model_is_captured_again(net: SmallNet, name: str) -> None:
    kept = pb.KeptStages()
    eager = pb.EagerDeployment()
    before = int8(net, eager, reuse=kept)(images(3))
    CHANGES[name](net)
    second = int8(net, eager, reuse=kept)
    assert second.report.reused == ()
    assert not torch.equal(second(images(3)), before)
    if name in COMPARED:
        assert_same(second, int8(net, eager))


def test_samples_that_were_written_to_are_read_again(net: nn.Module) -> None:
    kept, samples = pb.KeptStages(), [images(8), images(16)]
    int8(net, reuse=kept, calibration_inputs=samples)
    samples[1] *= 3
    second = int8(net, reuse=kept, calibration_inputs=samples)
    assert second.report.reused == ("capture", "convert: graph", "lower: graph")
    assert_same(second, int8(net, calibration_inputs=samples))


@pytest.mark.parametrize(
    ("changes", "reused"),
    [
        ({"tracing_inputs": [images(1), images(3)]}, False),
        ({"dynamic": False, "calibration_inputs": [images(1)]}, False),
        ({"fullgraph": False}, False),
        ({"skip_eval_set_mode": True}, False),
        ({"discard_input_model": False}, False),
        ({"forward_fn": lambda model, args, kwargs: model(*args) * 2}, False),
        ({"graph_name": "other"}, True),
        ({"is_model_pretrained": False}, True),
        ({"fold_batch_norm": False}, True),
        ({"smooth_quant": True}, True),
        ({"quantization_settings": pb.QuantizationSettings(cross_layer_equalization=True)}, True),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_each_argument_counts(once: tuple[nn.Module, pb.KeptStages], changes: dict[str, Any], reused: bool) -> None:
    net, kept = once
    second = int8(net, pb.EagerDeployment(), reuse=kept, **changes)
    assert ("capture" in second.report.reused) is reused
    assert_same(second, int8(net, pb.EagerDeployment(), **changes), images(1))


def test_channels_are_measured_once_for_all_choices(monkeypatch: pytest.MonkeyPatch) -> None:
    measured, insert = list[int](), channel_groups._recorders

    def noted(graph: Any, records: Any) -> Any:
        measured.append(len(records))
        return insert(graph, records)

    monkeypatch.setattr(channel_groups, "_recorders", noted)
    model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3)).eval()
    kept, target = pb.KeptStages(), pb.EagerDeployment()
    scaled = {"quantization_settings": pb.QuantizationSettings(cross_layer_equalization=True)}
    other = {**scaled, "layer_quantization_settings": {"4": pb.LayerQuantizationSettings(observer="mse")}}
    int8(model, target, reuse=kept, **scaled)
    assert measured == [3]
    second = int8(model, target, reuse=kept, **other)
    assert measured == [3]
    assert_same(second, int8(model, target, **other), images(1))


def test_a_model_that_changes_while_it_is_compiled_is_not_kept(net: SmallNet, fresh: Fresh) -> None:
    kept = pb.KeptStages()

    def train(step: pb.Progress) -> None:
        if (step.stage, step.done) == ("calibrate", 1):
            _write(net)

    before, target = copy.deepcopy(net.state_dict()), pb.EagerDeployment()
    int8(net, target, reuse=kept, progress=train)
    assert len(kept) == 0
    net.load_state_dict(before)
    assert_same(int8(net, target, reuse=kept), fresh(target))


@pytest.mark.parametrize("stage", ["capture", "insert observers", "calibrate", "measure", "convert", "lower"])
def test_a_cancelled_compile_leaves_it_usable(net: nn.Module, stage: str, fresh: Fresh) -> None:
    kept, target = pb.KeptStages(), None if stage == "lower" else pb.EagerDeployment()

    def cancel(step: pb.Progress) -> None:
        if step.stage == stage and step.done == min(1, step.total - 1):
            raise pb.Cancelled("Stopped.")

    with pytest.raises(pb.Cancelled):
        int8(net, target, reuse=kept, progress=cancel)
    assert_same(int8(net, target, reuse=kept), fresh(target))
    assert len(kept) == 1


def test_a_model_with_state_or_leaf_modules_is_captured_each_time() -> None:
    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            return self.linear(x) + self.calls

    kept, samples = pb.KeptStages(), [torch.ones(2, 4), torch.ones(3, 4)]
    model, eager = Counts(), pb.EagerDeployment()
    pb.compile_model(model, tracing_inputs=samples, deployment_settings=eager, reuse=kept)
    with_leaf = {"tracing_inputs": samples, "deployment_settings": eager, "leaf_modules": ["0"], "reuse": kept}
    pb.compile_model(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), **with_leaf)
    assert len(kept) == 0


def test_captures_are_bounded_and_released(net: nn.Module) -> None:
    kept = pb.KeptStages(captures=1)
    for tracing in ([images(1), images(2)], [images(1), images(3)]):
        int8(net, pb.EagerDeployment(), reuse=kept, tracing_inputs=tracing)
        assert repr(kept) == "KeptStages(1 of at most 1 captures)"
    kept.clear()
    assert len(kept) == 0
    assert int8(net, pb.EagerDeployment(), reuse=kept).report.reused == ()


@pytest.mark.parametrize("wrong", [True, {}, pb.KeptStages])
def test_what_is_not_kept_stages_is_an_error(net: nn.Module, wrong: Any) -> None:
    with pytest.raises(SettingsError, match=r"reuse=pb\.KeptStages"):
        int8(net, reuse=wrong)
    with pytest.raises(SettingsError, match="captures"):
        pb.KeptStages(captures=0)


def test_the_log_says_what_was_reused(net: nn.Module, tmp_path: Path) -> None:
    kept = pb.KeptStages()
    int8(net, reuse=kept)
    report = int8(net, reuse=kept, logs_dir=tmp_path).report
    events = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert tuple(event["what"] for event in events if event["event"] == "reused") == report.reused
    assert "reused from an earlier compile: calibrate" in (tmp_path / "compile.log").read_text()


def test_it_is_saved_and_loaded_with_the_report(net: nn.Module, tmp_path: Path) -> None:
    kept = pb.KeptStages()
    int8(net, reuse=kept)
    compiled = int8(net, reuse=kept)
    compiled.save(tmp_path / "model")
    assert pb.load_compiled(tmp_path / "model").report == compiled.report


def test_several_threads_share_it(net: nn.Module, fresh: Fresh) -> None:
    kept = pb.KeptStages()
    rules: list[Layers] = [{}, {"head": FOUR}, {}]
    results: dict[int, pb.CompiledModel] = {}

    def work(number: int) -> None:
        results[number] = int8(net, reuse=kept, layer_quantization_settings=rules[number])

    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(rules))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, layers in enumerate(rules):
        assert_same(results[number], int8(net, layer_quantization_settings=layers) if layers else fresh())


def _random_settings(random_numbers: random.Random) -> dict[str, Any]:
    """Arguments of a compile that a user may click together."""
    choose = random_numbers.choice
    names = random_numbers.sample(["stem.0", "body.0", "body.2", "head"], random_numbers.randrange(4))
    some: Layers = {
        name: choose(
            [
                FOUR,
                pb.LayerQuantizationSettings(skip_quantization=True),
                pb.LayerQuantizationSettings(weights_num_bits=(4, 8)),
                pb.LayerQuantizationSettings(prefer_weights_only_quantization=True),
                pb.LayerQuantizationSettings(observer="percentile"),
            ]
        )
        for name in names
    }
    return {
        "target": choose([pb.OnnxRuntimeDeployment(), pb.OpenVinoDeployment(), pb.EagerDeployment()]),
        "layer_quantization_settings": some,
        "quantization_settings": pb.QuantizationSettings(
            observer=choose(["minmax", "mse"]), activations_symmetric=choose([False, True])
        ),
        "compile_options": pb.CompileOptions(
            bias_correction=choose([True, True, False]),
            fold_batch_norm=choose([True, True, False]),
            cross_layer_equalization=choose([False, False, True]),
            model_sqnr_floor=choose([20.0, 45.0]),
        ),
    }


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.stress) for seed in range(1, 6))])
def test_random_sequences_of_settings_equal_fresh_compiles(net: nn.Module, seed: int) -> None:
    random_numbers, kept = random.Random(seed), pb.KeptStages()
    for _ in range(3):
        settings = _random_settings(random_numbers)
        assert_same(int8(net, reuse=kept, **settings), int8(net, **settings))


class WritesInPlace(nn.Module):
    """Values that observers look at are overwritten, and one layer is called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.act = nn.Linear(8, 8), nn.Linear(8, 8), nn.ReLU(inplace=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.one(x)
        z = self.two(y)
        self.act(y)
        return self.two(y) + z


def test_graphs_that_write_in_place_equal_fresh_compiles() -> None:
    torch.manual_seed(0)
    model, kept, samples = WritesInPlace().eval(), pb.KeptStages(), [torch.randn(n, 8) for n in (4, 6)]
    rules: list[Layers] = [{}, {"two": FOUR}, {"one": FOUR}, {"one": pb.LayerQuantizationSettings(observer="mse")}]
    for layers in rules:
        settings = {"tracing_inputs": samples, "calibration_inputs": samples, "layer_quantization_settings": layers}
        again, fresh = (int8(model, reuse=reuse, **settings) for reuse in (kept, None))
        assert_same(again, fresh, *samples)


def test_an_argument_called_like_a_builtin_is_reused_too() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).eval()  # its argument is called "input"
    samples, kept = [torch.randn(2, 4), torch.randn(3, 4)], pb.KeptStages()
    settings: dict[str, Any] = {"calibration_inputs": samples, "quantization_settings": pb.QuantizationSettings()}
    pb.compile_model(net, deployment_settings=pb.OnnxRuntimeDeployment(), reuse=kept, **settings)
    again = pb.compile_model(net, deployment_settings=pb.EagerDeployment(), reuse=kept, **settings)
    fresh = pb.compile_model(net, deployment_settings=pb.EagerDeployment(), **settings)
    assert again.report.reused
    x = torch.randn(5, 4)
    assert torch.equal(again(x), fresh(x))
