"""What a search was given besides settings: the sizes of its data, arguments for ``compile_model``, a random metric."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import prepbench as pb
from prepbench.errors import CaptureError, InputError, SettingsError
from prepbench.measure.latency import Latency
from tests.compile.search.test_search import clocked, find


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Times of which each candidate's is a little longer than that of the one before."""

    def times(candidates: Any, *_: Any, rounds: int, **__: Any) -> dict[str, Latency]:
        return {name: Latency((1.0 + place,) * rounds, "own process") for place, name in enumerate(candidates)}

    clocked(monkeypatch, times)


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)).eval()


def search(net: nn.Module, samples: list[torch.Tensor], **more: Any) -> pb.SearchResult:
    return pb.search(net, samples, **{"budget": pb.Budget(min_metric=20), "targets": [pb.EagerDeployment()], **more})


def test_code_and_settings_have_what_the_search_was_given() -> None:
    net, samples, sizes = model(), [torch.randn(8, 16) for _ in range(3)], [torch.randn(n, 16) for n in (2, 5)]
    found = search(net, samples, tracing_inputs=sizes, data=[torch.randn(64, 16)], tries=0)
    x = torch.randn(11, 16)
    by_settings = pb.compile_model(net, calibration_inputs=samples, **found.settings)(x)
    names: dict[str, Any] = {"model": net, "calibration_inputs": samples, "tracing_inputs": sizes}
    exec(found.code(), names)
    assert torch.equal(names["compiled"](x), by_settings)


@pytest.mark.parametrize("function", [search, pb.sensitivity])
def test_data_of_other_sizes_is_told_with_what_to_write(function: Any) -> None:
    samples = [torch.randn(8, 16) for _ in range(3)]
    data = [torch.randn(8, 16), torch.randn(5, 16)]
    with pytest.raises(
        InputError, match=r"data\[1\] does not fit .*shape \(8, 16\), got shape \(5, 16\).*tracing_inputs="
    ):
        function(model(), samples, data=data)
    function(model(), samples, data=data, tracing_inputs=[torch.randn(n, 16) for n in (2, 5)])


@pytest.mark.parametrize(("drop", "said"), [(0.002, "is less than that, so whether"), (0.5, "Smaller drops are not")])
def test_the_drop_is_compared_with_the_spread_of_the_metric(drop: float, said: str) -> None:
    net, samples, count = model(), [torch.randn(8, 16) for _ in range(3)], itertools.count()

    def metric(output: torch.Tensor, target: torch.Tensor) -> float:
        return 0.9 + 0.01 * (next(count) % 2)

    data = [(x, torch.zeros(8)) for x in samples]
    found = search(net, samples, budget=pb.Budget(max_drop=drop), data=data, metric=metric, tries=0)
    assert said in " ".join(found.notes)
    assert "Smaller drops are not" in " ".join(found.with_budget(pb.Budget(max_drop=0.5)).notes)


def test_mixtures_of_a_journal_are_what_a_search_goes_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clocked(monkeypatch)
    journal, budget = tmp_path / "results.sqlite", pb.Budget(min_metric=20)
    first = find(budget, results=journal)
    clocked(monkeypatch, lambda *_, **__: pytest.fail("timed again"))
    again = find(budget, results=journal, tries=0)
    assert again.best.float_layers == first.best.float_layers == ("odd",)
    assert again.best.metric == first.best.metric
    rows = pb.load_results(journal)
    assert sorted(row.settings_name for row in rows) == ["3 int8, 1 float", "float", "int8"]
    assert rows.models == (f"Net {rows[0].model[:8]}",)


def test_a_target_goes_without_what_it_lacks() -> None:
    sixteen = pb.QuantizationSettings(activations_num_bits=16)
    targets = [pb.OnnxRuntimeDeployment(), pb.OpenVinoDeployment()]
    samples = [torch.randn(8, 16) for _ in range(3)]
    candidates = {"int8": pb.QuantizationSettings(), "a16": sixteen}
    found = search(model(), samples, targets=targets, candidates=candidates, tries=0)
    assert any("OpenVINO: no layer takes 'a16': OpenVINO does not support 16-bit" in note for note in found.notes)
    assert {each.target for each in found.candidates if "a16" in each.layers.values()} == {"ONNX Runtime"}
    with pytest.raises(SettingsError, match=r"candidates\['a16'\]: OpenVINO does not support"):
        search(model(), samples, targets=targets[1:] * 2, candidates={"a16": sixteen})


def test_data_that_is_shuffled_is_told() -> None:
    samples = [torch.randn(8, 16) for _ in range(3)]
    data = torch.utils.data.DataLoader(torch.randn(40, 16), batch_size=8, shuffle=True)
    assert any(
        "Give a list, or a DataLoader with shuffle=False" in note
        for note in search(model(), samples, data=data, tries=0).notes
    )
    plain = search(model(), samples, data=torch.utils.data.DataLoader(torch.randn(40, 16), batch_size=8), tries=0)
    assert not any("DataLoader" in note for note in plain.notes)


def test_a_metric_that_was_changed_is_computed_again(tmp_path: Path) -> None:
    net, samples = model(), [torch.randn(8, 16) for _ in range(3)]

    def made(base: float) -> Any:
        def metric(output: torch.Tensor, target: torch.Tensor) -> float:
            return base

        return metric

    data = [(x, torch.zeros(8)) for x in samples]
    for base in (0.75, 0.75, 0.5):
        more = {"budget": pb.Budget(max_drop=1.0), "data": data, "metric": made(base), "results": tmp_path / "r.sqlite"}
        assert search(net, samples, tries=0, **more).base == base
    assert {each.score for each in pb.load_results(tmp_path / "r.sqlite")} == {0.75, 0.5}


class Leaf(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return -x if float(x.sum()) > 1e9 else x


def test_lines_that_stay_in_python_are_refused_with_what_to_do() -> None:
    net = nn.Sequential(nn.Linear(16, 8), Leaf(), nn.Linear(8, 4)).eval()
    with pytest.raises(CaptureError, match="keeps no lines in Python") as raised:
        search(net, [torch.randn(8, 16) for _ in range(3)])
    assert "Or capture with fullgraph" not in str(raised.value)
