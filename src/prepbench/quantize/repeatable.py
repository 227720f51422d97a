"""Graphs made to compute the same each time that they run on a sample: in-place writes and random numbers."""

from __future__ import annotations

import bisect
import contextvars
import threading
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import fx

from prepbench._torch_compat.operators import draws
from prepbench.quantize.statistics import is_view, viewed, written_by

_COPY, _DRAWS = "copy_beside_writes", "draws"  # in the meta of nodes
_DRAWING = threading.Lock()  # the generator belongs to all threads
_SALT = contextvars.ContextVar("_SALT", default=0)


def make_repeatable(graph: fx.GraphModule, *, same_draws: bool) -> None:
    """Let a graph compute the same from the same sample each time, in place.

    Arguments that it writes to are copied first. Other values are copied for each operator that reads them behind a
    write to their memory: an observer looks at a value where it is made, so it would miss what is written later, as
    in ``h[:, 0] = 0``.

    Args:
        graph: runs on the same samples many times.
        same_draws: whether random numbers depend on the sample alone, so that noise can be told from them; training
            draws new ones.
    """
    is_changed = _copy_beside_writes(graph.graph)
    if same_draws:
        is_changed |= _draw_by_sample(graph.graph)
    if is_changed:
        graph.recompile()


def as_before(graph: fx.GraphModule) -> None:
    """Undo :func:`make_repeatable`, in place."""
    for node in list(graph.graph.nodes):
        if node.meta.get(_COPY):
            node.replace_all_uses_with(node.args[0])
            graph.graph.erase_node(node)
        elif _DRAWS in node.meta:
            node.target, node.args = node.args[1], node.args[2:]
            del node.meta[_DRAWS]
    graph.recompile()


def _copy_beside_writes(graph: fx.Graph) -> bool:
    order = {node: place for place, node in enumerate(graph.nodes)}
    writes: defaultdict[fx.Node, list[int]] = defaultdict(list)  # by the node that made the memory, in order
    for node, place in order.items():
        for written in written_by(node):
            writes[viewed(written)].append(place)
    if not writes:
        return False
    for node, place in order.items():
        at = writes.get(viewed(node), [])
        later = at[bisect.bisect_right(at, place) :]
        for user in [user for user in node.users if later and order[user] > later[0] and _only_reads(user, node)]:
            with graph.inserting_before(user):
                user.replace_input_with(node, _copy(graph, node))
    for node in [node for node in writes if node.op == "placeholder"]:
        users = list(node.users)
        with graph.inserting_after(node):
            copy = _copy(graph, node)
        for user in users:
            user.replace_input_with(node, copy)
    return True


def _copy(graph: fx.Graph, node: fx.Node) -> fx.Node:
    copy = graph.call_function(torch.ops.aten.clone.default, (node,))
    copy.meta = {**node.meta, _COPY: True}
    return copy


def _only_reads(user: fx.Node, node: fx.Node) -> bool:
    return user.op == "call_function" and not is_view(user) and node not in written_by(user)


def _draw_by_sample(graph: fx.Graph) -> bool:
    """Let operators that draw random numbers take their seed from the sample."""
    sample = next((node for node in graph.nodes if node.op == "placeholder" and _is_tensor(node)), None)
    drawing = [node for node in graph.nodes if draws(node)]
    for number, node in enumerate(drawing):
        node.meta[_DRAWS] = number
        node.target, node.args = _drawn, ((sample, number), node.target, *node.args)
    return bool(drawing)


def _is_tensor(node: fx.Node) -> bool:
    return isinstance(node.meta.get("val"), torch.Tensor)


def _drawn(seed: tuple[torch.Tensor | None, int], draw: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Draw with a seed that the sample and the place in the graph determine; leave the generator as it was."""
    sample, number = seed
    flat = torch.zeros(1) if sample is None else sample.detach().cpu().contiguous().reshape(-1)
    with _DRAWING, torch.random.fork_rng(devices=[]):
        torch.manual_seed(zlib.crc32(flat.view(torch.uint8).numpy().tobytes(), number + _SALT.get()))
        return draw(*args, **kwargs)


@contextmanager
def other_draws() -> Iterator[None]:
    """Draw other numbers than else during the block: noise is not to be measured on those that ranges are of."""
    before = _SALT.set(1 << 16)
    try:
        yield
    finally:
        _SALT.reset(before)
