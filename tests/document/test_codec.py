"""Documents survive JSON, fit the schema, and bad ones are refused with the place of the fault."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from prepbench.document.codec import from_json, to_json
from prepbench.document.hierarchy import grouped
from prepbench.document.model import VERSION, DiagramDocument, GraphCollectionDocument, Overlay, OverlayValue
from prepbench.document.schema import FILE, main, schema
from prepbench.errors import DocumentError
from tests.views.documents import failing, language_model, reused


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.from_type(GraphCollectionDocument), st.from_type(DiagramDocument))
def test_round_trip(document: GraphCollectionDocument, diagram: DiagramDocument) -> None:
    ids = [node.id for graph in document.graphs for node in graph.nodes]
    assume(len(set(ids)) == len(ids))
    whole = grouped(replace(document, version=VERSION))
    for each in (whole, replace(diagram, version=VERSION, documents=(whole, whole))):
        text = to_json(each)
        assert to_json(from_json(text)) == text


def test_documents_without_groups_are_read_and_get_them() -> None:
    data = json.loads(to_json(failing()))
    del data["groups"]
    for node in data["graphs"][0]["nodes"]:
        del node["group"], node["call"]
    assert from_json(json.dumps({**data, "version": "1.0"})) == grouped(failing())
    with pytest.raises(DocumentError, match="lacks the field"):
        from_json(json.dumps(data))


def test_real_documents_fit_the_committed_schema() -> None:
    assert json.loads(FILE.read_text()) == schema()
    for document in (grouped(failing()), grouped(language_model(2)), reused()):
        jsonschema.validate(json.loads(to_json(document)), schema())
        assert from_json(to_json(document)) == document
        diagram = DiagramDocument(
            (document,), overlays=(Overlay("ms", "number", "ms", values=(OverlayValue("gate", 2.0),)),)
        )
        jsonschema.validate(json.loads(to_json(diagram)), schema())
        assert from_json(to_json(diagram)) == diagram
    assert main(["--check"]) == 0
    assert main([]) == 2


def _with(change: Any) -> str:
    data = json.loads(to_json(reused()))
    change(data)
    return json.dumps(data)


def _circle(data: dict[str, Any]) -> None:
    data["groups"][1]["parent"], data["groups"][2]["parent"] = "block@2", "block"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "no JSON"),
        ("[]", "JSON object"),
        (_with(lambda d: d.update(version="2.0")), "version 2.0"),
        (_with(lambda d: d.pop("graphs")), "lacks the field 'graphs'"),
        (_with(lambda d: d.update(extra=1)), "unknown field 'extra'"),
        (_with(lambda d: d["graphs"][0]["nodes"][1].update(status="fine")), "document.graphs[0].nodes[1].status"),
        (_with(lambda d: d["modules"][0].update(parameters="many")), "document.modules[0].parameters"),
        (_with(lambda d: d["modules"][0].update(parameters=True)), "document.modules[0].parameters"),
        (_with(lambda d: d.update(modules={})), "document.modules must be a list"),
        (_with(lambda d: d["graphs"][0]["nodes"][0].update(source=3)), "document.graphs[0].nodes[0].source"),
        (_with(_circle), "hold each other"),
        (_with(lambda d: d["groups"][1].update(parent="nowhere")), "'nowhere'"),
        (_with(lambda d: d["groups"].append(d["groups"][1])), "two groups 'block'"),
        (_with(lambda d: d["groups"].pop(0)), "''"),
        (_with(lambda d: d["graphs"][0]["nodes"][1].update(group="nowhere")), "lies in group 'nowhere'"),
        (_with(lambda d: d["graphs"][0]["nodes"].append(d["graphs"][0]["nodes"][0])), "two nodes ':x'"),
    ],
)  # fmt: skip
def test_faults_are_named(text: str, words: str) -> None:
    with pytest.raises(DocumentError) as caught:
        from_json(text)
    assert words in str(caught.value)
