"""Random programs answer as eager does, or are refused; the drawing, judging and shrinking do what they should."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import prepbench as pb
from tests.fuzz import ways
from tests.fuzz.__main__ import (
    BRANCH,
    RAW,
    REFUSED,
    TARGETS,
    WRONG,
    cause,
    difference,
    judged,
    one,
    reliable,
    shrunk,
    summed,
)
from tests.fuzz.programs import QUESTIONS, RESULTS, SIZES, STEPS, Program, drawn, made
from tests.turns import in_turns


# a few only, with each target; make fuzz takes others
@pytest.mark.parametrize("seed", in_turns(range(5000, 5010), 0, 4))
def test_a_random_program_is_right_or_refused(seed: int) -> None:
    for target in ("eager", list(TARGETS)[1 + seed // 2 % (len(TARGETS) - 1)]):
        row = one(seed, target)
        assert row["kind"] not in (WRONG, RAW), f"{row['text']}\n{row['source']}"


@pytest.mark.parametrize("seed", in_turns(range(24), 0, 4))
def test_a_program_of_many_ways_is_right_or_refused(seed: int, tmp_path: Path) -> None:
    program = ways.drawn(seed, inputs=1 + seed % 2)
    end, text = ways.judged(program, tmp_path)
    assert end != "wrong", f"{text}\n{program.source}"


@pytest.mark.stress
def test_programs_of_many_ways_can_be_judged(tmp_path: Path) -> None:
    ends = [ways.judged(ways.drawn(seed), tmp_path)[0] for seed in range(100, 103)]
    assert ends.count("right") > 1


def test_most_programs_can_be_judged(tmp_path: Path) -> None:
    """A generator whose programs fail in PyTorch, or whose results hang on rounding, would find nothing."""
    judges = 0
    for seed in range(40):
        program = drawn(seed)
        model = made(program, tmp_path)
        judges += all(reliable(model, (torch.randn(shape),)) is not None for shape in program.shapes)
    assert judges > 30


@pytest.mark.parametrize("text", [*(f"x = x + ({size})" for size in SIZES), *STEPS])
def test_every_statement_runs(text: str, tmp_path: Path) -> None:
    filled = text.format(
        k=2, size="(n // 2)", real=0.5, real_above=0.75, tiny="1e-9", large=100, axis=1, stride=1, flag=True,
        other_flag=False, scale=2.0, mode="linear", approximate="tanh",
    )  # fmt: skip
    for result in RESULTS:
        model = made(Program(0, (filled,), result, ()), tmp_path)
        model(torch.randn(2, 8))


def test_every_question_is_asked(tmp_path: Path) -> None:
    for question in QUESTIONS:
        step = f"if {question.format(k=2, big=6, size='(n - b)')}:\n    x = x + 1\nelse:\n    x = x - 1"
        made(Program(0, (step,), "x", ()), tmp_path)(torch.randn(2, 8))


def test_a_wrong_answer_is_seen_and_shrunk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Wrong:
        def __init__(self, model: torch.nn.Module) -> None:
            self.model = model

        def __call__(self, x: torch.Tensor) -> torch.Tensor:
            return self.model(x) + (x.shape[1] > 12)

    monkeypatch.setattr("prepbench.compile_model", lambda model, **_: Wrong(model), raising=False)
    program = Program(
        3, ("x = x * 2", "if n > 2:\n    x = x + 1\nelse:\n    x = x - 1"), "x, x.sum()", ((2, 4), (3, 8))
    )
    plain = Program(3, program.steps, "x", program.shapes)
    assert judged(plain, "eager", tmp_path).kind == WRONG
    small = shrunk(plain, lambda each: judged(each, "eager", tmp_path).kind == WRONG)
    assert small.steps == ()


@pytest.mark.parametrize(
    ("expected", "got", "text"),
    [
        (torch.ones(2), torch.ones(2), ""),
        (torch.ones(2), torch.ones(3), "(3,)"),
        (torch.ones(2), torch.ones(2).double(), "float64"),
        (torch.tensor([1.0, float("nan")]), torch.tensor([1.0, float("nan")]), ""),
        (torch.tensor([1.0, float("nan")]), torch.tensor([1.0, 0.0]), "differ"),
        (torch.tensor([1000.0]), torch.tensor([1000.4]), ""),
        (torch.tensor([1.0]), torch.tensor([1.01]), "differ"),
        ((torch.ones(1), 2), (torch.ones(1), 3), "3 for 2"),
    ],
)
def test_results_are_compared(expected: object, got: object, text: str) -> None:
    found = difference(expected, got)
    assert (text in found) if text else found == ""


def test_what_rounding_decides_judges_nothing(tmp_path: Path) -> None:
    x = torch.full((3, 7), 0.3)
    for result, is_judge in (("x", True), ("x > 0", False), ("x.argmax(1)", False), ("x > -1", True)):
        model = made(Program(0, ("x = x - x.mean(1, keepdim=True)",), result, ()), tmp_path)
        assert (reliable(model, (x,)) is not None) is is_judge, result
    chosen = made(Program(0, ("x = x.sort(1).values",), "x > 0.25", ()), tmp_path)
    assert reliable(chosen, (x,)) is not None


def test_a_refusal_tells_its_line_and_is_counted_by_its_kind(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ways = "".join(f"elif n > {size}:\n    x = x + {size}\n" for size in (12, 10, 8, 6, 4))
    shapes = tuple((2, size) for size in (4, 6, 8, 10, 12, 14))  # more ways than there may be graphs
    verdict = judged(Program(3, (ways[2:].rstrip(),), "x", shapes), "eager", tmp_path)
    assert (verdict.kind, verdict.is_of_capture) == (REFUSED, True)
    assert verdict.text.endswith("| if n > 12:")
    assert cause(verdict.text) == BRANCH
    one_kind = {
        cause(f"TargetError: /tmp/{name}.py:{line} differs by {line}.5 dB") for name, line in (("a", 3), ("b", 14))
    }
    assert len(one_kind) == 1
    row = {"target": "eager", "kind": REFUSED, "text": verdict.text, "calls": (0, 0), "seconds": 2}
    assert summed([row, {**row, "kind": WRONG}]) == 1
    assert summed([row]) == 0
    assert "1 (100.0%), 1 (100.0%)" in capsys.readouterr().out


def test_what_is_captured_once_is_not_captured_for_the_next_target(tmp_path: Path) -> None:
    program, kept = Program(3, ("x = x * 2",), "x", ((2, 4), (3, 8))), pb.KeptStages()
    for target in ("eager", "onnxruntime"):
        assert judged(program, target, tmp_path, kept).calls[0] > 2


def test_a_seed_gives_the_same_program() -> None:
    assert drawn(7) == drawn(7)
    assert drawn(7) != drawn(8)
