"""Samples as people have them: loaders with labels first or last, dicts, arrays, images, texts; labels are found."""

from __future__ import annotations

import dataclasses
import itertools
import warnings
from typing import Any, NamedTuple

import numpy as np
import pandas
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import prepbench as pb
from prepbench.errors import InputError, PrepbenchWarning
from prepbench.measure.batches import read_batches
from prepbench.running.given_samples import Reader, normalize_samples, with_tokenizer


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)


class Masked(Net):
    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        return self.layer(x if mask is None else x * mask)


class WithLoss(Net):
    """As language models are: with labels it returns a loss, too."""

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> Any:
        out = self.layer(x)
        return out if labels is None else (nn.functional.cross_entropy(out, labels), out)


class Two(Net):
    def forward(self, x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return self.layer(x) * scale


class Whole(Net):
    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return self.layer(batch["x"])


def x(count: int = 2) -> torch.Tensor:
    return torch.ones(count, 4)


def y(count: int = 2) -> torch.Tensor:
    return torch.zeros(count, dtype=torch.long)


def read(model: nn.Module, samples: Any) -> tuple[Any, list[str]]:
    said: list[str] = []
    [*_, last] = normalize_samples(model, samples, remarks=said)
    return last, said


@pytest.mark.parametrize(
    ("model", "batch", "args", "keys", "words"),
    [
        (Net(), (x(), y()), 1, set(), "the last of the 2 parts of each batch is left out as its label"),
        (Net(), (y(), x()), 1, set(), "the first of the 2 parts"),
        (Net(), [x(), y()], 1, set(), "the last of the 2 parts"),
        (Net(), [x()], 1, set(), ""),
        (Net(), (x(), None), 1, set(), "the last of the 2 parts"),
        (Net(), (x(), torch.ones(2, 3)), 1, set(), "the last of the 2 parts"),
        (Net(), {"x": x(), "label": y()}, 0, {"x"}, "'label' left out"),
        (Net(), {"pixels": x(), "label": y()}, 1, set(), "'label' left out"),
        (Net(), {"x": x(), "label": y(), "index": y(), "name": ["a", "b"]}, 0, {"x"}, "'index', 'name', 'label'"),
        (Net(), {"pixels": x(), "label": y(), "index": y()}, 1, set(), "'index', 'label'"),
        (Masked(), (x(), torch.ones(2, 4)), 2, set(), ""),
        (Masked(), (x(), torch.ones(2, 4), y()), 2, set(), "the last of the 3 parts"),
        (Masked(), (x(), None, y()), 2, set(), "the last of the 3 parts"),
        (Two(), (x(), torch.ones(2, 1)), 2, set(), ""),
        (Two(), (x(), torch.ones(2, 1), y()), 2, set(), "the last of the 3 parts"),
        (Two(), ((x(), torch.ones(2, 1)), y()), 2, set(), "the last of the 2 parts"),
        (Two(), ({"x": x(), "scale": torch.ones(2, 1)}, y()), 0, {"x", "scale"}, "the last of the 2 parts"),
        (Whole(), {"x": x(), "label": y()}, 1, set(), ""),
        (WithLoss(), {"x": x(), "labels": y()}, 0, {"x", "labels"}, ""),
        (WithLoss(), (x(), y()), 2, set(), ""),
    ],
)
def test_forms_of_batches(model: nn.Module, batch: Any, args: int, keys: set[str], words: str) -> None:
    sample, said = read(model, [batch])
    assert len(sample.args) == args
    assert set(sample.kwargs) == keys
    assert words in "".join(said)
    assert len(said) == bool(words)
    assert sample.call(model) is not None


def test_masked_model_does_not_take_a_label_for_its_mask() -> None:
    sample, _ = read(Masked(), [(x(), torch.zeros(2, dtype=torch.long))])
    assert len(sample.args) == 1, "a label of shape (2,) is no mask of shape (2, 4)"


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("as_loader", [True, False])
def test_a_label_that_fits_an_optional_input_by_chance_is_left_out(count: int, as_loader: bool) -> None:
    """One of shape (1,) or (4,) broadcasts against rows of 4 numbers."""
    rows = TensorDataset(torch.ones(4, 4), torch.ones(4, dtype=torch.long))
    loader = DataLoader(rows, batch_size=count)
    sample, said = read(Masked(), loader if as_loader else list(loader))
    assert len(sample.args) == 1
    assert "the last of the 2 parts of each batch is left out as its label" in said[0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = pb.compare({"a": Masked(), "b": Masked()}, loader, rounds=0)
    assert found.samples == 4


class Shortened(Net):
    def forward(self, x: torch.Tensor, lengths: torch.Tensor | None = None) -> torch.Tensor:
        if lengths is not None:
            x = x.masked_fill(torch.arange(4) >= lengths[:, None], 0)
        return self.layer(x)


class OfTwoRows(nn.Module):
    """No other number of rows tells what its second argument is."""

    def forward(self, x: torch.Tensor, other: torch.Tensor | None = None) -> torch.Tensor:
        return x.reshape(2, -1) * (1 if other is None else other.reshape(2, 1))


@pytest.mark.parametrize("count", [1, 2, 4])
def test_numbers_of_rows_that_forward_takes_are_given_and_that_is_said(count: int) -> None:
    sample, said = read(Shortened(), [(x(count), torch.full((count,), 2))])
    assert len(sample.args) == 2
    assert said == [
        "inputs: all 2 parts of each batch are given to forward, the last, of whole numbers, as lengths. If it is a "
        "label, leave it out: transform=lambda batch: batch[:-1]."
    ]


@pytest.mark.parametrize(("first", "args"), [(x(2), 1), (y(2), 2)], ids=["another shape", "its shape"])
def test_where_no_other_rows_can_be_tried_the_shape_tells_a_label(first: torch.Tensor, args: int) -> None:
    sample, said = read(OfTwoRows(), [(first, y(2))])
    assert len(sample.args) == args
    assert len(said) == 1, "it is said"


@pytest.mark.parametrize("as_dict", [True, False])
def test_labels_of_a_loader_are_left_out_though_forward_could_take_them(as_dict: bool) -> None:
    rows = [{"x": x(1)[0], "labels": 1} if as_dict else (x(1)[0], 1) for _ in range(4)]
    sample, said = read(WithLoss(), DataLoader(rows, batch_size=2))
    assert len(sample.args) + len(sample.kwargs) == 1
    assert said, "it is said"


def test_model_is_left_as_it_was() -> None:
    norm = nn.Sequential(nn.BatchNorm1d(4), nn.Dropout()).train()
    before = torch.get_rng_state()
    read(norm, [(x(3), y(3))])
    assert int(norm[0].num_batches_tracked) == 0
    assert torch.equal(before, torch.get_rng_state())


parts = st.sampled_from(["x", "label", "none"])


@settings(max_examples=60, deadline=None)
@given(
    form=st.sampled_from(["last", "first", "list", "dict", "further keys", "nested", "array"]),
    sizes=st.lists(st.integers(2, 5), min_size=1, max_size=4),
    kind=st.sampled_from(["long", "float", "int8", "none"]),
)
def test_generated_loaders_for_tracing_and_for_comparing(form: str, sizes: list[int], kind: str) -> None:
    model = Net()

    def label(count: int) -> Any:
        made = {"long": y(count), "float": torch.zeros(count, 3), "int8": y(count).to(torch.int8), "none": None}
        return made[kind]

    def batch(count: int) -> Any:
        answer = label(count)
        if form == "first" and kind in ("float", "none"):
            return (x(count), answer)  # nothing tells an input from such a label in front of it
        return {
            "last": (x(count), answer),
            "first": (answer, x(count)),
            "list": [x(count), answer],
            "dict": {"x": x(count), "label": answer},
            "further keys": {"id": y(count), "pixels": x(count), "label": answer, "names": ["a"] * count},
            "nested": ((x(count),), answer),
            "array": (x(count).double().numpy(), answer),
        }[form]

    said: list[str] = []
    samples = normalize_samples(model, (batch(count) for count in sizes), remarks=said)
    assert [sample.call(model).shape[0] for sample in samples] == sizes
    assert sum("left out" in one for one in said) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrepbenchWarning)
        pairs = list(read_batches([model], [batch(count) for count in sizes], with_targets=True))
    assert [pair.sample.call(model).shape[0] for pair in pairs] == sizes
    assert all((pair.target is None) == (kind == "none") for pair in pairs)


def test_a_loader_with_a_last_batch_that_is_smaller_goes_everywhere() -> None:
    rows = [(torch.randn(4), index % 3) for index in range(7)]
    loader = DataLoader(rows, batch_size=3)
    model = Net()
    with pytest.warns(PrepbenchWarning, match="the last of the 2 parts of each batch is left out") as seen:
        captured = pb.capture(model, loader)
    assert seen[0].filename == __file__, "it points to the line of the caller"
    assert [axis.dynamic for axis in captured.axes.axes] == [True, False]
    with pytest.warns(PrepbenchWarning):
        compiled = pb.compile_model(model, tracing_inputs=loader, calibration_inputs=loader)
    found = pb.compare({"float": model, "compiled": compiled}, loader, metric=pb.metrics.accuracy, rounds=0)
    assert found.samples == 7


def test_arrays_become_tensors_of_the_weights_dtype() -> None:
    sample, said = read(Net(), np.ones((2, 4)))
    assert sample.args[0].dtype is torch.float32
    assert "arrays of float64 are given as float32" in said[0]
    assert read(Net().double(), [np.ones((2, 4))])[0].args[0].dtype is torch.float64
    with pytest.raises(InputError, match=r"inputs\[0\] holds an array of <U1"):
        read(Net(), [np.array(["a"])])


@pytest.mark.parametrize(
    "made",
    [lambda array: array[:, ::-1], lambda array: array.astype(">f4"), lambda array: np.rec.array(array)],
    ids=["read backwards", "big endian", "record array"],
)
def test_arrays_of_all_forms_become_tensors(made: Any) -> None:
    array = np.arange(8, dtype=np.float32).reshape(2, 4)
    sample, _ = read(Net(), [made(array)])
    assert torch.equal(sample.args[0], torch.from_numpy(np.array(made(array), dtype=np.float32)))


class Row(NamedTuple):
    x: Any
    y: Any


@dataclasses.dataclass
class Labelled:
    x: Any
    label: Any


@pytest.mark.parametrize("kind", [Row, Labelled])
@pytest.mark.parametrize("made", [lambda tensor: tensor, lambda tensor: tensor.numpy()], ids=["tensors", "arrays"])
def test_records_are_pairs(kind: Any, made: Any) -> None:
    batches = [kind(made(x()), made(y()))] * 2
    for _, target in (Reader(Net(), with_targets=True).read(each, 0) for each in batches):
        assert torch.equal(target, y())
    samples = normalize_samples(Net(), batches, remarks=[])
    assert all(torch.equal(sample.call(Net()) * 0, torch.zeros(2, 3)) for sample in samples)


class OfRow(Net):
    def forward(self, row: Any) -> torch.Tensor:
        return self.layer(row.x)


def test_a_record_that_forward_takes_stays_whole() -> None:
    assert isinstance(read(OfRow(), [Row(x(), y())])[0].args[0], Row)


def test_samples_without_an_end_are_read_in_part_and_said() -> None:
    remarks: list[str] = []
    assert len(normalize_samples(nn.Linear(4, 2), itertools.repeat(torch.ones(1, 4)), remarks=remarks)) == 1024
    assert "only its first 1,024 elements are read" in remarks[0]
    remarks.clear()
    for whole in ([torch.ones(1, 4)] * 1030, (torch.ones(1, 4) for _ in range(1024))):
        assert len(normalize_samples(nn.Linear(4, 2), whole, remarks=remarks)) >= 1024
    assert not remarks


def test_errors_name_the_index_and_the_remedy() -> None:
    with pytest.raises(InputError, match=r"inputs\[1\] is tuple of length 3, and the elements before it had 2 parts"):
        read(Net(), [(x(), y()), (x(), y(), y())])
    with pytest.raises(InputError, match=r"inputs\[0\] is text. Give tokenizer="):
        read(Net(), ["a text"])

    class Rows(Dataset[Any]):
        def __len__(self) -> int:
            return 2

        def __getitem__(self, index: int) -> Any:
            return x()[0], 1

    with pytest.raises(InputError, match=r"DataLoader\(inputs, batch_size=8\)"):
        read(Net(), Rows())
    with pytest.raises(InputError, match=r"must be a pair .* got dict with the keys 'x', 'a', 'b'"):
        list(read_batches([Net()], [{"x": x(), "a": y(), "b": y()}], with_targets=True))


@pytest.mark.parametrize("name", ["calibration_inputs", "data", "tracing_inputs"])
def test_a_loader_that_raises_is_named_with_its_place(name: str) -> None:
    def loader() -> Any:
        yield from (torch.ones(2, 4), torch.ones(3, 4))
        raise OSError("disk gone")

    with pytest.raises(InputError, match=rf"{name} raises instead of giving {name}\[2\]: OSError: disk gone") as caught:
        pb.Bench(Net().eval(), **{"calibration_inputs": [torch.ones(2, 4)], name: loader()})
    assert isinstance(caught.value.__cause__, OSError)
    with pytest.raises(InputError, match=r"data raises instead of giving data\[2\]: OSError: disk gone"):
        pb.compare({"float": Net().eval()}, loader())


def test_one_unknown_key_is_the_target() -> None:
    reader = Reader(Net(), "data", with_targets=True)
    sample, target = reader.read({"x": x(), "digit": y()}, 0)
    assert set(sample.kwargs) == {"x"}
    assert target is not None
    assert reader.notes == ["data: 'digit' is the target."]


# Texts with a tokenizer, and images.


def tokenizer(texts: list[str], return_tensors: str, padding: bool = False) -> dict[str, torch.Tensor]:
    assert return_tensors == "pt"
    longest = max(map(len, texts))
    assert padding or len(texts) == 1
    rows = [[ord(char) % 7 for char in text] + [0] * (longest - len(text)) for text in texts]
    return {"input_ids": torch.tensor(rows), "token_type_ids": torch.zeros(len(rows), longest)}


class Text(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(7, 3)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        return self.table(input_ids).sum(1)


@pytest.mark.parametrize(
    ("element", "shape"),
    [
        ("abc", (1, 3)),
        (["abc", "de"], (2, 3)),
        ((["abc", "de"], torch.tensor([0, 1])), (2, 3)),
        ({"text": ["abc", "de"], "label": torch.tensor([0, 1])}, (2, 3)),
    ],
)
def test_texts(element: Any, shape: tuple[int, int]) -> None:
    said: list[str] = []
    made = normalize_samples(Text(), [element], data_transform_fn=with_tokenizer(tokenizer), remarks=said)
    assert made[0].kwargs["input_ids"].shape == shape
    assert "'token_type_ids'" in said[0] or "the last of the 2 parts" in said[0]


def test_texts_are_captured_compiled_and_compared() -> None:
    texts, model = ["abc", "de", "fghi"], Text()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrepbenchWarning)
        assert pb.capture(model, texts, tokenizer=tokenizer).axes.dynamic
        compiled = pb.compile_model(model, tracing_inputs=texts, tokenizer=tokenizer)
        found = pb.compare({"a": model, "b": compiled}, texts, tokenizer=tokenizer, rounds=0)
    assert found.samples == 3


def test_tokenizer_that_raises_is_named() -> None:
    def broken(texts: list[str], **how: Any) -> Any:
        raise ValueError("no padding token")

    with pytest.raises(InputError, match="tokenizer raises on 'abc': ValueError: no padding token"):
        normalize_samples(Text(), ["abc"], data_transform_fn=with_tokenizer(broken))
    with pytest.raises(InputError, match="tokenizer must return a mapping of tensors"):
        normalize_samples(Text(), ["abc"], data_transform_fn=with_tokenizer(lambda texts, **how: [[1]]))
    with pytest.raises(pb.PrepbenchError, match="tokenizer must be a function"):
        pb.capture(Text(), ["abc"], tokenizer=3)


def test_images_are_scaled_and_get_a_batch() -> None:
    image = pytest.importorskip("PIL.Image")
    grey, colour = image.new("L", (8, 6), 255), image.new("RGB", (8, 6), (255, 0, 51))
    net = nn.Conv2d(1, 2, 3)
    assert read(net, [grey])[0].args[0].shape == (1, 1, 6, 8)
    assert float(read(net, grey)[0].args[0].max()) == 1.0
    sample, said = read(nn.Conv2d(3, 2, 3), [(colour, 3)])
    assert sample.args[0][0, :, 0, 0].tolist() == pytest.approx([1.0, 0.0, 0.2])
    assert "the last of the 2 parts" in said[0]
    batch, target = Reader(nn.Conv2d(3, 2, 3), "data", with_targets=True).read(([colour, colour], [1, 2]), 0)
    assert batch.args[0].shape == (2, 3, 6, 8)
    assert target.tolist() == [1, 2]
    with pytest.raises(InputError, match=r"inputs\[0\] has images of different shapes: 1×6×8, 3×6×8"):
        read(net, [[grey, colour]])
    with pytest.raises(InputError, match="is an image of mode 'F', whose range is not known"):
        read(net, [image.new("F", (4, 4))])


def test_arrays_and_numbers_beside_images_become_tensors_at_any_depth() -> None:
    image = pytest.importorskip("PIL.Image")
    images, scale = [image.new("L", (8, 6), 255)] * 2, np.ones((2, 1, 1, 1), np.float32)
    for inputs in ((images, scale), {"x": images, "scale": scale}, (images, torch.from_numpy(scale))):
        alone = Reader(Two(), "data").read(inputs, 0)[0]
        beside, target = Reader(Two(), "data", with_targets=True).read((inputs, [1, 2]), 0)
        for sample in (alone, beside):
            shapes = [tuple(leaf.shape) for leaf in (*sample.args, *sample.kwargs.values())]
            assert shapes == [(2, 1, 6, 8), (2, 1, 1, 1)]
        assert target.tolist() == [1, 2]


class Scales(nn.Module):
    def forward(self, x: torch.Tensor, *, by: float = 1.0, mask: torch.Tensor | None = None) -> torch.Tensor:
        return x * by if mask is None else (x * by).masked_fill(mask, 0.0)


class TakesPair(nn.Module):
    def forward(self, pair: tuple[torch.Tensor, torch.Tensor], *, by: float = 1.0) -> torch.Tensor:
        return pair[0] * pair[1] * by


def test_a_tuple_with_a_dict_is_a_call_as_export_takes_it() -> None:
    x, mask = torch.ones(2, 3), torch.zeros(2, 3, dtype=torch.bool)
    one, other = normalize_samples(Scales(), [((x,), {"by": 2.0, "mask": mask}), ((x,), {"by": 2.0, "mask": mask})])
    assert [len(one.args), sorted(one.kwargs)] == [1, ["by", "mask"]]
    assert other.args[0] is x
    # what forward takes as it is stays so
    (whole,) = normalize_samples(TakesPair(), [((x, x), {"by": 2.0})])
    assert isinstance(whole.args[0], tuple)
    assert whole.kwargs == {"by": 2.0}


def test_tables_of_columns_are_refused_wherever_they_stand() -> None:
    table = pandas.DataFrame(np.ones((4, 3), dtype=np.float32), columns=["a", "b", "c"])
    words = r"a (DataFrame|Series), a table.*torch\.as_tensor\(\w+\.to_numpy\(\), dtype=torch\.float32\)"
    model = torch.nn.Linear(3, 2)
    for one in (
        table,
        [table],
        [(table, table["a"])],
        [{"input": table}],
        [(torch.ones(4, 3), table["a"])],
        table["a"],
    ):
        with pytest.raises(InputError, match=words):
            normalize_samples(model, one)
    with pytest.raises(InputError, match=words):
        normalize_samples(model, table, data_transform_fn=lambda row: row)
    as_tensors = normalize_samples(model, [table], data_transform_fn=lambda each: torch.as_tensor(each.to_numpy()))
    assert as_tensors[0].args[0].shape == (4, 3)
