"""Which integer instructions the CPU has."""

from __future__ import annotations

import platform

import pytest
import torch

from prepbench._torch_compat import cpu
from prepbench.errors import TorchVersionError


@pytest.mark.parametrize(
    ("machine", "vnni", "saturates"), [("x86_64", True, False), ("x86_64", False, True), ("aarch64", False, False)]
)
def test_bytes_saturate_on_x86_without_vnni(
    machine: str, vnni: bool, saturates: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: machine)
    monkeypatch.setattr(torch.cpu, "_is_vnni_supported", lambda: vnni)
    assert cpu.byte_sums_saturate() is saturates


def test_a_torch_that_cannot_tell_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.delattr(torch.cpu, "_is_vnni_supported")
    with pytest.raises(TorchVersionError, match="integer instructions"):
        cpu.byte_sums_saturate()
