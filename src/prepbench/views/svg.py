"""Scene to SVG through Graphviz's ``dot``, with colours for light and dark pages."""

from __future__ import annotations

import re
import shutil
import subprocess
from xml.etree import ElementTree

from prepbench.views.boxes import Scene
from prepbench.views.dot import to_dot
from prepbench.views.palette import CHANGES, DIM, STATUS, variables

SECONDS = 4.0
HINT = "Install Graphviz to see the diagram here (Debian: apt-get install graphviz)."

_SVG = "http://www.w3.org/2000/svg"
_LINK = "{http://www.w3.org/1999/xlink}"


def render(view: Scene, *, seconds: float = SECONDS) -> str | None:
    """Return the scene as SVG text, or None when ``dot`` is not installed or takes too long.

    Args:
        view: the visible part.
        seconds: time limit of one layout; a second, simpler layout is tried after it.
    """
    if shutil.which("dot") is None:
        return None
    raw = _layout(to_dot(view), seconds) or _layout(to_dot(view, compact=True), seconds)
    return None if raw is None else _finish(raw, view)


def _layout(dot: str, seconds: float) -> bytes | None:
    try:
        done = subprocess.run(["dot", "-Tsvg"], input=dot.encode(), capture_output=True, timeout=seconds, check=True)
    except (subprocess.TimeoutExpired, subprocess.CalledProcessError):
        return None
    return done.stdout


def description(view: Scene) -> str:
    """Return one sentence for screen readers: the model and the status of its modules."""
    counts = ", ".join(f"{count} {STATUS[status].word}" for status, count in view.counts)
    return f"Graph of {view.title}: {counts or 'no modules'}."


def _finish(raw: bytes, view: Scene) -> str:
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
    style.text = _css()
    title = ElementTree.Element(f"{{{_SVG}}}title")
    title.text = description(view)
    root.insert(0, style)
    root.insert(0, title)
    page = {"class": "page", "width": "100%", "height": "100%", "rx": "8"}
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


def _css() -> str:
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
    return f"svg{{{light}}}\n@media (prefers-color-scheme:dark){{svg{{{dark}}}}}{rules}"
