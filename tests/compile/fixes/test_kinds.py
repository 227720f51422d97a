"""What single kinds of changes must not get wrong."""

from __future__ import annotations

import math
import types
from typing import Any

import pytest
import torch
from torch import nn

import prepbench as pb
from prepbench.fixes import proof
from prepbench.fixes.kinds import KINDS
from prepbench.fixes.search import _is_of
from prepbench.fixes.syntax import with_import
from prepbench.running.check_inputs import twin_with_own_writes
from prepbench.running.given_samples import normalize_samples


def drawn(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


class ClampsBoth(nn.Module):
    """The condition is about what both sides of the assignment change."""

    def forward(self, a, b):
        if any(t.abs().max() > 2.5 for t in (a, b)):
            a, b = a.clamp(-2.5, 2.5), b.clamp(-2.5, 2.5)
        return a + b


def test_a_condition_is_asked_once_for_several_names() -> None:
    fixed = pb.fix(ClampsBoth(), [(drawn(1, 2, 5), drawn(2, 2, 5)), (drawn(3, 3, 5), drawn(4, 3, 5))])
    assert fixed.passed
    for a, b in ((10.0, 9.0), (1.0, 9.0), (9.0, 1.0), (1.0, 1.0)):
        one, other = torch.full((2, 5), a), torch.full((2, 5), b)
        assert torch.equal(fixed.model(one, other), ClampsBoth()(one, other))


class Refines(nn.Module):
    """Stops after three steps, whatever the values are."""

    def forward(self, x):
        done, steps = False, 0
        while not done:
            x = x * 0.5
            steps += 1
            done = bool(x.abs().max() < 0.1) or steps >= 3
        return x


def test_a_counter_that_a_condition_reads_counts_first() -> None:
    samples = [drawn(1, 2, 4), drawn(2, 3, 4)]
    fixed = pb.fix(Refines(), samples, bounds=8)
    assert fixed.passed
    for scale in (0.01, 0.3, 1.0, 100.0):
        x = samples[0] * scale
        assert torch.equal(fixed.model(x), Refines()(x))


class OneOfTwo(nn.Module):
    def forward(self, x, y):
        if x.sum() > y.sum():
            return x
        return y


def test_the_other_side_is_looked_for_with_tensors_that_change_apart() -> None:
    x = drawn(1, 2, 4).abs()
    assert pb.fix(OneOfTwo(), [(x, x - 1), (torch.cat([x, x]), torch.cat([x, x]) - 1)]).passed


class ScalesItsWeight(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 2)

    def forward(self, x):
        self.fc.weight.data = self.fc.weight.data * 0.5
        return self.fc(x)


def test_a_parameter_is_assigned_in_python_as_before() -> None:
    torch.manual_seed(0)
    model, x = ScalesItsWeight(), drawn(1, 2, 4)
    before = model.fc.weight.detach().clone()
    fixed = pb.fix(model, [x, drawn(2, 3, 4)])
    assert fixed.passed
    assert torch.equal(model.fc.weight, before)
    fixed.model(x)
    assert torch.equal(fixed.model.fc.weight, before * 0.5)  # type: ignore[union-attr]


def test_the_class_of_functions_may_be_a_global_of_the_users_file() -> None:
    names = {"__name__": "users", "FunctionType": types.FunctionType}
    assert not _is_of(names, __file__)
    assert _is_of({**names, "helper": drawn}, drawn.__code__.co_filename)


class PicksHead(nn.Module):
    def __init__(self):
        super().__init__()
        self.heads = nn.ModuleList([nn.Linear(4, 2) for _ in range(3)])

    def forward(self, x, number):
        return self.heads[int(number)](x)


def test_a_number_out_of_range_is_refused_as_before() -> None:
    torch.manual_seed(0)
    samples = [(drawn(1, 2, 4), torch.tensor(1)), (drawn(2, 3, 4), torch.tensor(2))]
    model = PicksHead()
    fixed = pb.fix(model, samples)
    assert fixed.passed
    program = pb.capture(fixed.model, samples).program.module()
    x = samples[0][0]
    for number in (-3, -1, 0, 2):
        assert torch.allclose(fixed.model(x, torch.tensor(number)), model(x, torch.tensor(number)))
        assert torch.allclose(program(x, torch.tensor(number)), model(x, torch.tensor(number)))
    for number in (3, -4, 7):
        for refuses in (model, fixed.model, program):
            with pytest.raises((IndexError, RuntimeError)):
                refuses(x, torch.tensor(number))


class CountsPositive(nn.Module):
    """Counts in Python, and reads it later."""

    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        if x.sum() > 0:
            self.calls = self.calls + 1
        return x + self.calls


def test_what_a_graph_does_not_keep_is_no_fix() -> None:
    fixed = pb.fix(CountsPositive(), [drawn(1, 2, 4), drawn(2, 3, 4)])
    assert not fixed.applied
    assert not fixed.passed


class AsksInTurn(nn.Module):
    def forward(self, x):
        s = x.sum()
        if s > 3:
            y = x * 3
        elif s > 0:
            y = x.abs()
        else:
            y = -x
        return y


def test_questions_in_turn_are_branches() -> None:
    fixed = pb.fix(AsksInTurn(), [drawn(1, 2, 4), drawn(2, 3, 4)])
    assert fixed.passed
    for number in (-1.0, 0.1, 5.0):
        x = torch.full((2, 4), number)
        assert torch.equal(fixed.model(x), AsksInTurn()(x))


class TakesRoot(nn.Module):
    def forward(self, x):
        return x / math.sqrt(x.sum()) if x.shape[1] > 1 else x


def test_what_numbers_refuse_and_tensors_do_not_is_told() -> None:
    fixed = pb.fix(TakesRoot(), [drawn(1, 2, 4).abs(), drawn(2, 3, 4).abs()])
    assert fixed.passed
    assert "where the original raises ValueError (math domain error)" in fixed.applied[0].proof


class RefusesInOneLine(nn.Module):
    def forward(self, x):
        if x.min() < -50: raise ValueError("too small")  # noqa: E701  # fmt: skip
        return x * 2


def test_an_error_raised_on_the_line_of_its_condition_is_the_users_own() -> None:
    fixed = pb.fix(RefusesInOneLine(), [drawn(1, 2, 4), drawn(2, 3, 4)])
    assert fixed.passed
    assert "raise as the original does" in fixed.applied[0].proof


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('"""About."""\nx = 1\n', '"""About."""\nimport torch\nx = 1\n'),
        ("from __future__ import annotations\nx = 1\n", "from __future__ import annotations\nimport torch\nx = 1\n"),
        ("import math\nx = 1\n", "import torch\nimport math\nx = 1\n"),
        ("import torch\nx = 1\n", "import torch\nx = 1\n"),
        ("import math, torch\nx = 1\n", "import math, torch\nx = 1\n"),
        ("import torch as t\nx = 1\n", "import torch\nimport torch as t\nx = 1\n"),
        ("x = 1\n", "import torch\nx = 1\n"),
    ],
)
def test_torch_is_imported_where_imports_stand(text: str, expected: str) -> None:
    assert with_import(text, "torch") == expected


def test_every_kind_says_when_it_is_right() -> None:
    names: list[Any] = [kind.name for kind in KINDS]
    assert len(set(names)) == len(names)
    assert all(kind.right_if for kind in KINDS)


class DividesIntegers(nn.Module):
    """Integers cannot be divided by zero: the side must not run, and no number in the place of zero would be right."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 2)

    def forward(self, x, steps):
        left = x[:, :2].long()
        if (steps != 0).all():
            left = torch.stack([left[:, 0] // steps, left[:, 1] // steps], 1)
        return left + self.fc(x)


class DividesOrReturns(DividesIntegers):
    def forward(self, x, steps):
        left = x[:, :2].long()
        if (steps == 0).any():
            return left, self.fc(x)
        left = torch.stack([left[:, 0] // steps, left[:, 1] // steps], 1)
        return left, left * 2.0


@pytest.mark.parametrize("kind", [DividesIntegers, DividesOrReturns])
def test_a_side_that_must_not_run_is_left_to_the_graph(kind: Any) -> None:
    torch.manual_seed(0)
    model = kind()
    samples = [(drawn(1, 3, 4) * 9, torch.tensor([1, 2, 3])), (drawn(2, 4, 4) * 9, torch.tensor([2, 0, 1, 1]))]
    fixed = pb.fix(model, samples)
    assert [fix.kind for fix in fixed.applied] == ["a branch whose sides must not both run becomes torch.cond"]
    assert fixed.passed
    program = pb.capture(fixed.model, samples).program.module()
    for x, steps in samples:
        for other in (steps, torch.zeros_like(steps), torch.ones_like(steps)):
            torch.testing.assert_close(program(x, other), model(x, other))
            torch.testing.assert_close(fixed.model(x, other), model(x, other))


class DividesAndKeeps(DividesIntegers):
    def forward(self, x, steps):
        left = x[:, :2].long()
        if (steps != 0).all():
            (self.before, left) = left, torch.stack([left[:, 0] // steps, left[:, 1] // steps], 1)
        return left + self.fc(x)


def test_a_side_that_keeps_something_on_the_module_is_no_side_of_a_cond() -> None:
    samples = [(drawn(1, 3, 4) * 9, torch.tensor([1, 2, 3])), (drawn(2, 4, 4) * 9, torch.tensor([2, 0, 1, 1]))]
    fixed = pb.fix(DividesAndKeeps(), samples)
    assert not fixed.applied
    assert "torch.cond" not in fixed.remaining[0].diff


class WritesParameter(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4))

    def forward(self, x):
        with torch.no_grad():
            self.scale.mul_(2)
        return x * 1


class LeavesParameter(WritesParameter):
    def forward(self, x):
        return x * 1


def test_what_is_written_into_a_parameter_is_part_of_a_proof() -> None:
    models = [WritesParameter(), WritesParameter(), LeavesParameter()]
    samples = normalize_samples(models[0], [drawn(1, 2, 4)])
    for model in models:
        twin_with_own_writes(model, samples[0])
    observed = proof.observe(models[0], samples)
    assert not proof.prove(models[1], observed).problem
    assert "parameter" in proof.prove(models[2], observed).problem


class GatesOrNot(nn.Module):
    def forward(self, x):
        if x.mean() < 0:
            return None
        return x.sigmoid()


def test_a_side_that_gives_none_is_no_side_of_a_cond() -> None:
    found = pb.fix(GatesOrNot(), [torch.ones(2, 4)])
    assert not found.applied
    assert all("torch.cond" not in draft.diff for draft in found.remaining)


class LooksUp(nn.Module):
    """What is looked up lies outside of the table where the side is not taken, if the numbers are far from all seen."""

    def forward(self, x, n):
        if n.sum() > 3:
            table = torch.arange(10)
            x = x * table[n.sum() - 4]
        return x


def test_a_look_up_far_outside_of_what_was_seen_is_harmless() -> None:
    samples = [(drawn(1, 3, 4), torch.tensor([1, 2, 3])), (drawn(2, 4, 4), torch.tensor([2, 0, 1, 1]))]
    fixed = pb.fix(LooksUp(), samples)
    assert fixed.passed
    x, far = samples[0][0], torch.full((3,), -100)
    assert torch.equal(fixed.model(x, far), LooksUp()(x, far))


class TurnsRound(nn.Module):
    def forward(self, x):
        return (x * 2).t().contiguous().t() if x.sum() > 0 else x.sin() * 2


class Doubles(nn.Module):
    def forward(self, x):
        return x * 2 if x.sum() > 0 else x * 3


def test_results_that_lie_in_memory_in_another_order_are_told() -> None:
    fixed = pb.fix(TurnsRound(), [drawn(1, 4, 4), -drawn(2, 4, 4).abs()])
    assert fixed.passed
    assert "in another order: strides (1, 4) in place of (4, 1) for (4, 4)" in fixed.applied[0].proof
    assert "order" not in pb.fix(Doubles(), [drawn(1, 4, 4), drawn(2, 3, 4)]).applied[0].proof


class Chooses(nn.Module):
    def forward(self, a, b):
        return a if b.sum() > 0 else b


class Averages(nn.Module):
    def forward(self, x):
        return x.mean(0, keepdim=True) if x.sum() > 0 else x


class ChoosesByName(nn.Module):
    def forward(self, a, b):
        if b.sum() > 0:
            chosen = a
            chosen = chosen * 3
        else:
            chosen = b
        return chosen * 2


@pytest.mark.parametrize(
    ("model", "samples"),
    [
        (Chooses(), [(drawn(1, 1, 4), drawn(2, 1, 4).abs()), (drawn(1, 1, 4), -drawn(2, 1, 4).abs())]),
        (Averages(), [drawn(1, 1, 4).abs(), -drawn(1, 1, 4).abs()]),
    ],
)
def test_sides_with_one_shape_on_the_samples_alone_are_an_assumption(model: nn.Module, samples: list[Any]) -> None:
    fixed = pb.fix(model, samples)
    assert not fixed.passed
    (draft,) = fixed.remaining
    assert "both sides of a condition have one shape for all sizes" in draft.reason
    assert draft.fix is not None
    assert draft.fix.narrows
    assert "torch.where" in draft.diff


def test_sides_with_one_shape_on_the_samples_alone_stay_a_branch_in_python() -> None:
    samples = [(drawn(1, 1, 4), drawn(2, 1, 4).abs()), (drawn(1, 1, 4), -drawn(2, 1, 4).abs())]
    fixed = pb.fix(ChoosesByName(), samples)
    assert fixed.passed
    a, b = drawn(1, 1, 4), drawn(2, 3, 4).abs()
    assert torch.equal(fixed.model(a, b), ChoosesByName()(a, b))


class WritesRows(nn.Module):
    """A loop over rows that gathers nothing."""

    def forward(self, x):
        out = x.clone()
        for row in range(x.shape[0]):
            out[row, (x[row] > 0).nonzero()[:, 0]] = 0.0
        return out


def test_a_loop_that_gathers_nothing_is_left_alone() -> None:
    fixed = pb.fix(WritesRows(), [drawn(1, 2, 4), drawn(2, 3, 4)])
    assert fixed.passed or fixed.remaining
    x = drawn(3, 4, 4)
    assert torch.equal(fixed.model(x), WritesRows()(x))
