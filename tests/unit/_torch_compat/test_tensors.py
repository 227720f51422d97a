"""Which tensors share memory, and how often one was changed."""

from __future__ import annotations

import importlib

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from prepbench._torch_compat import tensors
from prepbench.errors import TorchVersionError


@pytest.mark.parametrize("is_fake", [False, True])
def test_views_have_the_memory_of_their_base(is_fake: bool) -> None:
    x = FakeTensorMode().from_tensor(torch.ones(4, 2)) if is_fake else torch.ones(4, 2)
    assert tensors.memory_of(x[1:].t()) == tensors.memory_of(x)
    assert tensors.memory_of(x.clone()) != tensors.memory_of(x)


def test_changes_in_place_are_counted() -> None:
    x = torch.ones(2)
    before = tensors.version_of(x)
    x[0].add_(1)
    assert tensors.version_of(x) == before + 1
    with torch.inference_mode():
        assert tensors.version_of(torch.ones(1).add_(1)) == 0


def test_a_torch_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    class Bare:
        def untyped_storage(self) -> object:
            return object()

    with monkeypatch.context() as patch:
        patch.setattr(torch, "empty", lambda *sizes: Bare())
        with pytest.raises(TorchVersionError, match=r"share memory.*_cdata"):
            importlib.reload(tensors)
