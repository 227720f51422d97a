"""Inputs that cannot work are told before any tracing: which sample, which argument, what to do."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import prepbench as pb
from prepbench.errors import CaptureError, InputError, SettingsError


class Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        return self.layer(x) if mask is None else self.layer(x) * mask


ONE, OTHER = torch.ones(2, 4), torch.ones(3, 4)
WAYS = {
    "capture": lambda model, inputs: pb.capture(model, inputs),
    "recursive_trace": lambda model, inputs: pb.recursive_trace(model, inputs=inputs),
    "check_traceability": lambda model, inputs: pb.check_traceability(model, inputs),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_sample_on_which_the_model_raises_is_named_with_its_error(way: str) -> None:
    with pytest.raises(CaptureError, match=r"Masked itself raises on inputs\[1\], before any capturing") as caught:
        WAYS[way](Masked(), [ONE, torch.ones(2, 5)])
    assert isinstance(caught.value.__cause__, RuntimeError)
    assert caught.value.__cause__.__traceback__ is not None


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("inputs", "text"),
    [
        ([ONE, (OTHER, OTHER)], "'mask' is given in sample 1 but not in sample 0"),
        ([(ONE, ONE), (OTHER, OTHER.double())], "'mask' differs between sample 0 and sample 1 in its dtype"),
        ([(ONE, ONE), (OTHER, OTHER[0])], "'mask' differs between sample 0 and sample 1 in its rank"),
        ([(ONE, ONE), (OTHER, OTHER.to("meta"))], r"inputs\[1\]: mask is on meta, but the model is on cpu"),
        ([], "inputs is empty"),
        ([(ONE, ONE, ONE, ONE)], r"inputs\[0\] does not fit Masked.forward"),
    ],
)
def test_samples_that_do_not_fit_are_named_by_path(way: str, inputs: list[Any], text: str) -> None:
    with pytest.raises(InputError, match=text):
        WAYS[way](Masked(), inputs)


def test_a_model_without_weights_takes_inputs_from_anywhere() -> None:
    with torch.device("meta"):
        model = Masked()
    assert pb.recursive_trace(model, inputs=[ONE, OTHER]).failures == ()
    assert pb.capture(model, [ONE, OTHER]).leaves == ()


def test_names_that_do_not_exist_come_with_the_nearest() -> None:
    for function in (pb.recursive_trace, lambda model, args: pb.RobustTracer().trace(model, args)):
        with pytest.warns(UserWarning, match=r"names 'maks'.*Nearest: 'mask'"):
            function(Masked(), {"maks": None})
    with pytest.raises(SettingsError, match="Nearest: layer"):
        pb.capture(Masked(), [ONE], leaf_modules=["layers"])
