"""Generation as a workload: what it takes, and what a comparison of candidates that generate says."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import prepbench as pb
from prepbench.errors import InputError, SettingsError
from prepbench.measure.comparison import CandidateResult, Comparison
from prepbench.measure.generation import Generation, GenerationResult
from tests.compile.generate.generating import PROMPTS, TARGETS, compile_for, make_model, make_sample


@pytest.fixture(scope="module")
def model() -> Any:
    return make_model(layers=1)


@pytest.fixture(scope="module")
def compiled(model: Any) -> dict[str, pb.CompiledModel]:
    return compile_for(model, {name: TARGETS[name] for name in ("ONNX Runtime", "OpenVINO")})


def test_all_candidates_generate_what_transformers_generates(model: Any, compiled: Any) -> None:
    expected = model.generate(PROMPTS, max_new_tokens=8, min_new_tokens=8, do_sample=False)[:, 5:]
    result = pb.compare({"float32": model, **compiled}, Generation(PROMPTS, new_tokens=8), rounds=2)
    for row in result.rows:
        assert row.generation is not None
        assert row.metric == 1.0
        assert row.generation.tokens == (tuple(map(tuple, expected.tolist())),)
        assert row.timed_in == "own process", row.note
        assert len(row.times_ms) == 2 * 7  # two rounds of seven tokens after the first
        assert 0 < row.generation.first_token_ms < 1000
        assert row.generation.tokens_per_second > 0
        assert row.generation.peak_bytes > 10**7
    assert "forward" not in vars(model)
    assert list(result.table().columns[-3:]) == ["first token ms", "tokens per second", "peak MB"]
    text = repr(result)
    assert "first ms" in text
    assert "8 tokens after 1 prompt of 5 tokens, ms per token, batch of 2" in text
    assert result._repr_mimebundle_()["text/html"]


@pytest.mark.parametrize("past", [pytest.param(0, marks=pytest.mark.stress), 3], ids=["empty", "filled"])
def test_calls_with_a_cache_are_timed_in_processes_of_their_own(past: int, model: Any, compiled: Any) -> None:
    data = [(make_sample(model, 2, past, 5), PROMPTS) for _ in range(2)]
    result = pb.compare({"float32": model, **compiled}, data, metric=pb.metrics.perplexity, rounds=1)
    for row in result.rows:
        assert row.timed_in == "own process", row.note
        assert row.p50_ms > 0
        assert row.metric == pytest.approx(result.rows[0].metric, rel=1e-4)


def compared(workload: str) -> Comparison:
    made = [torch.tensor([[3, 4], [5, 6]]), torch.tensor([[7, 8]])]
    generation = GenerationResult.of([[2_000_000, 1_000_000]], made, None)
    given = generation if workload else None
    rows = tuple(
        CandidateResult(
            name, 1.0, 0.0, 2.0, 2.5, None, 4, "saved artifact", "eager", "own process", "", (), None, given
        )
        for name in ("float", "int8")
    )
    return Comparison(rows, "token_agreement", "", True, 3, 2, 1, 1, workload)


def test_what_candidates_wrote_stands_side_by_side() -> None:
    result = compared("2 tokens after each of 2 prompts")
    assert result.generated().to_dict("list") == {name: ["3 4", "5 6", "7 8"] for name in ("float", "int8")}
    assert list(result.generated(lambda tokens: f"<{sum(tokens)}>")["int8"]) == ["<7>", "<11>", "<15>"]
    words = "that are longer than a cell of pandas shows"
    html = result.generated(lambda tokens: f"<{sum(tokens)}>\n{words}")._repr_html_()
    assert html.count(f">&lt;11&gt;\n{words}</td>") == 2
    assert "white-space:pre-wrap" in html
    assert result.figure().layout.xaxis.title.text == "latency (ms per token): median, whisker to p90"


def test_a_comparison_of_calls_has_nothing_written() -> None:
    with pytest.raises(InputError, match="Nothing was generated: this comparison measured single calls"):
        compared("").generated()
    assert compared("").figure().layout.xaxis.title.text == "latency (ms per call): median, whisker to p90"


def test_other_tokens_lower_the_agreement(model: Any, compiled: Any) -> None:
    other = make_model(layers=1)
    with torch.no_grad():
        other.lm_head.weight.copy_(other.lm_head.weight.flip(0))
    prompts = [PROMPTS, {"input_ids": PROMPTS[:1], "attention_mask": torch.ones(1, 5, dtype=torch.long)}]
    result = pb.compare({"int8": compiled["ONNX Runtime"], "other": other}, Generation(prompts, 4), rounds=0)
    assert result["other"].metric < 0.5
    assert result["other"].timed_in == "not timed"
    assert result["other"].generation is not None
    assert result["other"].generation.first_token_ms is None
    assert result.samples == 3
    assert "–" in repr(result)


@pytest.mark.stress
def test_a_candidate_without_a_cache_says_so(model: Any) -> None:
    samples = [{"input_ids": PROMPTS}, {"input_ids": PROMPTS[:1, :3].repeat(3, 1)}]
    without = [{**one, "use_cache": False} for one in samples]
    plain = pb.compile_model(model, tracing_inputs=without, deployment_settings=pb.EagerDeployment())
    result = pb.compare({"float32": model, "plain": plain}, Generation(PROMPTS, 4), rounds=0)
    assert result["plain"].metric == 1.0
    assert "no cache: each step computes all tokens again" in result["plain"].note


@pytest.mark.parametrize(
    ("mask", "note"),
    [([[0, 1, 1, 1, 1], [1] * 5], "takes no position_ids, so padding shifts"), ([[1] * 5, [1, 1, 1, 1, 0]], "'left'")],
    ids=["left", "right"],
)
def test_padding_that_spoils_positions_is_a_finding(mask: Any, note: str, model: Any, compiled: Any) -> None:
    prompts = {"input_ids": PROMPTS, "attention_mask": torch.tensor(mask)}
    # the model itself is captured to be compared: once, where another graph would have a note
    candidates = {"ORT": compiled["ONNX Runtime"]} | ({"model": model} if mask[0][0] == 0 else {})
    found = pb.compare(candidates, Generation(prompts, 2), rounds=0)
    assert note in found["ORT"].note
    assert "model" not in candidates or "takes no position_ids" not in found["model"].note


@pytest.mark.parametrize(
    ("prompts", "words"),
    [
        (PROMPTS.float(), r"prompts must be a tensor of token numbers .*, got torch.float32. Convert it: prompts.long"),
        ([PROMPTS, PROMPTS[0]], r"prompts\[1\] must be .* got shape \(5,\). Give one row"),
        (["a text"], r"prompts\[0\] must be .*tokenizer\(text, return_tensors='pt'\)"),
        ([], "prompts is empty"),
        ({"input_ids": PROMPTS, "attention_mask": PROMPTS[:1]}, r"attention_mask'\] must be .* \(2, 5\), got \(1, 5\)"),
        ({"ids": PROMPTS}, r"prompts\['input_ids'\] must be"),
    ],
)
def test_prompts_of_another_form_are_refused(prompts: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        Generation(prompts)


def test_what_does_not_generate_is_said(model: Any) -> None:
    with pytest.raises(SettingsError, match="new_tokens"):
        Generation(PROMPTS, new_tokens=0)
    with pytest.raises(InputError, match="a generation is scored by the tokens"):
        pb.compare({"float32": model}, Generation(PROMPTS, 2), metric=pb.metrics.perplexity)
    failed = r"candidate 'linear' failed to generate 2 tokens after prompts\[0\].* is called as those of transformers"
    with pytest.raises(InputError, match=failed):
        pb.compare({"linear": torch.nn.Linear(2, 2)}, Generation(PROMPTS, 2))
    narrow = pb.compile_model(torch.nn.Linear(4, 2), tracing_inputs=[torch.ones(1, 4), torch.ones(2, 4)])
    with pytest.raises(InputError, match="candidate 'linear': arguments: no tokens among input"):
        pb.compare({"linear": narrow}, Generation(PROMPTS, 2))


class Sound(torch.nn.Module):
    """Takes what no token is, and cannot generate."""

    def forward(self, input_features: torch.Tensor) -> torch.Tensor:
        return input_features


def test_prompts_of_sound_go_to_generate() -> None:
    features = torch.ones(2, 8, 40)
    workload = Generation({"input_features": features, "attention_mask": torch.ones(2, 40)}, 2)
    assert workload.batches[0].given.keys() == {"input_features", "attention_mask"}
    assert workload.remarks == ()
    with pytest.raises(InputError, match=r"candidate 'sound': Sound has no method generate, .* Give a model of"):
        pb.compare({"sound": Sound()}, workload)
