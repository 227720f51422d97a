"""``validate_model``."""

from __future__ import annotations

import prepbench as pb
from prepbench.prepare import prepare_model
from tests.prepare.models import Holds, Reused, Wraps, x


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
