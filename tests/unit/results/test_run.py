"""A run goes to JSON and back, and what anybody may have written is checked."""

from __future__ import annotations

import json
import math
import time
from dataclasses import replace
from typing import Any

import pytest

from prepbench.document.codec import read_object
from prepbench.errors import DocumentError, SettingsError
from prepbench.quantize import LayerReport
from prepbench.results.measurement import Run, from_columns, to_columns
from prepbench.settings import OnnxRuntimeDeployment

RUN = Run(
    id="r1",
    name="int8 ONNX Runtime",
    state={"rules": {"layers.*": {"weights_num_bits": 4}}, "leaves": ["encoder"]},
    target="onnxruntime",
    target_name="ONNX Runtime",
    target_options={"intra_op_threads": 2},
    made=1_700_000_000.5,
    seconds=3.25,
    score=math.inf,
    metric="SQNR",
    unit="dB",
    spread=(30.5, math.inf),
    p50_ms=1.5,
    report=(LayerReport("fc", "Linear", 20, weights_bits=8, input_range=(-1.0, 2.0), sqnr=math.inf),),
    stages={"capture": 0.5},
    reused=("capture",),
)

COLUMNS = RUN.to_json()["report"]


def test_a_run_goes_to_json_and_back() -> None:
    assert Run.from_json(json.loads(json.dumps(RUN.to_json(), allow_nan=False))) == RUN


def test_a_run_of_an_older_version_lacks_what_has_a_default() -> None:
    data = {name: RUN.to_json()[name] for name in ("id", "name", "state", "target", "target_name", "made")}
    assert Run.from_json(data).score is None


def test_the_settings_of_the_target() -> None:
    assert RUN.deployment == OnnxRuntimeDeployment(intra_op_threads=2)
    with pytest.raises(SettingsError, match="target 'abacus'"):
        _ = Run.from_json({**RUN.to_json(), "target": "abacus"}).deployment


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"score": "high"}, "run.score must be of type float"),
        ({"score": True}, "run.score must be of type float"),
        ({"spread": [1.0]}, "run.spread must have 2 items, got 1"),
        ({"pinned": 1}, "run.pinned must be of type bool"),
        ({"name": "a\x1b[31m"}, "run.name holds"),
        ({"state": []}, "run.state must be an object"),
        ({"state": {"a\x00": 1}}, "A name in run.state holds"),
        ({"state": {"rules": [{"a": "\u202e"}]}}, r"run.state.rules\[0\].a holds"),
        ({"stages": {"capture": "slow"}}, "run.stages.capture must be of type float"),
        ({"size_bytes": -1}, "cannot be -1"),
        ({"made": float("nan")}, "finite"),
        ({"extra": 1}, "unknown field 'extra'"),
        ({"report": []}, "run.report must be an object of lists"),
        ({"report": {"fqn": "fc"}}, "run.report must be an object of lists"),
        ({"report": {"fqn": ["fc"]}}, r"run.report\[0\] lacks the field"),
        ({"report": {"fqn": ["a", "b"], "type": ["Linear"]}}, "columns of 1 and of 2 layers"),
        ({"report": {**COLUMNS, "color": ["red"]}}, r"run.report\[0\] has the unknown field 'color'"),
        ({"report": {**COLUMNS, "fqn": ["\x1b"]}}, r"run.report\[0\].fqn holds"),
        ({"report": {**COLUMNS, "weights_bits": [-8]}}, "cannot be -8"),
        ({"report": {**COLUMNS, "weights_bits": [True]}}, r"run.report\[0\].weights_bits must be of type int"),
        ({"report": {**COLUMNS, "sqnr": ["high"]}}, r"run.report\[0\].sqnr must be of type float"),
        ({"report": {**COLUMNS, "sqnr": [1e999]}}, "finite"),
        ({"report": {**COLUMNS, "input_range": [[1.0]]}}, "must have 2 items"),
        ({"report": {**COLUMNS, "bits_to_measure": [[-4]]}}, "cannot be -4"),
    ],
)
def test_what_is_no_run_is_refused(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(DocumentError, match=message):
        Run.from_json({**RUN.to_json(), **changed})


def test_state_that_nests_without_end_is_refused() -> None:
    deep: Any = 1
    for _ in range(200):
        deep = [deep]
    with pytest.raises(DocumentError, match="nests deeper"):
        Run.from_json({**RUN.to_json(), "state": {"a": deep}})


def test_every_field_of_a_layer_can_be_read_by_columns() -> None:
    rows = (
        LayerReport("a", "Linear", 20, 4, 8, "a", "why", 32, "mse", (0.0, 1.0), (0.5, 0.5), math.inf, "note", (4, 8)),
        LayerReport("b", "Linear", 20, sqnr=-math.inf),
        LayerReport("c", "Linear", 20),
    )
    assert from_columns(json.loads(json.dumps(to_columns(rows), allow_nan=False)), "report") == rows
    assert from_columns(to_columns(()), "report") == ()


def test_whole_numbers_in_a_column_of_numbers_are_numbers() -> None:
    columns = {"fqn": ["a"], "type": ["Linear"], "parameters": [2], "sqnr": [30]}
    assert from_columns(columns, "report")[0].sqnr == 30.0


def test_a_long_history_is_read_in_a_moment() -> None:
    report = tuple(LayerReport(f"layers.{i}", "Linear", 20, 8, 8, sqnr=30.5, observer="minmax") for i in range(1000))
    data = replace(RUN, report=report).to_json()
    start = time.perf_counter()
    for _ in range(20):
        Run.from_json(data)
    by_columns = time.perf_counter() - start
    start = time.perf_counter()
    for row in data["report"]["fqn"]:
        read_object({"fqn": row, "type": "Linear", "parameters": 20}, LayerReport, "row", lenient=True)
    assert by_columns / 20 < time.perf_counter() - start, "a run must take less than its names alone, row by row"
