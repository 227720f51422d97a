from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import pytest
import torch

from prepbench.measure import metrics
from prepbench.measure.scores import SqnrScore
from prepbench.running.metric_facts import is_higher_better
from prepbench.running.metric_scores import MeanScore, finite_number, metric_name, score_of

LOGITS = torch.tensor([[0.1, 0.9, 0.0], [0.8, 0.1, 0.1], [0.2, 0.3, 0.5], [0.6, 0.3, 0.1]])
CLASSES = torch.tensor([1, 0, 0, 1])


@dataclass
class Output:
    logits: torch.Tensor
    hidden: torch.Tensor | None = None


@pytest.mark.parametrize(
    "output",
    [LOGITS, Output(LOGITS), {"logits": LOGITS, "loss": torch.tensor(1.0)}, {"out": LOGITS}, (LOGITS, torch.ones(3))],
    ids=["tensor", "object", "dict", "only tensor", "tuple"],
)
def test_accuracy_finds_the_logits(output):
    assert metrics.accuracy(output, CLASSES) == 0.5


def test_accuracy_on_class_scores_predictions_and_lists():
    assert metrics.accuracy(LOGITS, torch.nn.functional.one_hot(CLASSES, 3).float()) == 0.5
    assert metrics.accuracy(LOGITS.argmax(-1), CLASSES) == 0.5
    assert metrics.accuracy(LOGITS, [1, 0, 0, 1]) == 0.5


def test_accuracy_of_tokens_leaves_out_ignored_ones():
    logits = LOGITS.reshape(2, 2, 3)
    assert metrics.accuracy(logits, torch.tensor([[1, -100], [-100, 1]])) == 0.5
    assert metrics.accuracy(logits, torch.tensor([[1, -100], [-100, -100]])) == 1.0
    with pytest.raises(ValueError, match="no target to count"):
        metrics.accuracy(logits, torch.full((2, 2), -100))


def test_accuracy_of_segmentation_takes_dimension_1():
    logits = torch.zeros(2, 3, 4, 5)
    logits[:, 2] = 1.0
    target = torch.full((2, 4, 5), 2)
    target[0] = 1
    assert metrics.accuracy(logits, target) == 0.5


def test_accuracy_refuses_shapes_that_do_not_fit():
    with pytest.raises(ValueError, match=r"\(4, 3\).*\(5,\)"):
        metrics.accuracy(LOGITS, torch.zeros(5, dtype=torch.long))
    with pytest.raises(ValueError, match=r"\['a', 'b'\]"):
        metrics.accuracy({"a": LOGITS, "b": LOGITS}, CLASSES)


class OwnLoss:
    def __call__(self, output, target):
        return 0.0


class Smoothed(torch.nn.CrossEntropyLoss):
    pass


@pytest.mark.parametrize(
    ("metric", "is_higher"),
    [
        (torch.nn.functional.cross_entropy, False),
        (functools.partial(torch.nn.functional.binary_cross_entropy_with_logits, reduction="sum"), False),
        (torch.nn.functional.mse_loss, False),
        (torch.nn.L1Loss(), False),
        (Smoothed(), False),
        (OwnLoss(), False),
        (metrics.perplexity, False),
        (metrics.accuracy, True),
        (lambda output, target: 0.0, True),
        (torch.nn.CosineSimilarity(), True),
    ],
)
def test_losses_are_to_be_small(metric, is_higher):
    assert is_higher_better(metric) is is_higher
    assert is_higher_better(metric, not is_higher) is not is_higher


def test_top_k():
    assert metrics.top_k(1)(LOGITS, CLASSES) == metrics.accuracy(LOGITS, CLASSES)
    assert metrics.top_k(2)(LOGITS, CLASSES) == 0.75
    assert metrics.top_k(9)(LOGITS, CLASSES) == 1.0
    assert metric_name(metrics.top_k(5)) == "top_5"
    with pytest.raises(ValueError, match="at least 1"):
        metrics.top_k(0)


@pytest.mark.parametrize("metric", [metrics.accuracy, metrics.top_k(1)], ids=["accuracy", "top_1"])
def test_ragged_and_ignored_targets_are_counted_over_all_batches(metric):
    right, wrong = torch.eye(3)[torch.ones(2, 3, dtype=torch.long)], torch.eye(3)[torch.zeros(2, 30, dtype=torch.long)]
    score = score_of(metric)
    score.add(right, torch.ones(2, 3, dtype=torch.long), 2)
    score.add(wrong, torch.ones(2, 30, dtype=torch.long), 2)
    score.add(wrong, torch.full((2, 30), -100), 2)
    assert score.value() == pytest.approx(6 / 66)
    assert is_higher_better(metric)
    nothing = score_of(metric)
    nothing.add(wrong, torch.full((2, 30), -100), 2)
    with pytest.raises(ValueError, match="no target to count"):
        nothing.value()


BINARY = torch.tensor([3.0, -2.0, 1.0, -4.0])
WRONG = torch.tensor([0, 1, 0, 1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool])
@pytest.mark.parametrize(
    ("logits", "target"),
    [((4,), (4,)), ((4, 1), (4, 1)), ((4, 1), (4,)), ((1, 1, 2, 2), (1, 1, 2, 2)), ((1, 1, 2, 2), (1, 2, 2))],
)
def test_one_logit_tells_two_classes_apart(logits, target, dtype):
    scores, wrong = BINARY.reshape(logits), WRONG.reshape(target).to(dtype)
    assert metrics.accuracy(scores, wrong) == metrics.top_k(1)(scores, wrong) == 0.0
    assert metrics.accuracy(-scores, wrong) == metrics.top_k(2)(scores, wrong) == 1.0


def test_one_logit_leaves_ignored_targets_out():
    assert metrics.accuracy(BINARY[:, None], torch.tensor([1.0, -100.0, 0.0, 0.0])) == pytest.approx(2 / 3)


def test_predicted_classes_may_have_a_dimension_of_one():
    assert metrics.accuracy(torch.tensor([[2], [1]]), torch.tensor([2, 2])) == 0.5


@pytest.mark.parametrize(
    ("output", "target", "words"),
    [
        (BINARY[:, None], torch.tensor([0, 1, 2, 1]), "one logit tells classes 0 and 1 apart"),
        (BINARY[:, None], torch.tensor([[0.5], [1.5], [2.0], [-3.0]]), "between -3 and 2"),
        (BINARY[:, None].sigmoid(), WRONG, "like probabilities: expected logits"),
        (torch.ones(2, 3), torch.tensor([[1.0, 1.0, 0.0], [0.0, 1.0, 0.0]]), "one class each"),
        (BINARY.reshape(2, 2), torch.tensor([[1.0, 1.0], [0.0, 0.0]]), "one class each"),
    ],
    ids=["more classes", "regression", "probabilities", "several labels", "mask without channel"],
)
def test_what_one_logit_cannot_tell_is_refused(output, target, words):
    with pytest.raises(ValueError, match=words):
        metrics.accuracy(output, target)


@pytest.mark.parametrize("metric", [metrics.accuracy, metrics.f1, metrics.top_k(1), metrics.perplexity])
@pytest.mark.parametrize("order", [[0, 1, 2, 3], [0, 2, 1, 3]], ids=["mixed", "by class"])
@pytest.mark.parametrize("size", [1, 2])
def test_probabilities_are_refused_however_they_are_batched(metric, order, size):
    outputs, targets = BINARY[:, None].sigmoid()[order], (1 - WRONG)[order]
    score = score_of(metric)
    for output, target in zip(outputs.split(size), targets.split(size), strict=True):
        score.add(output, target, size)
    with pytest.raises(ValueError, match="like probabilities: expected logits"):
        score.value()
    score.add(torch.tensor([[-0.1]]), torch.tensor([0]), 1)
    assert score.value() >= 0


def test_class_scores_of_images_have_the_classes_in_dimension_1():
    classes = torch.tensor([[[0, 2, 1], [1, 1, 0]]])
    scores = torch.nn.functional.one_hot(classes, 3).movedim(-1, 1).float()
    assert metrics.accuracy(scores, scores) == 1.0
    assert metrics.accuracy(scores.roll(1, 1), scores) == 0.0


def test_sqnr():
    reference = torch.tensor([3.0, 4.0])
    assert metrics.sqnr(reference + torch.tensor([0.0, 0.05]), reference) == pytest.approx(40.0, abs=1e-4)
    assert metrics.sqnr(reference, reference) == math.inf
    assert metrics.sqnr(reference, torch.zeros(2)) == -math.inf
    assert metrics.sqnr(torch.tensor([3.0, math.nan]), reference) == -math.inf
    # hidden states are 100 times larger: with logits in the output they must not count
    noisy = Output(reference + torch.tensor([0.0, 0.05]), hidden=torch.full((2,), 100.0))
    assert metrics.sqnr(noisy, Output(reference, hidden=torch.zeros(2))) == pytest.approx(40.0, abs=1e-4)


def test_sqnr_needs_comparable_outputs():
    with pytest.raises(ValueError, match=r"Shapes differ .*\(2,\) in the reference, \(3,\) in the result"):
        metrics.sqnr(torch.ones(3), torch.ones(2))
    with pytest.raises(ValueError, match="no floating-point tensor"):
        metrics.sqnr(torch.ones(2, dtype=torch.long), torch.ones(2, dtype=torch.long))


def test_sqnr_over_batches_adds_energies_first():
    score = SqnrScore()
    score.add(torch.tensor([10.0]), torch.tensor([10.0]), 1)  # perfect: alone it would be infinite
    score.add(torch.tensor([1.0]), torch.tensor([0.0]), 1)
    assert score.value() == pytest.approx(20.0)


def test_mean_is_weighted_by_batch_size():
    score = MeanScore(lambda output, target: output)
    score.add(1.0, None, 30)
    score.add(0.0, None, 10)
    assert score.value() == 0.75


@pytest.mark.parametrize("value", [3, 3.0, True + 2, torch.tensor(3), torch.tensor([[3.0]]), torch.tensor(3.0).numpy()])
def test_numbers(value):
    assert finite_number(value) == 3.0


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "None"),
        ("0.9", "'0.9' .str."),
        (torch.ones(4), r"4 elements, shape \(4,\)"),
        (float("nan"), "nan"),
        (torch.tensor(math.inf), "inf"),
        ({"a": 1}, "dict"),
        (1j, "complex"),
    ],
)
def test_not_a_finite_number(value, words):
    with pytest.raises((TypeError, ValueError), match=words):
        finite_number(value)
