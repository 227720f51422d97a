"""``pb.sensitivity``: what quantizing each layer alone does to the model."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import itertools
import json
import multiprocessing
from typing import Any

import pytest
import torch
from torch import nn

import prepbench as pb
from prepbench.errors import CalibrationError, InputError, MetricError, SettingsError, UnknownNameError
from prepbench.search.candidates import name_of_settings, named_candidates

INT8 = pb.QuantizationSettings()
FOUR = pb.QuantizationSettings(weights_num_bits=4, prefer_weights_only_quantization=True, weights_algorithm="nearest")
CANDIDATES = {"int8": INT8, "four": FOUR}


class Predicts(nn.Module):
    """A small language model."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(40, 32)
        self.block = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, norm_first=True)
        self.head = nn.Linear(32, 40)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.block(self.table(ids)))


@pytest.fixture(scope="module")
def found(model: nn.Module, samples: list[torch.Tensor]) -> pb.Sensitivity:
    return pb.sensitivity(model, samples, candidates=CANDIDATES, exact=True)


def rank_correlation(first: list[float], second: list[float]) -> float:
    ranks = torch.tensor([first, second]).argsort(1).argsort(1).double()
    return float(torch.corrcoef(ranks)[0, 1])


def test_a_row_for_each_layer_and_candidate(found: pb.Sensitivity) -> None:
    layers = ["stem", "quiet", "body.0", "body.1", "body.2", "head"]
    assert [(row.fqn, row.candidate) for row in found.rows] == list(itertools.product(layers, CANDIDATES))
    assert (found.unit, found.target, found.metric) == ("dB", "ONNX Runtime", "")
    head = {row.candidate: row for row in found["head"]}
    assert head["int8"].type == "Linear"
    assert head["int8"].parameters == 85
    assert head["int8"].weights_bytes == 80 + 4 * 5
    assert head["four"].weights_bytes == 40 + 4 * 5
    assert head["four"].exact < head["int8"].exact


def test_what_fades_on_its_way_costs_little(found: pb.Sensitivity) -> None:
    quiet, loud = found["quiet"][1], found["body.0"][1]
    assert abs(quiet.own_sqnr - loud.own_sqnr) < 6
    assert quiet.exact > loud.exact + 15
    assert "quiet" not in {row.fqn for row in found.worst(4)}


def test_exact_is_what_a_compile_of_this_layer_gives(
    model: nn.Module, samples: list[torch.Tensor], found: pb.Sensitivity
) -> None:
    skipped = {fqn: pb.LayerQuantizationSettings(skip_quantization=True) for fqn in ("stem", "quiet", "body", "head")}
    compiled = pb.compile_model(
        model,
        calibration_inputs=samples,
        deployment_settings=pb.OnnxRuntimeDeployment(),
        quantization_settings=FOUR,
        layer_quantization_settings={**skipped, "body.1": pb.LayerQuantizationSettings(weights_num_bits=4)},
        compile_options=pb.CompileOptions(keep_ruined_layers_in_float=False),
    )
    assert found["body.1"][1].exact == pytest.approx(compiled.report.simulated_sqnr, abs=1e-3)


def test_the_estimate_ranks_layers_as_measuring_does(found: pb.Sensitivity) -> None:
    rows = [row for row in found.rows if row.exact is not None]
    assert len(rows) == 12
    assert rank_correlation([row.estimated for row in rows], [row.exact for row in rows]) > 0.95
    assert max(abs(row.estimated - row.exact) for row in rows) < 4


def test_a_language_model_is_judged_by_divergence() -> None:
    samples = [torch.randint(40, (batch, 8), generator=torch.Generator().manual_seed(batch)) for batch in (2, 3)]
    found = pb.sensitivity(Predicts().eval(), samples, candidates=CANDIDATES, exact=True)
    assert found.unit == "nats"
    rows = [row for row in found.rows if not row.refusal]
    assert rank_correlation([row.estimated for row in rows], [row.exact for row in rows]) > 0.85
    assert "weights alone" in found["table"][0].refusal
    assert (found["table"][0].effect, found["table"][0].weights_bytes) == (None, None)
    assert found.worst(1)[0].effect == max(row.effect for row in rows)
    assert "table" in repr(found)
    found.figure()


def test_a_language_model_on_data_of_its_own() -> None:
    samples = [torch.randint(40, (batch, 8), generator=torch.Generator().manual_seed(batch)) for batch in (2, 3)]
    found = pb.sensitivity(Predicts().eval(), samples, candidates=[FOUR], data=samples, exact=1)
    [row] = [row for row in found.rows if row.exact is not None]
    assert (found.unit, found.metric, row.metric) == ("nats", "", None)
    assert row.estimated / 2 < row.exact < 2 * row.estimated


def test_so_many_are_measured_as_asked(model: nn.Module, samples: list[torch.Tensor]) -> None:
    some = pb.sensitivity(model, samples, candidates=CANDIDATES, exact=3)
    measured = {(row.fqn, row.candidate) for row in some.rows if row.exact is not None}
    assert len(measured) == 3
    by_estimate = sorted(some.rows, key=lambda row: row.estimated)
    assert measured == {(row.fqn, row.candidate) for row in by_estimate[:3]}
    assert "3 of 12 measured" in some.caption
    none = pb.sensitivity(model, samples, candidates=[INT8], exact=False)
    assert all(row.exact is None and row.effect == row.estimated for row in none.rows)


def test_threads_measure_the_same(model: nn.Module, samples: list[torch.Tensor], found: pb.Sensitivity) -> None:
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        other = pb.sensitivity(model, samples, candidates=CANDIDATES, exact=True, executor=pool)
    assert [row.exact for row in other.rows] == pytest.approx([row.exact for row in found.rows], abs=1e-6)


def test_other_processes_measure_the_same(model: nn.Module, samples: list[torch.Tensor], found: pb.Sensitivity) -> None:
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        other = pb.sensitivity(model, samples, candidates=CANDIDATES, exact=2, executor=pool)
        with pytest.raises(SettingsError, match="runs other processes, which do not have your data"):
            pb.sensitivity(model, samples, candidates=CANDIDATES, exact=2, executor=pool, data=samples)
    measured = {(row.fqn, row.candidate): row.exact for row in other.rows if row.exact is not None}
    assert len(measured) == 2
    expected = {(row.fqn, row.candidate): row.exact for row in found.rows}
    assert all(measured[pair] == pytest.approx(expected[pair], abs=1e-4) for pair in measured)


def test_the_drop_of_a_metric(model: nn.Module, samples: list[torch.Tensor]) -> None:
    with torch.no_grad():
        data = [(x, model(x)) for x in samples]

    def distance(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return (output - target).abs().mean()

    found = pb.sensitivity(
        model, samples, candidates=CANDIDATES, data=data, metric=distance, higher_is_better=False, exact=True
    )
    assert (found.metric, found.higher_is_better, found.spread) == ("distance", False, 0)
    assert found.in_float == pytest.approx(0, abs=1e-5)
    assert all(row.drop == pytest.approx(row.metric - found.in_float) and row.drop > 0 for row in found.rows)
    assert found.worst(1)[0].drop == max(row.drop for row in found.rows)
    assert list(found.table().columns[:4]) == ["layer", "type", "int8 SQNR", "int8 drop"]
    assert "drop of distance" in json.dumps(found.figure().to_plotly_json(), default=str)


def test_data_without_a_metric_is_compared_with_float(model: nn.Module, samples: list[torch.Tensor]) -> None:
    found = pb.sensitivity(model, samples, candidates=CANDIDATES, data=samples[:1], exact=2)
    worst = next(row for row in found.rows if row.exact is not None)
    assert worst.metric is None
    assert worst.exact == pytest.approx(worst.estimated, abs=6)


def test_a_metric_that_is_not_deterministic_is_told_with_its_spread(
    model: nn.Module, samples: list[torch.Tensor]
) -> None:
    calls = itertools.count()

    def drifts(output: torch.Tensor, target: torch.Tensor) -> float:
        return 0.5 + 0.01 * next(calls)

    found = pb.sensitivity(model, samples, candidates=[INT8], data=[(samples[0], 0)], metric=drifts, exact=1)
    assert found.spread == pytest.approx(0.01)
    assert "±0.01 from one run to the next" in found.caption


def test_tables_and_overlays(model: nn.Module, samples: list[torch.Tensor], found: pb.Sensitivity) -> None:
    table = found.table()
    assert list(table.columns) == ["layer", "type", "int8 SQNR", "four SQNR", "multiplications", "parameters"]
    assert len(table) == 6
    one = found.table("four").set_index("layer")
    assert one.loc["head", "exact SQNR"] == found["head"][1].exact
    assert one.loc["head", "weights MB"] == 60e-6
    diagram = pb.diagram(pb.capture(model, samples))
    diagram.overlay(table, "four SQNR")
    assert diagram.overlay == "four SQNR"
    table.loc[0, "int8 SQNR"] = -0.5  # a model that a layer ruins; 0 dB is no middle of a scale
    diagram.overlay(table, "int8 SQNR")
    assert [each["diverging"] for each in diagram.overlays] == [False, False]


def test_what_a_notebook_shows(found: pb.Sensitivity) -> None:
    bundle = found._repr_mimebundle_()
    assert set(bundle) == {"application/vnd.plotly.v1+json", "text/html", "text/plain"}
    chart = bundle["application/vnd.plotly.v1+json"]
    assert [trace["name"] for trace in chart["data"]] == ["int8", "four"]
    assert chart["layout"]["paper_bgcolor"] == "rgba(0,0,0,0)"
    first = repr(found).splitlines()[1]
    assert first.startswith(found.worst(1)[0].fqn)
    assert "one layer quantized; 12 of 12 measured" in bundle["text/html"]


def test_names_are_looked_up(found: pb.Sensitivity) -> None:
    with pytest.raises(UnknownNameError, match=r"'body.3' is not a layer that can be quantized. Nearest are 'body"):
        found["body.3"]
    with pytest.raises(UnknownNameError, match=r"no candidate 'int4'\. There are 'int8', 'four'"):
        found.table("int4")


def test_default_candidates_are_those_that_the_target_has() -> None:
    names = ["int8", "int8 weights", "int4 weights in blocks of 32"]
    assert list(named_candidates(None, pb.OnnxRuntimeDeployment())) == names
    assert name_of_settings(pb.QuantizationSettings(activations_num_bits=16)) == "int8 weights, int16 activations"


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"candidates": {}}, SettingsError, "candidates is empty"),
        ({"candidates": "int8"}, SettingsError, "candidates must be a dict of settings by name"),
        ({"candidates": [8]}, SettingsError, r"candidates\[0\] must be of type QuantizationSettings, got 8"),
        ({"candidates": {"": INT8}}, SettingsError, "every key must be a name"),
        (
            {"candidates": [pb.QuantizationSettings(weights_num_bits=[4, 8])]},
            SettingsError,
            r"weights_num_bits names several values.*list\(settings.candidates\(\)\)",
        ),
        (
            {"candidates": {"mixed": pb.QuantizationSettings(activations_num_bits=16)}},
            SettingsError,
            r"candidates\['mixed'\]: ExecuTorch does not support 16-bit activations. It supports: weights of",
        ),
        ({"metric": pb.metrics.accuracy}, SettingsError, "metric needs data"),
        ({"metric": 3, "data": []}, SettingsError, "metric must be a function, got 3"),
        ({"metric": len, "data": [1], "exact": False}, SettingsError, "would never be called"),
        ({"exact": "some"}, SettingsError, "exact must be True, False, a whole number above 0 or 'auto'"),
        ({"executor": 2}, SettingsError, "executor must be None"),
        ({"data": []}, InputError, "data is empty"),
    ],
)
def test_bad_arguments(
    model: nn.Module, samples: list[torch.Tensor], arguments: dict[str, Any], error: type[Exception], text: str
) -> None:
    deployment = {"deployment_settings": pb.ExecuTorchDeployment()} if "mixed" in str(arguments) else {}
    with pytest.raises(error, match=text):
        pb.sensitivity(model, samples, **deployment, **arguments)


def test_a_metric_without_a_number(model: nn.Module, samples: list[torch.Tensor]) -> None:
    with pytest.raises(MetricError, match=r"gave no number.*it returned nan"):
        pb.sensitivity(
            model, samples, candidates=[INT8], data=[(samples[0], 0)], metric=lambda output, target: float("nan")
        )


def test_a_model_without_layers(samples: list[torch.Tensor]) -> None:
    with pytest.raises(SettingsError, match="model has no layer that ONNX Runtime can quantize"):
        pb.sensitivity(nn.ReLU(), samples)


def test_samples_with_nan(model: nn.Module, samples: list[torch.Tensor]) -> None:
    with pytest.raises(CalibrationError, match=r"calibration_inputs\[0\]"):
        pb.sensitivity(model, [samples[0] * torch.nan])


def test_cancelled_between_layers(model: nn.Module, samples: list[torch.Tensor]) -> None:
    stages = []

    def cancel(progress: pb.Progress) -> None:
        stages.append(progress.stage)
        if stages.count("measure layers") == 2:
            raise pb.Cancelled("enough")

    with pytest.raises(pb.Cancelled):
        pb.sensitivity(model, samples, candidates=[INT8], exact=True, progress=cancel)
    assert stages[-1] == "measure layers"


def test_what_equalised_channels_gain_is_a_candidate_of_its_own() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3, groups=8), nn.ReLU(), nn.Conv2d(8, 4, 1), nn.Flatten()
    ).eval()
    factor = torch.logspace(-1.5, 1.5, 8)
    with torch.no_grad():
        model[0].weight *= factor.view(-1, 1, 1, 1)
        model[0].bias *= factor
        model[2].weight /= factor.view(-1, 1, 1, 1)
    candidates = {"int8": INT8, "equalised": pb.QuantizationSettings(cross_layer_equalization=True)}
    found = pb.sensitivity(model, [torch.randn(4, 3, 8, 8) for _ in range(2)], candidates=candidates, exact=True)
    plain, equalised = found["2"]
    assert equalised.exact > plain.exact + 10
    assert equalised.own_sqnr > plain.own_sqnr + 10
    assert equalised.estimated == pytest.approx(equalised.exact, abs=5)


def test_what_bias_correction_gains_is_a_candidate_of_its_own(model: nn.Module, samples: list[torch.Tensor]) -> None:
    plain = pb.QuantizationSettings(**{**vars(FOUR), "bias_correction": False})
    found = pb.sensitivity(model, samples, candidates={"corrected": FOUR, "plain": plain}, exact=True)
    gains = []
    for fqn in dict.fromkeys(row.fqn for row in found.rows):
        corrected, other = found[fqn]
        gains.append(corrected.exact - other.exact)
        assert corrected.estimated - other.estimated == pytest.approx(gains[-1], abs=4)
    assert max(gains) > 1
    assert min(gains) > -0.5
    compiled = pb.compile_model(
        model,
        calibration_inputs=samples,
        deployment_settings=pb.EagerDeployment(),
        compile_options=pb.CompileOptions(keep_ruined_layers_in_float=False),
        quantization_settings=plain,
        layer_quantization_settings=dict.fromkeys(
            ("Conv2d", "Linear"), pb.LayerQuantizationSettings(bias_correction=True)
        ),
    )
    switched = pb.compile_model(
        model,
        calibration_inputs=samples,
        deployment_settings=pb.EagerDeployment(),
        compile_options=pb.CompileOptions(keep_ruined_layers_in_float=False),
        quantization_settings=FOUR,
    )
    assert torch.equal(compiled(samples[0]), switched(samples[0]))


class Leaves(nn.Module):
    """Two layers with lines between them that no graph can hold and that have no derivative."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.after = nn.Linear(16, 32), nn.Linear(32, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.before(x)
        if float(x.sum()) > 1e9:
            x = -x
        return self.after(torch.relu(x))


def test_layers_before_leaves_are_judged_by_their_own_noise_and_measured(recwarn: pytest.WarningsRecorder) -> None:
    found = pb.sensitivity(Leaves().eval(), [torch.randn(8, 16) for _ in range(3)], fullgraph=False)
    assert {row.fqn for row in found.rows if row.exact is not None} == {"before", "after"}
    assert all(abs(row.exact - row.estimated) < 12 for row in found.rows if row.exact is not None)
    assert not [each for each in recwarn.list if "autograd" in str(each.message)]


def test_drops_within_the_spread_of_a_metric_rank_nothing(found: pb.Sensitivity) -> None:
    rows = tuple(dataclasses.replace(row, drop=0.001 * (place % 3)) for place, row in enumerate(found.rows))
    noisy = dataclasses.replace(found, rows=rows, metric="noisy", in_float=0.9, spread=0.01)
    assert [row.exact for row in noisy.worst(6)] == [row.exact for row in found.worst(6)]
