"""A changed graph is exported again with the sizes that were dynamic before."""

from __future__ import annotations

import pytest
import torch
from torch import fx, nn

from prepbench.capture.aten.export_program import dynamic_sizes, export_again
from prepbench.errors import CaptureError


class Reshapes(nn.Module):
    def __init__(self, *sizes: int) -> None:
        super().__init__()
        self.sizes = sizes

    def forward(self, x: torch.Tensor, scale: float) -> torch.Tensor:
        return x.reshape(self.sizes) * scale


class Adds(nn.Module):
    def __init__(self, rows: int) -> None:
        super().__init__()
        self.register_buffer("table", torch.ones(rows, 4))

    def forward(self, x: torch.Tensor, scale: float) -> torch.Tensor:
        return (x + self.table) * scale


class Variadic(nn.Module):
    def forward(self, *leaves: torch.Tensor) -> torch.Tensor:
        return leaves[0] + leaves[1]


def error(name: str) -> CaptureError:
    return CaptureError(f"{name} became static")


def test_dynamic_sizes_stay_dynamic() -> None:
    graph = fx.symbolic_trace(Reshapes(-1, 2))
    program = export_again(graph, (torch.ones(3, 4), 2.0), [{0}, ()], error)
    assert [list(sizes) for sizes in dynamic_sizes(program)] == [[0], []]
    assert torch.equal(program.module()(torch.ones(5, 4), 2.0), torch.full((10, 2), 2.0))


def test_a_graph_may_take_its_leaves_by_one_variadic_parameter() -> None:
    program = export_again(fx.symbolic_trace(Variadic()), (torch.ones(3, 4), torch.ones(4)), [{0}, ()], error)
    assert torch.equal(program.module()(torch.ones(5, 4), torch.ones(4)), torch.full((5, 4), 2.0))


def test_a_size_that_becomes_static_is_an_error_that_names_the_input() -> None:
    with pytest.raises(CaptureError, match="x became static"):
        export_again(fx.symbolic_trace(Adds(rows=3)), (torch.ones(3, 4), 2.0), [{0}, ()], error)
