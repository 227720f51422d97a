"""The report of a preparation."""

from __future__ import annotations

from prepbench.prepare import prepare_model
from tests.compile.prepare.models import Reused, x


def test_the_report_is_data_and_shows_itself() -> None:
    prepared = prepare_model(Reused().eval(), inputs=[x(1, 3, 32, 32)])
    report = prepared.preparation_report
    table = report.table()
    assert list(table["kind"]).count("reused module") == 3
    assert all(table["file"].str.endswith("models.py"))
    assert repr(report).splitlines()[0] == "Preparation of Reused: 1 operation to module, 3 reused modules"
    bundle = report._repr_mimebundle_()
    assert "module_relu_1" in bundle["text/html"]
    assert report.kept_table().empty
