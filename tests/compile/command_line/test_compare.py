"""``compare``: sizes, outputs, accuracy and latency of saved models, and budgets for them."""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from xml.etree import ElementTree

import pytest

import prepbench as pb
from prepbench.command_line.compare import BUDGETS, DROP, LATENCY, SIZE, SQNR
from prepbench.command_line.main import main
from prepbench.command_line.user_code import load_object
from prepbench.measure import process
from prepbench.storage import folder_bytes


@pytest.fixture
def folders(script: Path) -> list[str]:
    """Float and 4 bits, on the target that needs no package."""
    model, samples = (load_object(f"users_model.py:{name}", "MODEL") for name in ("model", "samples"))
    batches = load_object("users_model.py:batches", "--data")()
    for name, settings in {"float": None, "int4": pb.QuantizationSettings(weights_num_bits=4)}.items():
        compiled = pb.compile_model(
            model,
            tracing_inputs=samples,
            calibration_inputs=batches if settings else None,
            deployment_settings=pb.EagerDeployment(),
            quantization_settings=settings,
        )
        compiled.save(name)
    return ["float", "int4"]


def test_sizes_need_no_data(folders: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    size = (pb.load_compiled("int4").size_bytes or 0) / 1e6
    assert 0 < size < folder_bytes(Path("int4")) / 1e6, "the manifest is no part of the model"
    assert main(["compare", *folders, "--max-size-mb", f"{size * 1.01}"]) == 0
    assert "passed  size of int4" in capsys.readouterr().out
    assert main(["compare", *folders, "--max-size-mb", f"{size * 0.99}", "--json", "out.json"]) == 1
    assert "FAILED  size of int4" in capsys.readouterr().out
    assert json.loads(Path("out.json").read_text())["size_bytes"]["int4"] == round(size * 1e6)
    assert main(["compare", "users_model.py:model", "--max-size-mb", "0.00001"]) == 1  # 10 numbers of 4 bytes


def test_size_is_the_same_with_data(folders: list[str]) -> None:
    size = (pb.load_compiled("int4").size_bytes or 0) / 1e6
    data = ["--data", "users_model.py:batches", "--rounds", "0"]
    for factor, status in ((1.01, 0), (0.99, 1)):
        for given in ([], data):
            assert main(["compare", *folders, *given, "--max-size-mb", f"{size * factor}"]) == status


def test_metric_that_is_to_be_small(folders: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    Path("errors.py").write_text(
        "from users_model import batches as inputs, model\n"
        "def mse(output, target):\n    return ((output - target) ** 2).mean()\n"
        "def pairs():\n    return [(x, model(x).detach()) for x in inputs()]\n"
    )
    given = ["--data", "errors.py:pairs", "--metric", "errors.py:mse", "--max-drop", "1e-9", "--rounds", "0"]
    assert main(["compare", *folders, *given, "--lower-is-better"]) == 1
    assert "FAILED" in capsys.readouterr().out
    assert main(["compare", *folders, "--lower-is-better"]) == 2


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """No other program runs."""
    monkeypatch.setattr(process, "_busy_seconds", lambda: 0.0)


@pytest.mark.usefixtures("quiet")
def test_budgets_of_outputs_and_time(folders: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    data = ["--data", "users_model.py:batches", "--rounds", "2"]
    budgets = ["--min-sqnr", "1", "--max-ms", "1000", "--min-speedup", "0.001", "--max-size-mb", "1"]
    assert main(["compare", *folders, *data, *budgets, "--junit", "out.xml", "--json", "out.json"]) == 0
    assert "float      reference" in capsys.readouterr().out
    assert ElementTree.parse("out.xml").getroot().get("tests") == "4"
    first, second = json.loads(Path("out.json").read_text())["candidates"]
    assert [first["name"], second["name"]] == folders
    assert first["speed_up"] is None
    assert second["speed_up"]["baseline"] == "float", "it was compiled for the same runtime"
    assert second["speed_up"]["low"] <= second["speed_up"]["value"] <= second["speed_up"]["high"]
    data[-1] = "0"
    assert main(["compare", *folders, *data, "--min-sqnr", "300"]) == 1
    assert "SQNR of int4" in capsys.readouterr().out


@pytest.mark.stress
def test_a_busy_machine_keeps_no_bound_of_speed(
    folders: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process.OtherPrograms, "__exit__", lambda self, *error: setattr(self, "cores", 1e3))
    call = ["compare", *folders, "--data", "users_model.py:batches", "--rounds", "2", "--min-speedup", "0.001"]
    assert main(call) == 1
    printed = capsys.readouterr().out
    assert "not measured, at least 0.001" in printed
    assert "measure again: other programs were busy" in printed


def test_a_metric_and_noise_in_one_call(folders: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    call = ["compare", "users_model.py:model", "int4", "--data", "users_model.py:pairs", "--rounds", "0"]
    assert main([*call, "--metric", "accuracy", "--max-drop", "1", "--min-sqnr", "1"]) == 0
    assert "accuracy over 16 samples" in capsys.readouterr().out
    assert main([*call, "--metric", "users_model.py:share_of_zeros", "--max-drop", "-1.5"]) == 1
    assert "drop of int4" in capsys.readouterr().out


@pytest.mark.parametrize("form", ["dicts", "swapped"])
def test_noise_is_measured_on_data_of_all_forms(
    form: str, folders: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    element = {"dicts": "{'x': x, 'label': y}", "swapped": "(y, x)"}[form]
    made = f"def made():\n    return [{element} for x, y in pairs()]\n"
    Path(f"{form}.py").write_text(f"from users_model import pairs\n{made}")
    call = ["compare", "users_model.py:model", "int4", "--data", f"{form}.py:made", "--rounds", "0"]
    assert main([*call, "--metric", "accuracy", "--min-sqnr", "1"]) == 0
    assert "SQNR of int4" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--max-drop", "1", "--data", "users_model.py:batches"], "--max-drop needs --metric"),
        (["--metric", "accuracy"], "--metric: give --data"),
        (["--metric", "os", "--data", "users_model.py:pairs"], "no 'os' in prepbench.metrics"),
        (["--max-ms", "1", "--rounds", "0", "--data", "users_model.py:pairs"], "--max-ms: give --rounds"),
        (["--data", "users_model.py:batches", "--metric", "accuracy", "--min-sqnr", "1"], "must be a pair (input"),
        (["--metric", "top_k", "--data", "users_model.py:pairs"], "is no metric, but returns one"),
        (["--metric", "bits_per_byte", "--data", "users_model.py:pairs"], "--metric script.py:metric"),
    ],
)
def test_calls_that_do_not_fit(
    arguments: list[str], words: str, folders: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", *folders, *arguments]) == 2
    assert words in " ".join(capsys.readouterr().err.split())


def test_a_damaged_folder(folders: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    (Path("int4") / "more.py").write_text("raise SystemExit(0)")
    for more in ([], ["--data", "users_model.py:batches"]):
        assert main(["compare", *folders, *more]) == 2
        assert "does not list" in capsys.readouterr().err


def test_what_was_not_measured_keeps_no_bound() -> None:
    assert not LATENCY.outcome("a", None, 1e9).passed
    assert not any(budget.outcome("a", math.nan, 0.0).passed for budget in BUDGETS)
    assert SQNR.outcome("a", math.inf, 1e9).passed


@pytest.mark.parametrize("text", ["nan", "-1", "inf", "much"])
def test_a_bound_that_no_size_has_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="a number of at least 0 is expected"):
        SIZE.read(text)


def test_a_bound_of_the_drop_may_be_negative_and_no_drop_is_zero() -> None:
    assert DROP.read("-0.5") == -0.5
    assert DROP.outcome("int8", -0.0, 0.0).message == "0, at most 0"
