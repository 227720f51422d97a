"""Whether the code of a model has changed: redefined, reloaded, or a helper of it; comments and lines do not count."""

from __future__ import annotations

import importlib
import itertools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

import prepbench as pb
from prepbench.errors import InputError
from prepbench.objects.code import ModelCode, change_text

NET = """
import torch
from torch import nn


def scaled(x):
    return x * 2


class Gate(nn.Module):
    factor = 3

    def forward(self, x, power=1):
        return scaled(x) * power


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.gate = Gate()

    def forward(self, x):
        return self.gate(self.first(x))
"""
CHANGES = {
    "its own line": ("self.gate(self.first(x))", "self.gate(self.first(x)) + 1", ("Net",)),
    "a helper": ("x * 2", "x * 3", ("Net", "Gate")),
    "a constant of a class": ("factor = 3", "factor = 4", ("Net", "Gate")),
    "a default": ("power=1", "power=2", ("Net", "Gate")),
    "a comment": ("    return x * 2", "    # two times\n\n    return x * 2", ()),
    "a docstring": ("def scaled(x):", 'def scaled(x):\n    """Two times."""', ()),
    "another docstring": ("class Gate(nn.Module):", 'class Gate(nn.Module):\n    """A gate."""\n', ()),
    "moved lines": ("import torch\n", "import torch\n\n\n\n", ()),
    "nothing": ("", "", ()),
}
numbers = itertools.count()


@pytest.fixture
def net(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[ModuleType, Callable[[str], ModuleType]]]:
    """A module with a model, and what writes its file again and reloads it."""
    name = f"code_of_a_test_{next(numbers)}"
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def write(text: str) -> ModuleType:
        (tmp_path / f"{name}.py").write_text(text)
        importlib.invalidate_caches()
        return importlib.reload(sys.modules[name]) if name in sys.modules else importlib.import_module(name)

    yield write(NET), write
    sys.modules.pop(name, None)


@pytest.mark.parametrize("what", CHANGES)
def test_code_that_is_reloaded(what: str, net: tuple[ModuleType, Callable[[str], ModuleType]]) -> None:
    module, write = net
    model = module.Net()
    before, after, names = CHANGES[what]
    code = ModelCode.of(model)
    assert code.changed() == ()
    write(NET.replace(before, after))
    assert code.changed() == names  # Net makes a Gate, so that a change of Gate is one of Net


def test_code_that_is_changed_in_place_as_autoreload_does(
    net: tuple[ModuleType, Callable[[str], ModuleType]],
) -> None:
    module, _ = net
    model, code = module.Net(), ModelCode.of(module.Net())
    space: dict[str, object] = {"scaled": module.scaled}
    exec("def forward(self, x, power=1):\n    return scaled(x) - 1", space)
    module.Gate.forward.__code__ = space["forward"].__code__  # type: ignore[attr-defined]
    assert "Gate" in code.changed()
    assert code.changed() == ModelCode.of(model).changed() or ModelCode.of(model).changed() == ()


def test_a_collection_and_a_capture_take_the_newest_code_and_keep_the_weights(
    net: tuple[ModuleType, Callable[[str], ModuleType]],
) -> None:
    module, write = net
    model, x = module.Net().eval(), torch.ones(2, 4)
    graph, captured = pb.recursive_trace(model, inputs=[x]), pb.capture(model, [x, torch.ones(3, 4)])
    weights = model.first.weight.detach().clone()
    assert (graph.newer_code, captured.newer_code) == ((), ())
    write(NET.replace("x * 2", "x * 5"))
    assert "Gate" in graph.newer_code
    assert "Gate" in captured.newer_code
    newer = graph.again()
    assert newer.newer_code == ()
    assert torch.equal(model.first.weight, weights)
    expected = model.first(x) * 5
    assert torch.allclose(newer.graph_module()(x), expected)
    again = captured.again()
    assert again.newer_code == ()
    assert [axis.dynamic for axis in again.axes.axes] == [axis.dynamic for axis in captured.axes.axes]
    assert torch.allclose(again.program.module()(torch.ones(5, 4)), expected[:1].expand(5, 4))


def test_a_class_of_another_kind_is_refused(net: tuple[ModuleType, Callable[[str], ModuleType]]) -> None:
    module, write = net
    graph = pb.recursive_trace(module.Net(), inputs=[torch.ones(2, 4)])
    write(NET.replace("class Gate(nn.Module):", "class Gate(nn.Module):\n    __slots__ = ('more',)\n"))
    with pytest.raises(InputError, match="gate cannot take on the newest Gate"):
        graph.again()
    with pytest.raises(InputError, match="Nothing was traced yet"):
        pb.GraphCollection().again()


def test_a_function_and_a_bound_method(net: tuple[ModuleType, Callable[[str], ModuleType]]) -> None:
    module, write = net
    x = torch.ones(2, 4)
    graph, method = pb.recursive_trace(module.scaled, inputs=[x]), pb.capture(module.Net().eval().forward, [x])
    write(NET.replace("x * 2", "x * 7"))
    assert graph.newer_code == ("scaled",)
    assert "Gate" in method.newer_code
    assert torch.equal(graph.again().graph_module()(x), x * 7)
    assert method.again().newer_code == ()


def test_a_bench_says_so_and_captures_again(net: tuple[ModuleType, Callable[[str], ModuleType]]) -> None:
    module, write = net
    bench = pb.Bench(module.Net().eval(), calibration_inputs=[torch.ones(2, 4), torch.ones(3, 4)])
    assert bench.summary().newer_code == ""
    write(NET.replace("x * 2", "x * 5"))
    bench.refresh()
    assert bench.newer_code
    assert "Gate has changed since this capture." in bench.summary().newer_code
    bench.again()
    assert bench.newer_code == ()
    assert bench.summary().newer_code == ""


def test_a_diagram_says_so_and_captures_again(net: tuple[ModuleType, Callable[[str], ModuleType]]) -> None:
    module, write = net
    model = module.Net().eval()
    diagram = pb.diagram(
        pb.recursive_trace(model, inputs=[torch.ones(2, 4)]), pb.capture(model, [torch.ones(2, 4), torch.ones(3, 4)])
    )
    diagram.look_at_code()
    assert diagram.newer == ""
    before = diagram.data
    write(NET.replace("x * 2", "x.abs()"))
    diagram.look_at_code()
    assert "Gate has changed since this capture." in diagram.newer
    diagram.again()
    diagram.look_at_code()
    assert diagram.newer == ""
    assert diagram.data != before
    assert "abs" in diagram._text()


def test_the_sentence() -> None:
    assert change_text(()) == ""
    again = " Capturing again gives your model the new code and keeps its weights."
    assert change_text(("Net",)) == "The code of Net has changed since this capture." + again
    assert change_text(("A", "B")) == "The code of A and B has changed since this capture." + again
    assert change_text(("A", "B", "C", "D")) == "The code of A and 3 others has changed since this capture." + again
