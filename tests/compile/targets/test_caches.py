"""A prefill with an empty cache and a decode with a filled one, compiled as one model."""

from __future__ import annotations

import copy

import pytest
import torch

import prepbench as pb
from tests.compile.capture.aten.test_caches import Attention, sample
from tests.turns import every_second

TARGETS = {
    "OnnxRuntime": pb.OnnxRuntimeDeployment(),
    "Inductor": pb.InductorDeployment(),
    "OpenVino": pb.OpenVinoDeployment(),
}


@pytest.mark.parametrize(("target", "window"), every_second(TARGETS, {"all entries": None, "window": 4}))
def test_an_empty_and_a_filled_cache(target: pb.DeploymentSettings, window: int | None) -> None:
    model = Attention(window).eval()
    compiled = pb.compile_model(
        model, tracing_inputs=[sample(2, 5, 0), sample(2, 1, 4), sample(2, 2, 2)], deployment_settings=target
    )
    for new, length in ((3, 0), (1, 3), (2, 4)):
        arguments = sample(2, new, length)
        with torch.no_grad():
            expected = model(*copy.deepcopy(arguments))
        torch.testing.assert_close(compiled(*arguments), expected, rtol=1e-4, atol=1e-5)
