"""What forward asks of tensors themselves: a call for which the answer differs is refused, and nothing else is."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torch import nn

import prepbench as pb
from prepbench.capture.aten.capture import FullGraphError
from prepbench.capture.failures.tensor_conditions import TensorCondition
from prepbench.errors import ConditionError, InputError

EAGER = pb.EagerDeployment()


def _larger(x: torch.Tensor) -> torch.Tensor:
    return x * 2 if x.stride()[0] > 1 else x * 3


class Contiguous(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.is_contiguous() else x * 3


class ByHelper(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return _larger(x)


class WithGradients(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.requires_grad else x * 3


class Harmless(nn.Module):
    """Asks, and computes the same either way."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x if x.is_contiguous() else x.contiguous()) * 2


class Attend(nn.Module):
    """Takes another way for self attention, as torch's own attention does, with other weights."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.packed = (nn.Linear(4, 4) for _ in range(3))

    def forward(self, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        return self.packed(query) if query is key else self.query(query) * self.key(key)


class Asks(nn.Module):
    """Takes another way where a question about its argument or its surroundings has another answer."""

    def __init__(self, question: str) -> None:
        super().__init__()
        self.question = question

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if self.asked(x) else x * 3

    def asked(self, x: torch.Tensor) -> bool:
        if self.question == "leaf":
            return x.is_leaf
        if self.question == "parameter":
            return isinstance(x, nn.Parameter)
        if self.question == "attribute":
            return getattr(x, "lengths", None) is not None
        if self.question == "view":
            return x._base is not None
        if self.question == "version":
            return x._version > 0
        if self.question == "made for inference":
            return x.is_inference()
        if self.question == "inference":
            return torch.is_inference_mode_enabled()
        if self.question == "autocast":
            return torch.is_autocast_enabled("cpu")
        if self.question == "dtype":
            return torch.get_default_dtype() == torch.float64
        if self.question == "deterministic":
            return torch.are_deterministic_algorithms_enabled()
        if self.question == "clock":
            return time.time() > 2.5e9
        return os.environ.get("PREPBENCH_TEST_ASKS") == "yes"


def _with_lengths(x: torch.Tensor) -> torch.Tensor:
    x.lengths = [1]  # type: ignore[attr-defined]
    return x


def _in_inference_mode() -> torch.Tensor:
    with torch.inference_mode():
        return torch.ones(3, 3)


SAMPLES = [torch.ones(2, 3), torch.ones(4, 3)]


@pytest.mark.parametrize(
    ("model", "kind", "other", "remedy"),
    [
        (Contiguous(), "contiguous", torch.ones(3, 3).T, "Give x.contiguous()"),
        (ByHelper(), "contiguous", torch.ones(3, 3).T, "Give x.contiguous()"),
        (WithGradients(), "without gradients", torch.ones(3, 3).requires_grad_(), "Give x.detach()"),
        (Asks("leaf"), "without gradients", torch.ones(3, 3).requires_grad_() * 1, "Give x.detach()"),
        (Asks("parameter"), "plain", nn.Parameter(torch.ones(3, 3)), "Give x.detach()"),
        (Asks("attribute"), "without attributes", _with_lengths(torch.ones(3, 3)), "Give x.clone()"),
        (Asks("view"), "whole", torch.ones(5, 3)[:3], "Give x.clone()"),
        (Asks("version"), "unwritten", torch.ones(3, 3).mul_(2), "Give x.clone()"),
        (Asks("made for inference"), "no inference tensor", _in_inference_mode(), "outside of it"),
    ],
)
def test_a_call_with_another_answer_is_refused(
    model: nn.Module, kind: str, other: torch.Tensor, remedy: str, tmp_path: Path
) -> None:
    compiled = pb.compile_model(model, tracing_inputs=SAMPLES, deployment_settings=EAGER)
    (condition,) = [one for one in compiled.conditions if isinstance(one, TensorCondition) and one.kind == kind]
    assert str(condition) in compiled.report.conditions
    assert [found.message for found in pb.capture(model, SAMPLES).findings if condition.text in found.message]
    compiled.save(tmp_path / "model")
    for one in (compiled, pb.load_compiled(tmp_path / "model")):
        torch.testing.assert_close(one(torch.ones(5, 3)), model(torch.ones(5, 3)))
        with pytest.raises(ConditionError) as error:
            one(other)
        assert remedy in str(error.value)
        assert Path(__file__).name in str(error.value)


def _environment() -> AbstractContextManager[Any]:
    return mock.patch.dict(os.environ, {"PREPBENCH_TEST_ASKS": "yes"})


@contextmanager
def _set(put: Callable[[Any], None], value: Any, before: Any) -> Iterator[None]:
    put(value)
    try:
        yield
    finally:
        put(before)


@pytest.mark.parametrize(
    ("question", "otherwise", "words"),
    [
        ("inference", torch.inference_mode, r"torch.is_inference_mode_enabled\(\) is False"),
        ("autocast", lambda: torch.autocast("cpu", dtype=torch.bfloat16), r"is_autocast_enabled\('cpu'\) is False"),
        ("dtype", lambda: _set(torch.set_default_dtype, torch.float64, torch.float32), "is torch.float32"),
        ("deterministic", lambda: _set(torch.use_deterministic_algorithms, True, False), "enabled.* is False"),
        ("environment", _environment, "the environment variable PREPBENCH_TEST_ASKS is not set"),
    ],
)
def test_a_call_in_other_surroundings_is_refused(
    question: str, otherwise: Callable[[], AbstractContextManager[Any]], words: str, tmp_path: Path
) -> None:
    model = Asks(question)
    pb.compile_model(model, tracing_inputs=SAMPLES, deployment_settings=EAGER).save(tmp_path / "model")
    compiled = pb.load_compiled(tmp_path / "model")
    torch.testing.assert_close(compiled(torch.ones(5, 3)), model(torch.ones(5, 3)))
    x = torch.ones(5, 3)
    with otherwise(), pytest.raises(ConditionError, match=rf"This call breaks.*{words}.*Call it so"):
        compiled(x)
    with _environment():  # the value stands nowhere
        pb.compile_model(model, tracing_inputs=SAMPLES, deployment_settings=EAGER).save(tmp_path / "other")
    assert '"yes"' not in (tmp_path / "other" / "manifest.json").read_text()


def test_a_model_that_computes_with_the_time_says_so() -> None:
    compiled = pb.compile_model(Asks("clock"), tracing_inputs=SAMPLES, deployment_settings=EAGER)
    assert [remark for remark in compiled.report.remarks if "the time at which it was captured" in remark]
    assert [found for found in pb.capture(Asks("clock"), SAMPLES).findings if found.kind == "time fixed"]


class Timed(nn.Module):
    """Looks at the clock, and computes the same at any time."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.start = time.perf_counter()
        return x * 2


def test_questions_of_surroundings_without_effect_are_nothing() -> None:
    compiled = pb.compile_model(Timed(), tracing_inputs=SAMPLES, deployment_settings=EAGER)
    assert not [remark for remark in compiled.report.remarks if "the time" in remark]
    assert not compiled.conditions


def test_a_question_without_effect_is_no_condition() -> None:
    compiled = pb.compile_model(Harmless(), tracing_inputs=SAMPLES, deployment_settings=EAGER)
    assert not compiled.conditions
    torch.testing.assert_close(compiled(torch.ones(3, 3).T), torch.full((3, 3), 2.0))


class Noisy(nn.Module):
    """Adds something where gradients are recorded."""

    def __init__(self, added: float) -> None:
        super().__init__()
        self.added = added

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.added if torch.is_grad_enabled() else x + 0.0


def test_a_model_that_asks_whether_gradients_are_recorded(tmp_path: Path) -> None:
    model = Noisy(1.0)
    pb.compile_model(model, tracing_inputs=SAMPLES, deployment_settings=EAGER).save(tmp_path / "model")
    compiled = pb.load_compiled(tmp_path / "model")
    with pytest.raises(ConditionError, match=r"This call breaks .*made under torch\.no_grad\(\).*Call it so"):
        compiled(torch.ones(5, 3))
    with torch.no_grad():
        torch.testing.assert_close(compiled(torch.ones(5, 3)), model(torch.ones(5, 3)))
    same = pb.compile_model(Noisy(0.0), tracing_inputs=SAMPLES, deployment_settings=EAGER)
    torch.testing.assert_close(same(torch.ones(5, 3)), torch.ones(5, 3))


def test_samples_that_are_not_contiguous() -> None:
    samples = [torch.ones(3, 2).T, torch.ones(3, 4).T]
    compiled = pb.compile_model(Contiguous(), tracing_inputs=samples, deployment_settings=EAGER)
    torch.testing.assert_close(compiled(torch.ones(3, 5).T), torch.full((5, 3), 3.0))
    with pytest.raises(ConditionError, match="as the samples have it"):
        compiled(torch.ones(5, 3))


def test_one_tensor_for_two_arguments() -> None:
    torch.manual_seed(0)
    model = Attend().eval()
    apart = [(torch.randn(n, 4), torch.randn(n, 4)) for n in (2, 3)]
    compiled = pb.compile_model(model, tracing_inputs=apart, deployment_settings=EAGER)
    x = torch.randn(5, 4)
    torch.testing.assert_close(compiled(x, x.clone()), model(x, x.clone()))
    with pytest.raises(ConditionError, match="no two arguments are one tensor"):
        compiled(x, x)


def test_samples_of_one_tensor_are_run_as_such() -> None:
    torch.manual_seed(0)
    model, together = Attend().eval(), [(x, x) for x in (torch.randn(2, 4), torch.randn(3, 4))]
    with pytest.raises(FullGraphError, match="differ on sample 0"):
        pb.capture(model, together)
    in_python = pb.compile_model(model, tracing_inputs=together, deployment_settings=EAGER, fullgraph=False)
    x = torch.randn(5, 4)
    torch.testing.assert_close(in_python(x, x), model(x, x))


def test_one_tensor_for_arguments_of_which_nothing_asks() -> None:
    """Samples of self attention give a graph for any attention."""

    class Plain(nn.Module):
        def forward(self, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
            return query @ key.T

    x, other = torch.randn(3, 4), torch.randn(3, 4)
    compiled = pb.compile_model(Plain(), tracing_inputs=[(x, x)], deployment_settings=EAGER)
    torch.testing.assert_close(compiled(x, other), x @ other.T)
    torch.testing.assert_close(compiled(x, x), x @ x.T)


class Joined(nn.Module):
    """Joins whatever it is given, in the order in which it is given."""

    def forward(self, **parts: torch.Tensor) -> torch.Tensor:
        return torch.cat([*parts.values()], 1)


class Summed(nn.Module):
    def forward(self, **parts: torch.Tensor) -> torch.Tensor:
        return torch.stack([*parts.values()]).sum(0)


def test_order_of_keywords(tmp_path: Path) -> None:
    a, b = torch.ones(2, 2), torch.zeros(2, 2)
    compiled = pb.compile_model(Joined(), tracing_inputs=[{"a": a, "b": b}], deployment_settings=EAGER)
    compiled.save(tmp_path / "model")
    for one in (compiled, pb.load_compiled(tmp_path / "model")):
        torch.testing.assert_close(one(a=a, b=b), Joined()(a=a, b=b))
        with pytest.raises(InputError, match="a=, b= in this order"):
            one(b=b, a=a)
    summed = pb.compile_model(Summed(), tracing_inputs=[{"a": a, "b": b}], deployment_settings=EAGER)
    torch.testing.assert_close(summed(b=b, a=a), a + b)


class EvenOrOdd(nn.Module):
    """Has a graph for each side of a branch on sizes, and asks beside that."""

    def forward(self, **parts: torch.Tensor) -> torch.Tensor:
        x = torch.cat([*parts.values()], 1)
        x = x.sum(1) if x.shape[0] % 2 == 0 else x[:, 0]
        return x * 2 if parts["a"].is_contiguous() else x * 3


def test_every_variant_has_the_conditions() -> None:
    samples = [{"a": torch.ones(size, 3), "b": torch.zeros(size, 3)} for size in (2, 3, 4, 5)]
    compiled = pb.compile_model(EvenOrOdd(), tracing_inputs=samples, deployment_settings=EAGER)
    assert len(compiled.variants) == 2
    assert [one.kind for one in compiled.conditions if isinstance(one, TensorCondition)] == ["contiguous"]
    for size in (6, 7):
        a, b = torch.ones(size, 3), torch.zeros(size, 3)
        torch.testing.assert_close(compiled(a=a, b=b), EvenOrOdd()(a=a, b=b))
        with pytest.raises(InputError, match="in this order"):
            compiled(b=b, a=a)
        with pytest.raises(ConditionError, match="contiguous"):
            compiled(a=torch.ones(3, size).T, b=b)
