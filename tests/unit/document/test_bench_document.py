"""The document of a bench goes to JSON and back; what anybody may have written is checked."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from prepbench.document.bench import BenchDocument, SavedModule, SavedTensor, bench_from_json, bench_to_json
from prepbench.document.schema import BENCH_FILE, bench_schema
from prepbench.errors import DocumentError
from tests.compile.views.benches import GRAPH, shown

BENCH = BenchDocument(
    model_type="Net",
    modules=(SavedModule("", "Net"), SavedModule("fc", "Linear", (SavedTensor("weight", (2, 4), "float32"),))),
    states=({"leaves": []}, {"leaves": ["gate"]}),
    position=1,
    runs=({"id": "a"},),
    shown=shown(),
    graph=GRAPH,
    made=1_700_000_000.0,
    prepbench="0.1.0",
)


def changed(change: Callable[[Any], object]) -> str:
    data = json.loads(bench_to_json(BENCH))
    change(data)
    return json.dumps(data)


def test_a_bench_goes_to_json_and_back() -> None:
    assert bench_from_json(bench_to_json(BENCH)) == BENCH
    assert bench_to_json(BENCH) == bench_to_json(replace(BENCH))


def test_the_schema_file_is_fresh() -> None:
    assert json.loads(BENCH_FILE.read_text()) == bench_schema()


def test_a_bench_fits_its_schema() -> None:
    jsonschema = pytest.importorskip("jsonschema")
    jsonschema.validate(json.loads(bench_to_json(BENCH)), bench_schema())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.update(format="graph"), "not a saved bench"),
        (lambda d: d.update(version="2.0"), "has version 2.0"),
        (lambda d: d.pop("version"), "version none"),
        (lambda d: d.pop("runs"), "bench lacks the field 'runs'"),
        (lambda d: d.update(more=1), "unknown field 'more'"),
        (lambda d: d.update(position=2), "position is 2, and there are 2 states"),
        (lambda d: d.update(position=-1), "cannot be -1"),
        (lambda d: d.update(states=[7]), r"bench.states\[0\] must be an object"),
        (lambda d: d.update(graph=[]), "bench.graph must be an object"),
        (lambda d: d["graph"].update(documents=[]), "at least one graph"),
        (lambda d: d["graph"].update(version="9"), "has version 9"),
        (lambda d: d["graph"]["documents"][0]["groups"].clear(), "group"),
        (lambda d: d["modules"][1].update(fqn="\x1b[2J"), r"bench.modules\[1\].fqn holds"),
        (lambda d: d["modules"][1]["tensors"][0].update(shape=[-2]), "cannot be -2"),
        (lambda d: d["shown"]["tables"][0]["rows"][1].append("x"), "Row 1 of 'Layers' has other columns"),
        (lambda d: d["shown"]["tables"][0].update(numbers=[5]), "has no column 5"),
        (lambda d: d["shown"]["chart"]["points"][0].update(x="1"), r"points\[0\].x must be of type float"),
        (lambda d: d["shown"]["chart"]["points"][0].update(kind="best"), "must be one of"),
    ],
)
def test_what_is_no_bench_is_refused(change: Callable[[Any], object], message: str) -> None:
    with pytest.raises(DocumentError, match=message):
        bench_from_json(changed(change))


@pytest.mark.parametrize("text", ["", "[]", "{", "[" * 100_000, "7", b"\xff\xfe\x00", bench_to_json(BENCH)[:-100]])
def test_what_is_no_json_object_is_refused(text: str | bytes) -> None:
    with pytest.raises(DocumentError):
        bench_from_json(text)
