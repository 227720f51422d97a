"""Documents as JSON: written deterministically, read back with every field checked. Nothing in a document is
executed.
"""

from __future__ import annotations

import json
import math
import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, Field, asdict, dataclass, fields, is_dataclass, replace
from functools import cache
from typing import Any, TypeVar

from prepbench.document.checks import check_depth, check_nodes, check_number, check_sizes, check_text
from prepbench.document.hierarchy import check_hierarchy, grouped
from prepbench.document.model import VERSION, DiagramDocument, GraphCollectionDocument
from prepbench.errors import DocumentError

T = TypeVar("T")

_OLDER = ("1.0", "1.1")  # lack fields that have defaults
_WITHOUT_GROUPS = "1.0"  # they are made from the names
_DEEPEST = 60  # of plain values inside each other
_NOT_FINITE = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}  # JSON has no such numbers


@dataclass(frozen=True)
class _Rules:
    """Options of reading: missing fields where they have defaults, and numbers that are not finite, as text."""

    lenient: bool = False
    measured: bool = False


def to_json(document: GraphCollectionDocument | DiagramDocument) -> str:
    """Return the document as JSON text; equal documents give equal text.

    Example:
        >>> from_json(to_json(GraphCollectionDocument("Net", "module", (), ()))).model_type
        'Net'
    """
    return json.dumps(asdict(document), ensure_ascii=False)


def from_json(text: str) -> GraphCollectionDocument | DiagramDocument:
    """Read what :func:`to_json` wrote.

    Raises:
        DocumentError: no JSON, a missing, unknown or wrong field (named by its path), modules that hold each other,
            or another major version.
    """
    return read_document(parsed(text))


def parsed(text: str | bytes, what: str = "document", remedy: str = "Trace the model again to write a new one.") -> Any:
    """Return the JSON object in a text; raise ``DocumentError`` if there is none."""
    try:
        data = json.loads(text)
    except ValueError as error:
        raise DocumentError(f"The {what} is not valid JSON: {error}.") from error
    except RecursionError as error:
        raise DocumentError(f"The {what} nests too deep to be read. {remedy}") from error
    if not isinstance(data, dict):
        raise DocumentError(f"The {what} must be a JSON object, got {type(data).__name__}.")
    return data


def read_document(data: dict[str, Any]) -> GraphCollectionDocument | DiagramDocument:
    """Check the object from :func:`parsed`, as :func:`from_json` describes."""
    version = str(data.get("version", ""))
    if version.partition(".")[0] != VERSION.partition(".")[0]:
        raise DocumentError(
            f"The document has version {version or 'none'}; this prepbench reads {VERSION}. Trace the model again "
            "to write a new one."
        )
    kind = DiagramDocument if "documents" in data else GraphCollectionDocument
    document: GraphCollectionDocument | DiagramDocument = _read(
        data, kind, "document", _Rules(lenient=version in _OLDER)
    )
    if isinstance(document, GraphCollectionDocument) and version == _WITHOUT_GROUPS:
        return grouped(replace(document, version=VERSION))
    for part in document.documents if isinstance(document, DiagramDocument) else (document,):
        check_hierarchy(part)
        check_depth(part)
        check_nodes(part)
        check_sizes(part)
    return document


@cache
def field_types(kind: type) -> dict[str, Any]:
    """Return the resolved types of a dataclass's fields."""
    return typing.get_type_hints(kind)


def read_object(value: Any, kind: type[T], path: str, *, lenient: bool = False, measured: bool = False) -> T:
    """Return a dataclass from a JSON object whose every field is checked.

    Args:
        value: the result of ``json.loads``.
        kind: the dataclass. Its fields may be plain values, tuples, tables (``Mapping[str, ...]``) and dataclasses.
        path: the object's name in messages.
        lenient: whether fields that have defaults may be missing, as in files of older versions.
        measured: whether numbers may be infinite or NaN, as :func:`plain` writes them.

    Raises:
        DocumentError: a missing, unknown or wrong field; the message starts with ``path``.

    Example:
        >>> from prepbench.document import model
        >>> read_object({"file": "net.py", "line": 3, "code": "x + 1"}, model.SourceLine, "source").line
        3
    """
    found: T = _read_object(value, kind, path, _Rules(lenient, measured))
    return found


def plain(value: Any) -> Any:
    """Return a dataclass as JSON-ready data; infinite and NaN numbers, which JSON lacks, become text.

    Example:
        >>> plain({"sqnr": float("inf")})
        {'sqnr': 'inf'}
    """
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {name: plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    return value


def _read(value: Any, kind: Any, path: str, rules: _Rules) -> Any:
    if is_dataclass(kind) and isinstance(kind, type):
        return _read_object(value, kind, path, rules)
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Literal:
        if value not in arguments:
            raise DocumentError(f"{path} must be one of {', '.join(map(repr, arguments))}, got {value!r}.")
        return value
    if origin is tuple:
        if not isinstance(value, list):
            raise DocumentError(f"{path} must be a list, got {type(value).__name__}.")
        if arguments[-1] is not Ellipsis and len(value) != len(arguments):
            raise DocumentError(f"{path} must have {len(arguments)} items, got {len(value)}.")
        return tuple(_read(item, arguments[0], f"{path}[{i}]", rules) for i, item in enumerate(value))
    if origin is Mapping:
        return _read_table(value, arguments[1], path, rules)
    if kind is Any:
        return _read_plain(value, path, 0)
    if origin is types.UnionType:
        given = next(a for a in arguments if a is not type(None))
        return None if value is None else _read(value, given, path, rules)
    if kind is float and rules.measured and isinstance(value, str) and value in _NOT_FINITE:
        return _NOT_FINITE[value]
    if type(value) is not kind and not (kind is float and type(value) is int):
        raise DocumentError(f"{path} must be of type {kind.__name__}, got {str(value)[:60]!r}.")
    if kind is str:
        check_text(value, path)
    elif kind in (int, float):
        check_number(value, path, counts=kind is int)
    return float(value) if kind is float else value


def _read_object(value: Any, kind: type, path: str, rules: _Rules) -> Any:
    if not isinstance(value, dict):
        raise DocumentError(f"{path} must be an object, got {type(value).__name__}.")
    hints = field_types(kind)
    unknown = sorted(set(value) - set(hints))
    missing = sorted(set(hints) - set(value))
    if rules.lenient:
        missing = [name for name in missing if _is_required(kind, name)]
    if unknown or missing:
        what = f"has the unknown field {unknown[0]!r}" if unknown else f"lacks the field {missing[0]!r}"
        raise DocumentError(f"{path} {what}; fields of {kind.__name__}: {', '.join(f.name for f in fields(kind))}.")
    return kind(
        **{name: _read(value[name], hint, f"{path}.{name}", rules) for name, hint in hints.items() if name in value}
    )


def _read_table(value: Any, kind: Any, path: str, rules: _Rules) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise DocumentError(f"{path} must be an object, got {type(value).__name__}.")
    for key in value:
        check_text(key, f"A name in {path}")
    return {key: _read(item, kind, f"{path}.{key}", rules) for key, item in value.items()}


def _read_plain(value: Any, path: str, depth: int) -> Any:
    """Return arbitrary JSON for further checks: its texts are printable and its numbers finite."""
    if depth > _DEEPEST:
        raise DocumentError(f"{path} nests deeper than {_DEEPEST} levels.")
    if isinstance(value, dict):
        for key in value:
            check_text(key, f"A name in {path}")
        return {key: _read_plain(item, f"{path}.{key}", depth + 1) for key, item in value.items()}
    if isinstance(value, list):
        return [_read_plain(item, f"{path}[{i}]", depth + 1) for i, item in enumerate(value)]
    if isinstance(value, str):
        check_text(value, path)
    elif isinstance(value, int | float):
        check_number(value, path, counts=False)
    return value


def _is_required(kind: type, name: str) -> bool:
    field: Field[Any] = next(f for f in fields(kind) if f.name == name)
    return field.default is MISSING and field.default_factory is MISSING
