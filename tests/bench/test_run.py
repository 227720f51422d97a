"""A run goes to JSON and back, and what anybody may have written is checked."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from prepbench.bench.run import Run
from prepbench.errors import DocumentError, SettingsError
from prepbench.quantize import LayerReport
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
        ({"report": [{"fqn": "fc"}]}, r"run.report\[0\] lacks the field"),
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
