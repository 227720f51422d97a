from __future__ import annotations

import errno
import math

import numpy as np
import pytest
import torch
from torch import nn

import prepbench as pb
from prepbench.errors import InputError, MetricError, StorageError
from prepbench.inputs import Sample, batch_size
from prepbench.measure.batches import read_batches
from prepbench.measure.latency import interval, paired_ratio, percentile
from prepbench.measure.run import Comparison, compare


class Scale(nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(factor))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.factor


class TwoInputs(nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a + b


def mean_error(output, target):
    return (output - target).abs().mean()


def untimed(candidates, data, **options) -> Comparison:
    return compare(candidates, data, rounds=0, **options)


PAIRS = [(torch.ones(3, 2), torch.zeros(3, 2)), (torch.full((1, 2), 5.0), torch.zeros(1, 2))]


def test_batches_count_by_their_size():
    result = untimed({"one": Scale(1.0), "two": Scale(2.0)}, PAIRS, metric=mean_error, higher_is_better=False)
    assert [row.metric for row in result.rows] == [2.0, 4.0]  # (3 * 1 + 1 * 5) / 4; unweighted it would be 3 and 6
    assert [row.change for row in result.rows] == [0.0, 2.0]
    assert (result.samples, result.batch_size, result.metric) == (4, 3, "mean_error")


def test_generators_and_loaders_are_read_once():
    reads = []

    def generate():
        for pair in PAIRS:
            reads.append(1)
            yield pair

    result = untimed({"a": Scale(1.0), "b": Scale(1.0), "c": Scale(3.0)}, generate(), metric=mean_error)
    assert len(reads) == 2
    loader = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(torch.ones(5, 2), torch.zeros(5, 2)), batch_size=2
    )
    loaded = untimed({"a": Scale(2.0)}, loader, metric=mean_error)
    assert result["c"].metric == 6.0
    assert (loaded["a"].metric, loaded.samples) == (2.0, 5)


@pytest.mark.parametrize(
    "given",
    [
        (torch.ones(2, 1), torch.ones(2, 1)),
        {"a": torch.ones(2, 1), "b": torch.ones(2, 1)},
        (torch.ones(2, 1), {"b": torch.ones(2, 1)}),
    ],
    ids=["tuple", "dict", "tuple and dict"],
)
def test_input_forms(given):
    assert untimed({"m": TwoInputs()}, [(given, torch.ones(2, 1))], metric=mean_error)["m"].metric == 1.0
    assert untimed({"m": TwoInputs()}, [given]).rows[0].metric == math.inf


def test_the_candidate_that_names_its_parameters_decides_how_inputs_are_passed():
    whole = {"pixels": torch.ones(2, 3)}

    class TakesDict(nn.Module):
        def forward(self, batch):
            return batch["pixels"]

    def anything(*args, **kwargs):
        assert not kwargs
        return args[0]["pixels"] * 2

    result = untimed({"anything": anything, "dict": TakesDict()}, [whole])
    assert result["dict"].metric == pytest.approx(10 * math.log10(4))


def test_without_metric_sqnr_against_the_first():
    result = untimed({"float32": Scale(1.0), "near": Scale(1.01), "same": Scale(1.0)}, [torch.ones(2, 2)] * 2)
    assert result["float32"].metric == math.inf
    assert result["near"].metric == pytest.approx(40.0, abs=1e-3)
    assert result["same"].metric == math.inf
    assert result.unit == "dB"
    assert result["near"].change is None
    assert "reference" in repr(result).splitlines()[2]
    assert "∞" in repr(result).splitlines()[4]


def test_metrics_sqnr_compares_with_the_targets():
    result = untimed(
        {"a": Scale(1.01), "b": Scale(1.0)}, [(torch.ones(2, 2), torch.ones(2, 2))], metric=pb.metrics.sqnr
    )
    assert result["a"].metric == pytest.approx(40.0, abs=1e-3)
    assert result["b"].metric == math.inf


@pytest.mark.parametrize(
    ("returned", "words"),
    [(None, "None"), ("0.5", "str"), (torch.ones(3), "3 elements"), (float("nan"), "nan")],
)
def test_a_metric_without_a_number_is_named(returned, words):
    def half_broken(output, target):
        return returned if float(output.flatten()[0]) == 10.0 else 1.0

    with pytest.raises(
        MetricError, match=rf"'half_broken'.*candidate 'twice' on data\[1\].*{words}.*one finite number"
    ):
        untimed({"once": Scale(1.0), "twice": Scale(2.0)}, PAIRS, metric=half_broken)


def test_a_metric_that_raises_keeps_its_cause():
    with pytest.raises(MetricError, match=r"data\[0\]: InputError: logits of shape") as caught:
        untimed({"m": Scale(1.0)}, [(torch.ones(3, 2), torch.zeros(7))], metric=pb.metrics.accuracy)
    assert isinstance(caught.value.__cause__, ValueError)


def test_nan_outputs_are_told_not_averaged():
    with pytest.raises(MetricError, match=r"candidate 'broken' on data\[0\].*NaN"):
        untimed({"good": Scale(1.0), "broken": Scale(math.nan)}, [torch.ones(2, 2)])


@pytest.mark.parametrize(
    ("data", "metric", "words"),
    [
        ([(torch.ones(1, 2), torch.ones(1)), torch.ones(1, 2)], mean_error, r"data\[1\] must be a pair .* got Tensor"),
        ([(torch.ones(1, 2),)], mean_error, r"data\[0\] must be a pair .* tuple of length 1"),
        ([], None, "data is empty"),
        (torch.ones(3, 2), None, r"data must be an iterable of inputs.* got Tensor. Give one batch as data=\[inputs\]"),
        (np.ones((3, 2)), None, r"data must be an iterable of inputs.* got ndarray. Give one batch as data=\[inputs\]"),
        ([torch.ones(0, 2)], None, r"data\[0\] has no rows"),
        ([(np.ones((0, 2)), np.ones(0))], mean_error, r"data\[0\] has no rows"),
        ([np.array([object()])], None, r"data\[0\] holds an array of object.* Convert it to numbers\.\nDoc"),
        (7, mean_error, r"iterable of \(input, target\) pairs"),
        ([torch.ones(1, 2), "text"], None, r"'scale' failed on data\[1\] \('text'\)"),
    ],
)
def test_data_of_another_form_is_refused(data, metric, words):
    with pytest.raises(InputError, match=words):
        untimed({"scale": Scale(1.0)}, data, metric=metric)


@pytest.mark.parametrize(
    ("candidates", "options", "words"),
    [
        ({}, {}, "candidates is empty"),
        (Scale(1.0), {}, "dict of models"),
        ({"": Scale(1.0)}, {}, "name"),
        ({"a": 3}, {}, r"candidates\['a'\] must be a module"),
        ({"a": Scale(1.0)}, {"metric": "accuracy"}, "metric must be a function"),
        ({"a": Scale(1.0)}, {"rounds": -1}, "rounds"),
        ({"a": Scale(1.0)}, {"timeout": 0}, "timeout"),
    ],
)
def test_arguments_are_checked(candidates, options, words):
    with pytest.raises(ValueError, match=words) as caught:
        compare(candidates, [torch.ones(1, 2)], **options)
    assert isinstance(caught.value, pb.PrepbenchError)


def test_models_data_and_random_state_are_left_as_they_were():
    class Counts(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("calls", torch.zeros(1))
            self.register_buffer("last", torch.zeros(1))
            self.norm = nn.BatchNorm1d(2)
            self.drop = nn.Dropout(0.5)

        def forward(self, x):
            self.calls += 1
            self.last = x.detach().mean().reshape(1)
            x += torch.rand(1)  # in place, and random
            return self.drop(self.norm(x))

    model = Counts()
    model.norm.eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    buffer, data, state = model.last, [torch.ones(4, 2)], torch.random.get_rng_state()
    result = untimed({"a": model, "b": model}, data)
    assert result["b"].metric == math.inf  # the same input and the same random numbers for both
    assert (model.training, model.drop.training, model.norm.training) == (True, True, False)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert model.last is buffer
    assert torch.equal(data[0], torch.ones(4, 2))
    assert torch.equal(state, torch.random.get_rng_state())


def test_flags_are_restored_when_something_fails():
    model = Scale(1.0)
    with pytest.raises(MetricError):
        untimed({"m": model}, PAIRS, metric=lambda output, target: None)
    assert model.training


def test_a_result_is_a_value(exported):
    given = torch.ones(2, 4)
    result = untimed(
        {"float": exported(nn.Linear(4, 3), given), "plain": lambda x: nn.functional.pad(x, (0, -1))}, [given]
    )
    assert result["plain"].size_of == "saved artifact"  # a function is captured like a module
    assert result["float"].size_of == "saved artifact"
    assert result["float"].size_bytes > 3 * 5 * 4
    table = result.table()
    assert list(table["candidate"]) == ["float", "plain"]
    assert table["size MB"].dtype == float
    assert table["p50 ms"].isna().all()
    bundle = result._repr_mimebundle_()
    assert set(bundle) == {"application/vnd.plotly.v1+json", "text/html", "text/plain"}
    assert bundle["text/plain"] == repr(result)
    with pytest.raises(KeyError, match="'float', 'plain'"):
        result["int8"]
    with pytest.raises(AttributeError):
        result.metric = "other"


def test_progress_names_stages_and_can_cancel():
    steps = []
    untimed({"m": Scale(1.0)}, [torch.ones(1, 2)] * 3, progress=steps.append)
    assert [(s.stage, s.done, s.total) for s in steps if s.stage == "accuracy"] == [
        ("accuracy", i, 3) for i in range(3)
    ]

    def cancel(step):
        if step.stage == "accuracy" and step.done == 1:
            raise pb.Cancelled("enough")

    model = Scale(1.0)
    with pytest.raises(pb.Cancelled):
        untimed({"m": model}, [torch.ones(1, 2)] * 3, progress=cancel)
    assert model.training


def test_batch_size_is_the_first_dimension_of_the_first_tensor_that_has_one():
    assert batch_size(Sample((torch.tensor(1.0), {"x": torch.ones(5, 2)}))) == 5
    assert batch_size(Sample((3,), {"y": "text"})) == 1


def test_targets_tell_the_number_of_samples_where_inputs_begin_with_time():
    class Last(nn.Module):
        def forward(self, x):
            return x[-1]

    data = [(torch.randn(50, 2, 3), torch.tensor([0, 1])), (torch.randn(10, 6, 3), torch.arange(6) % 3)]
    found = untimed({"last": Last()}, data, metric=lambda output, target: float(len(target)))
    assert found.samples == 8
    assert found.rows[0].metric == (2 * 2 + 6 * 6) / 8


def test_a_loss_as_metric_is_better_where_it_is_lower_and_that_is_said():
    data = [(torch.randn(4, 3), torch.arange(4) % 3)]
    found = untimed({"scale": Scale(1.0)}, data, metric=torch.nn.functional.cross_entropy)
    assert not found.higher_is_better
    assert found.caption == "cross_entropy over 4 samples, lower is better; latency not measured."


def test_an_empty_generator_is_told():
    with pytest.raises(InputError, match="can be read only once"):
        list(read_batches([Scale(1.0)], iter(()), with_targets=False))


def test_percentile_interpolates():
    assert percentile((4.0, 1.0, 3.0, 2.0), 50) == 2.5
    assert percentile((7.0,), 90) == 7.0
    assert percentile((), 50) is None


def test_a_ratio_is_paired_by_round():
    # the machine was ten times slower in the middle rounds: the ratio within each round still is 2
    base, times = [2.0, 2.2, 20.0, 22.0, 20.0, 21.0], [1.0, 1.1, 10.0, 11.0, 1.0, 1.1]
    assert paired_ratio(base, times, rounds=3) == pytest.approx(2.0)
    assert paired_ratio([1.0, 1.0], [4.0, 4.0], rounds=2) == 0.25
    assert paired_ratio([], [], rounds=0) is None


def test_the_interval_of_a_median_is_that_of_its_rounds():
    rounds = [[float(i), float(i)] for i in range(1, 21)]
    flat = [time for turn in rounds for time in turn]
    assert interval(flat, rounds=20) == (6.0, 15.0)  # 20 coins show 5 heads or fewer, or 15 or more, in 4.1 %
    disturbed = [*flat[:-4], 500.0, 500.0, 900.0, 900.0]
    assert interval(disturbed, rounds=20) == (6.0, 15.0)
    assert interval([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], rounds=6) == (1.0, 6.0)


def test_few_rounds_have_the_interval_of_their_calls():
    times = [float(i) for i in range(1, 12)]
    assert interval(times, rounds=1) == (2.0, 10.0)
    assert interval([1.0], rounds=1) is None
    assert interval([], rounds=0) is None


def test_intervals_hold_the_median():
    rng = np.random.default_rng(0)
    held = 0
    for _ in range(400):
        low, high = interval(list(rng.lognormal(0.0, 0.3, 20)), rounds=20)
        held += low <= 1.0 <= high
    assert 0.93 <= held / 400 <= 0.99


def test_a_full_disk_is_no_note(monkeypatch):
    compiled = pb.compile_model(nn.Linear(4, 2), tracing_inputs=[torch.ones(3, 4)])

    def full(folder):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(type(compiled), "save", lambda self, folder: full(folder))
    with pytest.raises(StorageError, match="no space left on device"):
        compare({"compiled": compiled}, [torch.ones(3, 4)], rounds=1)


class OneRowIsOther(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) if x.shape[0] > 1 else self.layer(x) * 2


def test_calls_beyond_conditions_are_scored_and_timed_where_they_are_allowed() -> None:
    samples = [torch.randn(2, 4), torch.randn(3, 4)]
    compiled = pb.compile_model(OneRowIsOther().eval(), tracing_inputs=samples)
    with pytest.raises(InputError, match="breaks a condition"):
        pb.compare({"compiled": compiled}, [torch.ones(1, 4)], rounds=1)
    compiled.allow_unproven = True
    (row,) = pb.compare({"compiled": compiled}, [torch.ones(1, 4)], rounds=1).rows
    assert row.timed_in == "own process", row.note
    assert row.p50_ms > 0


class Streamed(torch.utils.data.IterableDataset):
    """A data set without a length; its loader has ``__len__``, which raises."""

    def __iter__(self):
        yield from ((torch.full((4,), float(index)), index % 3) for index in range(10))


@pytest.mark.parametrize("transform", [None, lambda pair: (pair[0] * 2, pair[1])])
def test_a_streamed_data_set_is_read_as_others(transform):
    loader = torch.utils.data.DataLoader(Streamed(), batch_size=4)
    found = pb.compare(
        {"net": torch.nn.Linear(4, 3)}, loader, metric=pb.metrics.accuracy, rounds=0, transform=transform
    )
    assert found.samples == 10
    swept = pb.sweep({"model": {"net": torch.nn.Linear(4, 3)}, "target": [pb.EagerDeployment()]}, loader, rounds=0)
    assert len(swept.rows) == 1
