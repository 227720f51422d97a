"""Derivatives in a forward, by ``torch.autograd.grad`` and by ``torch.func``, as operators of the graph."""

from __future__ import annotations

import functools
import importlib
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import fx

from prepbench._torch_compat.checks import needed_for
from prepbench.patching import patched_here

with needed_for("derivatives in forward"):
    from torch.fx.experimental.proxy_tensor import (
        disable_proxy_modes_tracing,
        get_proxy_mode,
        get_proxy_slot,
        make_fx,
    )

_MODES = (torch._C._set_grad_enabled,)


@contextmanager
def derivatives_traced() -> Iterator[None]:
    """Inside the block, ``torch.autograd.grad`` and ``backward`` of exported values become operators of the graph.

    An export records the model's own calls, but not the operators of autograd below them. So the operators that were
    recorded between inputs and outputs are traced again, together with their derivative, one level lower, and the
    result is called. Gradients that ``backward`` accumulates in parameters are not part of the graph.
    """
    grad = _traced(torch.autograd.grad)
    with patched_here(torch.autograd, "grad", grad):
        with patched_here(torch.Tensor, "backward", _traced_backward(torch.Tensor.backward, grad)):
            yield


def _traced(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def grad(outputs: Any, inputs: Any, grad_outputs: Any = None, *args: Any, **kwargs: Any) -> Any:
        mode: Any = get_proxy_mode()
        many = tuple(_several(part) for part in (outputs, inputs, grad_outputs))
        known = [get_proxy_slot(each, mode.tracer, None) for each in (*many[0], *many[1])] if mode is not None else []
        is_other = len(args) > 2 or kwargs.get("is_grads_batched")
        if mode is None or is_other or any(each is None for each in known):
            return original(outputs, inputs, grad_outputs, *args, **kwargs)
        again = bool(kwargs.pop("create_graph", args[1] if len(args) > 1 else False))
        kwargs.pop("retain_graph", None)
        return _in_graph(mode.tracer, functools.partial(original, **kwargs), again, *many)

    return grad


def _traced_backward(original: Callable[..., Any], grad: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def backward(
        self: torch.Tensor,
        gradient: Any = None,
        retain_graph: Any = None,
        create_graph: bool = False,
        inputs: Any = None,
    ) -> None:
        mode: Any = get_proxy_mode()
        if mode is None:
            original(self, gradient, retain_graph, create_graph, inputs)
            return
        tracked = list(mode.tracer.tensor_tracker) if inputs is None else _several(inputs)
        leaves = [each for each in tracked if each.requires_grad and each.is_leaf]
        leaves = [each for each in leaves if not isinstance(each, torch.nn.Parameter)]
        if not leaves:
            original(self, gradient, retain_graph, create_graph, inputs)
            return
        found = grad(self, leaves, gradient, create_graph=create_graph, allow_unused=True)
        for leaf, each in zip(leaves, found, strict=True):
            if each is not None:
                leaf.grad = each if leaf.grad is None else leaf.grad + each

    return backward


def _several(value: Any) -> tuple[Any, ...]:
    return (value,) if value is None or isinstance(value, torch.Tensor) else tuple(value)


def _in_graph(
    tracer: Any,
    grad: Callable[..., Any],
    again: bool,
    outputs: Sequence[torch.Tensor],
    inputs: Sequence[torch.Tensor],
    grad_outputs: Sequence[torch.Tensor | None],
) -> tuple[torch.Tensor | None, ...]:
    held = {slot.proxy.node: tensor for tensor, slot in list(tracer.tensor_tracker.items())}
    starts, ends = ([get_proxy_slot(t, tracer).proxy.node for t in tensors] for tensors in (inputs, outputs))
    function, others = _recorded(tracer, starts, ends, held)
    if again and any(node.target is torch.ops.aten.detach.default for node in function.graph.nodes):
        raise NotImplementedError("a derivative that is derived again goes through detach()")
    tensors = [*inputs, *(held[node] for node in others)]
    given = [each for each in grad_outputs if each is not None]

    def derivative(*values: torch.Tensor) -> list[torch.Tensor | None]:
        own = [each if each.requires_grad else each.detach().requires_grad_() for each in values[: len(starts)]]
        rest, wanted = values[len(starts) : len(tensors)], iter(values[len(tensors) :])
        results = torch.fx.Interpreter(function).run(*own, *rest)
        return list(grad(results, own, [None if each is None else next(wanted) for each in grad_outputs]))

    # a mode for functions would write down that gradients are switched on
    with disable_proxy_modes_tracing(), torch._C.DisableTorchFunction(), torch.enable_grad():
        lowered = make_fx(derivative, backward_operators())(*tensors, *given)
    if again:
        _keep_connected(lowered)
    return tuple(torch.fx.Interpreter(lowered).run(*tensors, *given))


def _keep_connected(lowered: torch.fx.GraphModule) -> None:
    """Remove ``detach`` from values that autograd has saved, so that the derivative has a derivative."""
    for node in list(lowered.graph.nodes):
        if node.op == "call_function" and node.target is torch.ops.aten.detach.default:
            node.replace_all_uses_with(node.args[0])
            lowered.graph.erase_node(node)
    lowered.recompile()


def _recorded(
    tracer: Any, starts: Sequence[torch.fx.Node], ends: Sequence[torch.fx.Node], held: dict[torch.fx.Node, torch.Tensor]
) -> tuple[torch.fx.GraphModule, list[torch.fx.Node]]:
    """Return the operators recorded between some nodes as a graph, and the other nodes whose values it takes."""
    nodes = list(tracer.graph.nodes)
    after = set(starts)
    for node in nodes:
        if any(each in after for each in node.all_input_nodes):
            after.add(node)
    needed, waiting = set(), list(ends)
    while waiting:
        node = waiting.pop()
        if node in needed or node in starts:
            continue
        needed.add(node)
        if node in after or node not in held:
            waiting += node.all_input_nodes
    first = min(nodes.index(node) for node in needed)
    others = [node for node in nodes if node in needed and node not in after and node in held]
    graph, made = torch.fx.Graph(), {}
    for node in (*starts, *others):
        made[node] = graph.placeholder(node.name)
    for index, node in enumerate(nodes):
        is_mode = node.op == "call_function" and node.target in _MODES and index > first
        if node not in made and (node in needed or is_mode):
            made[node] = graph.node_copy(node, made.__getitem__)
    graph.output([made[node] for node in ends])
    return torch.fx.GraphModule(tracer.root, graph), others


# Derivatives by ``torch.func`` in a model: detect them, and trace them into plain operations.


with needed_for("the module that takes a derivative"):
    CALL_OF_MODULES = torch.nn.Module._call_impl.__code__

with needed_for("telling a derivative in forward mode"):
    _FORWARD_MODE = importlib.import_module("torch._functorch.eager_transforms")._jvp_with_argnums.__code__

with needed_for("tracing derivatives"):
    from torch._decomp import core_aten_decompositions
    from torch.fx.experimental.proxy_tensor import (
        PreDispatchTorchFunctionMode,
        disable_proxy_modes_tracing,
        make_fx,
    )
    from torch.overrides import _get_current_function_mode_stack, _pop_mode, _push_mode


def in_forward_mode(error: BaseException) -> bool:
    """Return whether an exception was raised inside forward-mode differentiation, as its traceback tells."""
    return any(frame.f_code is _FORWARD_MODE for frame, _ in traceback.walk_tb(error.__traceback__))


@contextmanager
def transforms_noticed(note: Callable[[], None]) -> Iterator[None]:
    """Call ``note`` whenever ``torch.func`` takes a derivative in the block, in this thread."""
    with needed_for("noticing derivatives"):
        transforms = importlib.import_module("torch._functorch.eager_transforms")
        places = (
            (transforms, "grad_increment_nesting"),
            (transforms, "jvp_increment_nesting"),
        )
        originals = [getattr(owner, name) for owner, name in places]

    def noting(original: Callable[..., Any]) -> Callable[..., Any]:
        def called(*args: Any, **kwargs: Any) -> Any:
            note()
            return original(*args, **kwargs)

        return called

    with ExitStack() as stack:
        for (owner, name), original in zip(places, originals, strict=True):
            stack.enter_context(patched_here(owner, name, noting(original)))
        yield


def plain_operations(
    function: Callable[..., Sequence[torch.Tensor]], tensors: Sequence[torch.Tensor]
) -> fx.GraphModule:
    """Trace a function on tensors without data, derivatives included, into a graph of torch operators.

    Export records operators above autograd and the transforms of ``torch.func``, and so misses their effects. Here
    they are recorded below both, and operators that only occur in derivatives are decomposed where possible.
    """
    with _not_recorded(), disable_proxy_modes_tracing():
        graph: fx.GraphModule = make_fx(function, decomposition_table=backward_operators())(*tensors)
    graph.graph.eliminate_dead_code()
    graph.recompile()
    return graph


@functools.cache
def backward_operators() -> dict[Any, Callable[..., Any]]:
    """Return the known decompositions of operators that only occur in derivatives; targets have no kernels for them."""
    return {op: made for op, made in core_aten_decompositions().items() if "_backward" in str(op)}


@contextmanager
def _not_recorded() -> Iterator[None]:
    """Disable export's mode that records the opening and closing of transform levels."""
    modes = _get_current_function_mode_stack()
    kept = [mode for mode in modes if not isinstance(mode, PreDispatchTorchFunctionMode)]
    _use(len(modes), kept)
    try:
        yield
    finally:
        _use(len(kept), modes)


def _use(count: int, modes: Sequence[Any]) -> None:
    for _ in range(count):
        _pop_mode()
    for mode in modes:
        _push_mode(mode)
