"""A pass of our own over Inductor's graphs."""

from __future__ import annotations

import importlib

import pytest
import torch._inductor.custom_graph_pass as torch_passes

from prepbench._torch_compat import inductor_pass
from prepbench.errors import TorchVersionError


def test_a_pass_is_called_and_has_an_identity() -> None:
    assert {"__call__", "uuid"} <= inductor_pass.CustomGraphPass.__abstractmethods__


def test_a_torch_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch_passes, "CustomGraphPass")
    with pytest.raises(TorchVersionError, match=r"a pass of our own in Inductor.*CustomGraphPass"):
        importlib.reload(inductor_pass)
