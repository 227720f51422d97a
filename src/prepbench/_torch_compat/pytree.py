"""Flatten and unflatten nested values (``torch.utils._pytree``)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch

from prepbench._torch_compat.checks import needed_for

with needed_for("taking nested arguments and outputs apart"):
    from torch.utils._pytree import SUPPORTED_NODES as SUPPORTED_NODES
    from torch.utils._pytree import GetAttrKey as GetAttrKey
    from torch.utils._pytree import TreeSpec as TreeSpec
    from torch.utils._pytree import keystr as keystr
    from torch.utils._pytree import register_pytree_node as register_pytree_node
    from torch.utils._pytree import tree_flatten as tree_flatten
    from torch.utils._pytree import tree_flatten_with_path as tree_flatten_with_path
    from torch.utils._pytree import tree_leaves as tree_leaves
    from torch.utils._pytree import tree_leaves_with_path as tree_leaves_with_path
    from torch.utils._pytree import tree_map as tree_map
    from torch.utils._pytree import tree_structure as tree_structure
    from torch.utils._pytree import tree_unflatten as tree_unflatten
    from torch.utils._pytree import treespec_dumps as treespec_dumps
    from torch.utils._pytree import treespec_loads as treespec_loads


def with_sizes(leaves: Iterable[Any], treespec: TreeSpec) -> Any:
    """Build a value from its leaves, with sizes as ``torch.Size``; ``tree_unflatten`` makes tuples of them.

    Example:
        >>> leaves, spec = tree_flatten([torch.ones(2, 3).shape])
        >>> tree_unflatten(leaves, spec), with_sizes(leaves, spec)
        ([(2, 3)], [torch.Size([2, 3])])
    """
    return _built(treespec, iter(leaves))


def _built(spec: TreeSpec, leaves: Iterator[Any]) -> Any:
    if spec.is_leaf():
        return next(leaves)
    parts = [_built(child, leaves) for child in spec.children()]
    return sizes(parts) if spec.type is torch.Size else SUPPORTED_NODES[spec.type].unflatten_fn(parts, spec.context)


def sizes(parts: Iterable[Any]) -> Any:
    """Return integers as ``torch.Size``, which holds nothing else; other values as a tuple."""
    values = tuple(parts)
    return torch.Size(values) if all(type(value) is int for value in values) else values
