"""What candidates generate on the bench: as it comes, beside the float model's, in files, and in code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import prepbench as pb
from prepbench.bench.shown import shown
from prepbench.bench.written import Writing, WrittenBy, compared_text, text_of
from prepbench.errors import InputError
from prepbench.jobs import Cancelled, Progress
from prepbench.measure.artifacts import Artifact
from prepbench.results.measurement import Run, WrittenText
from tests.compile.generate.generating import PROMPTS, make_model, make_samples

HARM = "<img src=x onerror=alert(1)>"


class Tokenizer:
    def decode(self, tokens: list[int]) -> str:
        return "".join(HARM if token == tokens[0] else f" w{token}" for token in tokens)


@pytest.fixture(scope="module")
def model() -> Any:
    return make_model(layers=1)


@pytest.fixture(scope="module")
def samples(model: Any) -> list[dict[str, Any]]:
    return make_samples(model)


def ignore(*given: Any) -> None:
    """Hears what is told."""


def test_a_text_is_parted_at_the_first_other_token() -> None:
    assert compared_text([4, 9, 7, 1], [4, 9, 8, 1], None) == WrittenText("4 9", " 7", " 1", 2, 4)
    assert compared_text([4, 9], [4, 9, 8], None) == WrittenText("4 9", agree=2, tokens=2)  # as it comes
    assert compared_text([5], [4], None) == WrittenText("", "5", "", 0, 1)


def test_tokens_without_letters_of_their_own_do_not_double_text() -> None:
    """Two tokens are the bytes of one letter: alone, the first one shows as a sign for what is missing."""
    words = {(1,): "a�", (1, 2): "aé", (1, 3): "aè", (1, 3, 4): "aè!"}
    text = compared_text([1, 3, 4], [1, 2, 4], lambda tokens: words.get(tuple(tokens), ""))
    assert text == WrittenText("a", "è", "!", 1, 3)


@pytest.mark.parametrize(
    ("decode", "said"),
    [(lambda tokens: len(tokens), "decode returned int"), (lambda tokens: tokens.nothing, "decode failed")],
)
def test_a_function_that_makes_no_text_is_told(decode: Any, said: str) -> None:
    with pytest.raises(InputError, match=f"{said}.*tokenizer.decode"):
        text_of([4, 5], decode)


def test_tokens_are_told_as_they_come(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prepbench.bench.written._PAUSE", -1.0)
    told: list[tuple[WrittenBy, ...]] = []
    steps: list[Progress] = []
    writing = Writing(pb.Generation(PROMPTS, new_tokens=4), None, told.append, steps.append)
    writing.write("float32", model)
    writing.write("again", model)
    expected = model.generate(PROMPTS, max_new_tokens=4, min_new_tokens=4, do_sample=False)[:, 5:].tolist()
    assert [by.texts[0].tokens for by, *_ in told[:4]] == [1, 2, 3, 4]
    assert [text.same for text in told[-1][1].texts] == [" ".join(map(str, row)) for row in expected]
    assert [text.agree for text in told[-1][1].texts] == [4, 4]
    assert [step.done for step in steps] == [1, 2, 3, 4] * 2
    assert not model._forward_hooks


def test_each_token_is_a_place_to_cancel(model: Any) -> None:
    def stop(step: Progress) -> None:
        if step.done == 2:
            raise Cancelled("enough")

    told: list[tuple[WrittenBy, ...]] = []
    writing = Writing(pb.Generation(PROMPTS, new_tokens=50), None, told.append, stop)
    with pytest.raises(Cancelled):
        writing.write("float32", model)
    assert told[-1][0].texts[0].tokens <= 2


def test_what_does_not_generate_is_told_before_anything_slow() -> None:
    samples = [torch.ones(2, 4), torch.ones(3, 4)]
    net = torch.nn.Sequential(torch.nn.Linear(4, 2))
    bench = pb.Bench(net, tracing_inputs=samples, data=pb.Generation(PROMPTS, new_tokens=2))
    bench.start()
    with pytest.raises(InputError, match=r"float32 does not generate 2 tokens .*logits and past_key_values.*samples"):
        bench.job.result()  # type: ignore[union-attr]
    assert bench.status.message.kind == "error"
    assert "does not generate" in bench.status.message.text
    assert "give samples as data" in bench.status.message.details
    assert bench.runs == ()


def test_arguments_that_do_not_fit(model: Any, samples: Any) -> None:
    generation = pb.Generation(PROMPTS)
    with pytest.raises(InputError, match="decode is for generated tokens"):
        pb.Bench(model, tracing_inputs=samples, decode=text_of)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="metric: a generation is scored by the tokens"):
        pb.Bench(model, tracing_inputs=samples, data=generation, metric=pb.metrics.accuracy)
    with pytest.raises(InputError, match="decode returned NoneType"):
        pb.Bench(model, tracing_inputs=samples, data=generation, decode=ignore)  # type: ignore[arg-type]


def test_code_names_what_makes_text(model: Any, samples: Any) -> None:
    generation, tokenizer = pb.Generation(PROMPTS, new_tokens=4), Tokenizer()
    given: dict[str, Any] = {"model": model, "tracing_inputs": samples, "data": generation}
    bench = pb.Bench(**given, decode=tokenizer.decode)
    code = bench.code({**given, "tokenizer": tokenizer, "samples": samples})
    assert code.endswith("compiled}, data)\nwritten = comparison.generated(tokenizer.decode)\ncomparison\n")
    assert "data = pb.Generation(..., new_tokens=4)  # put here the prompts" in bench.code({})
    assert "generated()" in pb.Bench(**given).code({})
    assert "generated" not in pb.Bench(model, tracing_inputs=samples).code({})


@pytest.fixture(scope="module")
def compiled(model: Any, samples: Any) -> pb.Bench:
    """A bench whose result is another model, so that its text differs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "prepbench.measure.generation_run.save_candidate", lambda *given: Artifact(None, None, "", "eager")
        )
        tokenizer = Tokenizer()
        data = pb.Generation(PROMPTS, new_tokens=4)
        bench = pb.Bench(model, tracing_inputs=samples, calibration_inputs=samples, data=data, decode=tokenizer.decode)
        bench.set_target("PyTorch eager")
        bench.set_precision("*", "int4 weights")
        bench.start().result()
    return bench


def test_texts_are_kept_side_by_side(compiled: pb.Bench, model: Any) -> None:
    expected = model.generate(PROMPTS, max_new_tokens=4, min_new_tokens=4, do_sample=False)[:, 5:].tolist()
    summary = compiled.summary()
    assert summary.workload == "4 tokens after each of 2 prompts"
    assert summary.prompts[0].startswith(HARM)
    base, other = summary.written
    assert (base.name, other.name) == ("float32", compiled.runs[0].name)
    assert [text.same for text in base.texts] == [Tokenizer().decode(row) for row in expected]
    for text, row in zip(other.texts, expected, strict=True):
        assert text.tokens == 4
        assert text.agree < 4 or text.same == Tokenizer().decode(row)
    assert compiled.all_results() is not None
    assert "tokens/s" in repr(compiled.all_results())
    assert compiled.status.writing == ()  # they stand in the results now


def test_texts_are_saved_and_read_again(compiled: pb.Bench, model: Any, samples: Any, tmp_path: Path) -> None:
    path = compiled.save(tmp_path / "text.bench.json")
    again = pb.Bench.load(path, model=model, tracing_inputs=samples, calibration_inputs=samples)
    assert again.summary().written == compiled.summary().written
    assert again.summary().prompts == compiled.summary().prompts
    assert "tokens/s" in repr(again.all_results())
    table = next(table for table in shown(compiled).tables if table.title == "Generated")
    assert [row[1] for row in table.rows] == ["float32", compiled.runs[0].name] * 2
    page = compiled.report(tmp_path / "report.html").read_text()
    assert HARM not in page
    assert "&lt;img src=x onerror=alert(1)&gt;" in page


def test_runs_of_older_files_have_no_generation(compiled: pb.Bench) -> None:
    data = compiled.runs[0].to_json()
    assert Run.from_json(data) == compiled.runs[0]
    del data["generation"]
    assert Run.from_json(data).generation is None


def test_code_runs_where_it_is_pasted(
    compiled: pb.Bench, model: Any, samples: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "prepbench.measure.generation_run.save_candidate", lambda *given: Artifact(None, None, "", "eager")
    )
    data = compiled.data
    tokenizer = compiled.decode.__self__  # type: ignore[union-attr]
    cell: dict[str, Any] = {"model": model, "samples": samples, "data": data, "tokenizer": tokenizer}
    exec(compiled.code(cell), cell)
    assert list(cell["written"]["float32"]) == [text.same for text in compiled.summary().written[0].texts]
