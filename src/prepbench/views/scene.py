"""Document and expanded modules in, visible boxes and edges out: what a diagram shows, before any layout."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from prepbench.document.model import Graph, GraphCollectionDocument, Module, Node

BOXES = 36  # what a first view shows at most, unless failures lie deeper
_FORCED = 120  # and with the paths to failures opened
FAN_OUT = 8  # a value used more often is drawn as a reference at each use
_UNVISITED = 6


@dataclass(frozen=True)
class Box:
    """One visible box.

    Attributes:
        id: the node's id, or ``"module:<fqn>"`` for a collapsed module.
        kind: ``"module"`` (collapsed), ``"node"``, ``"input"``, ``"output"``, ``"reference"`` or ``"note"``.
        title: the name in bold; ``subtitle``: its type; ``detail``: shapes or counts.
        status: what capture made of it.
        fqn: the module that it is or belongs to.
        inside: for a collapsed module, how many failed and leaf-wrapped modules it hides.
    """

    id: str
    kind: str
    title: str
    subtitle: str = ""
    detail: str = ""
    status: str = "traced"
    fqn: str = ""
    inside: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True)
class Cluster:
    """An expanded module: its boxes and the expanded modules in it."""

    fqn: str
    title: str
    status: str
    boxes: tuple[Box, ...]
    clusters: tuple[Cluster, ...]


@dataclass(frozen=True)
class Scene:
    """All that is visible: the root cluster, edges between box ids, the counts for the legend, and which modules
    are open.
    """

    root: Cluster
    edges: tuple[tuple[str, str], ...]
    counts: tuple[tuple[str, int], ...]
    expanded: frozenset[str]
    title: str


@dataclass
class _Place:
    """A module with something to show in it, while the scene is built."""

    fqn: str
    nodes: list[Node] = field(default_factory=list)
    places: dict[str, _Place] = field(default_factory=dict)

    @property
    def size(self) -> int:
        return len(self.nodes) + len(self.places)


def scene(document: GraphCollectionDocument, expanded: Iterable[str] | None = None) -> Scene:
    """The visible part of ``document`` when the modules in ``expanded`` are open.

    Args:
        document: what was captured.
        expanded: FQNs of the open modules; None opens as many levels as stay readable (some 36 boxes), and the
            way to every failure.
    """
    return _Builder(document).build(None if expanded is None else frozenset(expanded) | {""})


class _Builder:
    def __init__(self, document: GraphCollectionDocument) -> None:
        self._document = document
        self._modules = {module.fqn: module for module in document.modules}
        self._hidden = _hidden_nodes(document.graphs)
        self._tree = _Place("")
        self._path: dict[str, tuple[str, ...]] = {}
        self._names: dict[str, str] = {}  # nodes that stand for a whole module
        owners = _ancestors_of_graphs(document.graphs)
        for graph in document.graphs:
            for node in graph.nodes:
                if node.id not in self._hidden:
                    self._insert(node, owners)
        self._lift_single_operations(self._tree)

    def build(self, expanded: frozenset[str] | None) -> Scene:
        open_modules = self._default_expansion() if expanded is None else expanded
        visible = {node_id: self._representative(node_id, path, open_modules) for node_id, path in self._path.items()}
        edges = self._edges(visible)
        root, edges = _with_references(self._cluster(self._tree, open_modules), edges)
        counts = Counter(module.status for module in self._document.modules if module.fqn or len(self._modules) == 1)
        ordered = tuple(
            (status, counts[status]) for status in ("failed", "leaf", "unvisited", "traced") if counts[status]
        )
        return Scene(root, tuple(edges), ordered, open_modules, self._document.model_type)

    def _insert(self, node: Node, graph_owners: frozenset[str]) -> None:
        """Put a node under the modules around it; a module call lies beside what was captured inside the module,
        if anything was.
        """
        owner = node.fqn
        if node.op == "call_module" and owner not in graph_owners:
            owner = owner.rpartition(".")[0]
        path = _prefixes(owner)
        place = self._tree
        for fqn in path:
            place = place.places.setdefault(fqn, _Place(fqn))
        place.nodes.append(node)
        self._path[node.id] = path

    def _lift_single_operations(self, place: _Place) -> None:
        """A module that is one operation is drawn as one box with the module's name, not as a frame around a box."""
        for child in list(place.places.values()):
            self._lift_single_operations(child)
            if len(child.nodes) == 1 and not child.places and child.nodes[0].op.startswith("call"):
                node = child.nodes[0]
                place.nodes.append(node)
                del place.places[child.fqn]
                self._path[node.id] = _prefixes(place.fqn)
                self._names[node.id] = child.fqn

    def _default_expansion(self) -> frozenset[str]:
        """Open level by level while it stays readable; the ways to failures first, and further."""
        wanted = {
            prefix for m in self._document.modules if m.status in ("failed", "leaf") for prefix in _prefixes(m.fqn)[:-1]
        }
        wanted |= {m.fqn for m in self._document.modules if m.status == "failed"}
        opened, visible, level = {""}, self._tree.size, [self._tree]
        while level:
            following = []
            closed = [place for parent in level for place in parent.places.values()]
            for place in sorted(closed, key=lambda p: p.fqn not in wanted):
                budget = _FORCED if place.fqn in wanted else BOXES
                if visible + place.size - 1 <= budget:
                    opened.add(place.fqn)
                    visible += place.size - 1
                    following.append(place)
            level = following
        return frozenset(opened)

    def _representative(self, node_id: str, path: tuple[str, ...], opened: frozenset[str]) -> str:
        for fqn in path:
            if fqn not in opened:
                return f"module:{fqn}"
        return node_id

    def _edges(self, visible: dict[str, str]) -> list[tuple[str, str]]:
        """Edges between what is visible, each once. Sizes and other numbers are no data flow: what they are read
        from is not drawn.
        """
        edges: dict[tuple[str, str], None] = {}
        for graph in self._document.graphs:
            for node in graph.nodes:
                for source in node.inputs:
                    if source in visible and node.id in visible and visible[source] != visible[node.id]:
                        edges[visible[source], visible[node.id]] = None
        return list(edges)

    def _cluster(self, place: _Place, opened: frozenset[str]) -> Cluster:
        module = self._modules.get(place.fqn)
        boxes = [self._node_box(node) for node in place.nodes]
        clusters = []
        for child in place.places.values():
            if child.fqn in opened:
                clusters.append(self._cluster(child, opened))
            else:
                boxes.append(self._module_box(child))
        boxes += self._unvisited(place.fqn)
        status = module.status if module else "traced"
        if place.fqn == "" and status == "failed":
            boxes.insert(
                0, Box("module:", "note", self._document.model_type, "the model itself", _reason(module), "failed")
            )
        name = place.fqn.rpartition(".")[2] if place.fqn else ""
        title = f"{name} · {module.type}" if module and name else name
        return Cluster(place.fqn, title, status, tuple(boxes), tuple(clusters))

    def _node_box(self, node: Node) -> Box:
        kind = {"placeholder": "input", "output": "output"}.get(node.op, "node")
        module = self._modules.get(node.fqn if node.op == "call_module" else self._names.get(node.id, "?"))
        subtitle = module.type if module else ""
        detail = " ".join(node.shapes[:2]) + (" …" if len(node.shapes) > 2 else "")
        if node.status in ("failed", "leaf"):
            detail = _reason(self._modules.get(node.fqn)) or detail
        title = (module.fqn.rpartition(".")[2] if module else "") or node.label
        return Box(node.id, kind, title, subtitle, detail, node.status, module.fqn if module else node.fqn)

    def _module_box(self, place: _Place) -> Box:
        module = self._modules.get(place.fqn)
        inner = [m for m in self._document.modules if m.fqn.startswith(place.fqn + ".")]
        inside = Counter(m.status for m in inner if m.status in ("failed", "leaf"))
        status = module.status if module else "traced"
        detail = _reason(module) if status in ("failed", "leaf") else f"{_operations(place)} operations"
        name = place.fqn.rpartition(".")[2]
        return Box(
            f"module:{place.fqn}",
            "module",
            name,
            module.type if module else "",
            detail,
            status,
            place.fqn,
            tuple(sorted(inside.items())),
        )

    def _unvisited(self, fqn: str) -> list[Box]:
        """Modules right here that were never called; at most a few, the others as a number."""
        shown = [
            m
            for m in self._document.modules
            if m.status == "unvisited" and m.fqn and m.fqn.rpartition(".")[0] == fqn and not self._has_called(m.fqn)
        ]
        boxes = [
            Box(f"module:{m.fqn}", "node", m.fqn.rpartition(".")[2], m.type, "never called", "unvisited", m.fqn)
            for m in shown[:_UNVISITED]
        ]
        if len(shown) > _UNVISITED:
            boxes.append(
                Box(f"note:{fqn}", "note", f"+{len(shown) - _UNVISITED} unvisited", status="unvisited", fqn=fqn)
            )
        return boxes

    def _has_called(self, fqn: str) -> bool:
        """Whether something inside was called: a container such as ModuleList has no call of its own."""
        return any(m.status != "unvisited" and m.fqn.startswith(fqn + ".") for m in self._document.modules)


def _with_references(root: Cluster, edges: list[tuple[str, str]]) -> tuple[Cluster, list[tuple[str, str]]]:
    """Replace a value that is used very often by a reference at each use: long edges are what makes layouts slow
    and unreadable.
    """
    uses = Counter(source for source, _ in edges)
    titles = {box.id: box.title for box in _all_boxes(root)}
    chips: dict[str, list[Box]] = defaultdict(list)
    result = []
    for source, target in edges:
        if uses[source] <= FAN_OUT:
            result.append((source, target))
            continue
        chip = Box(f"ref:{source}>{target}", "reference", f"◄ {titles.get(source, source)}")
        chips[target].append(chip)
        result.append((chip.id, target))
    return _add_chips(root, chips), result


def _add_chips(cluster: Cluster, chips: dict[str, list[Box]]) -> Cluster:
    boxes = [box for original in cluster.boxes for box in (*chips.get(original.id, ()), original)]
    return Cluster(
        cluster.fqn, cluster.title, cluster.status, tuple(boxes), tuple(_add_chips(c, chips) for c in cluster.clusters)
    )


def _all_boxes(cluster: Cluster) -> Iterable[Box]:
    yield from cluster.boxes
    for child in cluster.clusters:
        yield from _all_boxes(child)


def _hidden_nodes(graphs: tuple[Graph, ...]) -> frozenset[str]:
    """Parameters, sizes and other values that are no tensors, and the inputs and outputs of graphs inside failed
    modules.
    """
    hidden = set()
    for graph in graphs:
        knows_shapes = any(node.shapes for node in graph.nodes)
        for node in graph.nodes:
            is_number = knows_shapes and not node.shapes and node.op in ("call_function", "call_method")
            inner_border = graph.fqn != "" and node.op in ("placeholder", "output")
            if node.op == "get_attr" or is_number or inner_border:
                hidden.add(node.id)
    return frozenset(hidden)


def _ancestors_of_graphs(graphs: tuple[Graph, ...]) -> frozenset[str]:
    """Modules with graphs inside them: what was captured within failed modules."""
    return frozenset(prefix for graph in graphs if graph.fqn for prefix in _prefixes(graph.fqn)[:-1])


def _prefixes(fqn: str) -> tuple[str, ...]:
    parts = fqn.split(".") if fqn else []
    return tuple(".".join(parts[: i + 1]) for i in range(len(parts)))


def _operations(place: _Place) -> int:
    return len(place.nodes) + sum(_operations(child) for child in place.places.values())


def _reason(module: Module | None) -> str:
    return module.failure.kind if module is not None and module.failure is not None else ""
