"""Graph breaks as dynamo tells them, and what it is made to forget."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch._dynamo import convert_frame, symbolic_convert

from prepbench._torch_compat import dynamo
from prepbench.errors import TorchVersionError


def breaks(x: torch.Tensor) -> torch.Tensor:
    y = torch.relu(x)
    torch._dynamo.graph_break()
    return y + 1


def run(*, fullgraph: bool) -> None:
    with dynamo.compiled_by_dynamo(breaks, fullgraph=fullgraph) as compiled:
        compiled(torch.ones(2))


def test_a_graph_break_is_noted_with_its_line() -> None:
    with dynamo.graph_breaks_noted() as found:
        run(fullgraph=False)
    assert len(found) == 1
    stack: Any = found[0]
    assert stack.real_stack[-1].name == "breaks"


def test_with_fullgraph_a_break_raises_and_what_was_compiled_is_forgotten() -> None:
    before = len(list(convert_frame.input_codes.seen))
    with pytest.raises(Exception, match=r"(?i)graph_break"):
        run(fullgraph=True)
    assert len(list(convert_frame.input_codes.seen)) <= before + 1
    assert torch.equal(torch.compile(breaks, backend="eager")(torch.ones(2)), torch.full((2,), 2.0))


def test_users_compiled_functions_are_not_compiled_again() -> None:
    compilations = []

    def backend(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        compilations.append(graph)
        return graph.forward

    compiled = torch.compile(lambda x: x * 2, backend=backend)
    compiled(torch.ones(2))
    dynamo.forget_compiled()
    compiled(torch.ones(2))
    assert len(compilations) == 1


def test_a_torch_that_logs_graph_breaks_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in list(vars(symbolic_convert).values()):
        if isinstance(kind, type) and "log_graph_break" in vars(kind):
            monkeypatch.delattr(kind, "log_graph_break")
    with pytest.raises(TorchVersionError, match=r"noting graph breaks.*'log_graph_break'"):
        with dynamo.graph_breaks_noted():
            pass


def test_a_torch_without_a_table_of_compiled_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(convert_frame, "input_codes")
    with pytest.raises(TorchVersionError, match="finding graph breaks"):
        run(fullgraph=False)
