"""The call that ``torch.compile`` works for."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from prepbench._torch_compat import dynamo as calls


class Doubled(nn.Module):
    def forward(self, x: torch.Tensor, factor: int = 2) -> torch.Tensor:
        return x * factor


def test_a_backend_finds_the_model_and_its_arguments() -> None:
    found: list[Any] = []

    def backend(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        found.append((calls.optimized_call(), calls.graph_inputs(graph)))
        return graph.forward

    model, x = Doubled(), torch.ones(2, 3)
    torch.compile(model, backend=backend, dynamic=True)(x, factor=3)
    ((call, inputs),) = found
    assert call.function is model
    assert call.args[0] is x
    assert call.kwargs == {"factor": 3}
    assert call.place[1] == "forward"
    assert [i.symbolic for i in inputs if i.is_tensor] == [(0, 1)]
    assert {i.size_of for i in inputs if i.size_of} == {(position, dim) for position, dim in _sizes(inputs)}


def _sizes(inputs: Any) -> list[tuple[int, int]]:
    (position,) = [place for place, value in enumerate(inputs) if value.is_tensor]
    return [(position, dim) for dim in range(2)]


def test_outside_of_a_compiled_call_there_is_none() -> None:
    assert calls.optimized_call() is None


def test_options_are_replaced_in_the_backend_that_dynamo_compares() -> None:
    seen: list[Any] = []

    class Options(dict[str, Any]):
        pass

    def backend(graph: torch.fx.GraphModule, inputs: Any, *, options: Any) -> Any:
        seen.append(calls.with_backend_options(options, Options))
        return graph.forward

    torch.compile(torch.relu, backend=backend, options={"weights": torch.ones(2)})(torch.ones(2))
    assert isinstance(seen[0], Options)


def test_numbers_are_constants_of_a_function_compiled_apart() -> None:
    graphs: list[torch.fx.GraphModule] = []

    def backend(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    compiled = calls.compiled_apart(lambda x, n: x * n, backend, dynamic=False)
    assert [float(compiled(torch.ones(1), n)) for n in (2, 3)] == [2.0, 3.0]
    assert len(graphs) == 2


def test_compiled_modules_run_uncompiled_inside_the_block() -> None:
    used: list[int] = []

    def backend(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        used.append(1)
        return graph.forward

    model = nn.Sequential(Doubled())
    model[0].compile(backend=backend)
    with calls.compiled_calls_off(model):
        model(torch.ones(2))
        assert used == []
    model(torch.ones(2))
    assert used == [1]
