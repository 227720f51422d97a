"""Which samples are kept while candidates are scored, and how they are shown."""

from __future__ import annotations

import base64
import copy
import math
import pickle
import re
import struct
import zlib
from typing import Any

import pytest
import torch
from torch import nn

import prepbench as pb
from prepbench.errors import InputError, SettingsError, UnknownNameError
from prepbench.measure.comparison import Confusion
from prepbench.measure.generation import Generation
from prepbench.measure.kept_samples import KEPT, WorstSamples, kept_prompts
from prepbench.views.sample_parts import is_image, picture


def double(x: torch.Tensor) -> torch.Tensor:
    return 2 * x


def off_where_large(x: torch.Tensor) -> torch.Tensor:
    """Wrong by the share by which the first number of a row is over zero."""
    return 2 * x * (1 + x[:, :1])


def compared(candidates: dict[str, Any], data: Any, **options: Any) -> pb.Comparison:
    return pb.compare(candidates, data, rounds=0, **options)


def test_the_farthest_rows_of_all_batches_come_first() -> None:
    data = [torch.full((3, 4), 0.01) for _ in range(4)]
    data[1][2], data[3][0] = 0.5, 0.25
    worst = compared({"float": double, "off": off_where_large}, data).worst(3)
    assert [(row.batch, row.row) for row in worst.rows] == [(1, 2), (3, 0), (0, 0)]
    assert [round(row.distance, 1) for row in worst.rows] == [6.0, 12.0, 40.0]  # -20 log10 of the error's share
    assert torch.equal(worst.rows[0].inputs[0].values, torch.full((4,), 0.5))
    assert list(worst.table()["row"]) == [2, 0, 0]
    assert "SQNR dB" in repr(worst)
    assert "off is farthest from float" in worst.caption


def test_few_rows_are_kept_of_much_data_and_they_are_copies() -> None:
    data = torch.linspace(0.01, 0.5, 200)[:, None].repeat(1, 3)
    comparison = compared({"float": double, "off": off_where_large}, [data])
    data.zero_()
    worst = comparison.worst(100)
    assert [row.row for row in worst.rows] == list(range(199, 199 - KEPT, -1))
    assert float(worst.rows[0].inputs[0].values[0]) == 0.5
    assert worst.notes == (f"{KEPT} rows are kept for each candidate.",)


def test_a_nan_of_one_candidate_is_the_farthest_and_one_that_both_have_is_none() -> None:
    def lost(x: torch.Tensor) -> torch.Tensor:
        return torch.where(x == 3, torch.nan, off_where_large(x))

    data = [torch.tensor([[0.5], [3.0], [torch.nan], [0.1]])]
    pairs = [(x, torch.zeros(4)) for x in data]
    comparison = compared({"float": double, "lost": lost}, pairs, metric=lambda output, target: 1.0)
    rows = comparison.worst().rows
    assert [row.row for row in rows] == [1, 0, 3]
    assert rows[0].distance == -math.inf
    assert "−∞" in repr(comparison.worst())


class Recurrent(nn.Module):
    """Batches lie along dimension 1."""

    def __init__(self, wrong: int | None = None) -> None:
        super().__init__()
        self.wrong = wrong

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        state = x.sum(0, keepdim=True)
        if self.wrong is not None:
            state = state + torch.nn.functional.one_hot(torch.tensor(self.wrong), x.shape[1])[None, :, None]
        return {"out": x * 1.0, "state": state, "last": state * 2}


def test_rows_are_found_where_the_batch_is_not_the_first_dimension() -> None:
    worst = compared({"float": Recurrent(), "off": Recurrent(2)}, [torch.ones(7, 5, 3)]).worst()
    assert [row.row for row in worst.rows] == [2]
    assert worst.rows[0].inputs[0].shape == (7, 3)


def test_a_batch_is_one_sample_where_outputs_have_no_rows() -> None:
    candidates = {"float": lambda x: x.sum(), "off": lambda x: x.sum() + 1}
    rows = compared(candidates, [torch.ones(3, 2), 5 * torch.ones(3, 2)]).worst().rows
    assert [(row.batch, row.row) for row in rows] == [(0, None), (1, None)]
    assert "–" in repr(compared(candidates, [torch.ones(3, 2)]).worst())


def test_outputs_that_are_no_floats_are_compared_by_what_differs() -> None:
    candidates = {"float": lambda x: x.long(), "off": lambda x: (x + (x > 2)).long()}
    pairs = [(torch.tensor([[1.0, 1, 1], [1, 3, 4]]), torch.zeros(2))]
    comparison = compared(candidates, pairs, metric=lambda output, target: 0.0)
    assert comparison.worst().measure == "share that differs"
    assert [(row.row, round(row.distance, 2)) for row in comparison.worst().rows] == [(1, 0.67)]


def test_equal_candidates_and_empty_batches_have_no_worst_sample() -> None:
    worst = compared({"float": double, "same": double}, [torch.ones(2, 2), torch.ones(0, 2)]).worst()
    assert worst.rows == ()
    assert repr(worst) == "same gives what float gives on all of 2 samples."
    assert len(worst.table()) == 0
    assert "same gives" in worst._repr_mimebundle_()["text/html"]


LOGITS = torch.tensor([[4.0, 0, 0], [0, 4, 0], [0, 0, 4], [1, 0, 0]])
LABELS = torch.tensor([0, 1, 2, -100])


def swapped(x: torch.Tensor) -> torch.Tensor:
    """Takes class 1 for class 2."""
    return torch.where((x.argmax(-1) == 1)[:, None], x.flip(-1).roll(1, -1).flip(-1), x)


def test_predictions_are_compared_by_divergence_and_confusion_is_counted() -> None:
    comparison = compared({"float": double, "off": swapped}, [(LOGITS, LABELS)] * 2, metric=pb.metrics.accuracy)
    worst = comparison.worst(1)
    assert worst.measure == "divergence in nats"
    assert (worst.rows[0].row, worst.rows[0].target) == (1, "1")
    assert worst.rows[0].expected.startswith("1 (100%)")
    confusion = comparison.confusion()
    assert confusion.candidate == "off"
    predicted = int(swapped(LOGITS)[1].argmax())
    expected = torch.zeros(3, 3, dtype=torch.long)
    expected[0, 0] = expected[2, 2] = expected[1, predicted] = 2
    assert torch.equal(confusion.counts, expected)
    assert confusion.accuracy == pytest.approx(comparison["off"].metric)
    assert confusion.pairs().to_numpy().tolist() == [[1, predicted, 2, 0]]
    assert comparison.confusion("float").accuracy == 1.0
    assert int(confusion.table().to_numpy().sum()) == 6


def test_integer_predictions_are_counted_and_grow_the_table() -> None:
    pairs = [(torch.tensor([0, 1]), torch.tensor([0, 1])), (torch.tensor([5, 1]), torch.tensor([5, 0]))]
    comparison = compared({"float": lambda x: x, "off": lambda x: x}, pairs, metric=pb.metrics.accuracy)
    assert comparison.confusion("off").counts[[0, 1, 5, 0], [0, 1, 5, 1]].tolist() == [1, 1, 1, 1]
    assert comparison.confusion("off").counts.shape == (6, 6)


def test_errors_say_what_to_do() -> None:
    alone = compared({"float": double}, [torch.ones(2, 2)])
    with pytest.raises(InputError, match="Give a second candidate"):
        alone.worst()
    two = compared({"float": double, "off": off_where_large}, [torch.ones(2, 2)])
    with pytest.raises(InputError, match="Choose one of 'off'"):
        two.worst(candidate="float")
    with pytest.raises(UnknownNameError, match="no candidate is called 'int8'"):
        two.worst(candidate="int8")
    with pytest.raises(SettingsError, match="n must be a whole number"):
        two.worst(0)
    with pytest.raises(InputError, match=r"the metric is another one\. Give prepbench.compare"):
        two.confusion()
    made = pb.Comparison(two.rows, "SQNR", "dB", True, 2, 2, 0, 1)
    with pytest.raises(InputError, match="this comparison did not run it"):
        made.worst()


def test_outputs_of_other_structures_are_scored_and_say_why_nothing_was_kept() -> None:
    candidates = {"float": double, "text": lambda x: "many words"}
    comparison = compared(candidates, [(torch.ones(2, 2), torch.ones(2))], metric=lambda output, target: 3.0)
    assert comparison["text"].metric == 3.0
    with pytest.raises(InputError, match="'text': outputs hold 0 tensors"):
        comparison.worst()


def test_the_one_with_the_worst_score_is_shown_and_what_is_kept_travels() -> None:
    comparison = compared({"float": double, "near": lambda x: 2.01 * x, "off": off_where_large}, [torch.ones(2, 2)])
    assert comparison.worst().candidate == "off"
    again = copy.deepcopy(comparison)  # by way of what pickle takes, too
    assert len(pickle.dumps(comparison)) < 20_000
    assert repr(again.worst(candidate="near")) == repr(comparison.worst(candidate="near"))


def test_texts_are_decoded_and_prompts_are_those_whose_tokens_differ_first() -> None:
    prompts = Generation(torch.tensor([[7, 8], [7, 9], [6, 6]]), new_tokens=3)
    base = torch.tensor([[1, 2, 3], [1, 2, 3], [1, 2, 3]])
    other = torch.tensor([[1, 2, 4], [5, 2, 3], [1, 2, 3]])
    kept = kept_prompts(prompts, {"float": [base], "int4": [other]})
    worst = WorstSamples("float", "int4", kept.measure, 3, kept.worst["int4"], decode=lambda ids: f"<b>{ids}</b>")
    assert [(row.row, row.distance) for row in worst.rows] == [(1, 0.0), (0, 2.0)]
    assert worst.output_texts(worst.rows[0]) == ("<b>[1, 2, 3]</b>", "<b>[5, 2, 3]</b>")
    page = worst._repr_mimebundle_()["text/html"]
    assert "&lt;b&gt;[7, 9]&lt;/b&gt;" in page
    assert "<b>" not in page


def decoded(address: str) -> tuple[int, int, bytes]:
    """Width, height and bytes of the rows of a PNG in a ``data:`` address."""
    data = base64.b64decode(address.removeprefix("data:image/png;base64,"))
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", data[16:24])
    (length,) = struct.unpack(">I", data[33:37])
    assert data[37:41] == b"IDAT"
    return width, height, zlib.decompress(data[41 : 41 + length])


def test_pictures_hold_the_pixels() -> None:
    values = torch.arange(48, dtype=torch.uint8).reshape(3, 4, 4)
    width, height, rows = decoded(picture(values, 96))
    assert (width, height) == (4, 4)
    assert rows[:7] == bytes([0, 0, 16, 32, 1, 17, 33])
    assert decoded(picture(values.movedim(0, -1), 96))[2] == rows
    assert decoded(picture(torch.rand(1, 300, 100), 96))[:2] == (25, 75)


def test_floats_of_any_range_and_nan_become_pixels() -> None:
    values = torch.full((1, 4, 4), -2.0)
    values[0, 0] = torch.tensor([2.0, 0.0, torch.nan, torch.inf])
    assert list(decoded(picture(values, 96))[2][1:5]) == [255, 128, 0, 255]
    assert set(decoded(picture(torch.full((1, 4, 4), torch.nan), 96))[2]) == {0}
    assert max(decoded(picture(torch.full((1, 4, 4), 0.5), 96))[2]) == 128
    assert not is_image(torch.zeros(4, 8, 8))
    assert not is_image(torch.zeros(3, 8, 8, dtype=torch.long))


def test_a_notebook_shows_images_and_escapes_names() -> None:
    data = [torch.rand(2, 3, 8, 8)]
    candidates = {"float": lambda x: x.flatten(1), "<i>off": lambda x: x.flatten(1) * 1.5}
    page = compared(candidates, data).worst()._repr_mimebundle_()["text/html"]
    assert len(re.findall(r'<img src="data:image/png;base64,[A-Za-z0-9+/=]+"', page)) == 2
    assert "&lt;i&gt;off" in page
    assert "<i>" not in page


def test_outputs_of_notebooks_stay_small() -> None:
    data = [torch.rand(16, 3, 96, 96)]
    candidates = {"float": lambda x: x.flatten(1)[:, :9], "off": lambda x: x.flatten(1)[:, :9] * 1.5}
    worst = compared(candidates, data).worst(16)
    page = worst._repr_mimebundle_()["text/html"]
    assert len(page) < 300_000
    assert page.count("<img") == 16
    assert page.count("<tr>") == 17


def test_large_inputs_are_thinned() -> None:
    data = [torch.rand(1, 3, 800, 900)]
    candidates = {"float": lambda x: x.flatten(1)[:, :9], "off": lambda x: x.flatten(1)[:, :9] * 1.5}
    (one,) = compared(candidates, data).worst().rows[0].inputs
    assert (one.shape, one.is_whole) == ((3, 800, 900), False)
    assert one.values.nbytes <= 1_000_000
    assert is_image(one.values)


def test_the_heat_map_leaves_pairs_that_never_occur_empty() -> None:
    comparison = compared({"float": double, "off": swapped}, [(LOGITS, LABELS)], metric=pb.metrics.accuracy)
    figure = comparison.confusion().figure()
    assert tuple(figure.data[0].z[0]) == (1, None, None)
    bundle = comparison.confusion()._repr_mimebundle_()
    assert "another class" in bundle["text/html"]
    many = torch.eye(100, dtype=torch.long) + torch.eye(100, dtype=torch.long).roll(1, 1) * (torch.arange(100) > 50)
    shown = Confusion("off", many).figure()
    assert len(shown.data[0].x) == 60
    assert "The 60 of 100 classes" in shown.layout.title.text
