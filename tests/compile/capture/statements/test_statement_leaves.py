"""``capture(..., fullgraph=False)``: the lines that cannot be captured are leaves, the rest is in the graph."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from torch import nn

from prepbench.capture.aten.capture import FullGraphError, capture
from prepbench.capture.aten.captured import Captured
from prepbench.capture.sizes.learned_outputs import UnknownOutputsError
from tests.compile.capture.statements import models
from tests.compile.capture.statements.models import ROWS, more_rows

CASES = {
    models.SeveralNames: 1,
    models.Loop: 1,
    models.ItemUsedTwice: 2,
    models.SelectedRows: 1,
    models.SizeMadeByLines: 1,
    models.HelperTwice: 1,
    models.LoopOverLayers: 1,
    models.EarlyReturn: 1,
    models.NestedResult: 1,
    models.MayBeUnbound: 1,
    models.WritesIntoTensor: 1,
    models.CallsParent: 1,
    models.ReadsLayer: 1,
}


def captured(kind: type[nn.Module]) -> tuple[nn.Module, Captured]:
    torch.manual_seed(0)
    model = kind().eval()
    return model, capture(model, ROWS, fullgraph=False)


def code_of(captured: Captured) -> list[str]:
    """The first line of each leaf."""
    return [leaf.source.code for leaf in captured.leaves if leaf.source is not None]


def layers_in(captured: Captured) -> int:
    return sum("aten.linear" in str(node.target) for node in captured.program.graph.nodes)


@pytest.mark.parametrize("kind", CASES, ids=lambda kind: kind.__name__)
def test_only_lines_are_leaves_and_the_program_equals_the_model(kind: type[nn.Module]) -> None:
    model, found = captured(kind)
    assert len(found.leaves) == CASES[kind]
    assert all(leaf.lines is not None and leaf.remedy for leaf in found.leaves)
    assert layers_in(found) >= 1
    run = found.program.module()
    for rows in more_rows():
        torch.testing.assert_close(run(rows), model(rows))
    assert found.verify().passed


def test_the_leaf_says_where_it_is() -> None:
    _, found = captured(models.LoopOverLayers)
    (leaf,) = found.leaves
    assert leaf.lines is not None
    assert leaf.lines[1] == leaf.lines[0] + 1
    assert (leaf.fqn, leaf.module_type, leaf.source.line) == ("", "LoopOverLayers", leaf.lines[0])
    assert leaf.kind == "data-dependent branch"
    assert f"lines {leaf.lines[0]} to {leaf.lines[1]} of the model" in repr(found)
    assert layers_in(found) == 5


def test_a_size_that_depends_on_data_is_a_new_symbol() -> None:
    _, found = captured(models.SizeMadeByLines)
    (node,) = (node for node in found.program.graph.nodes if "prepbench_leaf" in str(node.target))
    assert str(node.meta["val"].shape[0]) == "u0"


def test_attributes_are_written_on_the_users_module() -> None:
    model, found = captured(models.SeveralNames)
    assert model.positive == 0
    run = found.program.module()
    run(torch.ones(3, 8))
    run(torch.ones(2, 8))
    assert model.positive == 2


def test_later_changes_of_the_model_count() -> None:
    model, found = captured(models.SeveralNames)
    with torch.no_grad():
        model.inner.weight.add_(1)
    torch.testing.assert_close(found.program.module()(ROWS[0] + 3), model(ROWS[0] + 3))


def test_several_threads_run_one_leaf() -> None:
    model, found = captured(models.Loop)
    run = found.program.module()
    problems: list[Any] = []

    def work(rows: torch.Tensor) -> None:
        for _ in range(20):
            got, want = run(rows), model(rows)
            if not torch.allclose(got[0], want[0], atol=1e-5) or got[1] != want[1]:
                problems.append((got, want))

    threads = [threading.Thread(target=work, args=(rows,)) for rows in more_rows()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(x)
        if y.mean() > 0:
            y = y * 2
        return x + y


def test_a_class_that_is_used_twice_has_a_leaf_for_each_module() -> None:
    model = nn.Sequential(Block(), Block()).eval()
    found = capture(model, ROWS, fullgraph=False)
    assert [leaf.fqn for leaf in found.leaves] == ["0", "1"]
    assert len({leaf.lines for leaf in found.leaves}) == 1
    for rows in more_rows():
        torch.testing.assert_close(found.program.module()(rows), model(rows))


class Truth(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(x)
        large = bool(x.sum() > 100)
        y = y + 1
        if large:
            y = y * 2
        return y


def test_a_truth_value_stays_inside_of_the_leaf() -> None:
    model = Truth().eval()
    found = capture(model, ROWS, fullgraph=False)
    rows = torch.full((3, 8), 50.0)
    torch.testing.assert_close(found.program.module()(rows), model(rows))
    assert layers_in(found) == 1


class OtherRank(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(x)
        if x.sum() > 100:
            y = y.flatten()
        return y


def test_a_call_that_gives_another_rank_than_the_samples_is_an_error() -> None:
    run = capture(OtherRank().eval(), ROWS, fullgraph=False).program.module()
    with pytest.raises(UnknownOutputsError, match=r"lines \d+ to \d+ of the model returned .*rank 1.*rank 2"):
        run(torch.full((3, 8), 50.0))


def test_in_training_the_lines_see_the_mode_of_the_model() -> None:
    class Noisy(models.Ends):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = self.first(x)
            if h.sum() > -1e9:
                h = h * 0 if self.training else h
            return self.last(h)

    model = Noisy().eval()
    run = capture(model, ROWS, fullgraph=False).program.module()
    torch.testing.assert_close(run(ROWS[0]), model(ROWS[0]))
    model.train()
    torch.testing.assert_close(run(ROWS[0]), model(ROWS[0]))


def test_source_that_cannot_be_found_leaves_the_module_a_leaf() -> None:
    scope: dict[str, Any] = {"nn": nn, "torch": torch}
    text = (
        "class Hidden(nn.Module):\n"
        "    def forward(self, x):\n"
        "        y = x + 1\n"
        "        if y.sum() > 0:\n"
        "            y = y * 2\n"
        "        return y\n"
    )
    exec(text, scope)
    found = capture(nn.Sequential(nn.Linear(8, 8), scope["Hidden"]()).eval(), ROWS, fullgraph=False)
    assert [(leaf.fqn, leaf.lines) for leaf in found.leaves] == [("1", None)]


def test_with_fullgraph_nothing_is_cut() -> None:
    with pytest.raises(FullGraphError, match="fullgraph=False"):
        capture(models.Loop().eval(), ROWS)


def test_the_diagram_shows_the_lines_as_one_node() -> None:
    _, found = captured(models.LoopOverLayers)
    document = found.document()
    nodes = [node for graph in document.graphs for node in graph.nodes if node.status == "leaf"]
    (leaf,) = found.leaves
    assert leaf.lines is not None
    assert {node.label for node in nodes} == {f"lines {leaf.lines[0]} to {leaf.lines[1]}"}
    assert {node.source for node in nodes} == {leaf.source}
    assert document.modules[0].status == "traced"
