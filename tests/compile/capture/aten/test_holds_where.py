"""A capture says under which conditions on sizes it holds, and nothing that makes no difference."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import prepbench as pb
from prepbench.capture.aten import trial_calls
from prepbench.capture.aten.holds_where import HoldsWhere
from prepbench.capture.aten.trial_calls import Trial
from prepbench.capture.sizes.conditions import SizeCondition
from prepbench.errors import ConditionError, InputError

EVEN = "Equality(Mod(Symbol('s0'), Integer(2)), Integer(0))"


class Calls(nn.Module):
    def __init__(self, forward: Callable[..., Any]) -> None:
        super().__init__()
        self._call = forward

    def forward(self, x: torch.Tensor) -> Any:
        return self._call(x)


def conditions(forward: Callable[..., Any], *shapes: tuple[int, ...]) -> list[str]:
    torch.manual_seed(0)
    captured = pb.capture(Calls(forward).eval(), [torch.randn(shape) for shape in shapes])
    return [condition.text for condition in captured.conditions]


SHAPES = (3, 18), (4, 27)


@pytest.mark.parametrize(
    ("forward", "words"),
    [
        (lambda x: x.exp() if x.shape[1] % 9 == 0 else x.log(), "the length of x (x.shape[1]) must be a multiple of 9"),
        (lambda x: x.exp() if x.shape[1] % 5 else x.log(), "the length of x (x.shape[1]) must not be a multiple of 5"),
        (lambda x: x.log() if x.shape[1] % 7 == 1 else x.exp(), "must not leave 1 when it is divided by 7"),
        (lambda x: x.sin() if x.size(1) >= 17 else x, "the length of x (x.shape[1]) must be at least 17"),
        (lambda x: x + 1 if x.shape[0] * x.shape[1] < 500 else x, "x.shape[1]*x.shape[0] < 500"),
        (lambda x: x.cos() if x.shape[1] < 5000 else x, "the length of x (x.shape[1]) must be less than 5000"),
        (lambda x: x.tan() if x.shape[0] != 1 else -x, "must not be 1"),
        (lambda x: x.abs() if x.shape[0] > 1 else -x, "the batch size of x (x.shape[0]) must be more than 1"),
    ],
)
def test_what_the_model_asks_is_a_condition(forward: Callable[..., Any], words: str) -> None:
    (found,) = conditions(forward, *SHAPES)
    assert words in found


@pytest.mark.parametrize(
    "forward",
    [
        lambda x: x.softmax(1),
        lambda x: x[:, : -(-x.shape[1] // 3)] * 2,
        lambda x: x.view(x.shape[0] * x.shape[1]).flip(0),
        lambda x: torch.cat([x, x[:, ::2]], 1).cumsum(1),
        lambda x: nn.functional.avg_pool1d(x, 2),
        # asked, and without a difference
        lambda x: x.relu() if x.shape[0] > 1 else x.clamp(min=0),
        lambda x: x * 2 if x.shape[1] >= 0 else x,
    ],
)
def test_what_makes_no_difference_is_none(forward: Callable[..., Any]) -> None:
    assert conditions(forward, *SHAPES) == []


def test_a_trial_that_fails_makes_a_condition_and_one_that_holds_takes_a_doubt_away() -> None:
    place = (0, 1)
    odd = SizeCondition("x.shape[1] must be even", ("x.shape[1]",), None, EVEN, (place,), is_own=False)
    sample = pb.Sample((torch.ones(2, 3),))
    trials = Trial(sample, {place: 3}, equal=True), Trial(sample, {place: 1}, True, (place, "x.shape[1]", 1))
    where = HoldsWhere((), (odd,), trials)
    assert where.conditions() == ()
    assert where.conditions(lambda samples: False)[0] is odd
    at_one = replace(trials[1], equal=False)
    assert replace(where, trials=(at_one,)).conditions() == (odd,)  # 1 breaks it, so nothing more has to be said
    # 3 breaks it as well, and is right: what is wrong is the size of 1
    (small,) = replace(where, trials=(trials[0], at_one)).conditions()
    assert small.text.startswith("x.shape[1] must not be 1: ")
    assert small.holds([1]) is False
    assert small.holds([2])
    assert small.holds([0])


def test_a_condition_names_its_line() -> None:
    captured = pb.capture(Calls(lambda x: x.neg() if x.shape[1] > 16 else x), [torch.randn(shape) for shape in SHAPES])
    (condition,) = captured.conditions
    assert condition.source is not None
    assert "x.shape[1] > 16" in condition.source.code
    assert condition.places == ((0, 1),)
    assert "holds where the length of x (x.shape[1]) must be more than 16" in repr(captured)


def test_declared_limits_are_conditions() -> None:
    samples = [torch.randn(shape) for shape in SHAPES]
    model = Calls(torch.sin)
    axes = pb.DynamicAxes.infer(samples, model).limit("x", 1, min=9, max=40)
    found = [condition.text for condition in pb.capture(model, samples, dynamic_axes=axes).conditions]
    assert found == [
        "the length of x (x.shape[1]) must be at least 9",
        "the length of x (x.shape[1]) must be at most 40",
    ]


def test_strict_captures_have_conditions() -> None:
    model = Calls(lambda x: x.erf() if x.shape[1] % 9 == 0 else x.log())
    captured = pb.capture(model, [torch.randn(shape) for shape in SHAPES], strict=True)
    (condition,) = captured.conditions
    assert condition.text.endswith("must be a multiple of 9")
    assert condition.source is not None
    assert "% 9" in condition.source.code


def test_no_sample_breaks_a_condition() -> None:
    def forward(x: torch.Tensor) -> torch.Tensor:
        return x.sinh() if x.shape[0] < x.shape[1] else x

    samples = [torch.randn(2, 9), torch.randn(5, 6), torch.randn(1, 30)]
    captured = pb.capture(Calls(forward), samples)
    assert len(captured.conditions) == 1
    for sample in samples:
        assert all(c.holds([sample.shape[dim] for _, dim in c.places]) for c in captured.conditions)


def test_a_model_that_ends_for_no_empty_tensor_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial_calls, "LONGEST", 0.5)

    def forward(x: torch.Tensor) -> torch.Tensor:
        while not torch.compiler.is_exporting() and x.numel() == 0:
            x = x * 2
        return x.sin()

    assert conditions(forward, *SHAPES) == []


class PoolsAndChunks(nn.Module):
    """Asks for the size of the last chunk, which makes no difference, and implies the number of chunks, which does."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, columns = x.shape
        if columns // 4 >= rows:
            x = nn.functional.max_pool1d(x[:, None, 1:], 3, 2, 1).squeeze(1)
        return torch.cat(x.chunk(4, 1)[::-1], 1)


def test_what_follows_from_an_idle_guard_is_tried_by_itself() -> None:
    model = PoolsAndChunks()
    axes = pb.DynamicAxes.infer([torch.randn(2, 11)], model).set("x", 0, True).set("x", 1, True)
    compiled = pb.compile_model(model, tracing_inputs=[torch.randn(2, 11)], dynamic_axes=axes)
    right = set()
    for rows in (1, 2, 3):
        for columns in range(2, 26):
            x = torch.randn(rows, columns)
            try:
                result = compiled(x)
            except InputError:
                continue
            torch.testing.assert_close(result, model(x))
            right.add((rows, columns))
    assert {(2, 11), (2, 12), (2, 13), (3, 13)} <= right


def test_one_empty_axis_tells_nothing_about_another() -> None:
    rows, columns = (0, 0), (0, 1)
    odd = SizeCondition("x.shape[1] must be even", ("x.shape[1]",), None, EVEN, (columns,), is_own=False)
    some = "Unequality(Symbol('s0'), Integer(0))"
    filled = SizeCondition("x.shape[0] must not be 0", ("x.shape[0]",), None, some, (rows,), is_own=False)
    sample = pb.Sample((torch.ones(0, 5),))
    empty = Trial(sample, {rows: 0, columns: 5}, equal=True, made=(rows, "x.shape[0]", 0))
    assert HoldsWhere((), (odd,), (empty,)).conditions() == (odd,)
    whole = replace(empty, sizes={rows: 0, columns: 4})
    assert HoldsWhere((), (odd, filled), (whole,)).conditions() == (odd,)


class Ordered(torch.nn.Module):
    """Asks whether there are fewer rows than columns."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] < x.shape[1]:
            return x.roll(1, 0)
        return x * 2


@pytest.mark.parametrize("shapes", [[(8, 9), (10, 11)], [(1, 2), (8, 9)], [(0, 1), (8, 9)], [(8, 9), (9, 11)]])
def test_a_strict_question_stays_strict_where_no_trial_reaches_equality(shapes: list[tuple[int, int]]) -> None:
    """Sizes that change together in all samples do so in trials, too."""
    model = Ordered()
    compiled = pb.compile_model(
        model, tracing_inputs=[torch.randn(*shape) for shape in shapes], deployment_settings=pb.EagerDeployment()
    )
    for shape in [(3, 4), (5, 9)]:
        x = torch.randn(*shape)
        assert torch.equal(compiled(x), model(x))
    for shape in [(5, 5), (6, 5)]:
        with pytest.raises(InputError):
            compiled(torch.randn(*shape))


class Pieces(torch.nn.Module):
    """Asks into how many pieces its input falls, which tracing counts without a guard on sizes."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if len(x.split(2, 1)) > 2:
            return x.flip(1)
        return x.sum(0, keepdim=True)


@pytest.mark.parametrize("lengths", [(5, 13, 3), (7, 13), (5, 13), (3, 4), (9, 10, 12)])
def test_sizes_beside_samples_that_disprove_a_guard_are_tried(lengths: tuple[int, ...]) -> None:
    model = Pieces()
    samples = [torch.randn(2 + index, length) for index, length in enumerate(lengths)]
    compiled = pb.compile_model(model, tracing_inputs=samples, deployment_settings=pb.EagerDeployment())
    for x in samples:
        assert torch.equal(compiled(x), model(x))
    for length in range(18):
        x = torch.randn(3, length)
        with contextlib.suppress(ConditionError):  # and fails in no other way
            assert torch.equal(compiled(x), model(x))


class Clipped(torch.nn.Module):
    """Where both have more than two rows, as many rows as the other has, and at least one."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        if x.shape[0] + y.shape[0] > 2:
            return x[: max(y.shape[0], 1)]
        return x * 3


def test_a_small_size_is_tried_where_other_conditions_hold() -> None:
    """A trial that breaks another condition, too, says nothing about the small size."""
    model = Clipped()
    samples = [(torch.randn(3, 9), torch.randn(3, 9)), (torch.randn(1, 3), torch.randn(9, 3))]
    compiled = pb.compile_model(model, tracing_inputs=samples, deployment_settings=pb.EagerDeployment())
    for rows, others in itertools.product((0, 1, 2, 3, 5), repeat=2):
        x, y = torch.randn(rows, 4), torch.randn(others, 4)
        with contextlib.suppress(ConditionError):
            torch.testing.assert_close(compiled(x, y), model(x, y))


class Accumulated(torch.nn.Module):
    """One row is summed up, several are turned around; without any, both are empty."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.flip(0) if x.shape[0] > 1 else x.cumsum(1)


def test_an_empty_sample_is_none_to_make_trials_from() -> None:
    """It is the smallest one, but what is made from it is empty, and has no size of 1 on its empty axis."""
    model = Accumulated()
    samples = [torch.randn(0, 4), torch.randn(6, 5)]
    compiled = pb.compile_model(model, tracing_inputs=samples, deployment_settings=pb.EagerDeployment())
    for x in (*samples, torch.randn(1, 4), torch.randn(3, 7)):
        with contextlib.suppress(ConditionError):
            assert torch.equal(compiled(x), model(x))


class OneRow(torch.nn.Module):
    """Adds up the rows of what has one row or one column, which for one entry gives that entry."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 1 if min(x.shape) > 1 else x.sum(0, keepdim=True)


class Reshaped(torch.nn.Module):
    """Without rows, one column stays, and others are what the graph for several rows gives."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x[:, 1:] if x.shape[1] > x.shape[0] else x
        return x + 1 if x.shape[0] > 0 or x.shape[1] > 0 else x.reshape(0, 3)


@pytest.mark.parametrize(
    ("model", "shapes"),
    [(OneRow(), [(1, 1), (3, 6)]), (OneRow(), [(3, 6), (1, 1), (4, 9)]), (Reshaped(), [(2, 6), (3, 8)])],
)
def test_a_sample_that_agrees_by_chance_is_no_reason_to_trust(
    model: torch.nn.Module, shapes: list[tuple[int, int]]
) -> None:
    """A sample of one row may agree with the graph for several, and two small sizes may be wrong only together."""
    samples = [torch.randn(*shape) for shape in shapes]
    compiled = pb.compile_model(model, tracing_inputs=samples, deployment_settings=pb.EagerDeployment())
    for x in samples:
        assert torch.equal(compiled(x), model(x))
    for shape in itertools.product((0, 1, 2, 5), repeat=2):
        x = torch.randn(*shape)
        with contextlib.suppress(ConditionError):
            found = compiled(x)
            assert found.shape == model(x).shape
            assert torch.equal(found, model(x))


class Parts(torch.nn.Module):
    """Cuts a part by a part of its size: at some sizes a cut leaves all, whatever torch made of another one."""

    def __init__(self, first: int, second: int) -> None:
        super().__init__()
        self.first, self.second = first, second

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n = x.shape[1]
        x = x[:, : n // self.first]
        x = torch.cat([x, x[:, :1]], 1)
        return x[:, : n // self.second]


@pytest.mark.parametrize("parts", [(3, 2), (4, 2), (3, 1), (5, 3)])
@pytest.mark.parametrize("lengths", [(4, 5), (4, 7), (6, 7)])
def test_a_guard_is_idle_only_where_all_that_are_kept_hold(parts: tuple[int, int], lengths: tuple[int, int]) -> None:
    model = Parts(*parts)
    samples = [torch.randn(9 - index, length) for index, length in enumerate(lengths)]
    compiled = pb.compile_model(model, tracing_inputs=samples, deployment_settings=pb.EagerDeployment())
    for x in samples:
        assert torch.equal(compiled(x), model(x))
    for length in range(24):
        x = torch.randn(5, length)
        with contextlib.suppress(ConditionError):
            found = compiled(x)
            assert found.shape == model(x).shape
            assert torch.equal(found, model(x))


class Alternating(torch.nn.Module):
    """Cuts what has as many columns, up to fours, as another has rows, and joins others."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        if x.shape[1] % 4 == y.shape[0] % 4:
            return x[: max(y.shape[0], 1)]
        return torch.cat([x, y], 0)


def test_a_variant_of_empty_samples_takes_empty_calls_only() -> None:
    model = Alternating()
    sizes = [(0, 8, 4), (1, 3, 2), (1, 8, 2)]
    samples = [(torch.randn(rows, columns), torch.randn(others, columns)) for rows, columns, others in sizes]
    compiled = pb.compile_model(model, tracing_inputs=samples, deployment_settings=pb.EagerDeployment())
    for rows, columns, others in (*sizes, *itertools.product((0, 1, 3, 9), (3, 4, 8), (0, 2, 4))):
        x, y = torch.randn(rows, columns), torch.randn(others, columns)
        with contextlib.suppress(ConditionError):
            found = compiled(x, y)
            assert found.shape == model(x, y).shape
            assert torch.equal(found, model(x, y))


class Rolled(torch.nn.Module):
    """Rolls by as many rows as another has, which is no roll at all where both have as many."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x.cumsum(0) if y.shape[0] == 1 else x.roll(y.shape[0], 0)


def test_sizes_that_are_equal_in_all_samples_are_tried_apart() -> None:
    model = Rolled()
    samples = [(torch.randn(rows, columns), torch.randn(rows, columns)) for rows, columns in [(12, 3), (6, 1), (6, 5)]]
    compiled = pb.compile_model(model, tracing_inputs=samples, deployment_settings=pb.EagerDeployment())
    for x, y in samples:
        assert torch.equal(compiled(x, y), model(x, y))
    assert torch.equal(compiled(torch.ones(9, 4), torch.ones(9, 4)), torch.ones(9, 4))
    for rows, others in itertools.product((1, 2, 7), (1, 2, 5)):
        x, y = torch.randn(rows, 4), torch.randn(others, 4)
        with contextlib.suppress(ConditionError):
            assert torch.equal(compiled(x, y), model(x, y))


class Scaled(torch.nn.Module):
    """Multiplies by the rows of another, which is the same as cutting where both have one."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x * y.shape[0] if x.shape[0] > 1 else x[: max(y.shape[0], 1)]


class Joined(torch.nn.Module):
    """Joins where both have several rows."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x = torch.cat([x, y], 0) if min(x.shape[0], y.shape[0]) > 1 else x[:, :: max(y.shape[0] % 3, 1)]
        return x.index_select(0, torch.arange(y.shape[0]) % max(x.shape[0], 1))


class Cut(torch.nn.Module):
    """Cuts what has no columns to as many rows as another has."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x + y[:1] if x.shape[1] > 0 else x[: max(y.shape[0], 1)]


class Signed(torch.nn.Module):
    """Adds where both have as many rows, else subtracts: for zeros both are the same."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x + y if x.shape[0] == y.shape[0] else x - y[:1]


@pytest.mark.parametrize("sizes", [[(2, 1, 1), (1, 1, 1), (5, 9, 5)], [(1, 1, 1), (3, 4, 1)], [(1, 1, 1), (4, 5, 4)]])
def test_a_sample_whose_values_agree_by_chance_is_no_reason_to_trust(sizes: list[tuple[int, int, int]]) -> None:
    model = Signed()
    # the values of the sample of one row and one column hide the sign
    samples = [
        (torch.randn(rows, columns), torch.randn(others, columns) * (max(rows, columns) > 1))
        for rows, columns, others in sizes
    ]
    compiled = pb.compile_model(model, tracing_inputs=samples, deployment_settings=pb.EagerDeployment())
    for rows, columns, others in (*sizes, *itertools.product((1, 2, 5), (1, 2, 5), (1, 2, 5))):
        x, y = torch.randn(rows, columns), torch.randn(others, columns)
        with contextlib.suppress(InputError):
            assert torch.equal(compiled(x, y), model(x, y))


class Doubled(torch.nn.Module):
    """Doubles one entry alone."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, columns = x.shape
        x = x[: max(rows // 2, 1)] if rows + columns > 2 else x * 2
        return torch.cat([x, x[:, :1]], 1) if rows > 1 and columns != 6 else torch.cat([x, x[:, :1] * 1], 1)


def test_a_trial_of_a_few_entries_that_agree_by_chance_tells_nothing() -> None:
    model = Doubled()
    samples = [torch.randn(1, 13), torch.randn(8, 6)]
    samples[0].zero_()  # the entries of which a trial call with one column is made
    compiled = pb.compile_model(model, tracing_inputs=samples, deployment_settings=pb.EagerDeployment())
    for shape in itertools.product((1, 2, 8), (1, 2, 6)):
        x = torch.randn(*shape)
        with contextlib.suppress(ConditionError):
            assert torch.equal(compiled(x), model(x))


class TurnedPieces(torch.nn.Module):
    """Turns around what has more than two pieces of four columns."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x[:, ::2]
        return x.flip(1) if len(x.split(4, 1)) > 2 else x.amax(1, keepdim=True) + x


def test_sizes_up_to_the_next_trial_that_is_right_are_refused_with_a_wrong_one() -> None:
    model = TurnedPieces()
    samples = [torch.randn(5, 8), torch.randn(2, 1), torch.randn(3, 13)]
    compiled = pb.compile_model(model, tracing_inputs=samples, deployment_settings=pb.EagerDeployment())
    taken = set()
    for columns in range(1, 30):
        x = torch.randn(3, columns)
        with contextlib.suppress(ConditionError):
            assert torch.equal(compiled(x), model(x))
            taken.add(columns)
    assert taken >= {1, 8, 13, 14}


class InFour(torch.nn.Module):
    """Keeps every other column of what falls into four pieces; no rows do not."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x[:, 1:]
        return x[:, ::2] if len(x.chunk(4)) == 4 else x * 2


def test_a_larger_call_that_a_condition_refuses_says_nothing_about_the_small_one() -> None:
    model = InFour()
    samples = [torch.randn(5, 6), torch.randn(3, 1)]
    compiled = pb.compile_model(model, tracing_inputs=samples, deployment_settings=pb.EagerDeployment())
    for shape in itertools.product((0, 1, 2, 3, 5, 6), (0, 1, 4, 6)):
        x = torch.randn(*shape)
        with contextlib.suppress(ConditionError):
            found = compiled(x)
            assert found.shape == model(x).shape
            assert torch.equal(found, model(x))


class Emptied(torch.nn.Module):
    """Without columns, only the number of rows tells a roll from a choice."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        rows = y.shape[0]
        return x.index_select(0, torch.arange(rows) % max(x.shape[0], 1)) if x.shape[1] > 0 else x.roll(rows, 0)


class Topped(torch.nn.Module):
    """Leaves one row where the other has none, and only a long one may be cut so."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x[: max(y.shape[0], 1)] if x.shape[0] + y.shape[0] > 3 else x @ y.t() @ y


class Summed(torch.nn.Module):
    """Sums up only where the other has entries."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x.cumsum(0) if y.numel() > 0 else x + 1


class Leading(torch.nn.Module):
    """Cuts to the rows of the other, and leaves one where that has none; joins what has more entries."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.cat([y, x], 0) if x.numel() > y.numel() else x[: max(y.shape[0], 1)]


@pytest.mark.parametrize(
    ("model", "more"), [(Leading(), 1), (Emptied(), 0), (Topped(), 0), (Summed(), 0), (Summed(), 2), (Summed(), 1)]
)
def test_sizes_that_change_together_in_all_samples_are_tried_apart_beside_small_ones(
    model: torch.nn.Module, more: int
) -> None:
    sizes = [(1, 4), (3, 6)] if more > 1 else [(2, 3), (6, 12), (3, 8)]  # the first: rows and columns, too
    samples = [(torch.randn(rows, columns), torch.randn(rows + more, columns)) for rows, columns in sizes]
    compiled = pb.compile_model(model, tracing_inputs=samples, deployment_settings=pb.EagerDeployment())
    for rows, columns, others in itertools.product((1, 3, 7), (0, 1, 5), (0, 1, 3, 6)):
        x, y = torch.randn(rows, columns), torch.randn(others, columns)
        with contextlib.suppress(ConditionError):
            found = compiled(x, y)
            assert found.shape == model(x, y).shape
            assert torch.equal(found, model(x, y))


@pytest.mark.parametrize(
    ("model", "sizes"),
    [
        (Scaled(), [(2, 9, 2), (1, 2, 1), (5, 5, 5)]),
        (Joined(), [(1, 2, 1), (3, 1, 3), (2, 1, 2), (12, 1, 12)]),
        (Cut(), [(2, 8, 3), (4, 12, 12), (9, 5, 5)]),
    ],
)
def test_small_sizes_are_tried_beside_near_and_far_ones(
    model: torch.nn.Module, sizes: list[tuple[int, int, int]]
) -> None:
    samples = [(torch.randn(rows, columns), torch.randn(others, columns)) for rows, columns, others in sizes]
    compiled = pb.compile_model(model, tracing_inputs=samples, deployment_settings=pb.EagerDeployment())
    for x, y in samples:
        assert torch.equal(compiled(x, y), model(x, y))
    for rows, columns, others in itertools.product((1, 2, 3, 7), (0, 1, 2, 8), (1, 2, 8)):
        x, y = torch.randn(rows, columns), torch.randn(others, columns)
        with contextlib.suppress(ConditionError):
            found = compiled(x, y)
            assert found.shape == model(x, y).shape
            assert torch.equal(found, model(x, y))


class Quarter(torch.nn.Module):
    """Doubles one row, and gives nothing of fewer than four columns."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x * 2 if x.shape[0] == 1 else x.cumsum(1))[:, : x.shape[1] // 4]


def test_results_without_entries_tell_nothing() -> None:
    model = Quarter()
    samples = [torch.randn(*shape) for shape in [(3, 1), (12, 3), (9, 4)]]
    compiled = pb.compile_model(model, tracing_inputs=samples, deployment_settings=pb.EagerDeployment())
    for rows, columns in itertools.product((1, 2, 5), (1, 3, 4, 6, 9)):
        x = torch.randn(rows, columns)
        with contextlib.suppress(ConditionError):
            assert torch.equal(compiled(x), model(x))


class HalvedInPieces(torch.nn.Module):
    """Asks for more than two pieces of half of what it gets, of which torch's guards tell one from several."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x[:, : x.shape[1] // 2] if x.shape[0] * x.shape[1] > 18 else x.amax(1, keepdim=True) + x
        return x + 6 if len(x.split(3, 1)) > 2 else x[:, ::2]


def test_far_sizes_are_tried_where_nearer_ones_show_a_guard_to_be_idle() -> None:
    model = HalvedInPieces()
    samples = [torch.randn(*shape) for shape in [(3, 3), (2, 1), (13, 2)]]
    compiled = pb.compile_model(model, tracing_inputs=samples, deployment_settings=pb.EagerDeployment())
    taken = 0
    for rows, columns in itertools.product((4, 13), (2, 4, 5, 9, 12, 13, 14, 16, 30)):
        x = torch.randn(rows, columns)
        with contextlib.suppress(ConditionError):
            assert torch.equal(compiled(x), model(x))
            taken += 1
    assert taken >= 2
