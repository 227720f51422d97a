"""The document as JSON: written deterministically, read back with every field checked. Nothing in a document is
executed.
"""

from __future__ import annotations

import json
import types
import typing
from dataclasses import asdict, fields, is_dataclass
from functools import cache
from typing import Any

from prepbench.document import model
from prepbench.document.model import VERSION, GraphCollectionDocument
from prepbench.errors import DocumentError


def to_json(document: GraphCollectionDocument, *, indent: int | None = None) -> str:
    """The document as JSON text; equal documents give equal text.

    Example:
        >>> from_json(to_json(GraphCollectionDocument("Net", "module", (), ()))).model_type
        'Net'
    """
    return json.dumps(asdict(document), ensure_ascii=False, indent=indent)


def from_json(text: str) -> GraphCollectionDocument:
    """Read what :func:`to_json` wrote.

    Raises:
        DocumentError: no JSON, a missing, unknown or wrong field (named by its path), or another major version.
    """
    try:
        data = json.loads(text)
    except ValueError as error:
        raise DocumentError(f"The document is no JSON: {error}.") from error
    if not isinstance(data, dict):
        raise DocumentError(f"The document must be a JSON object, got {type(data).__name__}.")
    version = str(data.get("version", ""))
    if version.partition(".")[0] != VERSION.partition(".")[0]:
        raise DocumentError(
            f"The document has version {version or 'none'}; this prepbench reads {VERSION}. Trace the model again "
            "to write a new one."
        )
    document = _read(data, GraphCollectionDocument, "document")
    assert isinstance(document, GraphCollectionDocument)
    return document


@cache
def field_types(kind: type) -> dict[str, Any]:
    """The types of a document class's fields, resolved."""
    return typing.get_type_hints(kind, vars(model))


def _read(value: Any, kind: Any, path: str) -> Any:
    if is_dataclass(kind) and isinstance(kind, type):
        return _read_object(value, kind, path)
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Literal:
        if value not in arguments:
            raise DocumentError(f"{path} must be one of {', '.join(map(repr, arguments))}, got {value!r}.")
        return value
    if origin is tuple:
        if not isinstance(value, list):
            raise DocumentError(f"{path} must be a list, got {type(value).__name__}.")
        return tuple(_read(item, arguments[0], f"{path}[{i}]") for i, item in enumerate(value))
    if origin is types.UnionType:
        return None if value is None else _read(value, next(a for a in arguments if a is not type(None)), path)
    if type(value) is not kind:
        raise DocumentError(f"{path} must be of type {kind.__name__}, got {value!r}.")
    return value


def _read_object(value: Any, kind: type, path: str) -> Any:
    if not isinstance(value, dict):
        raise DocumentError(f"{path} must be an object, got {type(value).__name__}.")
    hints = field_types(kind)
    unknown = sorted(set(value) - set(hints))
    missing = sorted(set(hints) - set(value))
    if unknown or missing:
        what = f"has the unknown field {unknown[0]!r}" if unknown else f"lacks the field {missing[0]!r}"
        raise DocumentError(f"{path} {what}; fields of {kind.__name__}: {', '.join(f.name for f in fields(kind))}.")
    return kind(**{name: _read(value[name], hint, f"{path}.{name}") for name, hint in hints.items()})
