"""A bench comes back as it was saved; files of other models, damaged ones and hostile ones are errors that say so."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import prepbench as pb
from prepbench.bench.saved import journal_beside, read_bench
from prepbench.errors import ArtifactError, DocumentError, InputError, SettingsError, StorageError
from prepbench.objects.digest import model_digest
from tests.compile.views.test_bench_page import Elements
from tests.system.stress.faults import Disk

SAMPLES = [torch.randn(2, 8), torch.randn(3, 8)]


class Net(nn.Module):
    def __init__(self, hidden: int = 8) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem = nn.Linear(8, hidden)
        self.head = nn.Linear(hidden, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.relu(self.stem(x)))


@pytest.fixture(scope="module")
def model() -> nn.Module:
    return Net().eval()


def new_bench(model: nn.Module) -> pb.Bench:
    bench = pb.Bench(model, calibration_inputs=SAMPLES)
    bench.set_target("PyTorch eager")
    return bench


def compiled(model: nn.Module) -> pb.Bench:
    bench = new_bench(model)
    bench.compile()
    bench.set_precision("head", "int8 weights")
    return bench


def loaded(path: Path, model: nn.Module) -> pb.Bench:
    return pb.Bench.load(path, model=model, calibration_inputs=SAMPLES)


def test_a_bench_comes_back_with_choices_undo_and_history(model: nn.Module, tmp_path: Path) -> None:
    bench = compiled(model)
    bench.rename_run(bench.runs[0].id, "first")
    path = bench.save(tmp_path / "net.bench.json")
    back = loaded(path, model)
    assert (back.state, back.runs) == (bench.state, bench.runs)
    assert back.runs[0].model == model_digest(model)
    back.undo()
    bench.undo()
    assert back.state == bench.state
    back.redo()
    back.restore_run(back.runs[0].id)
    assert back.summary().runs[0].name == "first"
    assert not back.results, "compiled models are not saved, and the history says so"
    assert not back.summary().runs[0].is_live


def test_runs_go_to_the_journal_at_once_and_to_whoever_loads_next(model: nn.Module, tmp_path: Path) -> None:
    bench = new_bench(model)
    path = bench.save(tmp_path / "net.bench.json")
    bench.compile()
    first = loaded(path, model)
    assert [run.id for run in first.runs] == [run.id for run in bench.runs]
    assert first.runs[0].score == bench.runs[0].score is not None
    bench.pin_run(bench.runs[0].id, True)
    assert loaded(path, model).runs[0].pinned
    first.delete_run(first.runs[0].id)
    assert loaded(path, model).runs == ()


def test_a_saved_bench_is_shown_as_it_stood(model: nn.Module, tmp_path: Path) -> None:
    bench = compiled(model)
    shown = read_bench(bench.save(tmp_path / "net.bench.json")).shown
    tables = {table.title: table for table in shown.tables}
    assert [row[0] for row in tables["Layers"].rows] == ["stem", "head"]
    assert [row[0] for row in tables["Runs"].rows] == [bench.runs[0].name]
    assert [point.name for point in shown.chart.points] in ([], ["float32", bench.runs[0].name])
    assert "pb.compile_model" in shown.code
    assert shown.sentence == bench.summary().sentence


def test_the_report_is_one_page(model: nn.Module, tmp_path: Path) -> None:
    text = compiled(model).report(tmp_path / "net.html").read_text()
    for part in ("pb.compile_model", "stem", "Runs", "Environment", "int8 weights"):
        assert part in text


def test_other_weights_are_the_same_model_but_other_results(model: nn.Module, tmp_path: Path) -> None:
    path = compiled(model).save(tmp_path / "net.bench.json")
    other = Net().eval()
    with torch.no_grad():
        other.head.weight += 1
    back = loaded(path, other)
    assert model_digest(other).partition("-")[0] == model_digest(model).partition("-")[0]
    back.compile()
    marks = {run.model for run in loaded(path, other).runs}
    assert marks == {model_digest(model), model_digest(other)}


def test_a_file_of_another_model_names_what_differs(model: nn.Module, tmp_path: Path) -> None:
    path = new_bench(model).save(tmp_path / "net.bench.json")
    other = Net(16)
    other.extra = nn.ReLU()
    del other.head
    with pytest.raises(InputError) as caught:
        loaded(path, other)
    for text in ("missing: head", "added: extra", "stem.weight (8×8 float32, now 16×8 float32)", "saved of a Net"):
        assert text in str(caught.value)


def test_the_list_of_what_differs_is_short(tmp_path: Path) -> None:
    deep = nn.Sequential(*(nn.Linear(8, 8) for _ in range(200)))
    path = new_bench(deep).save(tmp_path / "net.bench.json")
    with pytest.raises(InputError, match="and 592 more") as caught:
        loaded(path, Net())
    assert len(str(caught.value)) < 1500


def test_samples_with_other_inputs_are_an_error(model: nn.Module, tmp_path: Path) -> None:
    path = new_bench(model).save(tmp_path / "net.bench.json")
    with pytest.raises(InputError, match="other inputs than those of the file: they have also x dim 2"):
        pb.Bench.load(path, model=model, calibration_inputs=[torch.randn(2, 5, 8)])


def test_the_name_of_the_file_tells_what_it_is(model: nn.Module, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"net\.json\.bench\.json"):
        new_bench(model).save(tmp_path / "net.json")
    for path in (7, "", None):
        with pytest.raises(SettingsError, match="path must be a path"):
            new_bench(model).save(path)  # type: ignore[arg-type]


def test_a_folder_that_is_not_there_leaves_nothing(model: nn.Module, tmp_path: Path) -> None:
    with pytest.raises(StorageError):
        new_bench(model).save(tmp_path / "none" / "net.bench.json")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("had_one", [False, True])
def test_a_save_that_fails_leaves_nothing_behind(had_one: bool, model: nn.Module, tmp_path: Path) -> None:
    bench, path = compiled(model), tmp_path / "net.bench.json"
    if had_one:
        new_bench(model).save(path)
    before = {each.name: each.read_bytes() for each in tmp_path.iterdir()}
    (tmp_path / "elsewhere").mkdir()
    with Disk().used() as disk:
        bench.save(tmp_path / "elsewhere" / "net.bench.json")
    shutil.rmtree(tmp_path / "elsewhere")
    assert disk.count >= 5
    for failing in range(disk.count - 1):  # the last one syncs the folder, which some file systems cannot
        with Disk(failing).used(), pytest.raises(StorageError):
            bench.save(path)
        assert sorted(each.name for each in tmp_path.iterdir()) == sorted(before), failing
        assert path.exists() == had_one
        assert not had_one or path.read_bytes() == before[path.name]
    assert bench.save(path) == path
    assert loaded(path, model).runs == bench.runs


def test_a_journal_of_another_program_is_left_alone(model: nn.Module, tmp_path: Path) -> None:
    journal = tmp_path / "net.bench.sqlite"
    journal.write_text("my notes")
    with pytest.raises(ArtifactError, match=r"net\.bench\.sqlite"):
        compiled(model).save(tmp_path / "net.bench.json")
    assert journal.read_text() == "my notes"
    assert not (tmp_path / "net.bench.json").exists()


def test_a_journal_that_cannot_be_written_does_not_cost_a_compile(model: nn.Module, tmp_path: Path) -> None:
    bench = new_bench(model)
    path = bench.save(tmp_path / "net.bench.json")
    journal = journal_beside(path).path
    journal.unlink(missing_ok=True)
    journal.mkdir()
    with pytest.warns(UserWarning, match="history of this bench only"):
        bench.compile()
    assert bench.runs[0].score is not None
    journal.rmdir()
    bench.save(path)
    assert [run.id for run in journal_beside(path).runs()] == [bench.runs[0].id]


def test_a_lost_journal_loses_no_run(model: nn.Module, tmp_path: Path) -> None:
    bench = compiled(model)
    path = bench.save(tmp_path / "net.bench.json")
    journal_beside(path).path.unlink()
    assert loaded(path, model).runs == bench.runs


def test_a_run_whose_choices_do_not_fit_is_left_out_and_said(model: nn.Module, tmp_path: Path) -> None:
    bench = compiled(model)
    path = bench.save(tmp_path / "net.bench.json")
    odd = replace(bench.runs[0], id="odd", name="odd one", state={"axes": 7})
    journal_beside(path).write(replace(odd, model=model_digest(model)))
    with pytest.warns(UserWarning, match="'odd one' is left out"):
        back = loaded(path, model)
    assert [run.id for run in back.runs] == [bench.runs[0].id]


def test_runs_of_other_models_in_the_journal_are_not_mixed_in(model: nn.Module, tmp_path: Path) -> None:
    path = compiled(model).save(tmp_path / "net.bench.json")
    other = nn.Sequential(nn.Linear(8, 4)).eval()
    strange = new_bench(other)
    strange.compile()
    strange.save(tmp_path / "other.bench.json")
    journal_beside(path).write(*strange.runs)
    assert len(loaded(path, model).runs) == 1


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d["states"][0].pop("axes"),
        lambda d: d["states"][0].update(axes=7),
        lambda d: d["states"][0].update(rules=[["nothing.*", {"weights_num_bits": 8}]]),
        lambda d: d["states"][0].update(rules=[["head", {"__class__": "x"}]]),
        lambda d: d["states"][0].update(targets=[{"target": "os.system", "settings": {}}]),
        lambda d: d["states"][0].update(targets=[]),
        lambda d: d["states"][0].update(leaf_wrap="no"),
        lambda d: d["states"][0].update(leaves=["nowhere"]),
        lambda d: d["states"][0].update(fixes=["nowhere"]),
        lambda d: d["states"][0].update(quantization={"weights_num_bits": 3}),
        lambda d: d.update(states=[], position=0),
        lambda d: d.update(position=99),
        lambda d: d["runs"].append({"id": "x"}),
        lambda d: d["modules"].clear(),
    ],
)
def test_hostile_choices_are_errors_before_anything_is_shown(
    change: Callable[[Any], object], model: nn.Module, tmp_path: Path
) -> None:
    path = new_bench(model).save(tmp_path / "net.bench.json")
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))
    with pytest.raises((DocumentError, SettingsError, InputError)):
        loaded(path, model)


def test_what_is_no_file_is_an_error(model: nn.Module, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.bench.json")
    (tmp_path / "half.bench.json").write_text('{"format": "prepbench bench", "vers')
    (tmp_path / "folder.bench.json").mkdir()
    for name in ("pipe", "half", "folder", "none"):
        with pytest.raises(DocumentError, match=rf"{name}\.bench\.json"):
            loaded(tmp_path / f"{name}.bench.json", model)


def test_hostile_names_are_saved_as_text(tmp_path: Path) -> None:
    model = nn.Sequential()
    model.add_module("\x1b[2J</script><b>", nn.Linear(8, 4))
    bench = new_bench(model.eval())
    path = bench.save(tmp_path / "net.bench.json")
    assert loaded(path, model).state == bench.state
    assert "\x1b" not in path.read_text()
    page = Elements(bench.report(tmp_path / "net.html").read_text())
    assert ("b" not in page.names(), page.names().count("script")) == (True, 3)


def test_fingerprints_tell_values_apart(model: nn.Module) -> None:
    same, other = Net().eval(), Net().eval()
    with torch.no_grad():
        other.stem.bias[0] += 1e-6
    assert model_digest(same) == model_digest(model) != model_digest(other)
    assert model_digest(Net().to("meta")) == model_digest(Net().to("meta"))
    assert model_digest(Net().to(torch.bfloat16)) != model_digest(model)
    assert model_digest(nn.LazyLinear(4)) == model_digest(nn.LazyLinear(4))


def test_code_of_a_bench_opened_without_its_samples_says_what_to_put_there(model: nn.Module, tmp_path: Path) -> None:
    path = new_bench(model).save(tmp_path / "saved.bench.json")
    opened = pb.Bench.load(path, model=model, tracing_inputs=SAMPLES)
    assert "calibration_inputs = [...]  # put here representative samples" in opened.code({})


def test_runs_of_layers_with_invisible_characters_in_their_names_are_saved(tmp_path: Path) -> None:
    model = nn.Sequential()
    model.add_module("\u202ename", nn.Linear(4, 4))
    given: dict[str, Any] = {"tracing_inputs": [torch.randn(2, 4)], "calibration_inputs": [torch.randn(2, 4)]}
    bench = pb.Bench(model.eval(), **given)
    bench.compile()
    bench.save(tmp_path / "odd.bench.json")
    (run,) = pb.Bench.load(tmp_path / "odd.bench.json", model=model, **given).runs
    assert [row.fqn for row in run.report] == ["\\u202ename"]
