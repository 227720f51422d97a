"""What a version of torchao without a private part costs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

import prepbench as pb
from prepbench import _torchao_compat
from prepbench._torchao_compat import missing_shortcuts, pt2e
from prepbench.errors import PackageVersionError

SAMPLES = [torch.linspace(-1, 2, 8).view(2, 4)]


@pytest.fixture
def afresh() -> Iterator[None]:
    """The parts are looked up again, and once more afterwards."""
    pt2e.cache_clear()
    yield
    pt2e.cache_clear()


def _quantized() -> Any:
    torch.manual_seed(0)
    return pb.compile_model(
        nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)).eval(),
        tracing_inputs=SAMPLES,
        calibration_inputs=SAMPLES,
        deployment_settings=pb.EagerDeployment(),
        quantization_settings=pb.QuantizationSettings(),
    )


def test_without_shortcuts_the_conversion_gives_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = _quantized()(*SAMPLES)
    assert missing_shortcuts() == []
    monkeypatch.setattr(_torchao_compat, "_part", lambda module, name="": None)
    assert [name.rpartition(".")[2] for name in missing_shortcuts()] == ["_fold_conv_bn_qat_helper", "_deduce_value"]
    assert torch.equal(_quantized()(*SAMPLES), expected)


@pytest.mark.usefixtures("afresh")
def test_what_quantization_cannot_do_without_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    from torchao.quantization.pt2e import utils

    monkeypatch.delattr(utils, "_get_node_name_to_scope")
    with pytest.raises(PackageVersionError, match=r"for quantization: .*_get_node_name_to_scope.*'torchao>="):
        _quantized()


def test_a_part_that_is_not_there_is_none() -> None:
    assert _torchao_compat._part("no_such_module") is None
    assert "torchao.quantization.pt2e.no_such_module" not in sys.modules
