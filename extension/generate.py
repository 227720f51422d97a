"""What the front end takes from Python: the types of documents, of the bench and of actions, and the palette.

``python extension/generate.py --check`` says whether the files are fresh, ``--write`` writes them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from prepbench.bench import BenchSummary
from prepbench.bench.status import RunStatus
from prepbench.bench.variables import KernelVariables
from prepbench.document.bench import ShownBench
from prepbench.document.schema import definitions, schema
from prepbench.settings.numbers import FLOAT32, FORMATS
from prepbench.views import palette
from prepbench.views.overlays import fill_of
from prepbench.widgets.actions import Action, Nothing
from prepbench.widgets.bench_actions import BENCH_ACTIONS
from prepbench.widgets.diagram import DIAGRAM_ACTIONS

FOLDER = Path(__file__).parent / "src" / "generated"
_PLAIN = {"string": "string", "integer": "number", "number": "number", "boolean": "boolean", "null": "null"}


def files() -> dict[str, str]:
    """Name and content of every generated file."""
    return {
        "document.ts": _types(schema()["$defs"]),
        "saved.ts": _types(definitions(ShownBench)),
        "variables.ts": _types(definitions(KernelVariables)),
        "saved.json": json.dumps({"$defs": definitions(ShownBench)}, separators=(",", ":")) + "\n",
        "widgets.ts": _types(_widget_definitions())
        + _actions("BenchActions", BENCH_ACTIONS)
        + _actions("DiagramActions", DIAGRAM_ACTIONS),
        "schema.json": json.dumps({"$defs": schema()["$defs"]}, separators=(",", ":")) + "\n",
        "formats.json": json.dumps(_formats(), indent=1) + "\n",
        "palette.json": json.dumps(_marks(), indent=1, ensure_ascii=False) + "\n",
        "colours.css": _css(".pbd", palette.variables()),
        "controls.css": _css(".pbd, .pbb, .pbb-box, .pbl-panel", palette.controls()),
    }


def _widget_definitions() -> dict[str, Any]:
    actions = [*BENCH_ACTIONS.values(), *DIAGRAM_ACTIONS.values()]
    return definitions(
        BenchSummary, RunStatus, *(action.payload for action in actions if action.payload is not Nothing)
    )


def _actions(name: str, actions: Mapping[str, Action[Any]]) -> str:
    """The payload of each action, by its name."""
    rows = "".join(f"  {action}: {_payload(entry.payload)};\n" for action, entry in actions.items())
    return f"\nexport interface {name} {{\n{rows}}}\n"


def _payload(kind: type) -> str:
    return "Record<string, never>" if kind is Nothing else kind.__name__


def _types(schemas: dict[str, Any]) -> str:
    parts = []
    for name, definition in schemas.items():
        fields = "".join(f"  {key}: {_type(value)};\n" for key, value in definition["properties"].items())
        parts.append(f"export interface {name} {{\n{fields}}}\n")
    return "\n".join(parts)


def _type(value: dict[str, Any]) -> str:
    if "$ref" in value:
        return str(value["$ref"]).rpartition("/")[2]
    if "enum" in value:
        return " | ".join(json.dumps(choice) for choice in value["enum"])
    if "anyOf" in value:
        return " | ".join(_type(choice) for choice in value["anyOf"])
    if value["type"] == "array":
        inner = _type(value["items"])
        return f"({inner})[]" if "|" in inner else f"{inner}[]"
    return _PLAIN[value["type"]]


def _marks() -> dict[str, Any]:
    def mark(value: palette.Mark) -> dict[str, Any]:
        return {**asdict(value), "outline": value.outline.light}

    return {
        "status": {name: mark(value) for name, value in palette.STATUS.items()},
        "changes": {name: mark(value) for name, value in palette.CHANGES.items()},
        "reused": mark(palette.REUSED),
        "precision": {name: fill.badge for name, fill in palette.PRECISION.items()},
        "ramp": len(palette.RAMP),
        "categories": len(palette.CATEGORIES),
        "light": {
            name: getattr(palette, name.upper()).light
            for name in ("text", "dim", "edge", "card", "cluster", "cluster_line")
        },
    }


def _formats() -> dict[str, Any]:
    """The fill of each format of numbers, by all its names, the widest fill first; and how settings name float."""
    named = {name: fill_of(one) for one in FORMATS for name in (one.name, *one.aliases, str(one.bits))}
    return {"fills": list(palette.PRECISION), "fill": named, "float": str(FLOAT32.bits)}


def _css(selector: str, shades: dict[str, palette.Shade]) -> str:
    lines = "".join(f"  --pb-{name}: light-dark({shade.light}, {shade.dark});\n" for name, shade in shades.items())
    return f"{selector} {{\n{lines}}}\n"


def main(arguments: list[str]) -> int:
    """Write the files, or name those that are stale."""
    if arguments == ["--write"]:
        FOLDER.mkdir(exist_ok=True)
        for name, text in files().items():
            (FOLDER / name).write_text(text)
        return 0
    if arguments != ["--check"]:
        sys.stderr.write("usage: python extension/generate.py --check | --write\n")
        return 2
    stale = [
        name for name, text in files().items() if not (FOLDER / name).exists() or (FOLDER / name).read_text() != text
    ]
    for name in stale:
        sys.stderr.write(f"extension/src/generated/{name} is stale: run python extension/generate.py --write\n")
    return bool(stale)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
