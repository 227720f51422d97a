"""The JSON Schemas of documents, made from their dataclasses: ``python -m prepbench.document.schema --check`` or
``--write``.
"""

from __future__ import annotations

import json
import sys
import types
import typing
from collections.abc import Mapping
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

from prepbench.document.bench import BENCH_MIME_TYPE, BENCH_VERSION, BenchDocument
from prepbench.document.codec import field_types
from prepbench.document.model import MIME_TYPE, VERSION, DiagramDocument, GraphCollectionDocument

FILE = Path(__file__).with_name("schema.json")
BENCH_FILE = Path(__file__).with_name("bench_schema.json")
_PLAIN = {str: {"type": "string"}, int: {"type": "integer"}, float: {"type": "number"}, bool: {"type": "boolean"}}


def schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of documents."""
    roots = (GraphCollectionDocument, DiagramDocument)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": MIME_TYPE,
        "description": f"prepbench graph collection document, version {VERSION}",
        "anyOf": [{"$ref": f"#/$defs/{kind.__name__}"} for kind in roots],
        "$defs": definitions(*roots),
    }


def bench_schema() -> dict[str, Any]:
    """Return the JSON Schema of saved benches."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": BENCH_MIME_TYPE,
        "description": f"prepbench bench, version {BENCH_VERSION}",
        "$ref": f"#/$defs/{BenchDocument.__name__}",
        "$defs": definitions(BenchDocument),
    }


def definitions(*kinds: type) -> dict[str, Any]:
    """Return the schemas of dataclasses and of those that they contain, by name."""
    found: dict[str, Any] = {}
    for kind in kinds:
        _schema(kind, found)
    return dict(sorted(found.items()))


def _schema(kind: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    if is_dataclass(kind) and isinstance(kind, type):
        if kind.__name__ not in definitions:
            definitions[kind.__name__] = {}
            properties = {name: _schema(hint, definitions) for name, hint in field_types(kind).items()}
            definitions[kind.__name__] = {
                "type": "object",
                "properties": properties,
                "required": list(properties),
                "additionalProperties": False,
            }
        return {"$ref": f"#/$defs/{kind.__name__}"}
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Literal:
        return {"enum": list(arguments)}
    if origin is tuple:
        return {"type": "array", "items": _schema(arguments[0], definitions)}
    if origin is Mapping:
        return {"type": "object", "additionalProperties": _schema(arguments[1], definitions)}
    if kind is Any:
        return {}
    if origin is types.UnionType:
        return {"anyOf": [_schema(a, definitions) if a is not type(None) else {"type": "null"} for a in arguments]}
    return dict(_PLAIN[kind])


def _texts() -> dict[Path, str]:
    return {file: json.dumps(made, indent=2) + "\n" for file, made in ((FILE, schema()), (BENCH_FILE, bench_schema()))}


def main(arguments: list[str]) -> int:
    """Write the schema files, or check that they are up to date."""
    if arguments == ["--write"]:
        for file, text in _texts().items():
            file.write_text(text)
        return 0
    if arguments == ["--check"]:
        stale = [file for file, text in _texts().items() if not file.exists() or file.read_text() != text]
        for file in stale:
            sys.stderr.write(
                f"{file.name} does not fit the dataclasses: run python -m prepbench.document.schema --write\n"
            )
        return bool(stale)
    sys.stderr.write("usage: python -m prepbench.document.schema --check | --write\n")
    return 2


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
