"""Scene to SVG through Graphviz's ``dot``, with colours that follow light and dark pages."""

from __future__ import annotations

import re
import shutil
import subprocess
from xml.etree import ElementTree

from prepbench.views.dot import to_dot
from prepbench.views.palette import CARD, CLUSTER, CLUSTER_LINE, DIM, EDGE, PAGE, STATUS, TEXT, Shade
from prepbench.views.scene import Scene

SECONDS = 4.0
HINT = "Install Graphviz to see the diagram here (Debian: apt-get install graphviz)."

_SVG = "http://www.w3.org/2000/svg"
_LINK = "{http://www.w3.org/1999/xlink}"


def render(view: Scene, *, seconds: float = SECONDS, standalone: bool = True) -> str | None:
    """The scene as SVG text, or None when ``dot`` is not installed or takes too long.

    Args:
        view: what is visible.
        seconds: time limit of one layout; a second, simpler layout is tried after it.
        standalone: give the picture a card of its own and colours by ``prefers-color-scheme``; otherwise it takes
            the colours from CSS variables of the page around it.
    """
    if shutil.which("dot") is None:
        return None
    raw = _layout(to_dot(view), seconds) or _layout(to_dot(view, compact=True), seconds)
    return None if raw is None else _finish(raw, view, standalone)


def _layout(dot: str, seconds: float) -> bytes | None:
    try:
        done = subprocess.run(["dot", "-Tsvg"], input=dot.encode(), capture_output=True, timeout=seconds, check=True)
    except (subprocess.TimeoutExpired, subprocess.CalledProcessError):
        return None
    return done.stdout


def description(view: Scene) -> str:
    """One sentence for screen readers: the model and what became of its modules."""
    counts = ", ".join(f"{count} {STATUS[status].word}" for status, count in view.counts)
    return f"Graph of {view.title}: {counts or 'no modules'}."


def _finish(raw: bytes, view: Scene, standalone: bool) -> str:
    """Colours as CSS, a title, a label for each box; links and foreign markup are left out."""
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
    style.text = _css(standalone)
    title = ElementTree.Element(f"{{{_SVG}}}title")
    title.text = description(view)
    root.insert(0, style)
    root.insert(0, title)
    if standalone:
        root.insert(
            2, ElementTree.Element(f"{{{_SVG}}}rect", {"class": "page", "width": "100%", "height": "100%", "rx": "8"})
        )
    return ElementTree.tostring(root, encoding="unicode")


_VARIABLES: dict[str, Shade] = {
    "page": PAGE,
    "text": TEXT,
    "dim": DIM,
    "edge": EDGE,
    "card": CARD,
    "cluster": CLUSTER,
    "cluster-line": CLUSTER_LINE,
    **{status: mark.outline for status, mark in STATUS.items()},
}

_RULES = """
.page{fill:var(--pb-page)}
text{fill:var(--pb-text)} text[fill="DIM"]{fill:var(--pb-dim)}
.edge path{stroke:var(--pb-edge)} .edge polygon{stroke:var(--pb-edge);fill:var(--pb-edge)}
.node path,.node polygon,.node ellipse{fill:var(--pb-card);stroke:var(--pb-traced)}
.node polyline{stroke:var(--pb-traced)}
.reference text{fill:var(--pb-dim)}
.cluster path,.cluster polygon{fill:var(--pb-cluster);stroke:var(--pb-cluster-line)} .cluster text{fill:var(--pb-dim)}
"""


def _css(standalone: bool) -> str:
    rules = _RULES.replace("DIM", DIM.light)
    for status in ("failed", "leaf", "unvisited"):
        shapes = ",".join(f".node.{status} {tag}" for tag in ("path", "polygon", "polyline", "ellipse"))
        rules += f"{shapes}{{stroke:var(--pb-{status})}}\n"
    for status in ("failed", "leaf"):
        rules += f".cluster-{status} path,.cluster-{status} polygon{{stroke:var(--pb-{status})}}\n"
    if not standalone:
        return rules
    light = ";".join(f"--pb-{name}:{shade.light}" for name, shade in _VARIABLES.items())
    dark = ";".join(f"--pb-{name}:{shade.dark}" for name, shade in _VARIABLES.items())
    return f"svg{{{light}}}\n@media (prefers-color-scheme:dark){{svg{{{dark}}}}}{rules}"


def variables(theme: str) -> str:
    """CSS declarations of the colours for ``"light"`` or ``"dark"``, for a page that embeds pictures made with
    ``standalone=False``.
    """
    return ";".join(f"--pb-{name}:{getattr(shade, theme)}" for name, shade in _VARIABLES.items())
