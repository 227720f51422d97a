"""Labels as slabs: what goes of a tensor are whole indices of its dims."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from prepbench.adapt.channels.classes import ChannelClasses
from prepbench.adapt.channels.places import place_of
from prepbench.adapt.channels.values import Joiner, Value, compact, only, varying


def make_slabs(classes: ChannelClasses, values: dict[fx.Node, Any]) -> None:
    """Tie channels until what can be removed from each tensor are whole indices of its dims, and never all of them."""
    before = -1
    while before != classes.joins:
        before = classes.joins
        for node, value in values.items():
            joiner = Joiner(classes, place_of(node) if node.op == "call_function" else node.name)
            if isinstance(value, list):
                values[node] = [_in_slabs(each, joiner) for each in value]
            elif value is not None:
                values[node] = _in_slabs(value, joiner)


def _in_slabs(value: Value, joiner: Joiner) -> Value:
    layers = []
    for layer in value.layers:
        layer = joiner.settled(layer)
        if len(varying(layer)) > 1:
            best = _dim_of_most_units(layer, joiner.classes)
            for dim in varying(layer):
                if dim != best:
                    layer = joiner.tie(layer, dim, "splits a dim, and only whole parts can be removed")
        if varying(layer):
            layers.append(compact(layer))
    return Value(value.shape, tuple(layers), value.is_weight)


def _dim_of_most_units(layer: torch.Tensor, classes: ChannelClasses) -> int:
    """The dim along which most indices can be removed one by one."""
    from scipy.sparse import coo_matrix
    from scipy.sparse.csgraph import connected_components

    dims = varying(layer)
    small = only(layer, dims)
    numbers, places = torch.unique(small, return_inverse=True)
    kept = torch.tensor([bool(classes.why_kept(int(number))) for number in numbers])

    def units(dim: int) -> int:
        rows = torch.arange(small.shape[dim]).reshape([-1 if d == dim else 1 for d in range(small.ndim)])
        row, label = rows.expand(small.shape).reshape(-1), places.reshape(-1) + small.shape[dim]
        size = small.shape[dim] + len(numbers)
        graph = coo_matrix((torch.ones(len(row)).numpy(), (row.numpy(), label.numpy())), shape=(size, size))
        _, found = connected_components(graph, directed=False)
        fixed = set(found[small.shape[dim] :][kept.numpy()].tolist())
        return len(set(found.tolist()) - fixed)

    return max(dims, key=lambda dim: (units(dim), -dim))
