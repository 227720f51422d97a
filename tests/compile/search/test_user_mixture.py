"""A mixture of one's own, asked of what a search has measured."""

from __future__ import annotations

import pytest

import prepbench as pb
from prepbench.errors import SettingsError, UnknownNameError
from prepbench.search import measuring
from tests.compile.search.test_search import LAYERS, SAVED, clocked, find, inputs, net


@pytest.fixture(scope="module")
def found() -> pb.SearchResult:
    with pytest.MonkeyPatch.context() as patch:
        clocked(patch)
        return find(pb.Budget(min_metric=20))


def test_a_mixture_of_ones_own_is_predicted_without_measuring(
    found: pb.SearchResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(measuring, "measure_latency")
    measured = found.predict(dict.fromkeys(LAYERS, "int8"))
    assert measured.ms == found["int8"].ms
    own = found.predict({"wide": "int8"})
    assert not own.measured
    assert own.float_layers == ("first", "odd", "head")
    assert own.predicted_ms == pytest.approx(2.0 - SAVED["wide"] + 2 * 0.02, abs=0.05)
    compiled = pb.compile_model(net(), calibration_inputs=inputs(), **own.settings)
    assert [row.fqn for row in compiled.report.layers if row.quantized] == ["wide"]


def test_a_mixture_of_ones_own_has_names_of_the_search(found: pb.SearchResult) -> None:
    with pytest.raises(UnknownNameError, match=r"there is no layer 'wides' .* Nearest are 'wide'"):
        found.predict({"wides": "int8"})
    with pytest.raises(UnknownNameError, match=r"layers\['wide'\]: there is no candidate 'int4'\. Nearest are 'int8'"):
        found.predict({"wide": "int4"})
    with pytest.raises(
        UnknownNameError, match=r"there is no target 'TPU' in this search\. Give one of 'PyTorch eager'"
    ):
        found.predict({"wide": "int8"}, "TPU")
    with pytest.raises(SettingsError, match=r"layers must be a dict of names of candidates by FQN, got .* Write"):
        found.predict({"wide": 8})  # type: ignore[dict-item]
