"""Data sets of torch and of Hugging Face, with a transform that makes of each element what the model is called with."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import prepbench as pb
from prepbench.errors import InputError, PrepbenchWarning
from prepbench.running.given_samples import normalize_samples
from prepbench.running.transforms import with_transform

ROWS = [{"pixels": [float(place), 1.0, 2.0, float(place % 3)], "label": place % 3} for place in range(6)]


class Places(Dataset[Any]):
    """Read by place alone, and it does not say where it ends."""

    def __len__(self) -> int:
        return len(ROWS)

    def __getitem__(self, place: int) -> Any:
        row = ROWS[place % len(ROWS)]
        return torch.tensor(row["pixels"]), row["label"]


class Table:
    """What ``datasets.Dataset`` shows of itself; it is no data set of torch."""

    column_names = ("pixels", "label")
    features: Any = None

    def __init__(self, rows: list[Any] = ROWS) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, place: int) -> Any:
        return self.rows[place]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.rows)


def of_hugging_face() -> Any:
    return pytest.importorskip("datasets").Dataset.from_list(ROWS)


def of_row(row: Any) -> Any:
    return torch.tensor(row["pixels"])[None], row["label"]


def of_pair(pair: Any) -> Any:
    return pair[0][None], pair[1]


def given() -> Iterator[Any]:
    yield from ROWS


FORMS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "torch": (Places, of_pair),
    "table": (Table, of_row),
    "list": (lambda: ROWS, lambda row: (of_row(row)[0], torch.tensor([row["label"]]))),
    "loader": (
        lambda: DataLoader(ROWS, batch_size=2, collate_fn=list),
        lambda rows: (torch.cat([of_row(row)[0] for row in rows]), torch.tensor([row["label"] for row in rows])),
    ),
    "datasets": (of_hugging_face, of_row),
    "datasets, streamed": (lambda: of_hugging_face().to_iterable_dataset(), of_row),
}


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)).eval()


@pytest.mark.parametrize("form", FORMS)
def test_every_form_goes_everywhere(form: str) -> None:
    make, transform = FORMS[form]
    model, data = net(), make()
    pairs = [(x, torch.as_tensor(label).reshape(-1)) for x, label in with_transform(data, transform, "data")]
    reading = {"data": data, "metric": pb.metrics.accuracy, "transform": transform}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrepbenchWarning)
        compiled = pb.compile_model(
            model,
            calibration_inputs=data,
            transform=transform,
            quantization_settings=pb.QuantizationSettings(),
            deployment_settings=pb.EagerDeployment(),
        )
        found = pb.compare({"float": model, "int8": compiled}, rounds=0, **reading)
        expected = pb.compare({"float": model, "int8": compiled}, pairs, metric=pb.metrics.accuracy, rounds=0)
        bench = pb.Bench(
            model, calibration_inputs=data, training_data=data, loss=nn.functional.cross_entropy, **reading
        )
        assert pb.sensitivity(model, data, exact=1, **reading).table().notna().any(axis=None)
    assert found.samples == len(ROWS)
    assert [row.metric for row in found.rows] == [row.metric for row in expected.rows]
    assert [tuple(sample.args[0].shape)[1:] for sample in bench.calibration_inputs] == [(4,)] * len(data_of(bench))
    assert all(isinstance(target, torch.Tensor) and target.ndim == 1 for _, target in data_of(bench))
    assert not bench.opening_notes or all("left out" in note.text for note in bench.opening_notes)


def data_of(bench: Any) -> list[Any]:
    return list(bench.data)


@pytest.mark.stress
def test_search_and_sweep_and_capture_and_recover_take_a_transform() -> None:
    model, data = net(), Table()
    reading: dict[str, Any] = {"data": data, "metric": pb.metrics.accuracy, "transform": of_row, "rounds": 1}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrepbenchWarning)
        assert pb.capture(model, Places(), transform=of_pair).axes.axes[0].sizes == (1,) * len(ROWS)
        budget, eager = pb.Budget(max_drop=0.5), [pb.EagerDeployment()]
        assert pb.search(model, data, budget=budget, targets=eager, tries=0, **reading).candidates
        axes = {"model": {"net": model}, "target": eager}
        rows = pb.sweep(axes, {"net": data}, **{**reading, "data": {"net": data}, "rounds": 0}).rows
        assert [row.error for row in rows] == [""]
        prepared = pb.trainable(
            model,
            calibration_inputs=data,
            transform=of_row,
            deployment_settings=pb.EagerDeployment(),
            quantization_settings=pb.QuantizationSettings(),
        )
        losses = pb.recover(prepared, data, nn.functional.cross_entropy, steps=8, transform=of_row).losses
    assert len(losses) == 8, "what can be read again is repeated"


def test_a_generator_is_read_lazily_and_once() -> None:
    seen: list[Any] = []

    def transform(row: Any) -> Any:
        seen.append(row)
        return of_row(row)[0]

    rows = with_transform(given(), transform, "data")
    assert next(rows).shape == (1, 4)
    assert len(seen) == 1
    with pytest.raises(InputError, match="read only once"):
        pb.search(net(), Table(), budget=pb.Budget(max_drop=0.5), data=given(), transform=transform)


def test_samples_are_calls_already() -> None:
    sample = pb.Sample((torch.ones(1, 4),))
    assert normalize_samples(net(), [sample], data_transform_fn=of_row)[0].args == sample.args


def test_labels_of_one_sample_get_the_dim_of_the_batch() -> None:
    for label in (1, True, 1.0, np.int64(1), torch.tensor(1), torch.tensor([1])):
        table = Table([{"pixels": ROWS[0]["pixels"], "label": label}])
        found = pb.compare(
            {"a": net()}, table, metric=lambda out, y: float(y.shape == (1,)), transform=of_row, rounds=0
        )
        assert found["a"].metric == 1


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: pb.compare({"a": net()}, Table(), transform=3), "transform must be a function"),
        (lambda: pb.compile_model(net(), tracing_inputs=Table(), transform="x"), "transform must be a function"),
        (lambda: pb.Bench(net(), tracing_inputs=Table(), transform=3), "transform must be a function"),
        (
            lambda: pb.compile_model(net(), tracing_inputs=Table(), transform=of_row, data_transform_fn=of_row),
            "two names of one argument",
        ),
        (
            lambda: pb.compare({"a": net()}, pb.Generation([torch.ones(1, 2, dtype=torch.long)]), transform=of_row),
            "prompts are tokens already",
        ),
        (
            lambda: pb.compare({"a": net()}, Table([*ROWS[:2], {"label": 1}]), transform=of_row, rounds=0),
            r"transform raises on data\[2\], which is dict with the keys 'label': KeyError: 'pixels'",
        ),
        (
            lambda: pb.Bench(net(), calibration_inputs=Places(), transform=of_row),
            r"transform raises on calibration_inputs\[0\], which is tuple of Tensor \(4,\), int: TypeError",
        ),
        (
            lambda: pb.capture(net(), Table(), transform=lambda row: None),
            r"transform returns None for inputs\[0\], which is dict with the keys 'pixels', 'label'",
        ),
        (lambda: pb.capture(net(), Table()), r"inputs is a data set.*DataLoader.*transform="),
        (lambda: pb.compare({"a": net()}, Places()), r"data is a data set.*DataLoader.*transform="),
        (
            lambda: pb.compare({"a": net()}, {"train": Table(), "test": Table()}, transform=of_row),
            r"data has several data sets: 'train', 'test'. Give one of them: data=data\['train'\]",
        ),
        (lambda: pb.capture(net(), {"train": Table()}), "inputs has several data sets: 'train'"),
    ],
)
def test_errors_say_what_came_in(call: Callable[[], Any], words: str) -> None:
    with pytest.raises(pb.PrepbenchError, match=words):
        call()


def test_a_bench_writes_code_that_reads_its_own_samples_and_opens_on_a_failed_call() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrepbenchWarning)
        bench = pb.Bench(net(), tracing_inputs=ROWS, transform=of_row)
        assert "ROWS" not in bench.code(namespace={"ROWS": ROWS, "model": bench.model, "bench": bench})
        assert "bench.tracing_inputs" in bench.code(namespace={"ROWS": ROWS, "model": bench.model, "bench": bench})

        class Branch(nn.Module):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return x if x.sum() > 0 else -x

        with pytest.raises(pb.PrepbenchError) as caught:
            pb.compile_model(Branch(), tracing_inputs=ROWS, data_transform_fn=of_row)
        opened = pb.Bench.of_error(caught.value)
    assert opened.tracing_inputs[0].args[0].shape == (1, 4)
