"""The runs of a bench: several targets, names, differences, and the way back to their choices."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn

import prepbench as pb
from prepbench.bench.runs import setting_rows
from prepbench.bench.state import BenchState
from prepbench.errors import SettingsError, UnknownNameError


@pytest.fixture
def bench() -> pb.Bench:
    torch.manual_seed(0)
    samples = [torch.randn(2, 4), torch.randn(3, 4)]
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).eval()
    return pb.Bench(net, tracing_inputs=samples, calibration_inputs=samples)


def test_choices_go_to_json_and_back(bench: pb.Bench) -> None:
    bench.name_axis("input", 0, "people")
    bench.limit_axis("input", 0, 1, 64)
    bench.set_layers(["0"], "weights_num_bits", (4, 8))
    bench.set_targets([pb.OpenVinoDeployment(inference_threads=2), pb.OnnxRuntimeDeployment()])
    bench.set_leaf("1", True)
    bench.set_options(pb.CompileOptions(smooth_quant=True))
    data = json.loads(json.dumps(bench.state.to_json()))
    assert BenchState.from_json(data, bench.choices.inferred_axes) == bench.state
    axes = bench.choices.inferred_axes
    for field in data:
        with pytest.raises(SettingsError):
            BenchState.from_json({key: value for key, value in data.items() if key != field}, axes)
        with pytest.raises(pb.PrepbenchError):
            BenchState.from_json({**data, field: [{"x": 1}]}, axes)


def test_each_target_is_a_run(bench: pb.Bench) -> None:
    bench.set_targets([pb.OnnxRuntimeDeployment(), pb.EagerDeployment()])
    bench.compile()
    assert [run.target_name for run in bench.runs] == ["ONNX Runtime", "PyTorch eager"]
    assert all(run.score is not None and not run.error for run in bench.runs)
    assert list(bench.results) == [run.name for run in bench.runs]
    summary = bench.summary()
    assert [run.target for run in summary.runs] == ["PyTorch eager", "ONNX Runtime"]
    assert [kind.texts for kind in summary.staleness] == [()]


def test_a_run_brings_back_all_targets_of_its_compile(bench: pb.Bench, tmp_path: Path) -> None:
    both = (pb.OnnxRuntimeDeployment(), pb.EagerDeployment())
    bench.set_targets(both)
    bench.compile()
    bench.set_target("OpenVINO")
    bench.save(tmp_path / "a.bench.json")
    loaded = pb.Bench.load(tmp_path / "a.bench.json", model=bench.model, calibration_inputs=bench.calibration_inputs)
    for each in (bench, loaded):
        for run in each.runs:
            assert len(run.state["targets"]) == 1
            each.restore_run(run.id)
            assert each.state.targets == both
            each.undo()
            assert each.state.target == "OpenVINO"


def test_one_target_that_fails_does_not_stop_the_others(bench: pb.Bench) -> None:
    bench.set_precision("0", "int4 weights")
    bench.set_targets([pb.ExecuTorchDeployment(), pb.OnnxRuntimeDeployment()])
    blocked = next(target for target in bench.summary().targets if target.name == "ExecuTorch")
    with pytest.raises(pb.PrepbenchError):
        bench.compile()
    failed, worked = bench.runs
    assert failed.error
    assert blocked.problem or blocked.unavailable
    assert not worked.error
    assert worked.score is not None


def test_runs_are_renamed_pinned_compared_restored_and_deleted(bench: pb.Bench) -> None:
    bench.set_target("PyTorch eager")
    bench.compile()
    bench.set_precision("0", "float32")
    bench.compile()
    first, second = bench.runs
    bench.rename_run(first.id, "all int8")
    assert next(iter(bench.results)) == "all int8"
    with pytest.raises(SettingsError, match="Another run"):
        bench.rename_run(second.id, "all int8")
    bench.pin_run(first.id, True)
    assert [run.pinned for run in bench.summary().runs] == [True, False]
    difference = bench.compare_runs(first.id, second.id)
    assert [row.what for row in difference.layers] == ["0"]
    assert difference.layers[0].second.startswith("float")
    assert [(row.what, row.first, row.second) for row in difference.settings] == [("0", "–", "float")]
    summary = bench.summary()
    stale = {run.id: summary.staleness[at].texts for run, at in zip(summary.runs, summary.stale_of, strict=True)}
    assert stale == {first.id: ("1 layer had another precision",), second.id: ()}
    assert summary.shown_run == second.id
    bench.restore_run(first.id)
    assert set(bench.precisions.values()) == {"int8"}
    bench.undo()
    assert bench.precisions["0"] == "float32"
    bench.delete_run(first.id)
    assert [run.id for run in bench.runs] == [second.id]
    with pytest.raises(UnknownNameError, match=second.id):
        bench.restore_run(first.id)


def test_a_run_is_exported(bench: pb.Bench, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="compile first"):
        bench.export_onnx(tmp_path / "net.onnx")
    bench.compile()
    assert bench.export_onnx(tmp_path / "net.onnx").stat().st_size > 100


def test_pasted_code_of_several_targets_does_the_same(bench: pb.Bench) -> None:
    bench.set_targets([pb.OnnxRuntimeDeployment(), pb.EagerDeployment()])
    bench.limit_axis("input", 0, 1, 64)
    bench.set_precision("0", "float32")
    bench.set_leaf("1", True)
    last = bench.compile()
    scope = {"net": bench.model, "batches": bench.inputs.arguments["calibration_inputs"]}
    exec(bench.code(scope), scope)
    x = torch.randn(5, 4)
    assert list(scope["compiled"]) == list(bench.results)
    assert torch.equal(last(x), list(scope["compiled"].values())[-1](x))


class Gate(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:
            return x * 2
        return -x


def test_a_proven_rewrite_is_applied_to_a_copy_and_can_be_undone() -> None:
    torch.manual_seed(0)
    samples = [torch.randn(2, 4), -torch.rand(3, 4), torch.rand(4, 4)]
    net = nn.Sequential(nn.Linear(4, 4), Gate()).eval()
    bench = pb.Bench(net, tracing_inputs=samples)
    bench.set_target("PyTorch eager")
    assert not bench.summary().fixes_known
    bench.find_fixes()
    assert bench.summary().fixes_known
    (card,) = bench.summary().failures
    assert card.can_fix
    assert "torch.where" in card.diff
    with pytest.raises(pb.PrepbenchError):
        bench.compile()
    bench.apply_fix(card.fqn)
    assert bench.summary().failures[0].fixed
    assert bench.summary().failures[0].proof.startswith("✓")
    assert not bench.collection.failures
    compiled = bench.compile()
    assert all(torch.allclose(compiled(x), net(x)) for x in samples)
    assert "forward" not in vars(net[1])
    scope = {"net": net, "batches": samples}
    exec(bench.code(scope), scope)
    assert torch.equal(scope["compiled"](samples[1]), compiled(samples[1]))
    bench.undo()
    assert bench.collection.failures
    with pytest.raises(SettingsError, match="no fix to apply"):
        bench.apply_fix("0")


def test_capture_verifies_the_axes(bench: pb.Bench) -> None:
    bench.capture()
    (axis, static) = bench.summary().axes
    assert axis.verified.startswith("✓")
    assert not static.verified
    bench.set_axis("input", 0, False)
    assert not bench.summary().axes[0].verified


def test_what_other_choices_leave_alone_is_used_again(bench: pb.Bench) -> None:
    bench.compile()
    bench.set_precision("0", "int4 weights")
    again = bench.compile()
    assert not bench.runs[0].reused
    assert "capture" in bench.runs[1].reused
    fresh = pb.compile_model(
        bench.model,
        tracing_inputs=bench.tracing_inputs,
        calibration_inputs=bench.calibration_inputs,
        deployment_settings=pb.OnnxRuntimeDeployment(),
        quantization_settings=bench.state.quantization,
        layer_quantization_settings=dict(bench.state.rules),
    )
    x = torch.randn(5, 4)
    assert torch.equal(again(x), fresh(x))


def test_each_choice_that_differs_is_told_with_both_sides(bench: pb.Bench) -> None:
    before = bench.state
    bench.set_target("PyTorch eager")
    bench.set_axis("input", 0, False)
    bench.set_precision("0", "int4 weights")
    bench.set_leaf("2", True)
    rows = setting_rows(before.for_target(bench.state.targets[0]), bench.state)
    assert [(row.what, row.first, row.second) for row in rows] == [
        ("0", "–", "int4 weights"),
        ("input dim 0", "dynamic", "static"),
        ("Leaves", "off", "on: 2"),
    ]
    assert setting_rows(before, before) == ()
