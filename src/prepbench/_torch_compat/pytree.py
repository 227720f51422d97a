"""Flatten and unflatten nested values (``torch.utils._pytree``)."""

from __future__ import annotations

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
