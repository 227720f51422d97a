"""Abilities of this machine's CPU (``torch.cpu``)."""

from __future__ import annotations

import platform

import torch

from prepbench._torch_compat.checks import needed_for


def byte_sums_saturate() -> bool:
    """Return whether sums of products of unsigned and signed bytes overflow on this CPU.

    x86 without VNNI adds two products in 16 bits: 2 * 255 * 127 does not fit. With weights of at most 64 it does.
    """
    if platform.machine().lower() not in ("x86_64", "amd64", "x86", "i686"):
        return False
    with needed_for("telling which integer instructions the CPU has"):
        return not torch.cpu._is_vnni_supported()
