"""The visible part of a diagram as data: a user's view, and the boxes, clusters and edges in it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class View:
    """A user's view of a diagram: its root, its open groups, and the neighbourhood that it is limited to.

    Attributes:
        open: ids of the open groups; None lets the diagram choose.
        unfolded: ids of groups whose alike members are shown one by one.
        root: id of the group that fills the diagram.
        around: id of a box of which only the neighbourhood is shown, "" for all.
        hops: how many edges away from it.
        depth: levels that are open where ``open`` is None; 0 for as many as stay readable.
    """

    open: frozenset[str] | None = None
    unfolded: frozenset[str] = frozenset()
    root: str = ""
    around: str = ""
    hops: int = 2
    depth: int = 0


@dataclass(frozen=True)
class Box:
    """One visible box.

    Attributes:
        id: the node's id, ``"module:<group>"`` for a closed group, ``"fold:<first group>"`` for several alike.
        kind: ``"module"``, ``"fold"``, ``"node"``, ``"input"``, ``"output"``, ``"reference"`` or ``"note"``.
        title: the name in bold; ``subtitle``: its type; ``detail``: shapes or counts.
        status: the capture status.
        fqn: the module that it is or belongs to.
        inside: for a closed group, how many failed and leaf modules it hides.
        folded: for a fold, the groups in it.
        calls: ``"2/5"`` for the second of five calls of a module; "" if it is called once.
        change: how it differs from the other document: ``"added"``, ``"removed"``, ``"changed"`` or "".
    """

    id: str
    kind: str
    title: str
    subtitle: str = ""
    detail: str = ""
    status: str = "traced"
    fqn: str = ""
    inside: tuple[tuple[str, int], ...] = ()
    folded: tuple[str, ...] = ()
    calls: str = ""
    change: str = ""


@dataclass(frozen=True)
class Cluster:
    """An open group: its boxes and the open groups in it, in execution order."""

    id: str
    fqn: str
    title: str
    status: str
    members: tuple[Box | Cluster, ...]


@dataclass(frozen=True)
class Scene:
    """The visible part: the root cluster, edges between box ids, the counts for the legend, and the open groups."""

    root: Cluster
    edges: tuple[tuple[str, str], ...]
    counts: tuple[tuple[str, int], ...]
    expanded: frozenset[str]
    title: str


def all_boxes(cluster: Cluster) -> Iterator[Box]:
    """Yield the boxes of a cluster and of all clusters in it."""
    for member in cluster.members:
        if isinstance(member, Cluster):
            yield from all_boxes(member)
        else:
            yield member
