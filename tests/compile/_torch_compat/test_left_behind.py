"""What torch keeps of an export while Python lives, and that it does not keep it of ours."""

from __future__ import annotations

import gc
import inspect
import linecache
import logging
import weakref
from collections.abc import Iterator

import pytest
import torch
import torch._dynamo.functional_export as functional_export
import torch._dynamo.guards as guards
import torch.fx.experimental.symbolic_shapes as symbolic_shapes
from torch import nn
from torch.fx import graph_module

import prepbench as pb
from prepbench._torch_compat import exporting
from prepbench.errors import TorchVersionError
from prepbench.running.tracing import tracing


class Sized(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(x)
        return y.reshape(-1) * x.shape[0] if x.shape[0] > 1 else y


def export(*, strict: bool) -> torch.export.ExportedProgram:
    with exporting.quiet_export():
        return torch.export.export(
            Sized(), (torch.ones(3, 4),), dynamic_shapes={"x": {0: torch.export.Dim("batch", min=2)}}, strict=strict
        )


def environment(program: torch.export.ExportedProgram) -> symbolic_shapes.ShapeEnv:
    sizes = [node.meta["val"].shape for node in program.graph.nodes if node.name == "x"]
    found: symbolic_shapes.ShapeEnv = sizes[0][0].node.shape_env
    return found


@pytest.fixture(autouse=True)
def _nothing_logged() -> Iterator[None]:
    """The records that pytest keeps would keep what they name."""
    logging.disable()
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("strict", [False, True])
def test_an_export_ends_with_its_program(strict: bool) -> None:
    with tracing():
        program = export(strict=strict)
    kept = weakref.ref(environment(program))
    assert program.module()(torch.ones(5, 4)).shape == (15,)
    del program
    gc.collect()
    gc.collect()  # what the first has let go in C++
    assert kept() is None


def test_a_program_can_be_exported_again_after_tracing() -> None:
    with tracing():
        program = export(strict=False)
    with tracing():
        decomposed = program.run_decompositions()
    again = torch.export.export(
        program.module(), (torch.ones(3, 4),), dynamic_shapes={"x": {0: torch.export.Dim("batch", min=2)}}
    )
    for each in (decomposed, again):
        assert each.module()(torch.ones(6, 4)).shape == (18,)


def test_a_strict_export_leaves_no_names_and_no_guards() -> None:
    export(strict=True)
    gc.collect()
    names, living = set(vars(functional_export)), _managers()
    export(strict=True)
    gc.collect()
    assert set(vars(functional_export)) == names
    assert _managers() == living
    assert "here" not in guards.CheckFunctionManager.id_ref.__qualname__


def _managers() -> int:
    return sum(isinstance(value, guards.CheckFunctionManager) for value in gc.get_objects())


def test_sizes_that_others_made_are_left_alone() -> None:
    mine = symbolic_shapes.ShapeEnv(tracked_fakes=[object()])
    with exporting.graphs_let_go():
        ours = symbolic_shapes.ShapeEnv(tracked_fakes=[object()])
        for each in (mine, ours):
            each.fake_tensor_cache["a call"] = object()  # type: ignore[index, assignment]
    assert (len(mine.tracked_fakes or []), len(mine.fake_tensor_cache)) == (1, 1)
    assert (len(ours.tracked_fakes or []), len(ours.fake_tensor_cache)) == (0, 0)


def test_captures_leave_few_objects() -> None:
    def once() -> int:
        pb.capture(Sized(), [torch.ones(size, 4) for size in (2, 5)])
        gc.collect()
        return len(gc.get_objects())

    counts = [once() for _ in range(6)]
    assert counts[-1] - counts[-3] < 2 * 300, counts


def test_quantized_models_are_not_kept() -> None:
    utils = pytest.importorskip("torchao.utils")
    with tracing():
        utils._assert_and_get_unique_device(nn.Linear(2, 2))
        assert utils._assert_and_get_unique_device.cache_info().currsize
    assert not utils._assert_and_get_unique_device.cache_info().currsize


def test_the_source_of_a_graph_lives_as_long_as_the_graph() -> None:
    with tracing():
        graph = torch.fx.symbolic_trace(nn.Linear(2, 2))
    name = type(graph).forward.__code__.co_filename
    assert "return" in inspect.getsource(type(graph).forward)
    assert name in linecache.cache
    assert name in graph_module._loader.eval_cache
    del graph
    gc.collect()
    assert name not in linecache.cache
    assert name not in graph_module._loader.eval_cache


def test_a_torch_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(symbolic_shapes, "ShapeEnv")
    with pytest.raises(TorchVersionError, match="letting go of symbolic sizes"), exporting.graphs_let_go():
        pass
    monkeypatch.delattr(graph_module, "_method_from_src")
    with pytest.raises(TorchVersionError, match="letting go of the sources"), exporting.sources_let_go():
        pass
    monkeypatch.delattr(guards, "CheckFunctionManager")
    with pytest.raises(TorchVersionError, match="letting go of strict exports"), exporting.strict_export_let_go():
        pass
