from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True)
def _weights_are_the_same_in_every_order_of_tests() -> None:
    torch.manual_seed(0)
