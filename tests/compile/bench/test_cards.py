"""Words of the bench: errors, slow results, sizes that are unknown."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
import torch

import prepbench as pb
from prepbench.bench.cards import LEAF_LABEL, Card, error_card, size_words, slower_because
from prepbench.bench.queue import buttons_after
from prepbench.errors import MissingPackageError, SettingsError, TargetError, UnknownNameError
from prepbench.results.speed_up import EAGER, Reference, SpeedUp
from prepbench.widgets.bench import BenchControls


def test_an_error_names_the_checkbox_in_place_of_the_argument() -> None:
    error = TargetError("ExecuTorch does not support: sort. With fullgraph=False these run in PyTorch.")
    card = error_card(error, leaf_wrap=False)
    assert card.text == "ExecuTorch does not support: sort"
    assert LEAF_LABEL in card.details
    assert "fullgraph" not in card.details
    assert [button.action for button in card.buttons] == ["keep_in_pytorch"]
    assert error_card(error, leaf_wrap=True).buttons == ()


def test_where_the_model_itself_fails_its_lines_can_be_a_leaf() -> None:
    class Whole(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = torch.nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.fc(x)
            while x.norm() > 1:
                x = x / 2
            return x

    bench = pb.Bench(Whole().eval(), calibration_inputs=[torch.randn(2, 4), torch.randn(2, 4)])
    bench.set_target("PyTorch eager")
    assert bench.summary().steps[0].kind == "bad"
    with pytest.raises(pb.PrepbenchError) as caught:
        bench.compile()
    card = error_card(caught.value, leaf_wrap=False)
    assert card.text == "The model itself cannot be captured: data-dependent branch"
    assert card.troubles[0].code == "while x.norm() > 1:"
    assert card.buttons[0].label == "Keep it in PyTorch and compile"
    bench.set_leaf_wrap(True)
    (leaf,) = bench.compile().report.leaves
    assert leaf.startswith("lines ")


def test_a_long_error_has_a_short_title_and_all_of_it_folded() -> None:
    card = error_card(SettingsError("x" * 1000), leaf_wrap=False)
    assert len(card.text) < 200
    assert card.details == "x" * 1000
    assert error_card(KeyError("name"), leaf_wrap=False).text == "KeyError: 'name'"


def ends(bench: pb.Bench) -> Card:
    """The card of a run in the background."""
    job = bench.start()
    with contextlib.suppress(pb.PrepbenchError):
        job.result(timeout=300)
    return bench.status.message


def test_a_run_ends_in_a_card_with_its_numbers() -> None:
    bench = pb.Bench(torch.nn.Linear(4, 4).eval(), calibration_inputs=[torch.randn(2, 4), torch.randn(3, 4)])
    bench.set_targets([pb.EagerDeployment(), pb.OnnxRuntimeDeployment()])
    card = ends(bench)
    assert (card.kind, card.about, card.text) == ("info", "compile", "2 runs are ready.")
    assert [outcome.name for outcome in card.outcomes] == [run.name for run in bench.runs]
    for outcome in card.outcomes:
        assert [fact.label for fact in outcome.facts] == ["SQNR", "Size"], "nothing is timed here"
    see, *others = card.buttons
    assert (see.action, see.value) == ("compare", " ".join(run.id for run in bench.runs))
    assert [button.action for button in others] == ["export", "code"]


def pressed(bench: pb.Bench, card: Card) -> Card:
    """The card after a click on the first button of another one."""
    button = card.buttons[0]
    controls = BenchControls(bench)
    controls._handle_custom_msg(
        {"action": "repair", "how": button.action, "value": button.value, "again": button.again}, []
    )
    assert bench.job is not None
    with contextlib.suppress(pb.PrepbenchError):
        bench.job.result(timeout=300)
    assert controls.about == "compile"
    return bench.status.message


def test_a_fixed_batch_that_the_data_breaks_is_made_dynamic_by_a_button() -> None:
    data = [torch.randn(8, 4) for _ in range(2)]
    bench = pb.Bench(torch.nn.Linear(4, 4).eval(), calibration_inputs=[torch.randn(2, 4)], data=data)
    card = ends(bench)
    (button,) = card.buttons
    assert (button.label, button.action) == ("Make the batch dynamic and compile", "make_dynamic")
    assert pressed(bench, card).text == f"{bench.runs[-1].name} is ready."
    assert bench.state.axes.axes[0].dynamic


def test_data_that_the_model_itself_refuses_is_named_and_no_size_is_made_dynamic() -> None:
    data = [torch.randn(2, 4), torch.randn(2, 5)]
    bench = pb.Bench(torch.nn.Linear(4, 4).eval(), calibration_inputs=[torch.randn(2, 4)], data=data)
    (note,) = [note for note in bench.summary().notes if note.kind == "bad"]
    assert not note.label
    card = ends(bench)
    assert not card.buttons
    for said in (note.text, card.text):
        assert "data[1]: input has the shape (2, 5), and the model itself raises on it: RuntimeError: mat1" in said


@pytest.mark.parametrize("columns", [4, 5])
def test_calibration_inputs_of_another_size_are_named_when_the_bench_opens(columns: int) -> None:
    calibration = [torch.randn(8, columns) for _ in range(2)]
    bench = pb.Bench(torch.nn.Linear(4, 4).eval(), tracing_inputs=[torch.randn(2, 4)], calibration_inputs=calibration)
    (note,) = [note for note in bench.summary().notes if note.kind == "bad"]
    assert "calibration_inputs[0]" in note.text
    assert note.label == ("Make the batch dynamic" if columns == 4 else "")
    card = ends(bench)
    assert [button.action for button in card.buttons] == (["make_dynamic"] if columns == 4 else [])
    assert "data[0]" not in card.text + card.details


def test_the_head_counts_what_is_kept_in_pytorch() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()).eval()
    bench = pb.Bench(model, tracing_inputs=[torch.randn(2, 4)])
    assert bench.summary().sentence.startswith("all modules captured · ")
    bench.set_leaf("0", True)
    summary = bench.summary()
    assert summary.sentence.startswith("1 module kept in PyTorch · ")
    assert summary.steps[0].status == "1 in PyTorch"


def test_a_run_that_was_not_measured_says_why() -> None:
    def fails(output: torch.Tensor, target: torch.Tensor) -> float:
        raise ValueError("no labels here")

    data = [(torch.randn(2, 4), torch.tensor([0, 1]))]
    model = torch.nn.Linear(4, 4).eval()
    bench = pb.Bench(model, calibration_inputs=[torch.randn(2, 4)], data=data, metric=fails)
    ends(bench)
    (run,) = bench.summary().runs
    assert run.why.startswith("Neither scored nor timed: ")
    assert "no labels here" in run.why


class Gate(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:
            x = x * 2
        return x


def test_a_proven_fix_is_the_first_button_of_an_error() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), Gate()).eval()
    bench = pb.Bench(model, calibration_inputs=[torch.randn(2, 4), torch.randn(3, 4), -torch.randn(3, 4).abs()])
    assert ends(bench).buttons[0].action == "keep_in_pytorch", "nothing was searched for yet"
    bench.find_fixes()
    card = ends(bench)
    assert [button.label for button in card.buttons[:2]] == [
        "Apply the fix and compile",
        "Keep it in PyTorch and compile",
    ]
    assert pressed(bench, card).text == f"{bench.runs[-1].name} is ready."
    assert bench.state.fixes == ("1",)
    assert not bench.state.leaf_wrap


def test_keeping_one_module_in_pytorch_keeps_no_other() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), Gate(), torch.nn.Linear(4, 4), Gate()).eval()
    bench = pb.Bench(model, tracing_inputs=[torch.randn(2, 4), torch.randn(3, 4)])
    bench.set_leaf("1", True)
    status = {module.fqn: module.status for module in bench.fixing.document.modules}
    assert (status["1"], status["3"]) == ("leaf", "failed")
    card = ends(bench)
    assert card.text.endswith("of 3 cannot be captured either")
    (button,) = card.buttons
    assert (button.label, button.action) == ("Keep these in PyTorch and compile", "keep_in_pytorch")
    bench.set_leaf("3", True)
    assert ends(bench).text == f"{bench.runs[-1].name} is ready."


class Offset(torch.nn.Module):
    """Adds a row for each element of a batch of three."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.rows = torch.nn.Parameter(torch.ones(3, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.linear(x + self.rows)
        return out


def test_a_size_that_the_model_fixes_is_fixed_by_a_button() -> None:
    bench = pb.Bench(Offset().eval(), calibration_inputs=[torch.randn(3, 4)])
    bench.set_axis("x", 0, dynamic=True)
    card = ends(bench)
    assert card.buttons[0].label == "Fix the batch at 3 and compile"
    assert pressed(bench, card).text == f"{bench.runs[-1].name} is ready."
    assert not bench.state.axes.axes[0].dynamic


def test_what_cannot_be_calibrated_is_compiled_in_float_by_a_button() -> None:
    samples = [torch.randn(2, 4), torch.full((3, 4), torch.nan)]
    bench = pb.Bench(torch.nn.Linear(4, 4).eval(), calibration_inputs=samples)
    card = ends(bench)
    assert "NaN" in card.text
    assert card.buttons[0].label == "Keep all layers in float and compile"
    assert pressed(bench, card).text == f"{bench.runs[-1].name} is ready."


def test_what_one_target_lacks_another_is_offered_for() -> None:
    card = error_card(TargetError("No kernel."), leaf_wrap=True, about="compile", others=["OpenVINO", "Inductor"])
    assert [(button.label, button.value) for button in card.buttons] == [("Use OpenVINO and compile", "OpenVINO")]
    missing = error_card(MissingPackageError("pip install it"), leaf_wrap=True, about="compile", others=["OpenVINO"])
    assert [button.value for button in missing.buttons] == ["OpenVINO"]
    assert error_card(SettingsError("No."), leaf_wrap=True, about="compile", others=["OpenVINO"]).buttons == ()


def test_what_succeeded_beside_a_failure_has_its_numbers_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def lower(*args: object, **given: object) -> None:
        raise TargetError("It has no kernel for this.")

    monkeypatch.setattr("prepbench.targets.onnxruntime.OnnxRuntimeTarget.lower", lower)
    bench = pb.Bench(torch.nn.Linear(4, 4).eval(), calibration_inputs=[torch.randn(2, 4), torch.randn(3, 4)])
    bench.set_targets([pb.OnnxRuntimeDeployment(), pb.EagerDeployment()])
    card = ends(bench)
    assert card.kind == "error"
    (outcome,) = card.outcomes
    assert "eager" in outcome.name
    (other,) = (button.value for button in card.buttons if button.action == "use_target")
    assert other not in ("ONNX Runtime", "PyTorch eager")


FASTER, ALIKE, SLOWER = (SpeedUp(value * 0.9, value, value * 1.1, "PyTorch eager") for value in (1.2, 0.95, 0.5))


@pytest.mark.parametrize(
    ("found", "fallbacks", "leaves", "quantized", "word"),
    [
        (None, (), (), True, ""),
        (FASTER, (), (), True, ""),
        (ALIKE, (), (), True, ""),
        (SLOWER, ("a", "b"), (), True, "2 operators in PyTorch"),
        (SLOWER, (), ("gate",), True, "1 part kept in PyTorch"),
        (SLOWER, (), (), True, "between int8 and float"),
        (SLOWER, (), (), False, "calling the target"),
    ],
)
def test_slower_results_say_why(
    found: SpeedUp | None, fallbacks: tuple[str, ...], leaves: tuple[str, ...], quantized: bool, word: str
) -> None:
    said = slower_because(found, fallbacks=fallbacks, leaves=leaves, quantized=quantized)
    assert word in said
    assert bool(said) == bool(word)
    assert said.startswith("Slower than PyTorch eager") == bool(word)


def test_an_unknown_size_is_not_zero() -> None:
    assert size_words("1.2", note="") == "1.2 MB"
    assert "cannot be saved" in size_words("0*", note="")
    assert size_words("–", note="no room left. More words") == "size – (no room left)"


def timed(bench: pb.Bench, name: str, p50_ms: float) -> None:
    """Give a run the times of an idle machine: nothing is timed here."""
    run = bench.run_history.named(name)
    assert run is not None
    interval = (0.98 * p50_ms, 1.02 * p50_ms)
    bench.run_history.replace(run.id, p50_ms=p50_ms, interval_ms=interval, reference=Reference(EAGER, 4.0, (3.9, 4.1)))
    bench.refresh()


def test_float_on_the_same_runtime_is_one_click_away() -> None:
    samples = [torch.randn(2, 4), torch.randn(3, 4)]
    bench = pb.Bench(torch.nn.Linear(4, 4).eval(), calibration_inputs=samples)
    assert ends(bench).buttons[0].action == "results", "what was not timed is compared with nothing"
    timed(bench, "int8 ONNX Runtime", 2.0)
    shown = bench.summary().runs[0]
    assert shown.lacks_float
    assert shown.speed == "2.0× of PyTorch eager"
    (button, *_) = buttons_after((), bench.runs, bench.runs)
    assert button.label == "Compare with float on ONNX Runtime"
    controls = BenchControls(bench)
    controls._handle_custom_msg(
        {"action": "repair", "how": button.action, "value": button.value, "again": button.again}, []
    )
    assert bench.job is not None
    bench.job.result(timeout=300)
    card = bench.status.message
    assert (card.kind, card.about, card.text) == ("info", "compile", "Compared with float on ONNX Runtime.")
    assert [outcome.name for outcome in card.outcomes] == ["int8 ONNX Runtime", "float32 ONNX Runtime"]
    timed(bench, "int8 ONNX Runtime", 2.0)
    timed(bench, "float32 ONNX Runtime", 1.0)
    found = {run.name: run for run in bench.summary().runs}
    assert not any(run.lacks_float for run in found.values())
    assert found["int8 ONNX Runtime"].speed == "0.50× of float32 ONNX Runtime"
    assert found["float32 ONNX Runtime"].speed == "4.0× of PyTorch eager"
    assert [kind.texts for kind in bench.summary().staleness] == [()], "the float model is not old beside int8"
    assert bench.state.rules == {}, "the choices stay as they are"


def test_only_runs_of_this_process_are_compared_with_float(tmp_path: Path) -> None:
    samples = [torch.randn(2, 4), torch.randn(3, 4)]
    bench = pb.Bench(torch.nn.Linear(4, 4).eval(), calibration_inputs=samples)
    with pytest.raises(SettingsError, match="compile first"):
        bench.compare_with_float()
    bench.compile()
    with pytest.raises(UnknownNameError, match="'x'"):
        bench.start_comparing_with_float(["x"])
    with pytest.raises(SettingsError, match="must be a list"):
        bench.compare_with_float("x")
    bench.save(tmp_path / "a.bench.json")
    loaded = pb.Bench.load(tmp_path / "a.bench.json", model=bench.model, calibration_inputs=samples)
    with pytest.raises(SettingsError, match="was not compiled in this process"):
        loaded.compare_with_float([loaded.runs[0].id])
