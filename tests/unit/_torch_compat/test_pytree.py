"""Nested values: what the rest of prepbench takes from torch's pytrees."""

from __future__ import annotations

import importlib

import pytest
import torch.utils._pytree

from prepbench._torch_compat import pytree
from prepbench.errors import TorchVersionError


def test_apart_and_together_again() -> None:
    value = {"a": [1, (2, 3)], "b": None}
    leaves, spec = pytree.tree_flatten(value)
    assert leaves == pytree.tree_leaves(value)
    assert pytree.tree_unflatten(leaves, spec) == value
    assert pytree.treespec_loads(pytree.treespec_dumps(spec)) == spec == pytree.tree_structure(value)
    assert pytree.tree_map(lambda leaf: leaf, value) == value


def test_paths() -> None:
    (path, leaf), *_ = pytree.tree_leaves_with_path({"a": [7]})
    assert (pytree.keystr(path), leaf) == ("['a'][0]", 7)
    assert pytree.tree_flatten_with_path({"a": [7]})[0] == [(path, 7)]
    assert pytree.keystr((pytree.GetAttrKey("x"),)) == ".x"


def test_a_torch_without_a_part_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.utils._pytree, "treespec_dumps")
    try:
        with pytest.raises(TorchVersionError, match=r"nested arguments and outputs.*treespec_dumps"):
            importlib.reload(pytree)
    finally:
        monkeypatch.undo()
        importlib.reload(pytree)
