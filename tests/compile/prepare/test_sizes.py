"""Sizes that one sample fixes."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from prepbench.errors import InputError
from prepbench.prepare import prepare_model
from tests.compile.prepare.models import x


class Fixes(nn.Module):
    def forward(self, x):
        return F.interpolate(x, size=(x.size(2) * 2, x.size(3))), x.view(x.size(0), -1)


def test_sizes_that_one_sample_fixes_are_refused() -> None:
    prepared = prepare_model(Fixes(), inputs=[x(1, 3, 4, 6)])
    torch.testing.assert_close(prepared(x(5, 3, 4, 6)), Fixes()(x(5, 3, 4, 6)))
    with pytest.raises(InputError, match=r"x.shape\[2\] is 8, but.*always 4.*two sizes"):
        prepared(x(1, 3, 8, 6))
    free = prepare_model(Fixes(), inputs=[x(1, 3, 4, 6), x(2, 3, 8, 10)])
    torch.testing.assert_close(free(x(3, 3, 7, 5)), Fixes()(x(3, 3, 7, 5)))
