"""Metrics of models that predict tokens, alone and in a comparison."""

from __future__ import annotations

import math

import pytest
import torch

import prepbench as pb
from prepbench.errors import InputError, MetricError, SettingsError
from prepbench.measure import metrics


class Table(torch.nn.Module):
    """Predicts the next token from this one."""

    def __init__(self, noise: float) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = torch.nn.Parameter(torch.randn(6, 6))
        self.noise = noise

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.table[ids] + self.noise * torch.arange(6)


IDS = [torch.tensor([[0, 1, 2, 3]]), torch.tensor([[5, 5, 5, 0], [1, 4, 0, 0], [2, 2, 1, 0]])]
MODELS = {"float32": Table(0.0), "other": Table(1.0)}


def compared(data: list, metric: object) -> pb.Comparison:  # type: ignore[type-arg]
    return pb.compare(MODELS, data, metric=metric, rounds=0)  # type: ignore[arg-type]


def test_perplexity_counts_tokens_and_not_batches() -> None:
    data = [(ids, ids[:, 1:]) for ids in IDS]
    result = compared(data, metrics.perplexity)
    logits = torch.cat([MODELS["float32"](ids)[:, :-1].detach().reshape(-1, 6) for ids in IDS])
    entropy = torch.nn.functional.cross_entropy(logits, torch.cat([ids[:, 1:].reshape(-1) for ids in IDS]))
    assert result["float32"].metric == pytest.approx(math.exp(float(entropy)), rel=1e-6)
    assert not result.higher_is_better
    assert result.metric == "perplexity"


def test_a_target_for_each_position_may_leave_some_out() -> None:
    logits = MODELS["float32"](IDS[0])
    shifted = torch.tensor([[1, 2, 3, -100]])
    assert metrics.perplexity(logits, shifted) == pytest.approx(metrics.perplexity(logits, IDS[0][:, 1:]))
    with pytest.raises(InputError, match="no target to count"):
        metrics.perplexity(logits, torch.full((1, 4), -100))
    with pytest.raises(InputError, match=r"expected logits and token numbers.*ids\[:, 1:\]"):
        metrics.perplexity(IDS[0], IDS[0])


class LastOnly(Table):
    """Gives the logits of the last token, as language models do with ``logits_to_keep=1``."""

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return super().forward(ids[:, -1:])


@pytest.mark.parametrize("metric", [metrics.perplexity, metrics.bits_per_byte(2.0)], ids=["perplexity", "bits"])
def test_logits_of_the_last_token_are_scored_one_by_one(metric) -> None:
    compiled = pb.compile_model(LastOnly(0.0), tracing_inputs=[torch.zeros(1, n, dtype=torch.long) for n in (3, 5)])
    ids = IDS[0]
    with pytest.raises(MetricError, match=r"logits of the last token alone, as with logits_to_keep=1\. Compile it"):
        pb.compare({"compiled": compiled}, [(ids, ids[:, 1:])], metric=metric, rounds=0)
    beginnings = [(ids[:, :n], ids[:, n : n + 1]) for n in (1, 2, 3)]
    result = pb.compare({"compiled": compiled}, beginnings, metric=metric, rounds=0)
    whole = pb.compare({"float32": MODELS["float32"]}, [(ids, ids[:, 1:])], metric=metric, rounds=0)
    assert result["compiled"].metric == pytest.approx(whole["float32"].metric, rel=1e-5)


def test_bits_per_byte_is_the_same_text_for_other_vocabularies() -> None:
    data = [(ids, ids[:, 1:]) for ids in IDS]
    nats = math.log(compared(data, metrics.perplexity)["float32"].metric)
    one = compared(data, metrics.bits_per_byte(2.0))
    assert one["float32"].metric == pytest.approx(nats / math.log(2) / 2, rel=1e-6)
    assert one.metric == "bits_per_byte"
    lengths = torch.tensor([1.0, 2, 3, 4, 5, 6])
    total = sum(float(lengths[ids[:, 1:]].sum()) for ids in IDS)
    each = compared(data, metrics.bits_per_byte(lengths))["float32"].metric
    assert each == pytest.approx(nats * 12 / math.log(2) / total, rel=1e-6)
    with pytest.raises(MetricError, match="bytes_per_token has 2 entries, and the targets go up to 3"):
        compared(data, metrics.bits_per_byte([1.0, 2.0]))


@pytest.mark.parametrize("value", [0, -1.0, float("nan"), "two", [], [[1.0]], True, None])
def test_bytes_that_are_none_are_refused(value: object) -> None:
    with pytest.raises(SettingsError, match="bytes_per_token must be a positive number"):
        metrics.bits_per_byte(value)  # type: ignore[arg-type]


def test_divergence_and_agreement_compare_with_the_first_candidate() -> None:
    divergence = compared(IDS, metrics.kl_divergence)
    wanted, found = (torch.cat([m(ids).reshape(-1, 6) for ids in IDS]).log_softmax(-1) for m in MODELS.values())
    expected = float((wanted.exp() * (wanted - found)).sum(-1).mean())
    assert divergence["float32"].metric == 0.0
    assert divergence["other"].metric == pytest.approx(expected, rel=1e-5)
    assert not divergence.higher_is_better
    agreement = compared(IDS, metrics.token_agreement)
    assert agreement["float32"].metric == 1.0
    assert agreement["other"].metric == pytest.approx(float((wanted.argmax(-1) == found.argmax(-1)).float().mean()))
    assert agreement.higher_is_better


def test_nan_agrees_with_nothing() -> None:
    nan, good = torch.tensor([[0.1, float("nan")], [0.2, 0.1]]), torch.tensor([[0.1, 0.9], [0.2, 0.1]])
    for output, reference in ((nan, good), (good, nan), (nan, nan)):
        assert metrics.token_agreement(output, reference) == 0.5
    masked = torch.tensor([[float("-inf"), 0.9], [0.2, float("-inf")]])
    assert metrics.token_agreement(masked, good) == 1.0


@pytest.mark.parametrize(("token", "reach"), [(41, "from 3 to 41"), (-1, "from -1 to 3")])
def test_targets_that_are_no_tokens_are_refused(token: int, reach: str) -> None:
    said = f"targets reach {reach}, and the logits are of 6 tokens: expected 0 to 5, or -100"
    for metric in (metrics.perplexity, metrics.bits_per_byte()):
        with pytest.raises(InputError, match=said):
            metric(torch.zeros(1, 3, 6), torch.tensor([[3, token]]))


def test_outputs_of_other_sizes_do_not_agree() -> None:
    with pytest.raises(InputError, match=r"logits of shape \(2, 3\), and those of the reference \(2, 4\)"):
        metrics.kl_divergence(torch.ones(2, 3), torch.ones(2, 4))
    with pytest.raises(InputError, match="two outputs for the same tokens"):
        metrics.token_agreement(torch.ones(2, 3).long(), torch.ones(2, 4).long())
