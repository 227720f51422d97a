"""Results are loaded, filtered and shown; a journal that cannot be read is kept beside its place."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import prepbench as pb
from prepbench.errors import ArtifactError, InputError, SettingsError, UnknownNameError
from prepbench.objects.digest import model_digest
from prepbench.results.journal import Journal, journal_at
from tests.unit.results.test_run import RUN

RESULT = replace(
    RUN.result,
    machine="x86_64 Linux, laptop",
    model="a-b",
    model_name="net",
    settings_name="int8",
    score=0.9,
    metric="accuracy",
    unit="",
)
OTHERS = (
    replace(RESULT, made=2.0, machine="another machine", p50_ms=40.0),
    replace(RESULT, made=3.0, target="openvino", metric="SQNR", unit="dB", score=float("inf")),
    replace(RESULT, made=4.0, model_name="other", model="c-d", score=None, p50_ms=None, error="No <b>kernel</b>."),
)

WRITER = """
import sys
from dataclasses import replace
from prepbench.results.journal import Journal
from tests.system.results.test_results import RESULT
path, name = sys.argv[1:]
for number in range(50):
    Journal(path).record(replace(RESULT, settings_name=f"{name}{number}"), f"{name}{number}")
"""

FINGERPRINT = """
import torch
from torch import nn
from prepbench.objects.digest import model_digest
torch.manual_seed(0)
print(model_digest(nn.Sequential(nn.Linear(4, 2), nn.ReLU())))
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    journal = Journal(tmp_path / "results.sqlite")
    for number, result in enumerate((RESULT, *OTHERS)):
        journal.record(result, f"r{number}")
    return journal.path


def test_results_are_a_sequence_with_filters(path: Path) -> None:
    results = pb.load_results(path)
    assert list(results) == [*OTHERS, RESULT]
    assert len(results[1:]) == 3
    assert results.targets == ("onnxruntime", "openvino")
    assert [row.made for row in results.only(target="onnxruntime", machine="another machine")] == [2.0]
    assert len(results.only(model="net")) == 3 == len(results.only(model="a-b"))
    with pytest.raises(UnknownNameError, match="'net', 'other'"):
        results.only(model="nett")
    with pytest.raises(UnknownNameError, match="'onnxruntime', 'openvino'"):
        results.only(target="tensorrt")
    with pytest.raises(SettingsError, match="whole number"):
        results["net"]  # type: ignore[call-overload]


def test_a_model_finds_its_results_in_another_process(path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", FINGERPRINT], capture_output=True, text=True, check=True, timeout=120)
    Journal(path).record(replace(RESULT, model=done.stdout.strip()), "mine")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 2), nn.ReLU())
    assert [row.model for row in pb.load_results(path).only(model=model)] == [model_digest(model)]
    with torch.no_grad():
        model[0].bias[0] += 1
    assert len(pb.load_results(path).only(model=model)) == 0


def test_two_writers_lose_no_result(path: Path) -> None:
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, str(path), name]) for name in "ab"]
    assert [writer.wait(300) for writer in writers] == [0, 0]
    assert len(pb.load_results(path)) == 104


def test_tables_have_numbers_and_errors(path: Path) -> None:
    table = pb.load_results(path).table()
    assert list(table["p50 ms"].dropna()) == [40.0, 1.5, 1.5]
    failed = table[table["error"] != ""]
    assert list(failed["model"]) == ["other"]
    assert failed["score"].isna().all()


def test_the_figure_tells_machines_and_metrics_apart(path: Path) -> None:
    figure = pb.load_results(path).figure()
    here = RESULT.machine
    names = {f"net · onnxruntime · {here}", "net · onnxruntime · another machine", f"net · openvino · {here}"}
    assert {trace.name for trace in figure.data} == names
    assert len({trace.marker.color for trace in figure.data}) == 3
    titles = [figure.layout[name].title.text for name in ("yaxis", "yaxis2")]
    assert sorted(titles) == ["SQNR (dB)", "accuracy"]
    assert "1 without a score" in figure.layout.title.text


def test_a_notebook_gets_text_that_cannot_run(path: Path) -> None:
    bundle = pb.load_results(path)._repr_mimebundle_()
    assert "<b>kernel" not in bundle["text/html"]
    assert "application/vnd.plotly.v1+json" in bundle
    assert "failed: No <b>kernel</b>." in bundle["text/plain"]


@pytest.mark.parametrize("damage", [b"nonsense " * 1000, None])
def test_a_damaged_journal_is_kept_beside_its_place(path: Path, damage: bytes | None) -> None:
    before = damage or path.read_bytes()[:5000]
    path.write_bytes(before)
    with pytest.warns(UserWarning, match=r"kept as .*results\.sqlite\.damaged-1"):
        assert len(pb.load_results(path)) == 0
    assert path.with_name("results.sqlite.damaged-1").read_bytes() == before
    journal_at(path).record(RESULT, "new")
    assert list(pb.load_results(path)) == [RESULT]
    path.write_bytes(before)
    with pytest.warns(UserWarning, match="damaged-2"):
        journal_at(path)


def test_a_journal_of_another_version_is_kept_beside_its_place(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version=99")
    connection.close()
    with pytest.warns(UserWarning, match="version 99.*other-version-1"):
        journal_at(path).record(RESULT, "new")
    assert path.with_name("results.sqlite.other-version-1").exists()


def test_files_of_others_stay_where_they_are(tmp_path: Path) -> None:
    mine = tmp_path / "model.py"
    mine.write_text("x = 1")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ArtifactError, match="not a journal"):
            pb.load_results(mine)
        (tmp_path / "passwd").write_text("root:x:0")
        with pytest.raises(ArtifactError, match="not a journal"):
            pb.load_results(tmp_path / "passwd")
        connection = sqlite3.connect(tmp_path / "studies.db")
        connection.execute("CREATE TABLE studies (id INTEGER)")
        connection.close()
        with pytest.raises(ArtifactError, match="another program"):
            pb.load_results(tmp_path / "studies.db")
    assert mine.read_text() == "x = 1"
    assert {file.name for file in tmp_path.iterdir()} == {"model.py", "passwd", "studies.db"}
    with pytest.raises(InputError, match="no journal of results at"):
        pb.load_results(tmp_path / "none.sqlite")
    with pytest.raises(SettingsError, match="path"):
        pb.load_results(3)  # type: ignore[arg-type]
