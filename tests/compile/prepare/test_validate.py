"""``validate_model``."""

from __future__ import annotations

import pytest
from torch import nn

import prepbench as pb
from prepbench.errors import InputError
from prepbench.prepare import prepare_model
from tests.compile.prepare.models import Holds, Reused, Wraps, x


def test_validate_model_lists_what_is_left() -> None:
    model = Reused().eval()
    report = pb.validate_model(model)
    assert [violation.kind for violation in report.violations] == [
        "reused module", "operation without module", "reused module", "reused module",
    ]  # fmt: skip
    assert len(report.table()) == 4
    assert not report
    assert "relu" in repr(report)
    for inputs in (None, [x(1, 3, 32, 32)]):
        assert pb.validate_model(prepare_model(model, inputs=inputs), inputs=inputs).passed
    (violation,) = pb.validate_model(Wraps(), inputs=[x(2, 3)]).violations[:1]
    assert violation.kind == "operation without module"
    untraced = pb.validate_model(Holds(), inputs=[x(2, 2)])
    assert untraced.violations[0].kind == "not traced"


def test_what_is_excluded_is_not_looked_at() -> None:
    model = nn.Sequential(Reused(), nn.Flatten()).eval()
    assert not pb.validate_model(model)
    assert pb.validate_model(model, modules_to_exclude=[model[0]]).passed
    assert pb.validate_model(model, module_classes_to_exclude=[Reused], inputs=[x(1, 3, 32, 32)]).passed
    with pytest.raises(InputError, match=r"modules_to_exclude\[0\], a Reused, is not part of this Sequential"):
        pb.validate_model(model, modules_to_exclude=[Reused()])


def test_an_excluded_module_that_is_called_twice_is_still_reused() -> None:
    inner = Reused().eval()
    report = pb.validate_model(nn.Sequential(nn.Identity(), _Twice(inner)), modules_to_exclude=[inner])
    assert [violation.kind for violation in report.violations] == ["reused module", "operation without module"]


class _Twice(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x) + self.inner(x)
