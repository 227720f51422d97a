"""The range that observers of activations learn."""

from __future__ import annotations

import pytest
import torch

from prepbench.quantize.observers import ActivationObserver


def learned(values: torch.Tensor, batches: int, **method: object) -> tuple[float, float]:
    observer = ActivationObserver(
        dtype=torch.uint8, quant_min=0, quant_max=255, qscheme=torch.per_tensor_affine, **method
    )
    for batch in values.chunk(batches):
        observer(batch)
    return observer._range()


@pytest.mark.parametrize("percentile", [50.0, 90.0, 99.0, 99.9, 100.0])
@pytest.mark.parametrize("batches", [1, 4])
def test_a_percentile_keeps_that_share_and_leaves_out_as_much_at_both_ends(percentile: float, batches: int) -> None:
    values = torch.randn(8000, generator=torch.Generator().manual_seed(0)).exp()
    low, high = learned(values, batches, method="percentile", percentile=percentile)
    outside = 1 - percentile / 100
    for share in ((values < low).double().mean(), (values > high).double().mean()):
        assert float(share) == pytest.approx(outside / 2, abs=2 / len(values))


@pytest.mark.parametrize("batches", [1, 4])
def test_minmax_keeps_every_value(batches: int) -> None:
    values = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    assert learned(values, batches, method="minmax") == (float(values.min()), float(values.max()))
