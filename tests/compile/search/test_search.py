"""The settings that are best within a budget: one layer that quantization ruins stays in float, the others do not."""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import itertools
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import prepbench as pb
from prepbench.errors import InputError, MetricError, SettingsError, TargetError, UnknownNameError
from prepbench.measure.latency import Latency
from prepbench.search import measuring
from prepbench.search.mixtures import FLOAT
from prepbench.search.objective import OBJECTIVES, Objective
from prepbench.search.search import _notes
from prepbench.search.tables import Corrected, Estimate
from prepbench.search.target_job import TargetJob
from prepbench.targets import tensorrt

LAYERS = ("first", "odd", "wide", "head")


class Net(nn.Module):
    """Four layers; what enters ``odd`` has a channel a thousand times as large as the others, which carry the result.

    In 8 bits nothing is left of these others. Channels cannot be scaled past an ELU.
    """

    def __init__(self) -> None:
        super().__init__()
        self.first, self.odd = nn.Linear(16, 32), nn.Linear(32, 32)
        self.wide, self.head = nn.Linear(32, 64), nn.Linear(64, 4)
        with torch.no_grad():
            self.first.weight[0] *= 1000
            self.odd.weight[:, 0] = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.relu(self.wide(torch.relu(self.odd(nn.functional.elu(self.first(x)))))))


@functools.cache
def net() -> nn.Module:
    torch.manual_seed(0)
    return Net().eval()


def test_times_away_from_the_own_hardware_are_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensorrt, "has_tensorrt", lambda: False)
    scoring, timing = SimpleNamespace(shuffled=False), SimpleNamespace(busy_cores=0.0)
    jobs = [
        SimpleNamespace(label=name, lacking={}, notes=(), choices={}, deployment=settings)
        for name, settings in {"ORT": pb.OnnxRuntimeDeployment(), "TensorRT": pb.TensorRtDeployment()}.items()
    ]
    assert _notes(scoring, timing, jobs) == [  # type: ignore[arg-type]
        "TensorRT: timed in ONNX Runtime, not on its own hardware, so its times say nothing about that."
    ]
    timing.busy_cores = 1e3
    assert "other programs kept" in _notes(scoring, timing, jobs)[-1]  # type: ignore[arg-type]


def inputs(count: int = 6, seed: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(8, 16, generator=generator) for _ in range(count)]


def pairs() -> list[tuple[torch.Tensor, torch.Tensor]]:
    """What the model itself says in float is right."""
    return [(x, net()(x).argmax(-1)) for x in inputs(12, 1)]


SAVED = {"first": 0.2, "odd": 0.4, "wide": 0.3, "head": 0.1}
"""Milliseconds that each layer saves in 8 bits, of 2 in float."""


def clock(candidates: Mapping[str, Any], *_: Any, rounds: int, **__: Any) -> dict[str, Latency]:
    """Times that follow from what is quantized, so that what is found does not depend on the machine."""
    return {name: Latency((ms_of(compiled),) * rounds, "own process") for name, compiled in candidates.items()}


def ms_of(compiled: pb.CompiledModel) -> float:
    quantized = [row.fqn for row in compiled.report.layers if row.quantized]
    borders = sum((one in quantized) != (other in quantized) for one, other in itertools.pairwise(LAYERS))
    return 2.0 - sum(SAVED[fqn] for fqn in quantized) + 0.02 * borders


@pytest.fixture(autouse=True)
def timed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of what was timed, with the times of :func:`clock`."""
    return noted(monkeypatch, clock)


def noted(patch: pytest.MonkeyPatch, measure: Any) -> list[str]:
    """The names of what will be timed, by a clock of the test's own."""
    names: list[str] = []

    def told(candidates: Mapping[str, Any], *others: Any, **more: Any) -> dict[str, Latency]:
        names.extend(candidates)
        return measure(candidates, *others, **more)  # type: ignore[no-any-return]

    clocked(patch, told)
    return names


def clocked(patch: pytest.MonkeyPatch, measure: Any = clock) -> None:
    """Have nothing timed or profiled for real: a real profile would contradict the clock."""
    patch.setattr(measuring, "measure_latency", measure)
    patch.setattr(measuring, "timing_lock", lambda progress: contextlib.nullcontext())
    patch.setattr(measuring.Timing, "prepare", lambda self, count: None)
    patch.setattr(measuring.Subject, "profiled", lambda self, compiled: None)


def find(budget: pb.Budget, **more: Any) -> pb.SearchResult:
    return pb.search(net(), inputs(), budget=budget, **{"targets": [pb.EagerDeployment()], "rounds": 2, **more})


@pytest.fixture(scope="module")
def found() -> pb.SearchResult:
    """A search by SQNR, made once."""
    with pytest.MonkeyPatch.context() as patch:
        clocked(patch)
        return find(pb.Budget(min_metric=20))


def test_only_what_is_ruined_stays_in_float(found: pb.SearchResult) -> None:
    assert found.best.float_layers == ("odd",)
    assert found.reached
    assert found.proven
    assert found.best.measured
    assert found.best.metric is not None
    assert found.best.metric > 20
    assert found["int8"].metric is not None
    assert found["int8"].metric < 10
    assert found["int8"].ms == pytest.approx(1.0)
    assert found.best.ms == pytest.approx(2.0 - 0.6 + 0.04)
    assert found.best.predicted_ms == pytest.approx(found.best.ms, rel=0.25)  # no profile knows this clock
    assert found.evaluations == 3  # int8, float and the best
    assert found.compiled == 3


def test_settings_and_code_compile_the_best(found: pb.SearchResult) -> None:
    compiled = pb.compile_model(net(), calibration_inputs=inputs(), **found.settings)
    assert {row.fqn: row.quantized for row in compiled.report.layers} == {fqn: fqn != "odd" for fqn in LAYERS}
    names: dict[str, Any] = {"model": net(), "calibration_inputs": inputs()}
    exec(found.code(), names)
    assert names["compiled"].report.layers == compiled.report.layers


def test_another_budget_is_solved_without_measuring(found: pb.SearchResult, timed: list[str]) -> None:
    loose = found.with_budget(pb.Budget(min_metric=1))
    assert loose.best.name == "int8"
    assert loose.proven
    quiet = found.with_budget(pb.Budget(max_latency_ms=1.8, minimize="drop"))
    assert quiet.reached
    assert "odd" in quiet.best.float_layers
    assert quiet.best.value("latency") <= 1.8
    small = found.with_budget(pb.Budget(min_metric=20, minimize="size"))
    assert small.best.value("size") == min(each.value("size") for each in small.candidates if each.value("drop") < 0.01)
    beyond = found.with_budget(pb.Budget(min_metric=20, max_size_mb=1e-3))
    assert not beyond.reached
    assert "out of reach" in beyond.why
    assert "MB" in beyond.why
    assert timed == []
    assert found.with_budget(found.budget).best == found.best


def test_a_mixture_has_one_name_whatever_the_budget(found: pb.SearchResult) -> None:
    budgets = [pb.Budget(min_metric=each, minimize=goal) for goal in ("latency", "size") for each in (5, 15, 30, 40)]
    results = [found, *map(found.with_budget, budgets)]
    layers: dict[str, list[dict[str, str]]] = {}
    for each in (one for result in results for one in result.candidates):
        layers.setdefault(each.name, []).append(dict(each.layers))
    assert len(layers) > len(found.candidates)
    for name, of_it in layers.items():
        assert all(one == of_it[0] for one in of_it), name


def test_the_front_falls_with_time(found: pb.SearchResult) -> None:
    front = found.front
    assert found.best in front
    assert found["int8"] in front
    pairs = [(each.value("latency"), each.value("drop")) for each in front]
    assert all(one[0] > other[0] and one[1] < other[1] for one, other in itertools.pairwise(pairs))


def test_a_drop_of_the_users_metric_and_how_often_it_is_computed() -> None:
    calls = []

    def accuracy(output: torch.Tensor, target: torch.Tensor) -> float:
        calls.append(1)
        return pb.metrics.accuracy(output, target)

    result = find(pb.Budget(max_drop=0.03), data=pairs(), metric=accuracy)
    assert result.metric == "accuracy"
    assert result.base == 1.0
    assert result.reached
    assert result.best.float_layers == ("odd",)
    assert result.best.drop is not None
    assert result.best.drop <= 0.03
    assert result["int8"].drop is not None
    assert result["int8"].drop > 0.05
    assert len(calls) == result.evaluations * len(pairs()) + 2  # and the first batch twice, to see that it is steady
    assert result.evaluations <= 5


def test_what_turns_out_to_be_slow_is_not_scored(monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(candidates: Mapping[str, Any], *_: Any, rounds: int, **__: Any) -> dict[str, Latency]:
        times = {name: 3.0 if name.startswith("mixture") else ms_of(one) for name, one in candidates.items()}
        return {name: Latency((ms,) * rounds, "own process") for name, ms in times.items()}

    clocked(monkeypatch, slow)
    result = find(pb.Budget(max_drop=0.03), data=pairs(), metric=pb.metrics.accuracy, tries=2)
    assert result.best.name == "float"
    assert result.evaluations == 2  # float and int8
    assert result["mixture 1"].ms == pytest.approx(3.0)
    assert result["mixture 1"].metric is None


def test_a_loss_is_better_when_it_is_lower() -> None:
    def error(output: torch.Tensor, target: torch.Tensor) -> float:
        return 1 - pb.metrics.accuracy(output, target)

    result = find(pb.Budget(min_metric=0.05), data=pairs(), metric=error, higher_is_better=False)
    assert result.best.float_layers == ("odd",)
    assert result.base == 0.0


def test_a_budget_out_of_reach_has_a_nearest() -> None:
    result = find(pb.Budget(min_metric=20, max_latency_ms=1.2, minimize="size"))
    assert not result.reached
    assert result.best.measured
    assert result.best.float_layers == ("odd",)
    assert "out of reach. The nearest is" in result.why
    assert "1.44 ms a call" in result.why


def test_a_metric_that_is_not_deterministic_is_told() -> None:
    count = itertools.count()

    def unsteady(output: torch.Tensor, target: torch.Tensor) -> float:
        return pb.metrics.accuracy(output, target) - 0.01 * (next(count) % 3)

    result = find(pb.Budget(max_drop=0.05), data=pairs()[:4], metric=unsteady)
    assert any("unsteady is not deterministic: two evaluations" in note for note in result.notes)
    assert result.notes[0] in repr(result)


def test_no_tries_are_said_to_be_too_few(timed: list[str]) -> None:
    result = find(pb.Budget(min_metric=20), tries=0)
    assert not result.proven
    assert "give more with tries=" in result.why
    assert set(timed) == {"float", "int8"}


def test_the_same_measurements_give_the_same_result(found: pb.SearchResult) -> None:
    again = find(pb.Budget(min_metric=20))
    assert again.best.settings == found.best.settings
    names = [[each.layers for each in result.candidates if each.measured] for result in (again, found)]
    assert names[0] == names[1]


def test_a_mixture_that_cannot_be_compiled_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = measuring.Subject.compiled

    def broken(self: Any, arguments: Mapping[str, Any], progress: Any) -> pb.CompiledModel:
        if set(arguments.get("layer_quantization_settings", ())) == {"odd"}:
            raise SettingsError("Nothing would be quantized.")
        return compiled(self, arguments, progress)

    monkeypatch.setattr(measuring.Subject, "compiled", broken)
    result = find(pb.Budget(min_metric=20))
    assert result.best.measured
    assert "odd" in result.best.float_layers
    assert len(result.best.float_layers) == 2
    assert "PyTorch eager: 3 int8, 1 float could not be compiled: Nothing would be quantized." in result.notes


def test_a_choice_with_which_the_model_is_not_compiled_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled, first = measuring.Subject.compiled, []

    def broken(self: Any, arguments: Mapping[str, Any], progress: Any) -> pb.CompiledModel:
        settings = arguments.get("quantization_settings")
        if settings is not None and settings.weights_num_bits == 4:
            first.append(settings)
            raise TargetError("It gives other results.")
        return compiled(self, arguments, progress)

    monkeypatch.setattr(measuring.Subject, "compiled", broken)
    bits = pb.QuantizationSettings(weights_num_bits=4, prefer_weights_only_quantization=True)
    choices = {"few": bits, "int8": pb.QuantizationSettings()}
    result = find(pb.Budget(min_metric=20), candidates=choices)
    assert len(first) == 1
    assert result.best.name == "mixture 1"
    assert set(result.best.layers.values()) == {"float", "int8"}
    note = "no layer takes 'few': with it everywhere, the model was not compiled: It gives other results."
    assert note in str(result)
    with pytest.raises(TargetError, match="other results"):
        find(pb.Budget(min_metric=20), candidates={"few": bits})


def test_threads_simulate_the_same(found: pb.SearchResult) -> None:
    with concurrent.futures.ThreadPoolExecutor(2) as executor:
        again = find(pb.Budget(min_metric=20), executor=executor)
    assert again.best.settings == found.best.settings
    assert again["int8"].noise == found["int8"].noise


def test_cancelling_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = {name: value.clone() for name, value in net().state_dict().items()}

    def cancel(step: pb.Progress) -> None:
        if step.stage == "save" and step.message.startswith("mixture"):
            raise pb.Cancelled("enough")

    with pytest.raises(pb.Cancelled, match="enough"):
        find(pb.Budget(min_metric=20), progress=cancel)
    assert [path for path in tmp_path.iterdir() if path.is_dir()] == []
    assert all(torch.equal(value, before[name]) for name, value in net().state_dict().items())


def test_what_a_journal_holds_is_not_measured_again(tmp_path: Path, timed: list[str]) -> None:
    path, scored = tmp_path / "results.sqlite", []

    def accuracy(output: torch.Tensor, target: torch.Tensor) -> float:
        scored.append(1)
        return pb.metrics.accuracy(output, target)

    def searched(**more: Any) -> pb.SearchResult:
        return find(pb.Budget(max_drop=0.03), data=pairs(), metric=accuracy, results=path, **more)

    def stop(step: pb.Progress) -> None:
        if step.stage == "save" and step.message.startswith("mixture"):
            raise pb.Cancelled("enough")

    with pytest.raises(pb.Cancelled):
        searched(progress=stop)
    assert len(pb.load_results(path)) == 2
    timed.clear()
    first = searched()
    assert set(timed) == {"float", "mixture 1"}
    timed.clear()
    scored.clear()
    again = searched()
    assert timed == []
    assert len(scored) == len(pairs()) + 2  # of the model in float
    assert again.evaluations == 1
    assert again.best.settings == first.best.settings
    assert (again.best.ms, again.best.metric) == (first.best.ms, first.best.metric)
    assert {result.metric for result in pb.load_results(path)} == {"accuracy"}
    find(pb.Budget(min_metric=20), results=path)  # another metric is another workload
    assert "int8" in timed


def test_a_journal_has_no_scores_of_what_a_metric_read_before(tmp_path: Path, timed: list[str]) -> None:
    holder, log = SimpleNamespace(factor=1.0, of=None), []

    def scaled(output: torch.Tensor, target: torch.Tensor) -> float:
        log.append(1)
        return holder.factor * pb.metrics.accuracy(output, target)

    def searched() -> pb.SearchResult:
        timed.clear()
        return find(pb.Budget(max_drop=0.03), data=pairs(), metric=scaled, results=tmp_path / "r.sqlite", tries=0)

    first = searched()
    assert searched().best.metric == first.best.metric
    assert timed == []
    holder.factor = 0.5
    again = searched()
    assert timed
    assert again.best.metric == first.best.metric / 2
    holder.of = (n for n in range(2))
    notes = searched().notes
    assert timed
    assert any("metric reads" in note and "(generator)" in note and "not reused" in note for note in notes)


def test_of_two_targets_the_faster_is_found() -> None:
    targets = [pb.EagerDeployment(), pb.OnnxRuntimeDeployment(intra_op_threads=1)]
    result = find(pb.Budget(min_metric=20), targets=targets)
    assert {each.target for each in result.candidates} == {"PyTorch eager", "ONNX Runtime"}
    assert result["int8, ONNX Runtime"].measured
    assert result.best.float_layers == ("odd",)


def test_times_of_other_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """From end to end on a target, with real times."""
    monkeypatch.undo()  # that of the fixture, too
    result = pb.search(net(), inputs(), budget=pb.Budget(min_metric=20), rounds=2, tries=1)
    assert result.best.metric is not None
    assert result.best.metric >= 20
    assert all(each.ms is None or each.ms > 0 for each in result.candidates)
    assert all(each.size_bytes for each in result.candidates if each.measured)


DROP = pb.Budget(max_drop=0.01)
MISTAKES: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "a drop without a metric": ({"budget": DROP}, SettingsError, r"max_drop=0.01 needs a metric.*min_metric=20"),
    "a metric without data": ({"budget": DROP, "metric": pb.metrics.accuracy}, SettingsError, "metric needs data"),
    "data that is read once": ({"data": iter(inputs())}, InputError, r"read only once. Give a list, data=list"),
    "no targets": ({"targets": []}, SettingsError, "targets is empty"),
    "a target that is none": ({"targets": ["onnx"]}, SettingsError, r"targets\[0\] must be of type Deployment"),
    "no budget": ({"budget": 0.01}, SettingsError, r"budget must be of type Budget.*pb.Budget\(max_drop=0.01\)"),
    "a metric without a number": (
        {"budget": DROP, "data": pairs(), "metric": lambda output, target: None}, MetricError, "it returned None",
    ),
    "a candidate that the target lacks": (
        {"candidates": {"a16": pb.QuantizationSettings(activations_num_bits=16)},
         "targets": [pb.OpenVinoDeployment()]},
        SettingsError, r"candidates\['a16'\]: OpenVINO does not support 16-bit activations",
    ),
    "no candidates": ({"candidates": {}}, SettingsError, "candidates is empty"),
    "a candidate of another type": ({"candidates": {"int8": 8}}, SettingsError, r"candidates\['int8'\] must be"),
    "a candidate called float": (
        {"candidates": {"float": pb.QuantizationSettings()}}, SettingsError, "'float' is the name of layers that",
    ),
    "a candidate with several bits": (
        {"candidates": {"few": pb.QuantizationSettings(weights_num_bits=[4, 8])}}, SettingsError, "several",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_told(name: str) -> None:
    more, error, message = MISTAKES[name]
    with pytest.raises(error, match=message):
        find(more.get("budget", pb.Budget(min_metric=20)), **{key: more[key] for key in more if key != "budget"})


def test_a_name_that_is_not_there(found: pb.SearchResult) -> None:
    with pytest.raises(UnknownNameError, match="no candidate is called 'int9'"):
        found["int9"]


def test_a_search_aims_at_an_objective_that_is_added_to_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    # what is fastest is not leanest: "wide" takes more in 8 bits
    def kilobytes(job: TargetJob) -> Corrected:
        known = {(fqn, name): 1.0 for fqn in job.simulation.layers for name in job.choices}
        known |= {(fqn, FLOAT): 4.0 for fqn in job.simulation.layers}
        return Corrected({part: Estimate(value, 1e-3) for part, value in (known | {("wide", "int8"): 9.0}).items()})

    memory = Objective(
        name="peak memory",
        best="the leanest",
        title="peak memory (kB)",
        unit="kB",
        estimate=kilobytes,
    )
    with pytest.raises(SettingsError, match="minimize must be 'latency' or 'size' or 'drop'"):
        pb.Budget(min_metric=20, minimize="peak memory")
    monkeypatch.setitem(OBJECTIVES, "peak memory", memory)
    clocked(monkeypatch)
    found = find(pb.Budget(min_metric=20, minimize="peak memory"), candidates={"int8": pb.QuantizationSettings()})
    assert found.best.float_layers == ("odd", "wide")
    assert found.proven
    assert found.best.value("peak memory") == 10
    assert found.caption.startswith("The leanest with a metric of 20 or better")
    values = [each.value("peak memory") for each in found.front]
    assert len(values) > 1
    assert values == sorted(values, reverse=True)
    layout = found.figure([pb.Budget(min_metric=db, minimize="peak memory") for db in (20, 200)]).layout
    assert "SQNR against peak memory" in layout.title.text
    assert layout.xaxis.title.text == "peak memory (kB)"
    assert found.with_budget(pb.Budget(min_metric=200, minimize="peak memory")).best.float_layers == LAYERS
    with pytest.raises(UnknownNameError, match="'peak memory'"):
        found.best.value("memory")
