"""Scene to DOT, with bold names, grey types and shapes, and to SVG through Graphviz's ``dot``. All text is escaped."""

from __future__ import annotations

import html
import re
import shutil
import subprocess
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from prepbench.document.model import GraphCollectionDocument
from prepbench.views.palette import CARD, CHANGES, CLUSTER, CLUSTER_LINE, DIM, EDGE, REUSED, STATUS, TEXT, variables
from prepbench.views.scene import Box, Cluster, Scene, all_boxes, scene

if TYPE_CHECKING:
    import graphviz

    from prepbench.views.palette import Mark


FONT = "Helvetica,Arial,DejaVu Sans,sans-serif"
_LONGEST = 34

# nslimit bounds the network simplex: without it one long edge can take minutes.
_GRAPH = {
    "rankdir": "TB",
    "nslimit": "5",
    "nslimit1": "5",
    "compound": "true",
    "bgcolor": "transparent",
    "fontname": FONT,
    "fontsize": "11",
    "nodesep": "0.28",
    "ranksep": "0.34",
    "pad": "0.12",
    "margin": "0",
}
_NODE = {
    "fontname": FONT,
    "fontsize": "11",
    "margin": "0.19,0.07",
    "height": "0.3",
    "color": STATUS["traced"].outline.light,
    "fillcolor": CARD.light,
    "fontcolor": TEXT.light,
}
_EDGE = {"color": EDGE.light, "arrowsize": "0.55", "penwidth": "1"}


def to_dot(view: Scene, *, compact: bool = False) -> str:
    """Return the DOT source of a scene; ``compact`` spends less time on short edges, for large scenes."""
    graph = {**_GRAPH, **({"nslimit": "1", "nslimit1": "1"} if compact else {})}
    names = {box.id: f"n{i}" for i, box in enumerate(all_boxes(view.root))}
    lines = [
        "digraph {",
        f"graph [{_attributes(graph)}]",
        f"node [{_attributes(_NODE)}]",
        f"edge [{_attributes(_EDGE)}]",
    ]
    lines += _cluster_lines(view.root, names, ["0"])
    for source, target in view.edges:
        if source in names and target in names:
            style = ' [style="dashed" arrowsize="0.4"]' if source.startswith("ref:") else ""
            lines.append(f"{names[source]} -> {names[target]}{style}")
    return "\n".join([*lines, "}"]) + "\n"


def document_to_graphviz(document: GraphCollectionDocument, expanded: Any = None) -> graphviz.Digraph:
    """Return the diagram as a ``graphviz.Digraph`` to style or render further."""
    import graphviz

    digraph = graphviz.Digraph(document.model_type)
    source = to_dot(scene(document, expanded))
    digraph.body = [line + "\n" for line in source.splitlines()[1:-1]]
    return digraph


def _cluster_lines(cluster: Cluster, names: dict[str, str], number: list[str]) -> list[str]:
    lines: list[str] = []
    for i, child in enumerate(cluster.members):
        if isinstance(child, Box):
            lines.append(f"{names[child.id]} [{_box_attributes(child)}]")
            continue
        label = _label([_text(child.title)])
        mark = STATUS[child.status]
        line = CLUSTER_LINE.light if child.status in ("traced", "unvisited") else mark.outline.light
        attributes = {
            "label": label,
            "labeljust": "l",
            "style": "rounded,filled",
            "fillcolor": CLUSTER.light,
            "color": line,
            "fontcolor": DIM.light,
            "margin": "10",
            "class": f"cluster-{child.status}",
            "id": f"module:{child.id}",
            "tooltip": child.fqn,
        }
        inner = [*number, str(i)]
        lines += [
            f'subgraph "cluster_{"_".join(inner)}" {{',
            f"graph [{_attributes(attributes)}]",
            *_cluster_lines(child, names, inner),
            "}",
        ]
    return lines


def _box_attributes(box: Box) -> str:
    mark = STATUS.get(box.status, STATUS["traced"])
    badge = "" if box.status == "traced" else f"{mark.glyph} {mark.word}"
    inside = "  ".join(f"{STATUS[status].glyph} {count}" for status, count in box.inside)
    lines = [_bold(box.title)]
    if box.subtitle and box.subtitle != box.title:
        lines.append(_dim(box.subtitle))
    if box.detail:
        lines.append(_dim(box.detail))
    calls = f"{REUSED.glyph} {box.calls}" if box.calls else ""
    change = f"{CHANGES[box.change].glyph} {CHANGES[box.change].word}" if box.change else ""
    badges = "  ".join(filter(None, (badge, inside, calls, change)))
    if badges:
        lines.append(_bold(badges))
    shape, style = _shape(box)
    look = _look(box)
    attributes = {
        "label": _label(lines if box.kind != "reference" else [_dim(box.title)]),
        "shape": shape,
        "style": style,
        "color": look.outline.light,
        "penwidth": f"{look.width:g}",
        "class": " ".join(filter(None, (box.status, box.kind, "reused" if box.calls else "", box.change))),
        "id": box.id,
        "tooltip": box.fqn or box.title,
    }
    if box.calls:
        attributes["peripheries"] = "2"
    return _attributes(attributes)


def _look(box: Box) -> Mark:
    """Return outline and width: a failure outranks a change, and a change outranks reuse."""
    if box.status in STATUS and box.status != "traced":
        return STATUS[box.status]
    if box.change:
        return CHANGES[box.change]
    return REUSED if box.calls else STATUS["traced"]


def _shape(box: Box) -> tuple[str, str]:
    mark = STATUS.get(box.status, STATUS["traced"])
    if box.kind == "reference":
        return "plaintext", ""
    if box.kind in ("input", "output") and box.status == "traced":
        return "oval", "filled"
    if box.kind in ("module", "fold") and box.status == "traced":
        return "folder" if box.kind == "module" else "box3d", "filled"
    if box.change:
        return CHANGES[box.change].shape, CHANGES[box.change].style
    return mark.shape, mark.style


def _bold(text: str) -> str:
    return f"<B>{_text(text)}</B>"


def _dim(text: str) -> str:
    return f'<FONT COLOR="{DIM.light}" POINT-SIZE="9.5">{_text(text)}</FONT>'


def _text(text: str) -> str:
    """Return a user's text for an HTML-like label: shortened, without control characters, escaped."""
    plain = "".join(c if c.isprintable() else " " for c in text) or " "
    short = plain if len(plain) <= _LONGEST else plain[: _LONGEST // 2] + "…" + plain[-_LONGEST // 2 + 1 :]
    return html.escape(short)


def _label(lines: list[str]) -> str:
    return "<" + "<BR/>".join(lines) + ">"


def _attributes(attributes: dict[str, str]) -> str:
    return " ".join(
        f"{name}={value if name == 'label' and value.startswith('<') else _quoted(value)}"
        for name, value in attributes.items()
    )


def _quoted(value: str) -> str:
    plain = "".join(c if c.isprintable() else " " for c in value)
    return '"' + plain.replace("\\", "\\\\").replace('"', '\\"') + '"'


# Scene to SVG through Graphviz's ``dot``, with colours for light and dark pages.


SECONDS = 4.0
HINT = "Install Graphviz to see the diagram here (Debian: apt-get install graphviz)."

_SVG = "http://www.w3.org/2000/svg"


def render(view: Scene, *, light_only: bool = False) -> str | None:
    """Return the scene as SVG text, or None when ``dot`` is not installed or takes too long even for a simpler layout.

    Args:
        view: the visible part.
        light_only: in light colours, for pages that cannot say whether they are dark; else as the reader's system is.
    """
    if shutil.which("dot") is None:
        return None
    raw = _layout(to_dot(view)) or _layout(to_dot(view, compact=True))
    return None if raw is None else _finish(raw, view, light_only)


def _layout(dot: str) -> bytes | None:
    try:
        done = subprocess.run(["dot", "-Tsvg"], input=dot.encode(), capture_output=True, timeout=SECONDS, check=True)
    except (subprocess.TimeoutExpired, subprocess.CalledProcessError):
        return None
    return done.stdout


def description(view: Scene) -> str:
    """Return one sentence for screen readers: the model and the status of its modules."""
    counts = ", ".join(f"{count} {STATUS[status].word}" for status, count in view.counts)
    return f"Graph of {view.title}: {counts or 'no modules'}."


def _finish(raw: bytes, view: Scene, light_only: bool) -> str:
    """Add CSS colours, a title and a label for each box; remove links and foreign markup."""
    ElementTree.register_namespace("", _SVG)
    root = ElementTree.fromstring(raw)
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag == f"{{{_SVG}}}a":  # tooltips come as links: keep what is inside
                position = list(parent).index(child)
                parent.remove(child)
                for offset, inner in enumerate(list(child)):
                    parent.insert(position + offset, inner)
    for group in root.iter(f"{{{_SVG}}}g"):
        for title in group.findall(f"{{{_SVG}}}title"):
            group.remove(title)
        if group.get("class", "").startswith(("node", "cluster")):
            label = ", ".join(t.text or "" for t in group.iter(f"{{{_SVG}}}text"))
            group.set("aria-label", re.sub(r"\s+", " ", label))
            group.set("role", "img")
    root.set("role", "img")
    root.set("class", "pb-diagram")
    root.set("aria-label", description(view))
    style = ElementTree.Element(f"{{{_SVG}}}style")
    style.text = _css(light_only)
    title = ElementTree.Element(f"{{{_SVG}}}title")
    title.text = description(view)
    root.insert(0, style)
    root.insert(0, title)
    # the attribute is for programs that know no variables of CSS, such as Inkscape: to them, the page would be black
    page = {"class": "page", "fill": variables()["page"].light, "width": "100%", "height": "100%", "rx": "8"}
    root.insert(2, ElementTree.Element(f"{{{_SVG}}}rect", page))
    return ElementTree.tostring(root, encoding="unicode")


_SHOWN = ("page", "text", "dim", "edge", "card", "cluster", "cluster-line", *STATUS, "reused", "change")

_RULES = """
.page{fill:var(--pb-page)}
text{fill:var(--pb-text)} text[fill="DIM"]{fill:var(--pb-dim)}
.edge path{stroke:var(--pb-edge)} .edge polygon{stroke:var(--pb-edge);fill:var(--pb-edge)}
.node path,.node polygon,.node ellipse{fill:var(--pb-card);stroke:var(--pb-traced)}
.node polyline{stroke:var(--pb-traced)}
.reference text{fill:var(--pb-dim)}
.cluster path,.cluster polygon{fill:var(--pb-cluster);stroke:var(--pb-cluster-line)} .cluster text{fill:var(--pb-dim)}
"""


def _css(light_only: bool) -> str:
    rules = _RULES.replace("DIM", DIM.light)
    looks = {**dict.fromkeys(CHANGES, "change"), **{status: status for status in STATUS if status != "traced"}}
    for name, colour in {"reused": "reused", **looks}.items():
        shapes = ",".join(f".node.{name} {tag}" for tag in ("path", "polygon", "polyline", "ellipse"))
        rules += f"{shapes}{{stroke:var(--pb-{colour})}}\n"
    for status in ("failed", "leaf"):
        rules += f".cluster-{status} path,.cluster-{status} polygon{{stroke:var(--pb-{status})}}\n"
    colours = variables()
    light = ";".join(f"--pb-{name}:{colours[name].light}" for name in _SHOWN)
    dark = ";".join(f"--pb-{name}:{colours[name].dark}" for name in _SHOWN)
    dark_rule = "" if light_only else f"@media (prefers-color-scheme:dark){{svg{{{dark}}}}}"
    return f"svg{{{light}}}\n{dark_rule}{rules}"
