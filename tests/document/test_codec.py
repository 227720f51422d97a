"""Documents survive JSON, fit the schema, and bad ones are refused with the place of the fault."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from prepbench.document.codec import from_json, to_json
from prepbench.document.model import VERSION, GraphCollectionDocument
from prepbench.document.schema import FILE, main, schema
from prepbench.errors import DocumentError
from tests.views.documents import failing, language_model


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.from_type(GraphCollectionDocument).map(lambda d: replace(d, version=VERSION)))
def test_round_trip(document: GraphCollectionDocument) -> None:
    text = to_json(document)
    assert to_json(from_json(text)) == text


def test_real_documents_fit_the_committed_schema() -> None:
    assert json.loads(FILE.read_text()) == schema()
    for document in (failing(), language_model(2)):
        jsonschema.validate(json.loads(to_json(document)), schema())
        assert from_json(to_json(document)) == document
    assert main(["--check"]) == 0
    assert main([]) == 2


def _with(change: Any) -> str:
    data = json.loads(to_json(failing()))
    change(data)
    return json.dumps(data)


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
        (_with(lambda d: d["failures"][0].update(source=3)), "document.failures[0].source"),
    ],
)  # fmt: skip
def test_faults_are_named(text: str, words: str) -> None:
    with pytest.raises(DocumentError) as caught:
        from_json(text)
    assert words in str(caught.value)
