"""Turn a document and a view into visible boxes and edges: the diagram before its layout.

The live diagram computes the same in the page; golden files hold both to it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

from prepbench.document.hierarchy import grouped, prefixes
from prepbench.document.model import GraphCollectionDocument, Group, Module, Node

BOXES = 36  # of a first view at most, unless failures lie deeper
_FORCED = 120  # and with the ways to failures opened, or where there is little to see else
_LITTLE = 8
_UNVISITED = 6
_STATUSES = ("failed", "leaf", "unvisited", "traced")


def scene(
    document: GraphCollectionDocument,
    expanded: Iterable[str] | None = None,
    *,
    view: View | None = None,
    marks: Mapping[str, str] | None = None,
) -> Scene:
    """Return the visible part of ``document``.

    Args:
        document: the captured graphs.
        expanded: ids of the open groups; None opens as many levels as stay readable (some 36 boxes), and the
            way to every failure.
        view: all that can be chosen, instead of ``expanded``.
        marks: changes (``"added"``, ``"removed"``, ``"changed"``) by node or module.
    """
    chosen = view or View(open=None if expanded is None else frozenset(expanded))
    return _Builder(Index(document), chosen, dict(marks or {})).build()


class _Builder:
    def __init__(self, index: Index, view: View, marks: dict[str, str]) -> None:
        self._index = index
        self._view = view
        self._marks = marks
        self._marked = self._count_marks()
        self._root = view.root if view.root in index.groups else ""
        self._open: frozenset[str] = frozenset()
        self._drawn: dict[str, str] = {}  # closed group -> its box

    def build(self) -> Scene:
        chosen = self._default_expansion() if self._view.open is None else self._view.open
        self._open = chosen | set(self._index.parents(self._root))
        root = self._cluster(self._root)
        edges, ends = self._edges()
        root = replace(root, members=(*root.members, *ends))
        if self._view.around:
            root, edges = neighbourhood(root, edges, self._view.around, self._view.hops)
        root, edges = with_references(root, edges)
        document = self._index.document
        counts: Counter[str] = Counter(
            m.status for m in document.modules if m.fqn or m.status != "traced" or len(document.modules) == 1
        )
        ordered = tuple((status, counts[status]) for status in _STATUSES if counts[status])
        return Scene(root, tuple(edges), ordered, self._open, document.model_type)

    # -- which groups are open

    def _default_expansion(self) -> frozenset[str]:
        """Open groups level by level while the diagram stays readable; paths to failures open first and go deeper."""
        depth, wanted = self._view.depth, self._ways_to_failures()
        opened, visible, level = {self._root}, len(self._runs(self._root)), [self._root]
        ends = sum(self._is_end(run[0]) for run in self._runs(self._root))
        while level:
            depth -= 1
            if self._view.depth and depth < 1:
                break
            following = []
            inner = [run for parent in level for run in self._runs(parent) if run[0].is_group]
            runs = [run for run in inner if not self._is_end(run[0])]
            # an only group is opened, or there would be nothing to see
            lonely = runs[0][0].id if len(runs) == 1 and visible - ends <= _LITTLE else ""
            for run in sorted(runs, key=lambda run: run[0].id not in wanted):
                group = run[0].id
                budget = _FORCED if group in wanted or group == lonely or self._view.depth else BOXES
                if visible + self._more(run) <= budget:
                    opened.add(group)
                    visible += self._more(run)
                    following.append(group)
            level = following
        return frozenset(opened)

    def _more(self, run: list[Item]) -> int:
        """Return the number of additional boxes when the first group of a run is opened."""
        return len(self._runs(run[0].id)) - 1 + (len(run) > 1)

    def _is_end(self, item: Item) -> bool:
        """Return whether it is an input, an output, or a group of inputs."""
        if item.is_group:
            return not self._index.operations[item.id]
        return self._index.nodes[item.id].op in ENDS

    def _ways_to_failures(self) -> set[str]:
        """Return the groups around failures and leaves, and the groups of failed modules themselves."""
        groups = [group for group in self._index.groups.values() if not group.label]
        inside = [self._index.parents(g.id)[1:] for g in groups if self._status(g.fqn) in ("failed", "leaf") and g.id]
        around = [self._index.parents(n.group) for n in self._index.nodes.values() if n.status in ("failed", "leaf")]
        return {g.id for g in groups if self._status(g.fqn) == "failed"}.union(*inside, *around)

    def _runs(self, group: str) -> list[list[Item]]:
        """Return the members of a group; consecutive closed groups that are alike form one run."""
        runs: list[list[Item]] = []
        last: object = None
        for item in self._index.items[group]:
            key = self._fold_key(item.id) if item.is_group and item.id not in self._open else None
            if key is not None and key == last and group not in self._view.unfolded:
                runs[-1].append(item)
            else:
                runs.append([item])
            last = key
        return runs

    def _fold_key(self, group: str) -> object:
        alike = self._index.groups[group].alike
        return (alike, self._marked[group]) if alike else None

    def _count_marks(self) -> Counter[str]:
        counts: Counter[str] = Counter()
        if self._marks:
            for node in self._index.nodes.values():
                if node.id in self._marks:
                    counts.update(self._index.parents(node.group))
        return counts

    # -- boxes

    def _cluster(self, group: str) -> Cluster:
        fqn, label = self._index.groups[group].fqn, self._index.groups[group].label
        module = None if label else self._index.modules.get(fqn)
        members: list[Box | Cluster] = []
        for run in self._runs(group):
            first = run[0]
            if not first.is_group:
                members.append(self._node_box(self._index.nodes[first.id]))
            elif first.id in self._open:
                members.append(self._cluster(first.id))
            else:
                groups = [item.id for item in run]
                box = self._fold_box(groups) if len(run) > 1 else self._module_box(first.id)
                members.append(box)
                self._drawn.update(dict.fromkeys(groups, box.id))
        members += self._unvisited(group)
        status = "traced" if label else self._status(fqn)
        if group == "" and status == "failed":
            name = self._index.document.model_type
            members.insert(0, Box("module:", "note", name, "the model itself", _reason(module), "failed"))
        name = self._name(group)
        title = f"{name} · {module.type}" if module and name else name
        calls = "" if label else self._calls(fqn, self._index.groups[group].call)
        return Cluster(group, fqn, f"{title} ↻ {calls}" if calls else title, status, tuple(members))

    def _node_box(self, node: Node) -> Box:
        kind = {"placeholder": "input", "output": "output"}.get(node.op, "node")
        assert node.group is not None
        stands_for_module = node.op == "call_module" or node.fqn != self._index.groups[node.group].fqn
        module = self._index.modules.get(node.fqn) if stands_for_module else None
        detail = " ".join(node.shapes[:2]) + (" …" if len(node.shapes) > 2 else "")
        if node.status in ("failed", "leaf"):
            detail = _reason(self._index.modules.get(node.fqn)) or detail
        title = (self._relative(module.fqn, node.group) if module else "") or node.label
        return Box(
            node.id,
            kind,
            title,
            module.type if module else "",
            detail,
            node.status,
            module.fqn if module else node.fqn,
            calls=self._calls(module.fqn, node.call) if module else "",
            change=self._marks.get(node.id, ""),
        )

    def _module_box(self, group: str) -> Box:
        fqn, call = self._index.groups[group].fqn, self._index.groups[group].call
        module = None if self._index.groups[group].label else self._index.modules.get(fqn)
        status = module.status if module else "traced"
        return Box(
            f"module:{group}",
            "module",
            self._name(group),
            module.type if module else "",
            _reason(module) if status in ("failed", "leaf") else self._content(group),
            status,
            fqn,
            tuple(sorted(self._index.inside[fqn].items())) if module else (),
            calls=self._calls(fqn, call) if module else "",
            change="changed" if self._marked[group] else "",
        )

    def _content(self, group: str) -> str:
        operations = self._index.operations[group]
        return _counted(operations, "operation") if operations else _counted(len(self._index.items[group]), "input")

    def _fold_box(self, run: list[str]) -> Box:
        first = self._module_box(run[0])
        groups = [self._index.groups[group] for group in run]
        names = [self._name(group.id) for group in groups]
        # parts have ranges as names already
        title = names[0] if len(set(names)) == 1 else f"{names[0].split(' … ')[0]} … {names[-1].split(' … ')[-1]}"
        is_reused = len({group.fqn for group in groups}) == 1 and not groups[0].label
        detail = f"{'↻' if is_reused else '×'} {len(run)}, {first.detail} each"
        return replace(first, id=f"fold:{run[0]}", kind="fold", title=title, detail=detail, folded=tuple(run), calls="")

    def _name(self, group: str) -> str:
        found = self._index.groups[group]
        return found.label or self._relative(found.fqn, found.parent)

    def _unvisited(self, group: str) -> list[Box]:
        """Return the modules of this group that were never called; at most a few, the others as a number."""
        if self._index.groups[group].call > 1 or self._index.groups[group].label:
            return []
        here = self._index.groups[group].fqn
        missing = self._index.unvisited[here]
        boxes = [
            Box(
                f"unvisited:{fqn}",
                "node",
                fqn.rpartition(".")[2],
                self._index.modules[fqn].type,
                "never called",
                "unvisited",
                fqn,
            )
            for fqn in missing[:_UNVISITED]
        ]
        if len(missing) > _UNVISITED:
            more = f"+{len(missing) - _UNVISITED} not reached"
            boxes.append(Box(f"note:{here}", "note", more, status="unvisited", fqn=here))
        return boxes

    def _relative(self, fqn: str, around: str | None) -> str:
        """Return a module's name relative to the group that it is drawn in."""
        outer = self._index.groups[around].fqn if around is not None else ""
        return fqn.removeprefix(f"{outer}.") if outer else fqn

    def _status(self, fqn: str) -> str:
        module = self._index.modules.get(fqn)
        return module.status if module else "traced"

    def _calls(self, fqn: str, call: int) -> str:
        module = self._index.modules.get(fqn)
        return f"{call}/{module.calls}" if module and module.calls > 1 else ""

    # -- edges

    def _edges(self) -> tuple[list[tuple[str, str]], list[Box]]:
        """Return the distinct edges between visible boxes, and a box for each value that crosses the boundary.

        Sizes and other numbers are no data flow: edges from their sources are not drawn.
        """
        where: dict[str, str] = {}
        shown = {group: self._representative(group) for group in self._index.groups}
        edges: dict[tuple[str, str], None] = {}
        ends: dict[str, Box] = {}
        for node in self._index.nodes.values():
            assert node.group is not None
            where[node.id] = shown[node.group] or node.id
        for node in self._index.nodes.values():
            for source in node.inputs:
                if source not in where:
                    continue
                start, end = where[source], where[node.id]
                if start == end or (start == _OUTSIDE and end == _OUTSIDE):
                    continue
                if start == _OUTSIDE:
                    start = self._end(ends, f"from:{source}", "◄", source).id
                if end == _OUTSIDE:
                    end = self._end(ends, f"to:{start}", "►", node.id).id
                edges[start, end] = None
        return list(edges), list(ends.values())

    def _end(self, ends: dict[str, Box], name: str, arrow: str, node_id: str) -> Box:
        node = self._index.nodes[node_id]
        title = f"{arrow} {node.fqn or node.label}"
        return ends.setdefault(name, Box(name, "reference", title, fqn=node.fqn))

    def _representative(self, group: str) -> str:
        """Return the box that stands for the direct content of a group; "" where that is drawn itself."""
        around = self._index.parents(group)
        if self._root not in around:
            return _OUTSIDE
        for outer in reversed(around[: around.index(self._root)]):
            if outer in self._drawn:
                return self._drawn[outer]
        return ""


_OUTSIDE = "outside:"


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' if number != 1 else ''}"


def _reason(module: Module | None) -> str:
    return module.failure.kind if module is not None and module.failure is not None else ""


# A document prepared for drawing: what lies in which group, in the order in which it runs.


TROUBLED = ("failed", "leaf")
ENDS = ("placeholder", "output")


@dataclass(frozen=True)
class Item:
    """A node or a group, as a member of the group around it."""

    id: str
    is_group: bool


class Index:
    """Look-ups in one document; all orders are execution orders."""

    def __init__(self, document: GraphCollectionDocument) -> None:
        self.document = document if document.groups else grouped(document)
        self.modules = {module.fqn: module for module in document.modules}
        self.groups: dict[str, Group] = {group.id: group for group in self.document.groups}
        self.nodes: dict[str, Node] = {}
        self.items: dict[str, list[Item]] = {group: [] for group in self.groups}
        self.operations: Counter[str] = Counter()
        self.inside: dict[str, Counter[str]] = defaultdict(Counter)
        self.unvisited: dict[str, list[str]] = defaultdict(list)
        self._arrange()
        self._count_troubles()

    def parents(self, group: str | None) -> list[str]:
        """Return the group and its ancestors, from the inside out."""
        found = []
        while group is not None:
            found.append(group)
            group = self.groups[group].parent
        return found

    def _arrange(self) -> None:
        placed = {""}
        for graph in self.document.graphs:
            for node in graph.nodes:
                if node.group is None:
                    continue
                self.nodes[node.id] = node
                around = self.parents(node.group)
                for inner, outer in pairwise(around):
                    if inner in placed:
                        break
                    placed.add(inner)
                    self.items[outer].append(Item(inner, True))
                self.items[node.group].append(Item(node.id, False))
                if node.op not in ENDS:
                    self.operations.update(around)

    def _count_troubles(self) -> None:
        called = {prefix for m in self.document.modules if m.status != "unvisited" for prefix in prefixes(m.fqn)[:-1]}
        for module in self.document.modules:
            outer = prefixes(module.fqn)[:-1]
            if module.status in TROUBLED:
                for fqn in outer:
                    self.inside[fqn][module.status] += 1
            if module.status == "unvisited" and module.fqn and module.fqn not in called:
                self.unvisited[outer[-1] if outer else ""].append(module.fqn)


# Edges that would make a picture slow and unreadable become references; far boxes can be left out.


FAN_OUT = 8  # a value used more often is drawn as a reference at each use
SPAN = 12  # and one that is used so many ranks further on


def neighbourhood(
    root: Cluster, edges: list[tuple[str, str]], centre: str, hops: int
) -> tuple[Cluster, list[tuple[str, str]]]:
    """Return only what is at most ``hops`` edges away."""
    near: dict[str, set[str]] = defaultdict(set)
    for source, target in edges:
        near[source].add(target)
        near[target].add(source)
    kept = {centre}
    front = {centre}
    for _ in range(hops):
        front = {box for at in front for box in near[at]} - kept
        kept |= front
    return _filter(root, lambda box: box.id in kept), [(s, t) for s, t in edges if s in kept and t in kept]


def _filter(cluster: Cluster, keep: Callable[[Box], bool]) -> Cluster:
    members = [_filter(member, keep) if isinstance(member, Cluster) else member for member in cluster.members]
    kept = (m for m in members if (m.members if isinstance(m, Cluster) else keep(m)))
    return replace(cluster, members=tuple(kept))


def with_references(root: Cluster, edges: list[tuple[str, str]]) -> tuple[Cluster, list[tuple[str, str]]]:
    """Replace a value used often and far away by a reference at each use: long edges make layouts slow."""
    uses = Counter(source for source, _ in edges)
    ranks = _ranks(edges)
    titles = {box.id: box.title for box in all_boxes(root)}
    chips: dict[str, list[Box]] = defaultdict(list)
    result = []
    for source, target in edges:
        span = ranks[target] - ranks[source]
        if span <= SPAN and (uses[source] <= FAN_OUT or span <= 1):
            result.append((source, target))
            continue
        chip = Box(f"ref:{source}>{target}", "reference", f"◄ {titles.get(source, source)}")
        chips[target].append(chip)
        result.append((chip.id, target))
    return _add_chips(root, chips), result


def _ranks(edges: list[tuple[str, str]]) -> dict[str, int]:
    """Return the length of the longest path to each box, ignoring back edges (found depth first)."""
    inputs: dict[str, list[str]] = defaultdict(list)
    for source, target in edges:
        inputs[target].append(source)
        inputs.setdefault(source, [])
    ranks: dict[str, int] = {}
    entered: set[str] = set()
    for start in inputs:
        stack = [start]
        while stack:
            box = stack[-1]
            if box in ranks:
                stack.pop()
                continue
            if box not in entered:
                entered.add(box)
                stack += [source for source in inputs[box] if source not in entered]
                continue
            ranks[box] = max((ranks[source] + 1 for source in inputs[box] if source in ranks), default=0)
            stack.pop()
    return ranks


def _add_chips(cluster: Cluster, chips: dict[str, list[Box]]) -> Cluster:
    members: list[Box | Cluster] = []
    for member in cluster.members:
        if isinstance(member, Cluster):
            members.append(_add_chips(member, chips))
        else:
            members += [*chips.get(member.id, ()), member]
    return replace(cluster, members=tuple(members))


# The visible part of a diagram as data: a user's view, and the boxes, clusters and edges in it.


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
