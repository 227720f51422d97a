"""Numbers that Python reads from tensors: refused where samples differ, told where they agree, never just baked in."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import prepbench as pb
from prepbench.capture.aten.capture import FullGraphError
from prepbench.errors import CaptureError, InputError

X = torch.arange(8.0).reshape(2, 4)
NUMBER = "item() / Python number from a tensor"
BRANCH = "data-dependent branch"
Read = Callable[[torch.Tensor], int]


def next_number(n: torch.Tensor) -> int:
    return int(n) + 1


READS: dict[str, Read] = {
    "int": int,
    "item": lambda n: int(n.item()),
    "tolist": lambda n: operator.index(n.tolist()),
    "index": operator.index,
    "bool": lambda n: 1 if bool(n) else 0,
    "truth": lambda n: 1 if n else 0,
    "compared": lambda n: 1 if n.item() > 0 else 0,
    "float": lambda n: int(float(n)),
    "written": lambda n: int(f"{n.item()}" if str(n.item()) == repr(n.item()) else "9"),
    "looked up": lambda n: {0: 0, 1: 1}[n.item()],
    "helper": lambda n: next_number(n) - 1,
}


class Chooses(nn.Module):
    """Which of its parts runs follows from a number in a tensor."""

    names = ("linear", "negate")

    def __init__(self, read: Read, way: str) -> None:
        super().__init__()
        self.read, self.way = read, way
        self.branches = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])
        self.linear, self.negate = nn.Linear(4, 4), nn.ReLU()

    def forward(self, x: torch.Tensor, n: torch.Tensor) -> Any:
        number = self.read(n)
        if self.way == "loop":
            for _ in range(number):
                x = x * 2
            return x
        if self.way == "name":
            return getattr(self, self.names[number])(x)
        return self.branches[number](x)


def samples(*numbers: int) -> list[Any]:
    return [(X, torch.tensor(number)) for number in numbers]


@pytest.mark.parametrize("way", ["loop", "name", "module"])
@pytest.mark.parametrize("read", READS)
def test_a_number_that_samples_do_not_agree_on_is_a_failure(read: str, way: str) -> None:
    collection = pb.recursive_trace(Chooses(READS[read], way), inputs=samples(1, 0))
    (failure,) = collection.failures
    assert failure.kind == NUMBER
    assert "inputs[0]" in failure.message
    assert "Trace once for each value" in failure.remedy
    assert not collection.findings or all("granted" not in found.message for found in collection.findings)


@pytest.mark.parametrize("read", READS)
def test_a_number_that_samples_agree_on_is_a_finding_with_its_line(read: str) -> None:
    model = Chooses(READS[read], "loop")
    collection = pb.recursive_trace(model, inputs=samples(1, 1))
    assert collection.failures == ()
    found = [finding for finding in collection.findings if finding.kind == "number from a tensor fixed"]
    assert found
    assert all("as in all 2 samples" in finding.message for finding in found)
    assert all(finding.source is not None and finding.source.file == __file__ for finding in found)
    assert found[0].message in repr(collection)
    assert found[0] in collection.document().findings
    graph = collection.graph_module()
    assert torch.equal(graph(*samples(1)[0]), model(*samples(1)[0]))
    with pytest.raises(InputError, match=r"was traced for n.item\(\)"):
        graph(*samples(0)[0])


def test_prepared_models_say_and_check_the_same() -> None:
    model = Chooses(int, "module")
    with pytest.raises(CaptureError, match="Python number"):
        pb.prepare_model(model, inputs=samples(1, 0))
    prepared = pb.prepare_model(model, inputs=samples(1, 1))
    assert "takes for granted that n.item() == 1, as in all samples" in str(prepared.preparation_report)
    assert torch.equal(prepared(*samples(1)[0]), model(*samples(1)[0]))
    with pytest.raises(InputError, match=r"got n\.item"):
        prepared(*samples(0)[0])


@pytest.mark.parametrize("numbers", [(1, 0), (1, 1)])
def test_capture_makes_no_graph_of_one_number(numbers: tuple[int, int]) -> None:
    with pytest.raises(FullGraphError) as caught:
        pb.capture(Chooses(int, "loop"), samples(*numbers))
    assert [failure.kind in (NUMBER, BRANCH) for failure in caught.value.failures] == [True]


class Sized(nn.Module):
    def forward(self, x: torch.Tensor, n: torch.Tensor) -> Any:
        return x[:, : n.item()], torch.zeros(n.item()), x.new_ones(n.item() + 1, 2), x * n.item()


@pytest.mark.parametrize("numbers", [(1, 0), (1, 3), (2, 2)])
def test_a_number_that_is_only_a_size_or_an_operand_stays_free(numbers: tuple[int, int]) -> None:
    collection = pb.recursive_trace(Sized(), inputs=samples(*numbers))
    assert (collection.failures, collection.findings) == ((), ())
    for number in (0, 1, 2, 3):
        got, expected = collection.graph_module()(*samples(number)[0]), Sized()(*samples(number)[0])
        assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))


class Bounded(nn.Module):
    def forward(self, x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        return x[:, :1] if n.item() < x.shape[1] else x


def test_a_condition_on_a_number_and_a_size_is_what_is_taken_for_granted() -> None:
    collection = pb.recursive_trace(Bounded(), inputs=[(X, torch.tensor(1)), (torch.ones(2, 6), torch.tensor(5))])
    assert [f.message for f in collection.findings] == [
        "The graph takes for granted that n.item() is less than x.size(1), as in all 2 samples."
    ]
    assert collection.graph_module()(X, torch.tensor(3)).shape == (2, 1)
    with pytest.raises(InputError, match=r"got x.size\(1\) = 4, n.item\(\) = 4"):
        collection.graph_module()(X, torch.tensor(4))
    refused = pb.recursive_trace(Bounded(), inputs=[(X, torch.tensor(1)), (X, torch.tensor(5))])
    assert [failure.kind for failure in refused.failures] == [NUMBER]


class Part(nn.Module):
    def forward(self, x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        return x * 2 if int(n) > 0 else -x


class CallsTwice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.part = Part()

    def forward(self, x: torch.Tensor, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        return self.part(x, first) + self.part(x, second)


def test_a_module_that_is_called_with_two_numbers_is_told_call_by_call() -> None:
    model = CallsTwice()
    both = [(X, torch.tensor(1), torch.tensor(0)), (X * 2, torch.tensor(1), torch.tensor(0))]
    collection = pb.recursive_trace(model, inputs=both)
    assert collection.failures == ()
    assert [(f.fqn, f.module_type) for f in collection.findings] == [("part", "Part"), ("part", "Part")]
    assert {f.message.split(" that ")[1].split(",")[0] for f in collection.findings} == {
        "first.item() == 1", "second.item() == 0"
    }  # fmt: skip
    assert torch.equal(collection.graph_module()(*both[0]), model(*both[0]))
    other = [both[0], (X, torch.tensor(1), torch.tensor(1))]
    collection = pb.recursive_trace(model, inputs=other)
    assert [failure.fqn for failure in collection.failures] == ["part"]
    for sample in other:
        assert torch.equal(collection.graph_module()(*sample), model(*sample))


class Largest(nn.Module):
    def forward(self, x: torch.Tensor) -> int:
        return int(x.argmax())


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.largest = Largest()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.largest(x)


def test_a_number_that_a_failed_module_returns_is_told_if_it_is_the_same_on_all_samples() -> None:
    collection = pb.recursive_trace(Scaled(), inputs=[X, X + 1])
    assert [failure.fqn for failure in collection.failures] == ["largest"]
    assert "granted that largest returns 7, as in all 2 samples" in collection.findings[-1].message
    collection = pb.recursive_trace(Scaled(), inputs=[X, -X])
    assert [failure.fqn for failure in collection.failures] == ["", "largest"]


class Changed(nn.Module):
    def forward(self, x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        n.add_(1)
        return x * 2 if int(n) > 1 else -x


class Computed(nn.Module):
    def forward(self, x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        return x * 2 if int(n + x.sum()) > 1 else -x


@pytest.mark.parametrize(
    ("model", "dtype"),
    [
        *((model, dtype) for model in (Changed(), Computed()) for dtype in (torch.float64, torch.int64)),
        (Chooses(int, "loop"), torch.float32),
        (Chooses(int, "loop"), torch.float64),
    ],
)
def test_decisions_on_what_is_computed_or_not_whole_are_always_failures(model: nn.Module, dtype: torch.dtype) -> None:
    (failure,) = pb.recursive_trace(model, inputs=[(X, torch.tensor(1, dtype=dtype))] * 2).failures
    assert failure.kind in (NUMBER, BRANCH)
