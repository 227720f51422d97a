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
from prepbench.document.hierarchy import grouped
from prepbench.document.model import (
    VERSION,
    DiagramDocument,
    Graph,
    GraphCollectionDocument,
    Overlay,
    OverlayValue,
    Size,
)
from prepbench.document.schema import FILE, main, schema
from prepbench.errors import DocumentError, printable
from tests.compile.views.documents import failing, language_model, reused

# texts and numbers of the kinds that a document may hold
st.register_type_strategy(str, st.text(st.characters(exclude_categories=("Cc", "Cs", "Zl", "Zp", "Cf"))))
st.register_type_strategy(int, st.integers(0, 2**53))
st.register_type_strategy(float, st.floats(allow_nan=False, allow_infinity=False))


def _with_own_nodes(graphs: tuple[Graph, ...]) -> tuple[Graph, ...]:
    """The graphs with ids that occur once and inputs that are earlier nodes."""
    return tuple(
        replace(
            graph,
            nodes=tuple(
                replace(node, id=f"{at}:{i}", inputs=tuple(f"{at}:{j}" for j in range(min(i, len(node.inputs)))))
                for i, node in enumerate(graph.nodes)
            ),
        )
        for at, graph in enumerate(graphs)
    )


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.from_type(GraphCollectionDocument), st.from_type(DiagramDocument))
def test_round_trip(document: GraphCollectionDocument, diagram: DiagramDocument) -> None:
    sizes = tuple({name: Size(name, "x.shape[0]") for name in {size.name for size in document.sizes} - {""}}.values())
    whole = grouped(replace(document, graphs=_with_own_nodes(document.graphs), sizes=sizes, version=VERSION))
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


def test_documents_of_the_version_before_are_read_without_sizes() -> None:
    data = json.loads(to_json(reused()))
    del data["sizes"]
    assert from_json(json.dumps({**data, "version": "1.1"})) == replace(reused(), version="1.1")
    with pytest.raises(DocumentError, match="lacks the field 'sizes'"):
        from_json(json.dumps(data))


def test_sizes_that_say_nothing_or_two_things_are_refused() -> None:
    for sizes, why in (
        ((Size("H", ""),), "stands for ''"),
        ((Size("", "x.shape[2]"),), "both need a text"),
        ((Size("H", "x.shape[2]"), Size("H", "y.shape[2]")), "'H' twice"),
    ):
        with pytest.raises(DocumentError, match=why):
            from_json(to_json(replace(reused(), sizes=sizes)))


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


def _use_each_other(data: dict[str, Any]) -> None:
    first, second = data["graphs"][0]["nodes"][:2]
    first["inputs"] = [second["id"]]


def _deep(data: dict[str, Any]) -> None:
    data["groups"] += [
        {"id": f"g{i}", "parent": f"g{i - 1}" if i else "", "fqn": "", "call": 1, "alike": 0, "label": ""}
        for i in range(500)
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "not valid JSON"),
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
        (_with(lambda d: d["graphs"][0]["nodes"][1].update(inputs=["nowhere"])), "uses 'nowhere'"),
        (_with(_use_each_other), "use each other"),
        (_with(lambda d: d["modules"][0].update(parameters=-1)), "document.modules[0].parameters counts"),
        (_with(lambda d: d["modules"][0].update(parameters=10**400)), "larger than any number"),
        (_with(lambda d: d["modules"][0].update(type="\x1b[31m")), "document.modules[0].type holds '\\x1b'"),
        (_with(lambda d: d["modules"][0].update(type="\ud800")), "no printable text"),
        (_with(lambda d: d["modules"][0].update(type="\u202eevil")), "no printable text"),
        (_with(_deep), "nest 501 deep"),
        ("[" * 100_000, "too deep"),
        (json.dumps({"version": VERSION, "documents": [], "overlays": [{"values": "x"}]}), "document"),
    ],
)  # fmt: skip
def test_faults_are_named(text: str, words: str) -> None:
    with pytest.raises(DocumentError) as caught:
        from_json(text)
    assert words in str(caught.value)


def test_an_overlay_of_no_number_is_refused() -> None:
    diagram = DiagramDocument((reused(),), overlays=(Overlay("ms", "number", values=(OverlayValue("a", 2.0),)),))
    for word in ("NaN", "Infinity", "-Infinity"):
        with pytest.raises(DocumentError, match=r"overlays\[0\]\.values\[0\]\.number must be a finite number"):
            from_json(to_json(diagram).replace("2.0", word))


def test_texts_of_models_are_printable() -> None:
    assert printable("tab\tand\nline") == "tab\tand\nline"
    assert printable("\x1b[31m\u202e\ud800") == "\\x1b[31m\\u202e\\ud800"


def test_names_of_a_model_cannot_steer_a_terminal() -> None:
    document = reused()
    names = tuple(replace(module, type=f"{module.type}\x1b[31m") for module in document.modules)
    clean = grouped(replace(document, modules=names))
    assert all(module.type.endswith("\\x1b[31m") for module in clean.modules)
    assert from_json(to_json(clean)) == clean
