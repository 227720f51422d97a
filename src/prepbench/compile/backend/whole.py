"""Replace a graph that is the whole model by the compiled model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from prepbench._torch_compat import pytree
from prepbench.compile.backend.graph_call import GraphCall, GraphRunner, InputRoles
from prepbench.compile.backend.model_state import is_tensor
from prepbench.compile.backend.replay import GraphRun, current_call
from prepbench.compile.backend.session import compile_for_one_call
from prepbench.compile.compiled import CompiledModel
from prepbench.inputs import Sample
from prepbench.running.object_nodes import register_nodes


def compile_whole(call: GraphCall, run: GraphRun, result: Any) -> GraphRunner | None:
    """Return a runner that calls the compiled model; None if the model computes more than this graph.

    Args:
        call: of the graph.
        run: the same call, replayed.
        result: the model's result of that call.
    """
    register_nodes(result)
    results = pytree.tree_leaves(result)
    places = {id(leaf): place for place, leaf in enumerate(results)}
    if not all(id(value) in places for value in run.tensors):
        return None
    leaves, spec = pytree.tree_flatten((call.model_call.args, call.model_call.kwargs))
    roles = call.roles({id(leaf) for leaf in leaves})
    inputs = {id(call.values[place]): place for place in roles.given}
    unused = [leaf for leaf in leaves if is_tensor(leaf) and id(leaf) not in inputs]
    compiled, fixed_sizes = _compiled(call, roles, unused)
    # a graph receives neither unused tensors nor the original numbers of the call
    calls = _current_call(compiled) if unused or call.graph.numbers else _rebuilt_call(compiled, leaves, spec, inputs)
    outputs = call.graph.places(places[id(value)] for value in run.tensors)
    return GraphRunner(calls, len(results), outputs, call.graph.numbers_only(), roles, fixed_sizes)


def _compiled(call: GraphCall, roles: InputRoles, unused: Sequence[Any]) -> tuple[CompiledModel, bool]:
    """Return the compiled model, and whether it takes the sizes of this call only."""
    session, function = call.session, call.model_call.function
    if session.has_samples:
        return session.compiled_for_samples(call.model_call), False
    dynamic: dict[int, Sequence[int]] = {id(leaf): range(leaf.dim()) for leaf in unused}
    dynamic.update({id(call.values[place]): call.graph.inputs[place].symbolic for place in roles.given})
    sample = Sample(call.model_call.args, call.model_call.kwargs)
    return compile_for_one_call(function, session.keywords(function), sample, dynamic, fixed_sizes=call.fixed_sizes)


def _current_call(compiled: CompiledModel) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """Calls the compiled model with the arguments of the call that is running."""

    def call(_: Sequence[Any]) -> Sequence[Any]:
        now = current_call()
        return pytree.tree_leaves(compiled(*now.args, **now.kwargs))

    return call


def _rebuilt_call(
    compiled: CompiledModel, leaves: Sequence[Any], spec: pytree.TreeSpec, inputs: Mapping[int, int]
) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """Calls the compiled model with the graph's inputs, arranged as in the call with these ``leaves``."""
    sources = [inputs.get(id(leaf)) for leaf in leaves]
    constants = [None if source is not None else leaf for leaf, source in zip(leaves, sources, strict=True)]

    def call(values: Sequence[Any]) -> Sequence[Any]:
        filled = [c if source is None else values[source] for c, source in zip(constants, sources, strict=True)]
        args, kwargs = pytree.tree_unflatten(filled, spec)
        return pytree.tree_leaves(compiled(*args, **kwargs))

    return call
