"""Documents, views of them, and what must be seen: read by the tests of Python and of the front end.

``python -m tests.compile.views.golden --write`` writes the files; look at the difference before committing it.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from prepbench.document.codec import to_json
from prepbench.document.hierarchy import grouped
from prepbench.document.model import GraphCollectionDocument
from prepbench.views.dot import to_dot
from prepbench.views.scene import View, scene
from tests.compile.views import documents

FOLDER = Path(__file__).parents[2] / "golden"

DOCUMENTS = {
    "failing": documents.failing,
    "flat": documents.flat,
    "long": lambda: documents.long(130, 8),
    "language_model": lambda: documents.language_model(12, 8),
    "reused": documents.reused,
    "skips": documents.skips,
    "troubled": documents.troubled,
}
VIEWS: dict[str, list[tuple[View, dict[str, str]]]] = {
    "failing": [(View(), {}), (View(), {":gate": "changed", ":odd": "added", ":x": "removed"})],
    "language_model": [
        (View(), {}),
        (View(open=frozenset()), {}),
        (View(open=frozenset({"layers"})), {}),
        (View(open=frozenset({"layers"}), unfolded=frozenset({"layers"})), {}),
        (View(open=frozenset({"layers", "layers.5", "layers.5.mlp"}), root="layers.5"), {}),
        (View(open=frozenset({"layers"}), unfolded=frozenset({"layers"}), around="module:layers.3", hops=1), {}),
        (View(open=frozenset({"layers"})), {":n7_3": "changed"}),
        (View(depth=2), {}),
        (View(root="no such group"), {}),
    ],
    "long": [(View(), {}), (View(open=frozenset({"blocks"})), {}), (View(open=frozenset({"#inputs.1"})), {})],
    "flat": [(View(), {}), (View(open=frozenset({"#1.2"})), {":n50": "added"})],
    "reused": [(View(), {}), (View(open=frozenset()), {}), (View(open=frozenset({"block@3"})), {})],
    "skips": [(View(), {})],
    "troubled": [(View(), {}), (View(open=frozenset({"layers"})), {})],
}


def document(name: str) -> GraphCollectionDocument:
    """A golden document, with its groups."""
    made = DOCUMENTS[name]()
    return made if made.groups else grouped(made)


def cases(name: str) -> list[dict[str, Any]]:
    """Each view of a document with the scene and the DOT source that belong to it."""
    result = []
    for view, marks in VIEWS[name]:
        seen = scene(document(name), view=view, marks=marks)
        result.append({"view": plain(asdict(view)), "marks": marks, "scene": plain(asdict(seen)), "dot": to_dot(seen)})
    return result


def plain(value: Any) -> Any:
    """As JSON has it; sets in order."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, set | frozenset):
        return sorted(value)
    return [plain(item) for item in value] if isinstance(value, list | tuple) else value


def files() -> dict[str, str]:
    """Name and text of every golden file."""
    made = {}
    for name in DOCUMENTS:
        made[f"{name}.graph.json"] = to_json(document(name)) + "\n"
        made[f"{name}.views.json"] = json.dumps(cases(name), ensure_ascii=False, indent=1) + "\n"
    return made


if __name__ == "__main__":
    assert sys.argv[1:] == ["--write"], __doc__
    for file, text in files().items():
        (FOLDER / file).write_text(text)
