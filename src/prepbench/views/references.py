"""Edges that would make a picture slow and unreadable become references; far boxes can be left out."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import replace

from prepbench.views.boxes import Box, Cluster, all_boxes

FAN_OUT = 8  # a value used more often is drawn as a reference at each use
SPAN = 12  # and one that is used so many ranks further on


def neighbourhood(
    root: Cluster, edges: list[tuple[str, str]], centre: str, hops: int
) -> tuple[Cluster, list[tuple[str, str]]]:
    """Only what is at most ``hops`` edges away."""
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
    """Replace a value that is used often and far away by a reference at each use: long edges are what makes layouts
    slow and unreadable.
    """
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
    """The longest way to each box, without the edges that close a circle (found depth first)."""
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
