"""A target's bugs are found before its model is returned."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import nn

import prepbench as pb
from prepbench.compile import wrong_operator
from prepbench.compile.check_lowered import LoweredCheck, with_ties_broken
from prepbench.errors import InputError, TargetError
from prepbench.inputs import Sample

Run = Callable[..., list[Any]]


class Given:
    """A runtime that does what it is told."""

    def __init__(self, run: Run) -> None:
        self.run = run


class Adds(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (x + y, x.argmax(0))


class Counts(nn.Module):
    def forward(self, x: torch.Tensor, ids: torch.Tensor) -> tuple[Any, ...]:
        return (x.argmax(1), x.shape[0], ids + 1, x.shape[0] * x.shape[1], x * 2)


class AddsInPlace(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (x.add_(y),)


class Drops(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (torch.dropout(x, 0.9, True) + y,)


def check_lowered(
    run: Run,
    program: torch.export.ExportedProgram,
    samples: Sequence[Sample],
    original: torch.export.ExportedProgram | None = None,
    *,
    others: Sequence[Sample] = (),
    **options: Any,
) -> None:
    """Check in the order in which a compile does."""
    checked = LoweredCheck(Given(run), program, "Abacus", original, **options)  # type: ignore[arg-type]
    checked.check_samples(samples)
    checked.check_others(others)
    checked.check_edges(samples)


def check(run: Run, model: nn.Module | None = None, indices: Sequence[int] = (3, 5)) -> None:
    samples = [Sample((torch.randn(4), torch.randn(4)), {}, index) for index in indices]
    program = torch.export.export(model or Adds(), samples[0].args)
    check_lowered(run, program, samples)


def test_a_size_that_was_fixed_while_the_graph_was_lowered_is_told() -> None:
    program = torch.export.export(Adds(), (torch.randn(4), torch.randn(4)))
    shorter = Sample((torch.randn(3), torch.randn(3)), {}, 1)
    with pytest.raises(TargetError, match=r"Abacus fixed a size .* refuses tracing_inputs\[1\]: .*equal to 4.*got 3"):
        check_lowered(lambda leaves: [leaves[0] + leaves[1], leaves[0].argmax(0)], program, [shorter])


def test_rounding_passes() -> None:
    check(lambda leaves: [leaves[0] * (1 + 1e-6) + leaves[1], leaves[0].argmax(0)])


WRONG: dict[str, tuple[Run, str]] = {
    "another result": (lambda x, y: [x - y, x.argmax(0)], r"output\[0\]: expected an SQNR of .* 70 dB, got .* dB"),
    "NaN": (lambda x, y: [x + y * math.nan, x.argmax(0)], r"output\[0\] at \(0,\): expected .*, got nan"),
    "one NaN": (lambda x, y: [torch.cat([(x + y)[:3], y[3:] * math.nan]), x.argmax(0)], r"output\[0\] at \(3,\)"),
    "another shape": (lambda x, y: [(x + y)[None], x.argmax(0)], r"expected the shape \(4,\), got the shape \(1, 4\)"),
    "another dtype": (lambda x, y: [(x + y).double(), x.argmax(0)], r"expected torch.float32, got torch.float64"),
    "argmin for argmax": (lambda x, y: [x + y, x.argmin(0)], r"output\[1\]: expected \d, got \d"),
    "missing output": (lambda x, y: [x + y], r"output: expected 2 values \(.*\), got 1 values"),
    "one output more": (lambda x, y: [x + y, x.argmax(0), x], r"output: expected 2 values \(.*\), got 3 values"),
    "swapped outputs": (lambda x, y: [x.argmax(0), x + y], r"output\[0\]: expected torch.float32, got torch.int64"),
}  # fmt: skip


@pytest.mark.parametrize("kind", WRONG)
def test_another_result_is_a_bug_of_the_target(kind: str) -> None:
    run, what = WRONG[kind]
    with pytest.raises(TargetError, match=rf"Abacus does not compute .* on tracing_inputs\[3\], .*{what}"):
        check(lambda leaves: run(*leaves))


def right(x: torch.Tensor, ids: torch.Tensor) -> list[Any]:
    return [x.argmax(1), torch.tensor(len(x)), ids + 1, x.numel(), x * 2]


def check_counts(change: Callable[[list[Any]], None]) -> None:
    def run(leaves: Sequence[Any]) -> list[Any]:
        outputs = right(*leaves)
        change(outputs)
        return outputs

    samples = [Sample((torch.randn(size, 5), torch.arange(40)), {}, size) for size in (3, 6)]
    program = torch.export.export(Counts(), samples[0].args, dynamic_shapes=({0: torch.export.Dim("n")}, None))
    check_lowered(run, program, samples)


def test_sizes_may_come_as_tensors_and_near_ties_may_turn() -> None:
    check_counts(lambda outputs: None)

    def turn(outputs: list[Any]) -> None:
        outputs[0][1] = (outputs[0][1] + 1) % 5

    check_counts(turn)


def test_integers_that_no_floats_decide_are_exact() -> None:
    with pytest.raises(TargetError, match=r"output\[2\] at \(7,\): expected 8, got 9"):
        check_counts(lambda outputs: outputs[2][7].add_(1))
    with pytest.raises(TargetError, match=r"output\[1\]: expected 3, got 4"):
        check_counts(lambda outputs: outputs[1].add_(1))


def test_a_result_right_at_the_first_call_only_is_found() -> None:
    total = torch.zeros(4)

    def run(leaves: Sequence[Any]) -> list[Any]:
        total.add_(leaves[1])
        return [leaves[0] + total, leaves[0].argmax(0)]

    with pytest.raises(TargetError, match=r"a second call with tracing_inputs\[3\], output\[0\]"):
        check(run, indices=[3])


def test_changing_the_callers_tensor_is_a_bug() -> None:
    with pytest.raises(TargetError, match="Abacus changes input 1 of the graph"):
        check(lambda leaves: [leaves[1].add_(leaves[0]), leaves[0].argmax(0)])


def test_changing_what_the_model_changes_is_right() -> None:
    check(lambda leaves: [leaves[0].add_(leaves[1])], AddsInPlace())


def test_random_results_are_not_compared() -> None:
    check(lambda leaves: [leaves[0]], Drops())


class Rounds(nn.Module):
    """Keeps little of its input, as quantization to a few integers does."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return ((x + y).round(), (x + y).round().argmax(0))


class Keeps(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (x + y, (x + y).argmax(0))


def check_noisy(run: Run) -> None:
    torch.manual_seed(0)
    samples = [Sample((torch.randn(64) / 2, torch.randn(64) / 2), {}, index) for index in (0, 1)]
    program, original = (torch.export.export(model, samples[0].args) for model in (Rounds(), Keeps()))
    check_lowered(run, program, samples, original)


def test_where_quantization_is_noise_a_target_may_round_otherwise() -> None:
    def otherwise(leaves: Sequence[Any]) -> list[Any]:
        exact = leaves[0] + leaves[1]
        rounded = (exact + 0.2).round()  # another integer where the value is near the middle of two
        return [rounded, exact.round().argmax(0)]

    check_noisy(otherwise)
    with pytest.raises(TargetError, match="Abacus does not compute"):
        check_noisy(lambda leaves: [(leaves[0] - leaves[1]).round(), (leaves[0] + leaves[1]).round().argmax(0)])
    with pytest.raises(TargetError, match="Abacus does not compute"):
        check_noisy(lambda leaves: [(leaves[0] + leaves[1]).round() * math.nan, leaves[0].argmax(0)])


class Sums(nn.Module):
    """Returns three sums of many values, in steps of a size or as they are."""

    def __init__(self, steps: float | None) -> None:
        super().__init__()
        self.steps = steps

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor]:
        values = x if self.steps is None else (x * self.steps).round() / self.steps
        return (values.reshape(3, -1).sum(1),)


@pytest.mark.parametrize("seed", range(12))
def test_a_call_of_few_results_is_judged_together_with_others(seed: int) -> None:
    torch.manual_seed(seed)
    sample = Sample((torch.randn(300),), {}, 0)
    program, original = (torch.export.export(Sums(steps), sample.args) for steps in (8.0, None))

    def runtime(steps: float, bias: float = 0.0) -> Run:
        def sums(leaves: Sequence[Any]) -> list[Any]:
            offset = torch.rand(300)  # each value is rounded otherwise
            return [(((leaves[0] * steps + offset).round() - offset) / steps + bias).reshape(3, -1).sum(1)]

        return sums

    def checked(run: Run) -> None:
        LoweredCheck(Given(run), program, "Abacus", original).check_samples([sample])  # type: ignore[arg-type]

    checked(runtime(8))
    for wrong in (runtime(2), runtime(8, bias=0.02)):
        with pytest.raises(TargetError, match="Abacus does not compute"):
            checked(wrong)


class Best(nn.Module):
    """Returns the places of the highest scores, as a detector does, of scores in steps or as they are."""

    def __init__(self, steps: float | None) -> None:
        super().__init__()
        self.steps = steps

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor]:
        scores = x if self.steps is None else (x * self.steps).round() / self.steps
        return (scores.topk(48).indices,)


def test_where_quantization_reorders_the_best_a_target_may_do_so_too() -> None:
    torch.manual_seed(0)
    sample = Sample((torch.randn(200),), {}, 0)
    program, original = (torch.export.export(Best(steps), sample.args) for steps in (100.0, None))

    (exact,), (in_steps,) = (each.module()(*sample.args) for each in (original, program))
    assert 0.2 < float((exact != in_steps).double().mean()) < 0.3

    def exchanged(count: int) -> list[torch.Tensor]:
        return [torch.cat([exact[:count].reshape(-1, 2).flip(1).reshape(-1), exact[count:]])]

    check_lowered(lambda leaves: exchanged(18), program, [sample], original)  # of 48
    with pytest.raises(TargetError, match="Abacus does not compute"):
        check_lowered(lambda leaves: exchanged(32), program, [sample], original)


class Router(nn.Module):
    """Sends each row to the two of four experts with the highest scores."""

    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__()
        self.gate, self.experts = nn.Linear(4, 4, bias=False), nn.Parameter(torch.eye(4))
        self.gate.weight.data.copy_(weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.experts[self.gate(x).sigmoid().topk(2, dim=1).indices].sum(1)


class Routed(nn.Module):
    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__()
        self.router = Router(weight)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor]:
        return (self.router(x),)


@pytest.mark.parametrize(
    "weight, reason",
    [
        (torch.zeros(4, 4), r"On this call router \(topk\) chooses among equal values.* EagerDeployment\(\)"),
        (torch.eye(4), "Which part is wrong was not found"),
    ],
    ids=["equal scores", "scores that decide"],
)
def test_another_choice_of_equal_values_is_no_bug(weight: torch.Tensor, reason: str) -> None:
    sample = Sample((torch.randn(5, 4),), {}, 0)
    model = Routed(weight)
    program = torch.export.export(model, sample.args)
    with pytest.raises(TargetError, match=reason):
        check_lowered(lambda leaves: [1 - model(*leaves)[0]], program, [sample])


@pytest.mark.parametrize(
    "choose, given, tied",
    [
        (lambda x: x.topk(2).indices, [1.0, 2.0, 3.0, 3.0], True),
        (lambda x: x.topk(2).indices, [1.0, 1.0, 2.0, 3.0], False),
        (lambda x: x.topk(2).indices, [1.0, 2.0, 2.0 + 1e-6, 3.0], True),
        (lambda x: x.topk(2).indices, [-1.0, -2.0, -2.0 + 1e-6, -3.0], True),
        (lambda x: x.topk(2, largest=False).indices, [1.0, 2.0, 2.0, 3.0], True),
        (lambda x: x.topk(4).indices, [1.0, 2.0, 4.0, 3.0], False),
        (lambda x: x.reshape(2, 2).topk(1, dim=0).indices, [1.0, 2.0, 1.0, 3.0], True),
        (lambda x: x.log().topk(2).indices, [0.0, 0.0, 1.0, 0.0], True),
        (lambda x: x.sort().indices, [1.0, 2.0, 1.0, 3.0], True),
        (lambda x: x.sort(descending=True).indices, [1.0, 2.0, 4.0, 3.0], False),
        (lambda x: x.sort(stable=True).indices, [1.0, 2.0, 1.0, 3.0], False),
        (lambda x: x.argsort(), [1.0, 2.0, 1.0, 3.0], True),
        (lambda x: x.int().sort().indices, [1.0, 2.0, 1.0, 3.0], True),
        (lambda x: x.half().sort().indices, [1.0, 2.0, 1.0, 3.0], True),
        (lambda x: x.sum().sort().indices, [1.0, 2.0, 1.0, 3.0], False),
        (lambda x: x[:0].sort().indices, [1.0, 2.0, 1.0, 3.0], False),
        (lambda x: x.argmax(), [1.0, 3.0, 3.0, 3.0], False),
    ],
)
def test_choices_among_equal_values_are_found(
    choose: Callable[[torch.Tensor], torch.Tensor], given: list[float], tied: bool
) -> None:
    class Chooses(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor]:
            return (choose(x),)

    sample = Sample((torch.tensor(given),), {}, 0)
    program = torch.export.export(Chooses(), sample.args)
    (first,), places = with_ties_broken(program, sample, last_first=False)
    (last,), again = with_ties_broken(program, sample, last_first=True)
    assert places == again
    assert bool(places) is tied
    assert torch.equal(first, last) is not tied
    if not tied:
        assert torch.equal(first, choose(*sample.args))


def test_equal_values_that_decide_nothing_are_no_excuse() -> None:
    class Sorts(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor]:
            return (x.relu().sort().values,)

    sample = Sample((torch.randn(40),), {}, 0)
    program = torch.export.export(Sorts(), sample.args)

    with pytest.raises(TargetError, match="Which part is wrong was not found"):
        check_lowered(lambda leaves: [-Sorts()(*leaves)[0]], program, [sample])


class Logs(nn.Module):
    """A logarithm whose argument is kept from zero by little."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor]:
        return (torch.log(x.relu() + 1e-9),)


class Halves(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor]:
        return (x * (x.shape[1] // 2),)


class Cancels(nn.Module):
    """Little is left of what it computes, so rounding alone changes much of it."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor]:
        return ((x + 3e4) - 3e4,)


def check_one(run: Run, model: nn.Module, *, others: Sequence[Sample] = (), **options: Any) -> None:
    torch.manual_seed(0)
    sample = Sample((torch.rand(4, 8) + 0.5,), {}, 0)
    sizes = {0: torch.export.Dim("rows"), 1: torch.export.Dim("columns")}
    program = torch.export.export(model, sample.args, dynamic_shapes=(sizes,))
    check_lowered(run, program, [sample], others=others, **options)


def test_values_that_no_sample_holds_are_tried() -> None:
    check_one(lambda leaves: list(Logs()(*leaves)), Logs())
    with pytest.raises(TargetError, match=r"on a call of sizes \(4, 8\) with zeros, output\[0\] at"):
        check_one(lambda leaves: [torch.log(leaves[0].relu()) + 0 * leaves[0]], Logs())


def test_sizes_that_no_sample_has_are_tried() -> None:
    def wrong(leaves: Sequence[Any]) -> list[Any]:
        x = leaves[0]
        return [x * ((x.shape[1] + 1) // 2)]

    odd = [Sample((torch.ones(3, 7),), {}, 1)]
    check_one(wrong, Halves())
    with pytest.raises(TargetError, match=r"on a call of other sizes, \(3, 7\), output\[0\]: expected an SQNR"):
        check_one(wrong, Halves(), others=odd)


def test_a_call_that_the_program_refuses_judges_nothing() -> None:
    check_one(lambda leaves: [leaves[0] * 4], Halves(), others=[Sample((torch.ones(3),), {}, 1)])


def test_float_may_differ_by_rounding_only() -> None:
    def off(share: float) -> Run:
        return lambda leaves: [leaves[0] * (leaves[0].shape[1] // 2) * (1 + share)]

    check_one(off(1e-6), Halves())
    with pytest.raises(TargetError, match="at least 70 dB, got 4"):
        check_one(off(5e-3), Halves())
    check_one(off(5e-3), Halves(), precision="bf16")


def test_where_rounding_decides_a_target_may_round_otherwise() -> None:
    check_one(lambda leaves: [((leaves[0].double() + 3e4) - 3e4).float()], Cancels())
    with pytest.raises(TargetError, match="Abacus does not compute"):
        check_one(lambda leaves: [((leaves[0].double() + 3e4) - 3e4).float() * 1.5], Cancels())


def test_a_target_that_refuses_a_sample_is_not_the_samples_fault() -> None:
    def refuse(leaves: Sequence[Any]) -> list[Any]:
        raise InputError("Size 4 in dim 0 is more than the 2 for which memory is planned. Give a smaller one.")

    with pytest.raises(
        TargetError, match=r"Abacus lowered the graph for other sizes than .*tracing_inputs\[0\].*limit"
    ):
        check_one(refuse, Halves())


class Thirds(nn.Module):
    """The mean is exactly 0 in PyTorch, of whole numbers that other rounding of the input does not move."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor]:
        whole = (x * 3).to(torch.int32).float() / 2
        return (torch.stack([whole, -whole]).mean(0),)


def test_what_cancels_exactly_may_be_as_far_off_as_its_parts_round() -> None:
    check_one(lambda leaves: [Thirds()(*leaves)[0] - 5e-8 * leaves[0]], Thirds())
    with pytest.raises(TargetError, match="Abacus does not compute"):
        check_one(lambda leaves: [Thirds()(*leaves)[0] - 5e-3 * leaves[0]], Thirds())


class DoublesFlat(nn.Module):
    """Does something else for rows that are nearly of one value."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor]:
        is_flat = x.var(1, keepdim=True) < 1e-9 * x.mean(1, keepdim=True) ** 2
        return (torch.where(is_flat, x * 2, x),)


def test_rows_of_equal_values_are_tried() -> None:
    check_one(lambda leaves: list(DoublesFlat()(*leaves)), DoublesFlat())
    with pytest.raises(TargetError, match="with rows of equal negative values, "):
        check_one(lambda leaves: [leaves[0]], DoublesFlat())


class Norms(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor]:
        return (nn.functional.layer_norm(x + 50, x.shape[1:]),)


def test_the_rounding_of_a_mean_is_no_difference() -> None:
    def otherwise(leaves: Sequence[Any]) -> list[Any]:
        return [Norms()(leaves[0].double())[0].float()]

    check_one(otherwise, Norms())
    with pytest.raises(TargetError, match="Abacus does not compute"):
        check_one(lambda leaves: [otherwise(leaves)[0] + 0.02], Norms())


class CountsPositive(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor]:
        return ((x - x.mean(1, keepdim=True) > 0).sum(),)


def test_of_equal_values_rounding_decides_a_comparison() -> None:
    def otherwise(leaves: Sequence[Any]) -> list[Any]:
        return [(leaves[0] > leaves[0].mean(1, keepdim=True) * (1 + 2e-7)).sum()]

    check_one(otherwise, CountsPositive())
    with pytest.raises(TargetError, match="Abacus does not compute"):
        check_one(lambda leaves: [otherwise(leaves)[0] + 3], CountsPositive())


class AddsMean(nn.Module):
    """The mean of what a mask selects from zeros is that of nothing."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.add(x[x > 0].mean()).clamp(-9)


def test_where_pytorch_has_nan_at_values_of_no_sample_kernels_may_have_a_number() -> None:
    samples = [(torch.randn(2, 5),), (torch.randn(3, 7),)]
    compiled = pb.compile_model(AddsMean(), tracing_inputs=samples, deployment_settings=pb.OpenVinoDeployment())
    x = torch.randn(4, 5)
    torch.testing.assert_close(compiled(x), AddsMean()(x))


class Picks(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (x.topk(2, dim=1).indices, (x * 10).round())


def test_programs_that_choose_are_tried_where_values_decide() -> None:
    def reversed_ties(leaves: Sequence[Any]) -> list[Any]:
        order = leaves[0].flip(1).sort(dim=1, descending=True, stable=True).indices[:, :2]
        return [leaves[0].shape[1] - 1 - order, (leaves[0] * 10).round()]

    check_one(reversed_ties, Picks())
    with pytest.raises(TargetError, match=r"with large values, output\[0\]"):
        check_one(lambda leaves: [Picks()(leaves[0].clamp(0.0, 1.5))[0], Picks()(*leaves)[1]], Picks())
    with pytest.raises(TargetError, match=r"with large values, output\[1\]"):
        check_one(lambda leaves: [Picks()(*leaves)[0], Picks()(leaves[0].clamp(0.0, 1.5))[1]], Picks())


def test_quantized_programs_are_tried_at_edge_values() -> None:
    def steps(leaves: Sequence[Any]) -> list[Any]:
        total = leaves[0] + leaves[1]
        return [total.round(), total.round().argmax(0)]

    check_noisy(steps)
    with pytest.raises(TargetError, match="with large values"):
        check_noisy(lambda leaves: steps([leaf.clamp(-9, 9) for leaf in leaves]))
    with pytest.raises(TargetError, match=r"with (zeros|rows of equal negative values)"):
        check_noisy(lambda leaves: [value + 2 * (leaves[0].std() == 0) for value in steps(leaves)])


class Turns(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return ((4 * x).sin(), x + 1)


def test_kernels_that_round_activations_in_each_call_may_differ_where_8_bits_decide() -> None:
    def rounded(leaves: Sequence[Any]) -> list[Any]:
        step = leaves[0].abs().max() / 127 + 1e-9
        return list(Turns()((leaves[0] / step).round() * step))

    torch.manual_seed(0)
    samples = [Sample((torch.randn(12, 8) / 4,), {}, index) for index in (0, 1)]
    program = torch.export.export(Turns(), samples[0].args)
    check_lowered(rounded, program, samples, program)
    with pytest.raises(TargetError, match="with large values"):
        check_lowered(lambda leaves: rounded([leaves[0].clamp(-1.5, 1.5)]), program, samples, program)
    with pytest.raises(TargetError, match="Abacus does not compute"):
        check_lowered(lambda leaves: rounded([leaves[0].flip(0)]), program, samples, program)


@pytest.mark.stress
def test_trials_that_decide_about_conditions_look_for_no_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    """It lowers the graph in parts again and again, and nobody reads it."""
    asked: list[object] = []
    find = wrong_operator.Blame.__call__
    monkeypatch.setattr(
        wrong_operator.Blame, "__call__", lambda self, *given: asked.append(given) or find(self, *given)
    )

    class Smaller(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return nn.functional.interpolate(x, scale_factor=0.6, mode="bilinear", antialias=True)

    compiled = pb.compile_model(
        Smaller(),
        tracing_inputs=[torch.randn(2, 2, 9, 12), torch.randn(1, 2, 11, 8)],
        deployment_settings=pb.ExecuTorchDeployment(),
    )
    assert any("at least 4" in condition.text for condition in compiled.conditions)  # a trial was wrong
    assert not asked


class NormedTwice(nn.Module):
    """Divides what is left of equal values by their deviation."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1, padding_mode="reflect")
        self.second = nn.Conv2d(8, 8, 3, padding=1)
        self.norms = nn.ModuleList([nn.InstanceNorm2d(8), nn.InstanceNorm2d(8)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.norms[0](self.first(x)))
        return self.norms[1](self.second(x))


def test_where_the_float_result_is_noise_no_translation_is_blamed() -> None:
    torch.manual_seed(0)
    equal, drawn = torch.full((1, 3, 16, 16), 0.7), torch.randn(1, 3, 16, 16)
    told = []
    for samples in ([equal], [drawn]):
        compiled = pb.compile_model(
            NormedTwice().eval(),
            tracing_inputs=samples,
            calibration_inputs=samples,
            deployment_settings=pb.OnnxRuntimeDeployment(),
            quantization_settings=pb.QuantizationSettings(),
        )
        told.append([remark for remark in compiled.report.remarks if "the result in float is noise" in remark])
    assert [len(remarks) for remarks in told] == [1, 0]
    assert told[0][0].startswith("tracing_inputs[0]: ")
