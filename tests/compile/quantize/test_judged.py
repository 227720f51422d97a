"""Models that choose rows by numbers are judged by the values in front of the last choice."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import prepbench as pb
from prepbench.objects.compare import sqnr
from prepbench.quantize.output_noise import judged_values


class Chooser(nn.Module):
    """Two layers, and then a choice of rows."""

    def __init__(self, choose):
        super().__init__()
        torch.manual_seed(0)
        self.body, self.scores, self.boxes = nn.Linear(16, 32), nn.Linear(32, 1), nn.Linear(32, 4)
        self.choose = choose

    def forward(self, x):
        hidden = self.body(x).relu()
        return self.choose(self.scores(hidden)[..., 0], self.boxes(hidden))


def _topk(scores, boxes):
    best, places = scores.topk(8, 1)
    return best, boxes.gather(1, places[..., None].expand(-1, -1, 4))


def _sort(scores, boxes):
    best, places = scores.sort(1, descending=True)
    return best, boxes.gather(1, places[..., None].expand(-1, -1, 4))


def _argmax(scores, boxes):
    return boxes.gather(1, scores.argmax(1)[:, None, None].expand(-1, 1, 4))


def _max(scores, boxes):
    return boxes.gather(1, scores.max(1).indices[:, None, None].expand(-1, 1, 4))


@torch.library.custom_op("prepbench_tests::keep_best", mutates_args=())
def keep_best(scores: torch.Tensor) -> torch.Tensor:
    return scores.argsort(1, descending=True)[:, :8].clone()


@keep_best.register_fake
def _(scores):
    return scores.new_empty((scores.shape[0], 8), dtype=torch.int64)


def _custom(scores, boxes):
    return boxes.gather(1, keep_best(scores)[..., None].expand(-1, -1, 4))


def _samples(count=4):
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(2, 200, 16, generator=generator) for _ in range(count)]


def _judged(model):
    return judged_values(torch.export.export(model, (_samples()[0],)).graph)


@pytest.mark.parametrize(
    ("choose", "operator"),
    [(_topk, "topk"), (_sort, "sort"), (_argmax, "argmax"), (_max, "max"), (_custom, "prepbench_tests.keep_best")],
)
def test_the_values_in_front_of_the_choice_are_found(choose, operator):
    found = _judged(Chooser(choose).eval())
    assert found.choices == (operator,)
    assert len(found.frontier) == 2
    assert {tuple(node.meta["val"].shape) for node in found.frontier} == {(2, 200), (2, 200, 4)}
    assert operator in found.remark
    assert "2 values" in found.remark


def test_data_dependent_rows_are_a_choice():
    found = _judged(Chooser(lambda scores, boxes: boxes[scores > 0.1]).eval())
    assert found.chosen == {0}
    assert {tuple(node.meta["val"].shape) for node in found.frontier} == {(2, 200), (2, 200, 4)}  # also behind the mask


def test_only_the_last_choice_counts_and_other_outputs_stay():
    class Routed(Chooser):
        """A choice in the middle, behind which layers follow."""

        def forward(self, x):
            hidden = self.body(x).relu()
            places = self.scores(hidden)[..., 0].topk(8, 1).indices
            return self.boxes(hidden.gather(1, places[..., None].expand(-1, -1, 32)))

    assert _judged(Routed(None).eval()).frontier == ()
    assert _judged(Routed(None).eval()).remark == ""

    both = _judged(Chooser(lambda scores, boxes: (boxes, scores.topk(3, 1).values)).eval())
    assert both.chosen == {1}
    assert [tuple(node.meta["val"].shape) for node in both.frontier] == [(2, 200)]
    assert both.judge(("boxes", "best")) == ("boxes", None)


@pytest.mark.parametrize("choose", [_topk, _sort, _argmax])
def test_no_layer_goes_to_float_because_rows_change_places(choose):
    model, samples = Chooser(choose).eval(), _samples()
    compiled = pb.compile_model(
        model,
        calibration_inputs=samples,
        deployment_settings=pb.OnnxRuntimeDeployment(),
        quantization_settings=pb.QuantizationSettings(),
    )
    report = compiled.report
    assert [row.quantized for row in report.layers] == [True, True, True]
    assert report.model_sqnr > 25
    assert any("exactness was measured at the 2 values in front of" in remark for remark in report.remarks)
    shapes = [value.shape for value in model(samples[0])]
    assert [value.shape for value in compiled(samples[0])] == shapes


def test_a_floor_is_kept_at_the_values_in_front_of_the_choice():
    options = pb.CompileOptions(model_sqnr_floor=48)
    compiled = pb.compile_model(
        Chooser(_topk).eval(),
        calibration_inputs=_samples(),
        deployment_settings=pb.OnnxRuntimeDeployment(),
        quantization_settings=pb.QuantizationSettings(),
        compile_options=options,
    )
    rows = compiled.report.layers
    assert not all(row.quantized for row in rows)
    assert any("below the floor of 48 dB" in row.reason for row in rows)
    assert compiled.report.model_sqnr >= 48


class Corrects(nn.Module):
    """A small correction of what comes in."""

    def __init__(self, join):
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 16))
        self.shift = nn.Parameter(torch.ones(16))
        self.join = join

    def forward(self, x):
        return self.join(x, self.body(x) / 100, self.shift)


@pytest.mark.parametrize(
    "join",
    [
        lambda x, found, shift: x - found,
        lambda x, found, shift: found + x.relu(),
        lambda x, found, shift: (x + found).clamp(-9, 9)[:, 2:],
        lambda x, found, shift: (x.sum(), x.mean(1, keepdim=True) + found),
    ],
)
def test_what_is_added_to_the_input_is_judged_too(join):
    found = _judged(Corrects(join).eval())
    (correction,) = found.corrections
    assert str(correction.target) == "aten.div.Tensor"
    assert found.corrected == {found.outputs}, "behind all outputs"
    assert found.judge(("output",)) == ("output",)


@pytest.mark.parametrize(
    "join",
    [
        lambda x, found, shift: found + shift,
        lambda x, found, shift: found * x,
        lambda x, found, shift: found + torch.arange(16),
        lambda x, found, shift: (x + found) @ torch.ones(16, 2),
    ],
)
def test_other_sums_are_judged_as_they_are(join):
    compiled = _compiled(Corrects(join).eval())
    assert not any("adds to its input" in remark for remark in compiled.report.remarks)


def test_a_floor_is_kept_for_what_is_added_to_the_input():
    model = Corrects(lambda x, found, shift: x + found).eval()
    x = _samples()[0]
    with torch.no_grad():
        correction = model(x) - x
        plain = _compiled(model)
        at = sqnr(correction, plain(x) - x)
        exact = _compiled(model, compile_options=pb.CompileOptions(model_sqnr_floor=at + 6))
        assert sqnr(correction, exact(x) - x) > at + 6
        # reports say of outputs what a comparison finds
        assert plain.report.model_sqnr == pytest.approx(sqnr(model(x), plain(x)), abs=2)
    assert plain.report.model_sqnr > at + 26, "the outputs alone would not have told"
    (told,) = (remark for remark in plain.report.remarks if "adds to its input" in remark)
    assert float(told.partition(" dB")[0].split()[-1]) == pytest.approx(at, abs=2)
    left = [row for row in exact.report.layers if not row.quantized]
    assert left
    assert all("what the model adds to its input would be at" in row.reason for row in left)


def test_a_correction_of_nothing_stays_in_integers():
    model = Corrects(lambda x, found, shift: x + found).eval()
    with torch.no_grad():
        model.body[2].weight.zero_()
        model.body[2].bias.zero_()
    assert all(row.quantized for row in _compiled(model).report.layers)


def _compiled(model, **options):
    return pb.compile_model(
        model,
        calibration_inputs=_samples(),
        deployment_settings=pb.OnnxRuntimeDeployment(),
        quantization_settings=pb.QuantizationSettings(),
        **options,
    )
