"""Tensors with sizes but no data."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch
import torch._subclasses.fake_tensor as torch_fake_tensors

from prepbench._torch_compat import fake_tensors
from prepbench.errors import TorchVersionError


def _mode(guards: list[Any], questions: list[Any]) -> Any:
    return fake_tensors.symbolic_fake_mode(guards.append, questions.append, lambda answer: None)


def test_an_assumption_about_a_size_is_reported_when_it_is_made() -> None:
    guards, questions = list[Any](), list[Any]()
    mode = _mode(guards, questions)
    x = fake_tensors.fake_input(mode, torch.ones(4, 3), {0: 4}, "x")
    assert isinstance(x.shape[0], torch.SymInt)
    assert x.shape[1] == 3
    assert fake_tensors.is_fake(x)
    assert not fake_tensors.is_fake(torch.ones(2))
    assert fake_tensors.is_open_question(mode, (x.shape[0] > 2).node.expr)
    with mode:
        assert x.shape[0] > 2
    assert len(guards) == 1
    assert questions
    assert not fake_tensors.is_open_question(mode, (x.shape[0] > 2).node.expr)


def test_hints_stand_for_other_sizes_than_the_tensor_has() -> None:
    x = fake_tensors.fake_input(_mode([], []), torch.ones(4, 3), {0: 9}, "x")
    assert x.shape[0].node.hint == 9


def test_a_meta_tensor_stands_for_one_on_a_device() -> None:
    meta = fake_tensors.on_device(torch.empty(2, device="meta"), torch.device("cpu"))
    assert fake_tensors.device_of(meta) == torch.device("cpu")
    assert fake_tensors.device_of(torch.ones(1)) == torch.device("cpu")
    assert fake_tensors.fake_input(_mode([], []), meta, {}, "x").device == torch.device("cpu")


def test_a_fresh_size_is_unknown() -> None:
    mode = _mode([], [])
    size = fake_tensors.fresh_size(mode)
    assert fake_tensors.is_open_question(mode, (size > 5).node.expr)
    assert not fake_tensors.is_open_question(mode, (size >= 0).node.expr)


def test_reading_data_is_told_from_other_errors() -> None:
    mode = _mode([], [])
    x = fake_tensors.fake_input(mode, torch.ones(4), {0: 4}, "x")
    with mode, pytest.raises(Exception) as caught:
        bool(x.sum() > 0)
    assert fake_tensors.needs_data(caught.value)
    assert not fake_tensors.needs_data(ValueError())


def test_python_kernels_keep_sizes_symbolic() -> None:
    mode = _mode([], [])
    x = fake_tensors.fake_input(mode, torch.ones(1, 4), {1: 4}, "x")
    with mode, fake_tensors.symbolic_kernels():
        padded = torch.nn.functional.pad(x, (1, 1))
    assert isinstance(padded.shape[1], torch.SymInt)


def test_a_torch_without_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch_fake_tensors, "DynamicOutputShapeException")
    with pytest.raises(TorchVersionError, match=r"sizes but no data.*DynamicOutputShapeException"):
        importlib.reload(fake_tensors)
