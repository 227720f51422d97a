"""What a proof lets a model do on values that no sample has."""

import pytest
import torch

from prepbench.fixes.proof import CountedCalls


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_lapack_gets_no_values_that_end_the_process(value: float) -> None:
    with CountedCalls(None):
        assert torch.linalg.eigvals(torch.eye(3)).real.sum() == 3
        with pytest.raises(RuntimeError, match="the matrix holds NaN or infinite values"):
            torch.linalg.eigvals(torch.full((3, 3), value))
