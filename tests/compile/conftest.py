from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.compile.models import SmallNet


@pytest.fixture
def net() -> nn.Module:
    torch.manual_seed(0)
    return SmallNet().eval()
