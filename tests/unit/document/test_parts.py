"""Modules with very many members are cut into parts whose titles name exactly what is in them."""

from __future__ import annotations

import re

from hypothesis import example, given, settings
from hypothesis import strategies as st

from prepbench.document.hierarchy import MANY, MANY_INPUTS, PART, grouped
from prepbench.document.model import Graph, GraphCollectionDocument, Module, Node
from prepbench.views.scene import Index, View, all_boxes, scene
from tests.compile.views.documents import long


def first_and_last(title: str) -> tuple[int, int]:
    first, _, last = title.partition(" … ")
    return int(first.rpartition(".")[2]), int((last or first).rpartition(".")[2])


def blocks_below(index: Index, group: str) -> list[int]:
    """The numbers of the blocks in a part, in order, through parts of parts."""
    found: list[int] = []
    for item in index.items[group]:
        if item.is_group:
            number = re.search(r"(\d+)$", index.groups[item.id].fqn)
            found += blocks_below(index, item.id) if index.groups[item.id].label else [int(number[1])] if number else []
    return found


@settings(max_examples=8, deadline=None)
@example(555, 0)
@example(3300, 0)
@example(587, 2)
@given(st.integers(1, 400), st.integers(0, 2))
def test_titles_of_parts_cover_exactly_their_blocks(count: int, between: int) -> None:
    index = Index(long(count, between=between))
    parts = {group.id: group.label for group in index.groups.values() if group.label}
    assert bool(parts) == (count * (1 + between) + (2 if between else 0) > MANY)
    held = {part: blocks_below(index, part) for part in parts}
    for part, title in parts.items():
        if held[part]:
            assert held[part] == list(range(held[part][0], held[part][-1] + 1))
            assert first_and_last(title) == (held[part][0], held[part][-1])
        else:
            assert title.startswith("operation")  # of the model, after the last block
    for level in {part.partition("#")[2].partition(".")[0] for part in parts}:
        ranges = [first_and_last(title) for part, title in parts.items() if f"#{level}." in part and held[part]]
        assert [number for first, last in ranges for number in range(first, last + 1)] == list(range(count))


def test_parts_of_equal_blocks_are_alike_and_one_box() -> None:
    found = all_boxes(scene(long(555), view=View(open=frozenset({"blocks"}))).root)
    assert [(box.title, box.detail) for box in found if box.kind in ("fold", "module")] == [
        ("0 … 519", f"× {555 // PART}, {2 * PART} operations each"),
        ("520 … 554", f"{2 * (555 % PART)} operations"),
    ]


def test_operations_without_modules_are_numbered() -> None:
    nodes = [Node(f":n{i}", "call_function", "add", "add") for i in range(100)]
    whole = grouped(GraphCollectionDocument("F", "module", (Graph("graph:", "", tuple(nodes)),), ()))
    assert [group.label for group in whole.groups if group.label] == [
        "operations 1 … 40",
        "operations 41 … 80",
        "operations 81 … 100",
    ]


def test_many_inputs_of_one_kind_are_one_box() -> None:
    few, many = (all_boxes(scene(long(2, inputs)).root) for inputs in (MANY_INPUTS, MANY_INPUTS + 1))
    assert sum(box.kind == "input" for box in few) == MANY_INPUTS
    assert [(box.title, box.detail) for box in many if box.id.startswith("module:#inputs")] == [
        ("x0 … x6", f"{MANY_INPUTS + 1} inputs")
    ]


def test_inputs_that_are_one_box_count_in_no_part() -> None:
    nodes = [Node(f":x{i}", "placeholder", f"x{i}", f"x{i}") for i in range(60)]
    nodes += [Node(f":n{i}", "call_function", "add", "add") for i in range(100)]
    whole = grouped(GraphCollectionDocument("F", "module", (Graph("graph:", "", tuple(nodes)),), ()))
    assert sorted(group.label for group in whole.groups if group.label) == [
        "operations 1 … 40",
        "operations 41 … 80",
        "operations 81 … 100",
        "x0 … x59",
    ]


def test_a_first_view_opens_what_stands_alone() -> None:
    """A model that is one module around many operations shows these, not one box."""
    nodes = [Node(":x", "placeholder", "x", "x", shapes=("B×4",))]
    nodes += [
        Node(f":n{i}", "call_function", "add", "add", "body.inner", shapes=("B×4",), inputs=(":x",)) for i in range(60)
    ]
    modules = tuple(Module(fqn, "Net", "traced", calls=1) for fqn in ("", "body", "body.inner"))
    document = grouped(GraphCollectionDocument("Net", "module", (Graph("graph:", "", tuple(nodes)),), modules))
    assert len(list(all_boxes(scene(document).root))) > 60
