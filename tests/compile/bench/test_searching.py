"""Searching on the bench: what comes in while it goes on, the slider, using what was found, and what is refused."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import nn

import prepbench as pb
from prepbench.bench import BenchState
from prepbench.bench.cards import CardButton, error_card
from prepbench.errors import PrepbenchError, SettingsError, UnknownNameError
from prepbench.measure.latency import Latency
from prepbench.search import measuring
from prepbench.widgets.bench import BenchControls

LAYERS = ("first", "odd", "wide", "head")


class Net(nn.Module):
    """In 8 bits nothing is left of what passes ``odd``, beside a channel a thousand times as large.

    An ELU keeps the channels from being scaled.
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


def clock(candidates: Mapping[str, Any], *_: Any, rounds: int, **__: Any) -> dict[str, Latency]:
    """Times that follow from what is quantized, so that what is found does not depend on the machine."""
    return {name: Latency((_ms(compiled),) * rounds, "own process") for name, compiled in candidates.items()}


def _ms(compiled: pb.CompiledModel) -> float:
    quantized = [row.fqn for row in compiled.report.layers if row.quantized]
    borders = sum((one in quantized) != (other in quantized) for one, other in itertools.pairwise(LAYERS))
    return 2.0 - 0.2 * len(quantized) + 0.02 * borders


@pytest.fixture(autouse=True)
def timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "measure_latency", clock)
    monkeypatch.setattr(measuring, "timing_lock", lambda progress: contextlib.nullcontext())  # nothing is timed


def _bench(**more: Any) -> pb.Bench:
    torch.manual_seed(0)
    samples = [torch.randn(8, 16), torch.randn(6, 16)]
    made = pb.Bench(Net().eval(), tracing_inputs=samples, calibration_inputs=samples, **more)
    made.set_target("PyTorch eager")
    return made


@pytest.fixture(scope="module")
def searched() -> pb.Bench:
    """A bench after a search; tests undo what they choose."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measuring, "measure_latency", clock)
        patch.setattr(measuring, "timing_lock", lambda progress: contextlib.nullcontext())
        bench = _bench()
        bench.search(pb.Budget(min_metric=20))
        return bench


def test_what_was_found_and_the_slider(searched: pb.Bench) -> None:
    found = searched.search_result
    assert found is not None
    assert found.best.float_layers == ("odd",)
    shown = searched.summary().search
    assert shown.budget == "the fastest with a metric of 20 or better"
    assert len(shown.chart.points) == len(shown.found)
    assert [point.kind for point in shown.chart.points].count("float") == 1
    pairs = [pair for pair in zip(shown.chart.points, shown.found, strict=True) if pair[0].kind != "float"]
    assert all((point.kind == "elsewhere") != each.measured for point, each in pairs)
    assert shown.bound == "The fastest with at least"
    assert shown.stops[shown.stop].label == "20 dB"
    assert shown.found[shown.stops[shown.stop].best].kept == "1 of 4: odd"
    assert "Measured beside it: " in shown.stops[shown.stop].why
    bests = [stop.best for stop in shown.stops]
    assert shown.found[bests[0]].name == "int8", "the lowest bound takes the fastest of all"
    assert min(bests) >= 0
    assert len(set(bests)) > 1


def test_using_what_was_found_is_a_choice_that_can_be_undone_and_pasted(searched: pb.Bench) -> None:
    best = searched.search_result.best  # type: ignore[union-attr]
    shown = searched.summary().search
    assert searched.summary().search_now.used == -1
    index = shown.stops[shown.stop].best
    searched.use_candidate(shown.found[index].id)
    assert searched.precisions == {fqn: "float32" if fqn == "odd" else "int8" for fqn in LAYERS}
    assert searched.summary().search_now.used == index
    samples = searched.calibration_inputs
    model = searched.model
    code = searched.code({"model": model, "bench": searched})
    names: dict[str, Any] = {"model": model, "bench": searched, "samples": samples}
    exec(code.partition("comparison =")[0], names)
    quantized = {row.fqn: row.quantized for row in names["compiled"].report.layers}
    assert quantized == {fqn: fqn != "odd" for fqn in LAYERS}
    searched.undo()
    assert searched.summary().search_now.used == -1
    searched.use_candidate(best)
    searched.undo()
    in_float = next(each.id for each in shown.found if each.kept == "all")
    searched.use_candidate(in_float)
    assert set(searched.precisions.values()) == {"float32"}
    searched.undo()
    with pytest.raises(UnknownNameError, match="nothing found has the id 'x'"):
        searched.use_candidate("x")


def test_ruined_layers_stay_in_float_again_once_layers_are_chosen_by_hand(searched: pb.Bench) -> None:
    best = searched.search_result.best  # type: ignore[union-attr]
    assert "ruined" not in searched.summary().base
    searched.use_candidate(best)
    assert not searched.state.options.keep_ruined_layers_in_float
    assert searched.summary().base.endswith(", ruined layers stay quantized")
    assert BenchState.from_json(searched.state.to_json(), searched.axes) == searched.state
    searched.set_layers(["odd"], "weights_num_bits", 4)
    assert searched.state.options.keep_ruined_layers_in_float
    searched.undo()
    searched.set_precision("*", "int8")
    assert searched.state.options.keep_ruined_layers_in_float
    searched.undo()
    searched.set_options(pb.CompileOptions(keep_ruined_layers_in_float=False))  # one's own choice stays
    searched.set_precision("*", "int8")
    assert not searched.state.options.keep_ruined_layers_in_float
    searched.undo()
    searched.undo()
    searched.undo()
    assert searched.state.options.keep_ruined_layers_in_float


def test_what_is_old_is_said(searched: pb.Bench) -> None:
    assert searched.summary().search_now.stale == ""
    searched.set_target("ONNX Runtime")
    assert searched.summary().search_now.stale == "the target was PyTorch eager"
    searched.undo()


def test_candidates_come_in_while_it_goes_on_and_stay_when_it_is_cancelled() -> None:
    bench = _bench()
    filled, counts = threading.Event(), []

    def follow() -> None:
        counts.append(len(bench.summary().search.found))
        if counts[-1] == 2:
            filled.set()
            bench.cancel()

    bench.on_change(follow)
    job = bench.start_search(pb.Budget(min_metric=20))
    assert bench.found.is_searching
    waits = bench.start()
    assert filled.wait(120)
    with pytest.raises(pb.Cancelled):
        job.result(timeout=120)
    shown = bench.summary().search
    assert [each.name for each in shown.found] == ["float", "int8"]
    assert (shown.why, shown.stops) == ("", ())
    assert bench.search_result is None
    bench.use_candidate(shown.found[1].id)  # what was measured can be used all the same
    waits.cancel()


def test_a_metric_bounds_the_drop() -> None:
    torch.manual_seed(0)
    inputs = [torch.randn(8, 16) for _ in range(3)]
    data = [(x, torch.zeros(8, dtype=torch.long)) for x in inputs]
    bench = _bench(data=data, metric=pb.metrics.accuracy)
    assert bench.summary().search.metric == "accuracy"
    result = bench.search(pb.Budget(max_drop=0.5))
    shown = bench.summary().search
    assert shown.bound == "The fastest with a drop of at most"
    assert result.metric == "accuracy"
    assert shown.found[0].drop != "–"


def test_what_the_page_asks_for(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = _bench()
    controls = BenchControls(bench)
    asked: list[Any] = []
    monkeypatch.setattr(bench, "start_search", asked.append)
    send = lambda **content: controls._handle_custom_msg({"action": "search", **content}, [])  # noqa: E731
    send(minimize="latency", loss="30", latency=" ", size="")
    send(minimize="drop", loss="", latency="1,5", size=" 2 ")
    assert asked == [
        pb.Budget(min_metric=30),
        pb.Budget(max_latency_ms=1.5, max_size_mb=2, minimize="drop"),
    ]
    for given, said in (("", "Nothing is limited"), ("soon", "The least SQNR must be a number"), ("nan", "got nan")):
        send(minimize="latency", loss=given, latency="", size="")
        assert controls.message["kind"] == "error"
        assert said in controls.message["text"]
    assert len(asked) == 2
    controls.close()


def _click(button: CardButton) -> dict[str, str]:
    return {"action": "repair", "how": button.action, "value": button.value, "again": button.again}


def test_a_refused_search_is_repaired_and_asked_for_again_by_a_button() -> None:
    bench = pb.Bench(
        Net().eval(),
        calibration_inputs=[torch.randn(4, 16) for _ in range(2)],
        data=[torch.randn(8, 16)],
    )
    bench.set_target("PyTorch eager")
    controls = BenchControls(bench)
    controls._handle_custom_msg({"action": "search", "minimize": "size", "loss": "20", "latency": "", "size": ""}, [])
    card = controls.message
    assert (card["kind"], card["about"]) == ("error", "search"), "at once, where the search has its button"
    (button,) = card["buttons"]
    assert button["label"] == "Make the batch dynamic and search"
    controls._handle_custom_msg(_click(CardButton(**button)), [])
    assert bench.job is not None
    bench.job.result(timeout=300)
    assert bench.search_result is not None
    assert str(bench.search_result.budget) == str(pb.Budget(min_metric=20, minimize="size"))
    assert (controls.message["kind"], controls.message["about"]) == ("info", "search")
    controls.close()


def test_a_search_without_candidates_offers_eight_bits() -> None:
    bench = _bench()
    bench.set_target("ExecuTorch")
    bench.set_precision("*", "int4 weights")
    with pytest.raises(SettingsError, match="None of the planned") as caught:
        bench.search(pb.Budget(min_metric=20))
    first, *_ = error_card(caught.value, leaf_wrap=False, about="search").buttons
    assert (first.label, first.action, first.again) == (
        "Choose 8 bits for all layers and search",
        "eight_bits",
        "search",
    )
    BenchControls(bench)._handle_custom_msg({**_click(first), "again": ""}, [])
    assert bench.precisions["odd"] == "int8"


def test_what_cannot_be_searched_is_said_before() -> None:
    bench = _bench()
    bench.set_leaf_wrap(True)
    assert "one graph" in bench.summary().search_now.unavailable
    with pytest.raises(SettingsError, match="one graph"):
        bench.start_search(pb.Budget(min_metric=20))
    (button,) = bench.summary().search_now.repairs
    BenchControls(bench)._handle_custom_msg(_click(button), [])
    assert not bench.summary().search_now.unavailable
    assert bench.job is None, "nothing was asked for yet"
    plain = pb.Bench(nn.Sequential(nn.Linear(4, 2)), tracing_inputs=[torch.ones(2, 4)])
    assert "calibration inputs" in plain.summary().search_now.unavailable
    relu = pb.Bench(nn.Sequential(nn.ReLU()), calibration_inputs=[torch.ones(2, 4)])
    assert "no layer" in relu.summary().search_now.unavailable


def test_an_error_is_a_card_and_the_queue_goes_on() -> None:
    bench = _bench()
    with pytest.raises(PrepbenchError):
        bench.start_search(pb.Budget(max_drop=0.01)).result(timeout=60)
    assert bench.status.message.kind == "error"
    assert not bench.found.is_searching
    assert not bench.status.running
