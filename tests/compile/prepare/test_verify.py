"""The comparison with the original finds a difference and names its node."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from prepbench.errors import PreparationError
from prepbench.objects.compare import Outcome
from prepbench.prepare import prepare_model
from prepbench.prepare.verify import prepared_difference
from tests.compile.prepare.models import x


def test_an_inequality_names_the_first_node_that_differs() -> None:
    class Lies(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Inner()

        def forward(self, x):
            return F.relu(self.inner(x) + 1)

    class Inner(nn.Module):
        def forward(self, x):
            # another value while it is traced, which is what every hidden state amounts to
            scale = 2.0 if isinstance(x, torch._subclasses.FakeTensor) else 3.0
            return torch.sigmoid(x) * scale

    with pytest.raises(PreparationError) as error:
        prepare_model(Lies(), inputs=[x(2, 2)])
    assert "inner.module_mul" in str(error.value)
    assert "torch.sigmoid(x) * scale" in str(error.value)
    assert "inputs[0]" in str(error.value)
    assert "modules_to_exclude=[model.get_submodule('inner')]" in str(error.value)


def test_buffers_may_go_unless_a_call_changes_them() -> None:
    model, one, none = nn.BatchNorm1d(2), torch.ones(2), {}
    same = dict(model.named_buffers())
    assert prepared_difference(model, Outcome(one, {}, same), Outcome(one, {}, none)).equal
    changed = {**same, "running_mean": one}
    found = prepared_difference(model, Outcome(one, {}, changed), Outcome(one, {}, none))
    assert found.path == "after the call, buffer ['running_mean']"


@pytest.mark.parametrize("got", [[1.0, 2.0, 3.0], [1.0, float("nan")], [1.0, float("inf")]])
def test_other_shapes_and_nan_are_differences(got: list[float]) -> None:
    expected = Outcome(torch.tensor([1.0, 2.0]), {}, {})
    assert not prepared_difference(nn.ReLU(), expected, Outcome(torch.tensor(got), {}, {})).equal
