"""Modules of operations on their own."""

from __future__ import annotations

import torch

from prepbench.prepare.modules import Concat, MatMul, Multiply
from tests.compile.prepare.models import x


def test_standalone_modules() -> None:
    torch.testing.assert_close(Concat(dim=1)(x(2, 3), x(2, 3)), torch.cat([x(2, 3), x(2, 3)], 1))
    torch.testing.assert_close(MatMul()(x(2, 3), x(3, 2)), x(2, 3) @ x(3, 2))
    assert repr(Multiply(2)) == "Multiply(2)"
