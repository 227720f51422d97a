"""Pruning by layer and training back on the bench: choices, runs, pasted code, and what goes wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import prepbench as pb
from prepbench.bench import RecoverySettings
from prepbench.bench.shown import shown
from prepbench.bench.status import RECOVERING, RunProgress
from prepbench.errors import InputError, PrepbenchError, SettingsError, TrainingError
from prepbench.jobs import Progress
from prepbench.settings import LayerPruningSettings, PruningSettings
from prepbench.widgets.bench import BenchControls

STAYS = LayerPruningSettings(skip_pruning=True)
FEW = RecoverySettings(steps=12)


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 3)).eval()


@pytest.fixture(scope="module")
def samples() -> list[torch.Tensor]:
    return [torch.randn(size, 8, generator=torch.Generator().manual_seed(size)) for size in (4, 6)]


@pytest.fixture
def model() -> nn.Module:
    return net()


@pytest.fixture
def pairs(samples: list[torch.Tensor]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [(x, x[:, :3].argmax(1)) for x in samples]


@pytest.fixture
def bench(model: nn.Module, samples: list[torch.Tensor], pairs: Any) -> pb.Bench:
    return pb.Bench(
        model,
        calibration_inputs=samples,
        data=pairs,
        metric=pb.metrics.accuracy,
        training_data=pairs,
        loss=F.cross_entropy,
    )


def planned(bench: pb.Bench) -> dict[str, str]:
    summary = bench.summary()
    return {layer.fqn: summary.decisions[at].pruning for layer, at in zip(summary.layers, summary.planned, strict=True)}


def test_a_click_on_a_layer_prunes_it_alone(bench: pb.Bench) -> None:
    bench.change_pruning(["2"], "mask_type", "2:4")
    assert planned(bench) == {"0": "", "2": "2:4", "4": ""}
    bench.change_pruning(["0"], "amount", 0.25)
    assert planned(bench) == {"0": "25% weights", "2": "2:4", "4": ""}
    assert [(rule.pattern, rule.label) for rule in bench.summary().rules if rule.prunes] == [
        ("2", "2:4"),
        ("0", "25% weights"),
    ]
    bench.clear_pruning_rules(["0"])
    assert planned(bench) == {"0": "", "2": "2:4", "4": ""}
    bench.clear_pruning_rules(["2"])
    assert bench.state.pruning is None
    bench.undo()
    assert planned(bench)["2"] == "2:4"


def test_all_layers_become_one_setting_and_one_of_them_a_rule(bench: pb.Bench) -> None:
    bench.prune_layers(["*"], PruningSettings(mask_type="channels", amount=0.5))
    assert (bench.state.pruning, dict(bench.state.pruning_rules)) == (
        PruningSettings(mask_type="channels", amount=0.5),
        {},
    )
    bench.change_pruning(["4"], "mask_type", "none")
    assert dict(bench.state.pruning_rules) == {"4": STAYS}
    bench.change_pruning(["Linear"], "mask_type", "none")
    assert bench.state.pruning is None
    assert not bench.state.pruning_rules


@pytest.mark.parametrize(
    ("patterns", "field", "value"),
    [(["nothing"], "amount", 0.5), (["0"], "amount", 1.5), (["0"], "mask_type", "4:2"), (["0"], "bits", 4), ([], 3, 4)],
)
def test_changes_that_mean_nothing_are_told(bench: pb.Bench, patterns: Any, field: Any, value: Any) -> None:
    with pytest.raises(PrepbenchError):
        bench.change_pruning(patterns, field, value)
    assert bench.state.pruning is None


def test_scores_of_samples_need_some(model: nn.Module, samples: list[torch.Tensor]) -> None:
    bench = pb.Bench(model, tracing_inputs=samples)
    bench.change_pruning(["0"], "mask_type", "1:1")
    with pytest.raises(SettingsError, match="calibration_inputs"):
        bench.change_pruning(["0"], "score", "activations")


def test_a_pruned_run_says_what_became_of_layers(bench: pb.Bench, samples: list[torch.Tensor]) -> None:
    bench.set_precision("*", "float32")
    bench.prune_layers(["0", "2"], PruningSettings(mask_type="channels"))
    bench.compile()
    run = bench.runs[-1]
    assert run.name == "float32 pruned ONNX Runtime"
    assert run.pruned["0"] == "8 of 16 channels removed"
    summary = bench.summary()
    assert summary.outcomes[summary.applied[0]].pruned == run.pruned["0"]
    assert "8 of 16 channels removed" in repr(shown(bench).tables)
    scope: dict[str, Any] = {"model": bench.model, "samples": samples}
    exec(bench.code(scope).rpartition("comparison =")[0], scope)
    with torch.no_grad():
        assert pb.metrics.sqnr(scope["compiled"](samples[0]), bench.results[run.name](samples[0])) > 100


def test_a_recovered_run_stands_beside_the_others_and_its_code_makes_it_again(
    bench: pb.Bench, samples: list[torch.Tensor], pairs: Any, tmp_path: Path
) -> None:
    bench.set_precision("*", "int4 weights")
    bench.prune_layers(["0", "2"], PruningSettings(mask_type="2:4"))
    bench.compile()
    curves = []
    end = bench.jobs.on_status(lambda status: curves.append(status.training))
    bench.start_recovery(FEW).result()
    end()
    first, run = bench.runs
    assert (first.recovered, run.name) == ("", "int4 weights pruned trained back ONNX Runtime")
    assert "accuracy" in run.recovered
    last = curves[-1]
    assert (last.total, last.metric) == (12, "accuracy")
    assert 8 < last.step == len(last.losses) <= 12, "or fewer, where the metric improves no more"
    assert last.scored[0] == 0
    assert last.best in last.scored
    results = bench.all_results()
    assert results is not None
    assert [row.name for row in results.rows][1:] == [first.name, run.name]
    scope: dict[str, Any] = {"calibration": samples, "labelled": pairs, "loss": F.cross_entropy, "model": bench.model}
    code = bench.code(scope)
    scope["model"] = net()  # as a fresh kernel makes it
    assert "pb.recover(prepared, labelled, loss, teacher=model, steps=12, metric=pb.metrics.accuracy)" in code
    exec(code.rpartition("comparison =")[0], scope)
    with torch.no_grad():
        assert pb.metrics.sqnr(scope["compiled"](samples[0]), bench.results[run.name](samples[0])) > 60
    again = pb.Bench.load(bench.save(tmp_path / "of.bench.json"), model=bench.model, calibration_inputs=samples)
    assert again.state == bench.state
    assert [each.recovered for each in again.runs] == ["", run.recovered]
    again.code()  # also where what it was trained on is not there
    bench.set_recovery(None)
    assert bench.summary().shown_run == first.id
    bench.compare_runs(first.id, run.id)
    assert "Training back" in {row.what for row in bench.run_history.difference.settings}


def test_without_labels_the_float_model_is_learned(model: nn.Module, samples: list[torch.Tensor]) -> None:
    bench = pb.Bench(model, calibration_inputs=samples)
    assert not bench.summary().recovery.labelled
    assert "which it trains on as well" in bench.summary().recovery.said
    with pytest.raises(SettingsError, match=r"training_data=.*loss="):
        bench.start_recovery(RecoverySettings(distill=False))
    assert bench.state.recovery is None
    bench.start_recovery(FEW).result()
    assert bench.trained is not None
    assert bench.trained.recovery is not None
    assert bench.trained.recovery.metric == "loss in evaluation"


def test_nothing_to_bring_back_and_no_steps_are_told(bench: pb.Bench) -> None:
    for settings in ({"steps": 0}, {"steps": True}, {"learning_rate": 0}, {"distill": 1}, {"steps": None}):
        with pytest.raises(SettingsError):
            RecoverySettings(**settings)
    bench.set_precision("*", "float32")
    assert bench.summary().recovery.unavailable
    assert [button.action for button in bench.summary().recovery.repairs] == ["eight_bits"]
    with pytest.raises(SettingsError, match="Precision"):
        bench.start_recovery()
    bench.undo()
    bench.set_leaf_wrap(True)
    with pytest.raises(SettingsError, match="one graph"):
        bench.start_recovery()
    assert [button.action for button in bench.summary().recovery.repairs] == ["one_graph"]


def test_a_loss_of_nan_fails_the_run_with_its_step(model: nn.Module, samples: list[torch.Tensor], pairs: Any) -> None:
    def broken(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(output, target) * float("nan")

    bench = pb.Bench(model, calibration_inputs=samples, training_data=pairs, loss=broken)
    with pytest.raises(TrainingError, match="step 1"):
        bench.start_recovery(FEW).result()
    assert bench.runs[-1].error
    assert bench.status.message.kind == "error"
    assert bench.status.training.said.startswith("It did not end")
    assert bench.trained is not None, "what was prepared is still there"


def test_a_training_that_is_stopped_compiles_its_best_weights(bench: pb.Bench) -> None:
    stopped: list[int] = []

    def stop(status: Any) -> None:
        if status.training.step >= 1 and not stopped:
            stopped.append(status.training.step)
            bench.stop_training()

    bench.jobs.on_status(stop)
    bench.start_recovery(RecoverySettings(steps=100_000)).result()
    found = bench.trained.recovery if bench.trained is not None else None
    assert found is not None
    assert found.stopped == "interrupted"
    assert len(found.losses) < 100_000
    assert bench.runs[-1].recovered
    done = f"# it ended here after {len(found.losses)} of 100000 steps (interrupted)"
    assert done in bench.code()
    bench.set_recovery(FEW)  # another training, which did not end before its time
    assert "ended here" not in bench.code()


def test_a_model_that_is_trained_meanwhile_is_told(bench: pb.Bench) -> None:
    changed: list[int] = []

    def change(status: Any) -> None:
        if status.training.step >= 1 and not changed:
            changed.append(status.training.step)
            with torch.no_grad():
                bench.model[0].bias.add_(1)

    bench.jobs.on_status(change)
    bench.start_recovery(RecoverySettings(steps=3000)).result()
    assert changed
    assert "weights of the model have changed" in bench.runs[-1].recovered
    assert "weights of the model have changed" in bench.status.training.said


def test_a_training_that_is_cancelled_leaves_its_model_and_no_run(bench: pb.Bench) -> None:
    def cancel(status: Any) -> None:
        if status.training.step >= 1:
            bench.cancel()

    bench.jobs.on_status(cancel)
    with pytest.raises(pb.Cancelled):
        bench.start_recovery(RecoverySettings(steps=100_000)).result()
    assert bench.runs == ()
    assert bench.trained is not None


def test_arguments_of_training_are_checked(model: nn.Module, samples: list[torch.Tensor], pairs: Any) -> None:
    for given in ({"training_data": 3}, {"training_data": samples[0]}, {"loss": F.cross_entropy}):
        with pytest.raises(InputError, match="training_data"):
            pb.Bench(model, calibration_inputs=samples, **given)
    with pytest.raises(PrepbenchError, match="loss"):
        pb.Bench(model, calibration_inputs=samples, training_data=pairs, loss=3)  # type: ignore[arg-type]


def test_what_is_typed_instead_of_a_number_is_named(bench: pb.Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    controls = BenchControls(bench)
    asked: list[Any] = []
    monkeypatch.setattr(bench, "start_recovery", asked.append)
    given = {"action": "train_back", "steps": " 50", "distill": True, "by_metric": False, "learning_rate": "0,01"}
    controls._handle_custom_msg(given, [])
    assert asked == [RecoverySettings(steps=50, by_metric=False, learning_rate=0.01)]
    for name, typed, got in (("steps", "abc", "'abc'"), ("steps", "1.5", "1.5"), ("learning_rate", "", "''")):
        controls._handle_custom_msg({**given, name: typed}, [])
        card = controls.message
        assert f"got {got}. Give one such as" in card["text"] + card["details"]
    controls.close()
    assert len(asked) == 1


def test_the_code_names_a_loss_of_torch_and_few_bits_have_their_name() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2)).eval()
    samples = [torch.randn(3, 4), torch.randn(5, 4)]
    pairs = [(x, torch.zeros(len(x), dtype=torch.long)) for x in samples]
    bench = pb.Bench(model, calibration_inputs=samples, training_data=pairs, loss=torch.nn.functional.cross_entropy)
    bench.set_quantization(pb.QuantizationSettings(weights_num_bits=4, activations_num_bits=4))
    bench.set_recovery(RecoverySettings(steps=2))
    space = {"bench": bench, "model": model, "samples": samples, "pairs": pairs}
    code = bench.code(space)
    assert "bench" not in code.replace("prepbench", "")
    assert "torch.nn.functional.cross_entropy" in code
    fresh = {name: value for name, value in space.items() if name != "bench"}
    exec(code, fresh)
    bench.compile()
    assert bench.runs[-1].name.startswith("int4 trained back")


def test_a_training_has_most_of_the_bar_where_it_comes() -> None:
    stages = list(RECOVERING)
    assert stages.index("convert") < stages.index("recover") < stages.index("lower")
    progress = RunProgress(1, stages=RECOVERING)
    progress(Progress("recover", 1, 1000))
    assert progress.fraction < 0.25
