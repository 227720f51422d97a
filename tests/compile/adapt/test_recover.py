"""The short training: what it gains, how it ends, and what it leaves."""

from __future__ import annotations

import copy
import itertools
import math
from typing import Any

import pytest
import torch
from torch import nn

import prepbench as pb
from prepbench.adapt.recover import Recovery
from prepbench.running import given_samples
from tests.compile.adapt.models import batches, digits, logits, loss, samples, shaped, trained
from tests.compile.adapt.test_trainable import INT4, prepared_of

FEW_BITS = pb.QuantizationSettings(weights_num_bits=4, prefer_weights_only_quantization=True, per_channel=False)


def accuracy(output: object, target: torch.Tensor) -> float:
    return pb.metrics.accuracy(logits(output), target)


def test_recovering_gains_accuracy_and_keeps_the_best() -> None:
    model = trained("transformer")
    prepared = prepared_of(model, settings=FEW_BITS)
    found = pb.recover(prepared, batches(model), loss, steps=60, metric=accuracy)
    assert found.after == max(found.scores.values()) >= found.before
    assert len(found.losses) == 60 or "did not improve" in found.stopped
    assert not prepared.training
    x, y = digits()[2:]
    with torch.no_grad():
        assert accuracy(prepared(shaped(model, x)), y) > accuracy(model(shaped(model, x)), y) - 0.05


def test_without_targets_it_learns_what_the_float_model_gives() -> None:
    model = trained("transformer")
    prepared = prepared_of(model, settings=FEW_BITS)
    found = pb.recover(prepared, [x for x, _ in batches(model)], steps=40)
    assert found.metric == "loss in evaluation"
    assert found.after < found.before
    assert list(found.table().columns) == ["step", "loss", "loss in evaluation"]
    assert found.figure().data
    assert "before" in repr(found)
    assert found._repr_mimebundle_()["text/plain"] == repr(found)


def test_a_loss_that_is_nan_names_step_and_sample_and_keeps_the_best() -> None:
    model = trained("conv")
    prepared = prepared_of(model, settings=INT4)
    before = {name: value.clone() for name, value in prepared.state_dict().items()}
    data = batches(model)[:3]
    with pytest.raises(pb.PrepbenchError, match=r"nan at step 3, on data\[2\]"):
        pb.recover(prepared, data, lambda o, t: loss(o, t) * (math.nan if t is data[2][1] else 1), steps=50)
    assert all(torch.equal(value, before[name]) for name, value in prepared.state_dict().items())


def test_each_step_is_told_and_may_be_the_last() -> None:
    model = trained("conv")
    prepared, heard = prepared_of(model, settings=INT4), []

    def follow(step: int, value: float | None, score: float | None) -> None:
        heard.append((step, value, score))
        if step == 3:
            raise KeyboardInterrupt

    found = pb.recover(prepared, batches(model)[:4], loss, steps=24, on_step=follow)
    assert [step for step, _, _ in heard] == [0, 1, 2, 3]
    assert [value for _, value, _ in heard] == [None, *found.losses]
    told = {step: score for step, _, score in heard if score is not None}
    assert told == {step: score for step, score in found.scores.items() if step != 3}, "scored after it was ended"
    assert 3 in found.scores
    assert found.stopped == "interrupted"
    with pytest.raises(pb.PrepbenchError, match="on_step"):
        pb.recover(prepared, batches(model)[:4], loss, on_step=3)


def test_where_the_metric_is_equal_the_loss_decides() -> None:
    model = trained("transformer")
    prepared = prepared_of(model, settings=FEW_BITS)
    found = pb.recover(prepared, batches(model)[:4], loss, steps=24, metric=lambda output, target: 1.0)
    assert set(found.scores.values()) == {1.0}
    assert found.best_step > 0


def test_data_that_ends_is_said_and_lists_are_cycled() -> None:
    model = trained("conv")
    data = batches(model)[:2]
    ended = pb.recover(prepared_of(model), iter(data), loss, steps=5)
    assert "ended after 2 of 5" in ended.stopped
    assert len(pb.recover(prepared_of(model), data, loss, steps=5).losses) == 5


class ReadOnce(torch.utils.data.IterableDataset):  # type: ignore[type-arg]
    """Data that makes an iterator anew, which has nothing more to give."""

    def __init__(self, rows: Any) -> None:
        self.rows = iter(rows)

    def __iter__(self) -> Any:
        return self.rows


def test_a_loader_that_is_read_up_ends_the_training() -> None:
    model = trained("conv")
    loader = torch.utils.data.DataLoader(ReadOnce(batches(model)[:3]), batch_size=None)
    assert "ended after 3 of 20" in pb.recover(prepared_of(model), loader, loss, steps=20).stopped
    for empty in ([], loader):
        with pytest.raises(pb.PrepbenchError, match="data is empty"):
            pb.recover(prepared_of(model), empty, loss, steps=20, validation=batches(model)[:1])


def test_validation_without_an_end_is_read_in_part_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(given_samples, "_KEPT", 3)
    model = trained("conv")
    x, y = batches(model)[0]
    with pytest.warns(pb.PrepbenchWarning, match="validation: only its first 3 elements are read"):
        found = pb.recover(prepared_of(model), [(x, y)], loss, steps=1, validation=itertools.repeat((x[:1], y[:1])))
    assert found.notes == ()


def test_what_is_left_out_as_a_label_is_said_once() -> None:
    model = trained("conv")
    x, y = batches(model)[0]
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x[:8], y[:8]), batch_size=4)
    with pytest.warns(pb.PrepbenchWarning) as said:
        found = pb.recover(prepared_of(model), loader, steps=5, validation=samples(model))
    assert [str(one.message) for one in said] == [
        "data: the last of the 2 parts of each batch is left out as its label, because forward takes x alone."
    ]
    assert len(found.losses) == 5, "it was read three times"


@pytest.mark.parametrize(("count", "words"), [(1, "one batch"), (3, "3 batches"), (17, "the first 16 batches")])
def test_how_many_batches_the_scores_are_of_is_said(count: int, words: str) -> None:
    model = trained("conv")
    data = [(x[:2], y[:2]) for x, y in itertools.islice(itertools.cycle(batches(model)), count)]
    found = pb.recover(prepared_of(model), data, loss, steps=1)
    assert found.notes == (f"Scores are of {words}, which it trains on as well",)


def test_an_interrupt_keeps_the_best_so_far() -> None:
    model = trained("conv")

    def interrupted(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        if torch.is_grad_enabled():
            calls.append(1)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return loss(output, target)

    calls: list[int] = []
    found = pb.recover(prepared_of(model), batches(model)[:2], interrupted, steps=9)
    assert (found.stopped, len(found.losses)) == ("interrupted", 3)


def test_a_gain_is_said_only_where_there_is_one() -> None:
    def after(score: float, best: int, higher: bool = False) -> Recovery:
        return Recovery((0.6, 0.6), {0: 0.5, 2: score}, "score", higher, best, "all steps done", 1.0, 10)

    assert after(0.2, 2).is_better
    assert after(0.2, 2).summary.startswith("score 0.5 before, 0.2 after 2 of 2 steps (1.0 s")
    for nothing in (after(0.9, 0), after(0.2, 0, higher=True)):
        assert not nothing.is_better
        assert nothing.after == 0.5
        assert nothing.summary.startswith(
            "nothing was won: score 0.5 before, and not better in 2 steps; the weights are those from before (1.0 s"
        )
    alike = after(0.5, 2, higher=True)
    assert not alike.is_better
    assert "nothing was won" in alike.summary
    assert "those after 2 of 2 steps, with the least loss" in alike.summary


def test_a_training_that_makes_it_worse_keeps_the_weights() -> None:
    prepared = prepared_of(trained("conv"))
    before = {name: value.clone() for name, value in prepared.state_dict().items()}
    found = pb.recover(prepared, batches(trained("conv"))[:2], loss, steps=4, learning_rate=1e6)
    assert found.best_step == 0
    assert "nothing was won" in found.summary
    assert all(torch.equal(value, before[name]) for name, value in prepared.state_dict().items())


def test_what_was_trained_before_an_interrupt_is_scored() -> None:
    model = trained("conv")

    def interrupts(step: int, value: float | None, score: float | None) -> None:
        if step == 40:
            raise KeyboardInterrupt

    data = batches(model)[:2]
    found = pb.recover(prepared_of(model), data, loss, steps=4000, on_step=interrupts)
    assert found.stopped == "interrupted"
    assert set(found.scores) == {0, 40}, "no check was due"
    assert found.best_step == 40


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"steps": 0}, "steps"),
        ({"learning_rate": -1}, "learning_rate"),
        ({"data": []}, "data is empty"),
        ({"data": [torch.zeros(2, 1, 8, 8)]}, "pair"),
        ({"validation": []}, "validation is empty"),
        ({"prepared": nn.Linear(2, 2)}, "pb.trainable"),
        ({"metric": lambda o, t: math.nan}, "nan"),
    ],
)
def test_bad_arguments_are_named(keywords: dict[str, object], message: str) -> None:
    model = trained("conv")
    given = {"prepared": prepared_of(model), "data": batches(model)[:2], "loss": loss, "steps": 2, **keywords}
    with pytest.raises(pb.PrepbenchError, match=message):
        pb.recover(**given)  # type: ignore[arg-type]


def test_models_with_other_weights_than_before_are_told() -> None:
    model = copy.deepcopy(trained("conv"))
    x, teacher = samples(model), copy.deepcopy(trained("conv"))
    prepared = prepared_of(model)
    quiet = pb.recover(prepared, x, steps=2, validation=x)
    assert quiet.notes == ()
    on_trained = pb.recover(prepared, x, steps=2)
    assert "which it trains on as well" in on_trained.summary
    assert len(on_trained.notes) == 1

    def change(step: int, _: object, __: object) -> None:
        with torch.no_grad():
            teacher.head.bias.add_(1.0 if step == 1 else 0.0)

    changed = pb.recover(prepared, x, steps=2, validation=x, teacher=teacher, on_step=change)
    assert [note for note in changed.notes if "teacher have changed" in note] == list(changed.notes)
    with torch.no_grad():
        model.stem.weight.mul_(1.1)
    (note,) = pb.recover(prepared, x, steps=2, validation=x).notes
    assert "learned the outputs of the new ones" in note
    # the remedy that it names
    assert pb.recover(prepared_of(copy.deepcopy(model)), x, steps=2, validation=x).notes == ()


def test_metric_knows_its_direction_and_how_it_is_taken() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(12, 16), nn.Linear(16, 12)).eval()
    words = torch.randint(12, (24, 8))
    data = [(words[:20], (words[:20] + 1) % 12), (words[20:], (words[20:] + 1) % 12)]
    prepared = pb.trainable(
        model,
        calibration_inputs=[words[:20], words[20:]],
        deployment_settings=pb.EagerDeployment(),
        quantization_settings=FEW_BITS,
    )

    def entropy(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(output.flatten(0, 1), target.flatten())

    same = pb.recover(prepared, data, entropy, steps=1, metric=entropy)
    assert not same.higher_is_better, "a loss is to be small"
    assert "; lower is better)" in same.summary
    found = pb.recover(prepared, data, entropy, steps=40, learning_rate=1e-2, metric=pb.metrics.perplexity)
    assert not found.higher_is_better
    assert found.is_better
    assert found.after == min(found.scores.values())
    compared = pb.compare({"trained": prepared}, data, metric=pb.metrics.perplexity, rounds=0)
    assert compared.rows[0].metric == pytest.approx(found.after), "over all words, not a mean of two batches"


def test_a_comparison_says_what_to_compare_instead_of_a_model_in_training() -> None:
    model = trained("conv")
    found = pb.compare({"float": model, "trained": prepared_of(model)}, samples(model)[:1], rounds=0)
    assert "a model of pb.trainable, which only simulates. Compare pb.compile_model(model)" in found["trained"].note
