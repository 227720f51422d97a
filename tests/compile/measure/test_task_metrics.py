"""Metrics of tasks against independent computations, and over batches as over all the data at once."""

from __future__ import annotations

import functools
import math
import random
import sys

import numpy
import pytest
import scipy.ndimage
import sklearn.metrics
import torch

import prepbench as pb
from prepbench.errors import InputError, MissingPackageError, SettingsError
from prepbench.jobs import report_nothing
from prepbench.measure import metrics
from prepbench.running.metric_facts import facts_of, is_higher_better, records_of, totals_of
from prepbench.running.metric_scores import metric_name
from prepbench.search.scoring import Scoring

pytest.importorskip("torchmetrics")
SEEDS = range(5)


def _over_batches(metric, pairs):
    """The metric as compare takes it: a model that returns its input."""
    found = pb.compare({"identity": torch.nn.Identity()}, pairs, metric=metric, rounds=0)
    return found.rows[0].metric


def _split(*tensors):
    """Batches of unequal sizes."""
    return list(zip(*(each.split([3, 1, len(each) - 4]) for each in tensors), strict=True))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("average", ["macro", "micro", "weighted", "binary"])
def test_f1_is_that_of_sklearn(seed, average):
    torch.manual_seed(seed)
    classes = 2 if average == "binary" else 7  # of which some do not occur
    logits, target = torch.randn(20, classes), torch.randint(classes if average == "binary" else 5, (20,))
    target[3] = -100
    kept = target != -100
    expected = sklearn.metrics.f1_score(target[kept], logits.argmax(-1)[kept], average=average, zero_division=0)
    metric = functools.partial(metrics.f1, average=average)
    assert metric(logits, target) == pytest.approx(expected)
    assert _over_batches(metric, _split(logits, target)) == pytest.approx(expected)
    assert metric(logits.argmax(-1), target) == pytest.approx(expected)
    assert _over_batches(metric, _split(logits.argmax(-1), target)) == pytest.approx(expected)


@pytest.mark.parametrize("seed", SEEDS)
def test_mean_iou_is_that_of_sklearn(seed):
    torch.manual_seed(seed)
    logits, target = torch.randn(6, 5, 4, 3), torch.randint(4, (6, 4, 3))
    target[0, 0] = 255
    kept = target != 255
    found, wanted = logits.argmax(1)[kept], target[kept]
    labels = sorted({*found.tolist(), *wanted.tolist()})
    expected = sklearn.metrics.jaccard_score(wanted, found, labels=labels, average="macro")
    metric = functools.partial(metrics.mean_iou, ignored=255)
    assert metric(logits, target) == pytest.approx(expected)
    assert _over_batches(metric, _split(logits, target)) == pytest.approx(expected)


@pytest.mark.parametrize("seed", SEEDS)
def test_one_logit_counts_as_the_logits_of_two_classes(seed):
    torch.manual_seed(seed)
    logits, target = torch.randn(6, 1, 4, 3), torch.randint(2, (6, 1, 4, 3)).float()
    target[0, 0, 0, 0] = 255
    two = torch.cat([torch.zeros_like(logits), logits], 1)
    for name in ("f1", "mean_iou"):
        metric = functools.partial(getattr(metrics, name), ignored=255)
        assert _over_batches(metric, _split(logits, target)) == metric(two, target[:, 0].long())


@pytest.mark.parametrize("seed", SEEDS)
def test_psnr_is_of_the_error_over_all_the_data(seed):
    generator = numpy.random.default_rng(seed)
    target = generator.uniform(0, 255, (6, 3, 4, 5))
    output = target + generator.normal(0, 9, target.shape)
    expected = 20 * math.log10(255) - 10 * math.log10(numpy.mean((output - target) ** 2))
    metric, tensors = functools.partial(metrics.psnr, data_range=255), (torch.tensor(output), torch.tensor(target))
    assert metric(*tensors) == pytest.approx(expected)
    assert _over_batches(metric, _split(*tensors)) == pytest.approx(expected)
    assert metrics.psnr(tensors[0], tensors[0]) == math.inf


def _ssim(one, other):
    """One channel, from the definition; beyond the border the image is mirrored."""
    smooth = functools.partial(scipy.ndimage.gaussian_filter, sigma=1.5, radius=5, mode="mirror")
    means = smooth(one), smooth(other)
    spreads = smooth(one * one) - means[0] ** 2, smooth(other * other) - means[1] ** 2
    shared = smooth(one * other) - means[0] * means[1]
    small = 0.01**2, 0.03**2
    above = (2 * means[0] * means[1] + small[0]) * (2 * shared + small[1])
    below = (means[0] ** 2 + means[1] ** 2 + small[0]) * (spreads[0] + spreads[1] + small[1])
    return (above / below).mean()


@pytest.mark.parametrize("seed", SEEDS)
def test_ssim_follows_its_definition(seed):
    generator = numpy.random.default_rng(seed)
    target = generator.uniform(0, 1, (6, 2, 16, 19))
    output = numpy.clip(target + generator.normal(0, 0.1, target.shape), 0, 1)
    expected = numpy.mean([_ssim(output[i, c], target[i, c]) for i in range(6) for c in range(2)])
    tensors = torch.tensor(output), torch.tensor(target)
    assert metrics.ssim(*tensors) == pytest.approx(expected, abs=1e-4)
    assert _over_batches(metrics.ssim, _split(*tensors)) == pytest.approx(expected, abs=1e-4)


def _edits(one, other):
    table = list(range(len(other) + 1))
    for i, left in enumerate(one, start=1):
        before, table[0] = table[0], i
        for j, right in enumerate(other, start=1):
            before, table[j] = table[j], min(table[j] + 1, table[j - 1] + 1, before + (left != right))
    return table[-1]


@pytest.mark.parametrize("seed", SEEDS)
def test_word_error_rate_counts_words_over_all_the_data(seed):
    chance, words = random.Random(seed), ["a", "b", "c", "d"]
    texts = [[" ".join(chance.choices(words, k=chance.randint(1, 6))) for _ in range(8)] for _ in range(2)]
    pairs = [(a.split(), b.split()) for a, b in zip(*texts, strict=True)]
    expected = sum(_edits(a, b) for a, b in pairs) / sum(len(b) for _, b in pairs)
    assert metrics.word_error_rate(*texts) == pytest.approx(expected)
    numbers = torch.arange(8)
    metric = functools.partial(metrics.word_error_rate, decode=lambda output: [texts[0][int(i)] for i in output])
    data = [(numbers[:3], texts[1][:3]), (numbers[3:4], texts[1][3:4]), (numbers[4:], texts[1][4:])]
    assert _over_batches(metric, data) == pytest.approx(expected)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("offset", [0, 100, 1e6, 1e9])
def test_correlation_is_that_of_numpy(seed, offset):
    generator = numpy.random.default_rng(seed)
    target = generator.normal(offset, 1, (20, 2))
    output = target + generator.normal(0, 1, target.shape)
    expected = numpy.mean([numpy.corrcoef(output[:, i], target[:, i])[0, 1] for i in range(2)])
    tensors = torch.tensor(output), torch.tensor(target)
    assert metrics.correlation(*tensors) == pytest.approx(expected)
    assert _over_batches(metrics.correlation, _split(*tensors)) == pytest.approx(expected)
    assert metrics.correlation(tensors[0][:, :1], tensors[1][:, 0]) == pytest.approx(
        numpy.corrcoef(output[:, 0], target[:, 0])[0, 1]
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_equal_error_rate_is_where_the_rates_cross(seed):
    generator = numpy.random.default_rng(seed)
    target = generator.integers(0, 2, 60)
    scores = generator.normal(0, 1, 60) * 30 + 40 * target  # far beyond 1, where a sigmoid is 1
    scores[5] = scores[6]
    limits = [numpy.inf, *sorted(set(scores), reverse=True)]
    rates = [((scores >= t)[target == 0].mean(), (scores < t)[target == 1].mean()) for t in limits]
    false, missed = min(rates, key=lambda pair: abs(pair[0] - pair[1]))
    expected = (false + missed) / 2
    tensors = torch.tensor(scores), torch.tensor(target)
    assert metrics.equal_error_rate(*tensors) == pytest.approx(expected)
    assert _over_batches(metrics.equal_error_rate, _split(*tensors)) == pytest.approx(expected)
    assert metrics.equal_error_rate(torch.stack([-tensors[0], tensors[0]], 1), tensors[1]) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("name", "label", "higher"),
    [
        ("f1", "F1", True),
        ("mean_average_precision", "mAP", True),
        ("mean_iou", "mean IoU", True),
        ("psnr", "PSNR (dB)", True),
        ("ssim", "SSIM", True),
        ("word_error_rate", "word error rate", False),
        ("correlation", "correlation", True),
        ("equal_error_rate", "equal error rate", False),
    ],
)
def test_metrics_say_what_they_are(name, label, higher):
    for metric in (getattr(metrics, name), functools.partial(getattr(metrics, name))):
        assert metric_name(metric) == label
        assert is_higher_better(metric) is higher
        assert facts_of(metric).low < facts_of(metric).high
    assert is_higher_better(getattr(metrics, name), not higher) is not higher


def test_tables_and_charts_take_name_direction_and_bounds():
    torch.manual_seed(0)
    target = torch.randint(2, (40,))
    scores = target + torch.randn(40)
    pairs = list(zip(scores.split(4), target.split(4), strict=True))

    class Worse(torch.nn.Module):
        def forward(self, x):
            return x.flip(0)

    found = pb.compare(
        {"good": torch.nn.Identity(), "bad": Worse()}, pairs, metric=pb.metrics.equal_error_rate, rounds=0
    )
    assert (found.metric_label, found.higher_is_better, found.bounds) == ("equal error rate", False, (0, 1))
    assert found["good"].metric < found["bad"].metric
    assert found["good"].spread[0] <= found["good"].metric <= found["good"].spread[1]
    low, high = found.figure().layout.yaxis.range
    assert -0.5 < low < found["good"].metric < found["bad"].metric < high
    assert "equal error rate" in repr(found)
    assert found.worst(2).candidate == "bad"


def test_a_search_goes_in_the_direction_of_the_metric():
    torch.manual_seed(0)
    target = torch.randint(2, (20,))
    data = [(target[:2].float(), torch.zeros(2)), (target.float(), target)]  # the first batch alone has no rate
    scoring = Scoring(
        torch.nn.Identity(), data, metrics.equal_error_rate, is_higher_better(metrics.equal_error_rate), report_nothing
    )
    scoring.begin()
    assert (scoring.base, scoring.unsteady, scoring.name) == (
        scoring.score("other", torch.nn.Identity())[0],
        0.0,
        "equal error rate",
    )
    assert scoring.scale.loss(scoring.base + 0.1) == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: metrics.f1(torch.zeros(4, 3), torch.zeros(5)), r"\(4, 3\).*\(5,\)"),
        (lambda: metrics.f1(torch.zeros(4, 3), torch.tensor([0, 1, 2, 3])), "0 to 3, and there are 3.*classes="),
        (lambda: metrics.f1(torch.zeros(2, 3), torch.tensor([-100, -100])), "no target to count"),
        (lambda: metrics.f1(torch.zeros(2, 3), torch.zeros(2), average="mean"), "'macro', .*got 'mean'"),
        (lambda: metrics.mean_iou(torch.zeros(1, 3, 2, 2), torch.full((1, 2, 2), 255)), "ignored="),
        (lambda: metrics.psnr(torch.zeros(2, 3), torch.zeros(3, 2)), r"\(2, 3\).*\(3, 2\)"),
        (lambda: metrics.psnr(torch.zeros(2), torch.zeros(2), data_range=0), "positive number, got 0"),
        (lambda: metrics.ssim(torch.zeros(3, 16, 16), torch.zeros(3, 16, 16)), r"\(3, 16, 16\).*images\[None\]"),
        (lambda: metrics.ssim(torch.zeros(1, 3, 8, 8), torch.zeros(1, 3, 8, 8)), "11 pixels"),
        (lambda: metrics.word_error_rate(torch.zeros(2), ["a", "b"]), "list of texts.*decode="),
        (lambda: metrics.word_error_rate(["a"], ["a", "b"]), "1 texts and 2 targets"),
        (lambda: metrics.word_error_rate(["a"], [""]), "no target has a word"),
        (lambda: metrics.word_error_rate(["a"], ["a"], decode=3), "decode must be a function.*got 3"),
        (lambda: metrics.correlation(torch.zeros(3), torch.zeros(4)), r"\(3, 1\).*\(4, 1\)"),
        (lambda: metrics.correlation(torch.ones(3), torch.arange(3.0)), "all alike"),
        (lambda: metrics.equal_error_rate(torch.zeros(3, 3), torch.zeros(3)), r"\(3, 3\).*one score"),
        (lambda: metrics.equal_error_rate(torch.zeros(3), torch.tensor([0, 1, 2])), "0 or 1"),
        (lambda: metrics.equal_error_rate(torch.zeros(3), torch.zeros(3)), "one class only"),
    ],
)
def test_wrong_shapes_are_told(call, words):
    with pytest.raises((InputError, SettingsError), match=words):
        call()


@pytest.mark.parametrize("name", ["f1", "mean_iou", "ssim", "word_error_rate", "equal_error_rate"])
def test_without_torchmetrics_the_error_has_the_line_to_install_it(name, monkeypatch):
    class Absent:
        def find_spec(self, full_name, path=None, target=None):
            if full_name == "torchmetrics":
                raise ModuleNotFoundError("No module named 'torchmetrics'", name="torchmetrics")

    for module in [each for each in sys.modules if each.partition(".")[0] == "torchmetrics"]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setattr(sys, "meta_path", [Absent(), *sys.meta_path])
    given = {
        "ssim": (torch.zeros(1, 1, 16, 16),) * 2,
        "word_error_rate": (["a"], ["a"]),
        "equal_error_rate": (torch.tensor([0.1, 0.2]), torch.tensor([0, 1])),
    }.get(name, (torch.tensor([0, 1]), torch.tensor([0, 1])))
    with pytest.raises(MissingPackageError, match=rf"{name} needs torchmetrics.*pip install 'prepbench\[metrics\]'"):
        getattr(metrics, name)(*given)


def test_metrics_of_others_are_not_called_for_their_totals():
    class Metric:
        def totals(self):
            raise AssertionError

        def __call__(self, output, target):
            return 0.0

    assert totals_of(Metric()) is None
    assert records_of(Metric()) is None
