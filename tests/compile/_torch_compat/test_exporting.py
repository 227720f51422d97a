"""Quiet exports, and what models see while they are exported."""

from __future__ import annotations

import logging

import pytest
import torch
from torch import nn

from prepbench._torch_compat import exporting
from prepbench.errors import TorchVersionError


class Broken(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x if x.sum() > 0 else -x


def test_a_failing_export_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    level = logging.getLogger("torch.export").level
    with pytest.raises(Exception, match=r"data-dependent|guard"):
        with exporting.quiet_export():
            torch.export.export(Broken(), (torch.ones(2),))
    assert capfd.readouterr() == ("", "")
    assert logging.getLogger("torch.export").level == level


def test_models_are_told_that_they_are_exported() -> None:
    assert not torch.compiler.is_exporting()
    with exporting.seen_as_exporting():
        assert torch.compiler.is_exporting()
        assert torch.compiler.is_compiling()
    assert not torch.compiler.is_exporting()


def test_conversions_to_what_a_module_is_already_return_at_once() -> None:
    layer = nn.Linear(2, 2)
    with exporting.conversions_that_change_nothing_skipped():
        before = layer.weight
        assert layer.to(torch.float32) is layer
        assert layer.to("cpu") is layer
        assert layer.weight is before
        layer.to(torch.float64)
    assert layer.weight.dtype == torch.float64
    assert "conversions" not in nn.Module.to.__qualname__


def test_outside_of_an_export_there_is_no_stack_to_restore() -> None:
    exporting.mark_module_stack()()


@pytest.mark.parametrize(
    ("owner", "name", "context", "purpose"),
    [
        (torch._C._nn, "_parse_to", exporting.conversions_that_change_nothing_skipped, "conversions"),
        (torch.compiler, "_is_compiling_flag", exporting.seen_as_exporting, "being exported"),
    ],
)
def test_a_torch_without_it(
    monkeypatch: pytest.MonkeyPatch, owner: object, name: str, context: object, purpose: str
) -> None:
    monkeypatch.delattr(owner, name)
    with pytest.raises(TorchVersionError, match=f"{purpose}.*{name}"):
        with context():  # type: ignore[operator]
            pass
