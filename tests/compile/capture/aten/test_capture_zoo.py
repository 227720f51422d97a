"""Every hard model is captured with exactly the expected leaves, equals it at unseen sizes, and is left as it was."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from prepbench.capture.aten.capture import FullGraphError, capture
from prepbench.capture.aten.captured import Captured
from prepbench.capture.modules.collection import recursive_trace
from prepbench.errors import CaptureError
from prepbench.objects.compare import ROUNDED, difference
from prepbench.running.given_samples import normalize_samples
from prepbench.running.unchanged import outcome
from tests.fingerprint import left_as_it_was
from tests.turns import in_turns
from tests.zoo import ZOO, ZooCase


def assert_does_the_same(captured: Captured, model: torch.nn.Module, inputs: list[Any]) -> None:
    module = captured.program.module()
    for sample in normalize_samples(model, inputs):
        torch.manual_seed(0)
        found = difference(outcome(model, sample, model), outcome(module, sample, model), ROUNDED)
        assert found.equal, found.text


def assert_axes(captured: Captured, case: ZooCase) -> None:
    with left_as_it_was(captured.model):
        report = captured.verify()
    assert report.problems == ()
    bounded = tuple(f"{axis.path}.shape[{axis.dim}]" for axis in report.axes if axis.status not in ("holds", "untried"))
    assert bounded == case.bounded, report


# the others are prepared in prepare/test_prepare_zoo.py
@pytest.mark.parametrize("name", in_turns(ZOO, 0, 3))
def test_captured_with_the_expected_leaves(name: str) -> None:
    case = ZOO[name]
    torch.manual_seed(0)
    model = case.make()
    if case.refused:
        with left_as_it_was(model), pytest.raises(CaptureError, match=case.refused):
            capture(model, copy.deepcopy(case.samples), fullgraph=False)
        return
    with left_as_it_was(model):
        captured = capture(model, copy.deepcopy(case.samples), fullgraph=False)
    assert tuple(leaf.fqn for leaf in captured.leaves) == case.leaves
    assert all(leaf.remedy and leaf.kind for leaf in captured.leaves)
    assert_does_the_same(captured, model, [*case.samples, *case.unseen])
    assert_axes(captured, case)


SEVERAL = [name for name, case in ZOO.items() if len(case.leaves) > 1 or len(case.failed) > 1]


@pytest.mark.parametrize("name", SEVERAL)
def test_a_full_graph_is_refused_with_every_reason(name: str) -> None:
    case = ZOO[name]
    torch.manual_seed(0)
    with pytest.raises(FullGraphError) as caught:
        capture(case.make(), copy.deepcopy(case.samples))
    # at this level a cache that a leaf grows is no reason for its caller to fail
    expected = [fqn for fqn in case.failed if fqn or "" in case.leaves]
    assert [failure.fqn for failure in caught.value.failures] == expected
    for failure in caught.value.failures:
        assert failure.module_type in str(caught.value)  # equal ones are told together
        assert failure.remedy in str(caught.value)


def test_tracing_branches_keeps_what_the_user_compiled() -> None:
    compiled: list[int] = []

    def backend(graph: Any, _: Any) -> Any:
        compiled.append(1)
        return graph.forward

    function = torch.compile(lambda x: x.sin() + 1, backend=backend)
    function(torch.ones(3))
    model = ZOO["cond"].make()
    x = torch.randn(2, 4)
    expected = model(x)
    recursive_trace(model, inputs=ZOO["cond"].samples)
    function(torch.ones(3))
    assert len(compiled) == 1
    assert torch.equal(model(x), expected)
