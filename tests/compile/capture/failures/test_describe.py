"""Failures: kinds, the user's line, and texts that do not change from run to run."""

from __future__ import annotations

import linecache
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from prepbench.capture.failures.describe import describe_failure, normalize_message
from prepbench.document.model import Failure


class Branch(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:
            return x
        return -x


class Item(nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        return x.view(int(x.max().item()), -1) if x.dim() else float(x.sum())


class Numpy(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(np.sin(x.numpy()))


class Assigns(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x[:, 0] = 1
        return x


class Iterates(nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        return [row * 2 for row in x]


class Prints(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        print("x")  # noqa: T201
        return x


class Wrong(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(7, 9)


def symbolically(model: nn.Module) -> None:
    torch.fx.symbolic_trace(model)


def exported(model: nn.Module) -> None:
    torch.export.export(model, (torch.ones(4, 5),))


def compiled(model: nn.Module) -> None:
    torch.compile(model, fullgraph=True, backend="eager")(torch.ones(4, 5))


def failure_of(capture: Callable[[nn.Module], None], kind: type[nn.Module]) -> Failure:
    model = kind()
    with pytest.raises(Exception) as caught:
        capture(model)
    return describe_failure(caught.value, fqn="a.b", module_type=kind.__name__, module=model)


@pytest.mark.parametrize(
    ("capture", "kind", "expected", "code"),
    [
        (symbolically, Branch, "data-dependent branch", "if x.sum() > 0:"),
        (exported, Branch, "data-dependent branch", "if x.sum() > 0:"),
        (compiled, Branch, "data-dependent branch", "if x.sum() > 0:"),
        (symbolically, Numpy, "numpy call", "return torch.from_numpy(np.sin(x.numpy()))"),
        (exported, Numpy, "numpy call", "return torch.from_numpy(np.sin(x.numpy()))"),
        (symbolically, Assigns, "mutation", "x[:, 0] = 1"),
        (symbolically, Iterates, "iteration over a tensor", "return [row * 2 for row in x]"),
        (compiled, Prints, "Python side effect", 'print("x")  # noqa: T201'),
        (exported, Wrong, "error in forward", "return x.view(7, 9)"),
        (compiled, Wrong, "error in forward", "return x.view(7, 9)"),
    ],
)
def test_kind_and_line(capture: Any, kind: type[nn.Module], expected: str, code: str) -> None:
    failure = failure_of(capture, kind)
    assert failure.kind == expected
    assert failure.source is not None
    assert failure.source.code == code
    assert failure.source.file == __file__
    assert failure.remedy.endswith(".")
    assert failure.fqn == "a.b"


@pytest.mark.parametrize("capture", [symbolically, exported, compiled])
def test_texts_are_stable(capture: Any) -> None:
    first, second = failure_of(capture, Branch), failure_of(capture, Branch)
    assert first == second
    assert len(first.message.splitlines()) <= 3


def test_lines_of_notebook_cells_are_found() -> None:
    name, text = "<ipython-input-3-cell>", "def cell(x):\n    return x if x.sum() > 0 else -x\n"
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    namespace: dict[str, Any] = {}
    exec(compile(text, name, "exec"), namespace)
    with pytest.raises(torch.fx.proxy.TraceError) as caught:
        torch.fx.symbolic_trace(namespace["cell"])
    source = describe_failure(caught.value, fqn="", module_type="cell").source
    assert source is not None
    assert (source.file, source.line) == (name, 2)
    assert source.code == "return x if x.sum() > 0 else -x"


def test_messages_lose_noise() -> None:
    noisy = "\x1b[31mbad\x1b[0m <Foo object at 0x7f0011223344>\n\nFrom /usr/lib/python3/site-packages/torch/x.py\n"
    message = normalize_message(RuntimeError(noisy + "Set TORCH_LOGS=+dynamo\nmore"))
    assert message == "bad <Foo object>\nFrom x.py"
    assert normalize_message(AssertionError()) == "AssertionError"


def test_the_cause_of_a_wrapped_error_counts() -> None:
    class Wrapped(RuntimeError):
        __module__ = "torch._dynamo.exc"

    error = Wrapped("backend failed")
    error.__cause__ = NotImplementedError("Could not run 'a::b' with arguments from the 'Meta' backend")
    assert describe_failure(error, fqn="", module_type="M").kind == "missing fake kernel"


def test_lines_in_notebook_cells_are_stable(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys
    from types import SimpleNamespace

    from prepbench.running.source_lines import source_line

    compiler = SimpleNamespace(format_code_name=lambda name: ("Cell", "In[7]") if "ipykernel" in name else None)
    shell = SimpleNamespace(get_ipython=lambda: SimpleNamespace(compile=compiler))
    monkeypatch.setitem(sys.modules, "IPython", shell)
    assert source_line("/tmp/ipykernel_42/1.py", 3).file == "notebook cell"
    assert source_line("/home/me/net.py", 3).file == "/home/me/net.py"
    assert source_line("/opt/x/lib/python3.11/site-packages/lib/net.py", 3).file == "lib/net.py"
