"""What a diagram says about a selected box, and which modules are open after a click."""

from __future__ import annotations

from typing import Any

from prepbench.document.model import Failure, GraphCollectionDocument, Module, Node, SourceLine
from prepbench.views.palette import STATUS
from prepbench.views.scene import Cluster, Scene, scene

_MODULE = "module:"
_VISIBLE = 300  # boxes that opening a whole level may show


def legend(view: Scene) -> list[dict[str, Any]]:
    """The states that occur, for a legend."""
    return [{"status": s, "glyph": STATUS[s].glyph, "word": STATUS[s].word, "count": count} for s, count in view.counts]


def details(document: GraphCollectionDocument, box: str, expanded: frozenset[str]) -> dict[str, Any]:
    """Everything known about a box: rows of name and value, the line of code, the remedy of its failure; {} if
    there is no such box.
    """
    modules = {module.fqn: module for module in document.modules}
    nodes = {node.id: node for graph in document.graphs for node in graph.nodes}
    node, module = nodes.get(box), modules.get(box.removeprefix(_MODULE)) if box.startswith(_MODULE) else None
    if node is not None and node.op == "call_module":
        module = modules.get(node.fqn)
    if node is None and module is None:
        return {}
    rows = [*_module_rows(module), *_node_rows(node, module)]
    failure = module.failure if module else None
    source = failure.source if failure and failure.source else node.source if node else None
    fqn = module.fqn if module else ""
    return {
        "title": (module.fqn if module and module.fqn else "") or (node.label if node else document.model_type),
        "rows": [[name, value] for name, value in rows if value] + _failure_rows(failure),
        "code": _code(source),
        "remedy": failure.remedy if failure else "",
        "fqn": fqn,
        "can_toggle": bool(fqn) and any(m.fqn.startswith(fqn + ".") for m in document.modules),
        "open": fqn in expanded,
    }


def toggled(document: GraphCollectionDocument, expanded: frozenset[str], box: str) -> frozenset[str]:
    """The open modules after a double click on a box: a closed module opens, an open one closes with all in it, an
    operation closes its module.
    """
    if box.startswith(_MODULE):
        fqn = box.removeprefix(_MODULE)
    else:
        node = next((n for graph in document.graphs for n in graph.nodes if n.id == box), None)
        fqn = "" if node is None else node.fqn.rpartition(".")[0] if node.op == "call_module" else node.fqn
    if fqn in expanded:
        return frozenset(m for m in expanded if m == "" or (m != fqn and not m.startswith(fqn + ".")))
    return expanded | {fqn}


def next_level(document: GraphCollectionDocument, expanded: frozenset[str]) -> frozenset[str]:
    """All closed modules that are visible opened, as far as some 300 boxes go."""
    closed = [box.fqn for box in _boxes(scene(document, expanded).root) if box.kind == "module"]
    for fqn in closed:
        wider = expanded | {fqn}
        if len(_boxes(scene(document, wider).root)) > _VISIBLE:
            break
        expanded = wider
    return expanded


def _boxes(cluster: Cluster) -> list[Any]:
    return [*cluster.boxes, *(box for child in cluster.clusters for box in _boxes(child))]


def _module_rows(module: Module | None) -> list[tuple[str, str]]:
    if module is None:
        return []
    calls = str(module.calls) if module.calls > 1 else ""
    return [
        ("type", module.type),
        ("status", STATUS[module.status].word),
        ("parameters", f"{module.parameters:,}"),
        ("calls", calls),
    ]


def _node_rows(node: Node | None, module: Module | None) -> list[tuple[str, str]]:
    if node is None:
        return []
    operation = [] if module else [("operation", node.target), ("in", node.fqn), ("status", STATUS[node.status].word)]
    return [*operation, ("shape", ", ".join(node.shapes)), ("dtype", ", ".join(dict.fromkeys(node.dtypes)))]


def _failure_rows(failure: Failure | None) -> list[list[str]]:
    if failure is None:
        return []
    return [["reason", failure.kind], ["raised", f"{failure.exception_type}: {failure.message}"]]


def _code(source: SourceLine | None) -> str:
    return f"{source.file}:{source.line}\n{source.code}" if source else ""
