"""Where the sizes of samples take both sides of a branch, each side is a graph that says where it holds."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import prepbench as pb
from prepbench.capture.aten.capture import FullGraphError


class Pool(nn.Module):
    """Of long signals the newest part counts, of short ones all."""

    def forward(self, signal: torch.Tensor) -> torch.Tensor:
        if signal.shape[1] >= 8:
            return signal[:, 5:] * 2
        return signal.mean(1, keepdim=True)


class Padded(nn.Module):
    """Pads to a multiple of 3, which changes nothing where the length is one."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv1d(2, 4, 3, stride=3)

    def forward(self, signal: torch.Tensor) -> torch.Tensor:
        over = signal.shape[-1] % 3
        if over:
            signal = nn.functional.pad(signal, (3 - over, 0))
        return self.layer(signal)


class Single(nn.Module):
    """A single row is its own centre."""

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return rows * 2 if rows.shape[0] == 1 else rows - rows.mean(0)


class Chunks(nn.Module):
    """The first two of more than two chunks, else the first."""

    def forward(self, signal: torch.Tensor) -> torch.Tensor:
        chunks = signal.split(4, 1)
        return chunks[0] + chunks[1] if len(chunks) > 2 else chunks[0] * 2


class Levels(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] < 4:
            return x + 1
        return x * 2 if x.shape[0] < 9 else x.cumsum(0)


class Square(nn.Module):
    """Another way for one size, which tracing makes a constant of."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ x.transpose(1, 2) if x.shape[1] == 6 else x[:, :2]


class Pairs(nn.Module):
    """How many pieces there are is asked by torch, not by this code; a trial with two rows tells one from more."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[:, -2:].relu() if len(x.split(2, 0)) > 1 else x - x.mean(1, keepdim=True)


class Empty(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.new_ones(1, 4) if x.shape[0] == 0 else x.sum(0, keepdim=True)


def rows(*shapes: tuple[int, ...]) -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(shape) for shape in shapes]


CASES = {
    "threshold": (
        Pool(),
        rows((2, 5, 3), (3, 12, 3), (2, 6, 3)),
        [[0, 2], [1]],
        rows((4, 7, 3), (4, 8, 3), (1, 21, 3)),
    ),
    "modulo": (Padded(), rows((2, 2, 12), (1, 2, 13), (2, 2, 15)), [[0, 2], [1]], rows((3, 2, 17), (3, 2, 18))),
    "single row": (Single(), rows((4, 3), (1, 3), (2, 3)), [[0, 2], [1]], rows((5, 3), (1, 3))),
    "chunks": (Chunks(), rows((2, 8), (2, 12), (3, 10)), [[0], [1, 2]], rows((2, 5), (4, 9), (4, 11))),
    "three ways": (Levels(), rows((2, 4), (6, 4), (12, 4)), [[0], [1], [2]], rows((1, 4), (3, 4), (8, 4), (9, 4))),
    "one size": (Square(), rows((2, 4, 3), (2, 6, 3), (3, 8, 3)), [[0, 2], [1]], rows((4, 6, 3), (4, 7, 3))),
    "pieces": (Pairs(), rows((3, 8, 6), (5, 9, 6), (2, 10, 6)), [[0, 1], [2]], rows((4, 8, 6), (1, 3, 6))),
    "no rows": (Empty(), rows((3, 4), (0, 4), (2, 4)), [[0, 2], [1]], rows((1, 4), (0, 4), (7, 4))),
}


@pytest.mark.parametrize("name", CASES)
def test_each_way_is_a_graph_of_its_own(name: str) -> None:
    model, samples, groups, others = CASES[name]
    captured = pb.capture(model, samples, variants=3)
    assert [[sample.index for sample in one.samples] for one in captured.variants] == groups
    assert all(one.conditions for one in captured.variants)
    report = captured.verify()
    assert report.samples == len(samples)
    assert not report.problems
    assert not any(axis.wrong for axis in report.axes)
    for x in (*samples, *others):  # the first whose conditions hold is right
        for variant in captured.variants:
            sizes = {(0, dim): size for dim, size in enumerate(x.shape)}
            if all(one.holds([sizes[place] for place in one.places]) for one in variant.conditions):
                graph = variant.program.module(check_guards=False)
                torch.testing.assert_close(graph(x), model(x), rtol=1e-4, atol=1e-5)
                break
        else:
            raise AssertionError(f"no variant takes {tuple(x.shape)}")


def test_all_sizes_are_verified_where_variants_take_both_sides() -> None:
    model, samples, *_ = CASES["threshold"]
    captured = pb.capture(model, samples, variants=2)
    assert captured.verify().passed
    assert "variant 1: for inputs[1] and where the length of signal (signal.shape[1]) must be at least 8" in repr(
        captured
    )


def test_weights_are_those_of_the_model_in_all_graphs() -> None:
    model, samples, *_ = CASES["modulo"]
    captured = pb.capture(model, samples, variants=2)
    for variant in captured.variants:
        assert variant.program.state_dict["layer.weight"].data_ptr() == model.layer.weight.data_ptr()


def test_one_graph_is_what_is_captured_unless_more_are_allowed() -> None:
    model, samples, *_ = CASES["threshold"]
    with pytest.raises(FullGraphError, match="decide the way here"):
        pb.capture(model, samples)
    assert pb.capture(model, [samples[0], samples[2]], variants=4).variants == ()


def test_what_torch_asks_of_the_traced_sample_makes_no_variant() -> None:
    class Turned(nn.Module):
        """Whether memory is contiguous makes no difference to the result, and differs between the samples."""

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.transpose(0, 1).reshape(x.shape[0], x.shape[1], 6)

    samples = rows((4, 10, 6), (2, 5, 6), (1, 12, 6))
    captured = pb.capture(Turned(), samples, variants=3)
    assert captured.variants == ()
    assert len(captured.samples) == 3
    for x in (*samples, *rows((3, 7, 6), (1, 4, 6))):
        assert torch.equal(captured.program.module()(x), Turned()(x))


def test_more_ways_than_allowed_are_refused_with_those_that_are_known() -> None:
    model, samples, *_ = CASES["three ways"]
    with pytest.raises(FullGraphError) as raised:
        pb.capture(model, samples, variants=2)
    text = str(raised.value)
    assert "more ways than the 2 graphs that variants=2 allows" in text
    assert "A graph each takes inputs[0]; inputs[1], and inputs[2] need others" in text
    assert "test_variants.py:" in text


def test_a_graph_for_each_size_is_refused() -> None:
    class Sizes(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * [1.0, 1.0, 0.5, 0.25, 0.125][x.shape[0]]

    with pytest.raises(FullGraphError, match=r"Each size of x.shape\[0\] in the samples would need a graph of its own"):
        pb.capture(Sizes(), rows((2, 4), (3, 4), (4, 4)), variants=4)


def test_what_data_decide_is_no_variant() -> None:
    class Both(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if x.shape[1] > 6 and bool(x.sum() > 0):
                return x * 2
            return x + 1

    with pytest.raises(FullGraphError) as raised:
        pb.capture(Both(), rows((2, 4), (2, 8)), variants=4)
    assert "data-dependent" in str(raised.value)


class LinesAndBatches(torch.nn.Module):
    """Treats a single row in another way, and long rows in another."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.floor() if x.shape[0] > 1 else x - x.mean()
        return x.cumsum(1) if x.shape[1] > 10 else x * 2


def test_a_size_of_one_that_another_variant_has_is_tried() -> None:
    model = LinesAndBatches()
    captured = pb.capture(model, [torch.randn(1, 12), torch.randn(4, 6)], variants=4)
    of_batches = captured.variants[1]
    assert any("more than 1" in condition.text for condition in of_batches.conditions)
    for shape in [(1, 4), (1, 12), (1, 17), (2, 3), (3, 15), (4, 6)]:
        x = torch.randn(*shape)
        for variant in captured.variants:
            try:
                found = variant.program.module()(x)
            except (RuntimeError, AssertionError):
                continue
            torch.testing.assert_close(found, model(x))
