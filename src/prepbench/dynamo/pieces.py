"""Compile each graph on its own, for a model of which dynamo makes several."""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from prepbench._torch_compat import pytree
from prepbench.compile.pipeline import compile_model
from prepbench.dynamo.graph_call import GraphCall, GraphRunner, InputRoles, variant
from prepbench.dynamo.session import SAMPLES, compile_for_one_call, replay, without_origin
from prepbench.dynamo.traced_graph import TracedGraph, are_identical, named_state, state_tensors
from prepbench.errors import SettingsError
from prepbench.inputs import Sample
from prepbench.package.compiled import CompiledModel
from prepbench.running.given_samples import normalize_samples
from prepbench.settings import explain_settings

REMEDY = (
    "torch.compile(fullgraph=True) says where the graph breaks; prepbench.compile_model(model, fullgraph=False) "
    "compiles the model as a whole."
)

_WHOLE = {
    "pruning_settings": "channels go with all that reads them",
    "lora_settings": "adapters learn what the whole model gives",
}
_LAYERS = ("quantization_settings", "layer_quantization_settings")


def compile_piece(call: GraphCall) -> GraphRunner:
    """Return a runner for one of several graphs.

    Raises:
        SettingsError: ``dynamic_axes`` is given, or no sample reaches this graph.
    """
    graph, session = call.graph, call.session
    count = sum(graph.tensor_outputs)
    outputs, numbers = graph.places(range(count)), graph.numbers_only()
    if not count:
        return GraphRunner(lambda values: (), 0, outputs, numbers)
    keywords = session.keywords(call.model_call.function)
    if keywords.get("dynamic_axes") is not None:
        raise SettingsError(
            "dynamic_axes names arguments of the model, but dynamo makes several graphs of it, which have other "
            f"inputs. Leave it out, so that dynamic sizes are inferred from tracing_inputs. {REMEDY}"
        )
    for name, why in _WHOLE.items():
        if keywords.get(name) is not None:
            raise SettingsError(
                f"{name} need the whole model as one graph, because {why}, and dynamo makes several graphs of it. "
                f"{REMEDY}"
            )
    keywords.setdefault("graph_name", type(call.root).__name__)
    state = {id(tensor) for tensor in state_tensors(call.root)}
    roles = call.roles({id(call.values[place]) for place in graph.tensor_inputs} - state)
    fixed_sizes = False
    if session.has_samples:
        compiled = _compiled_for_samples(call, roles, keywords)
    else:
        compiled, fixed_sizes = _compiled_for_call(call, roles, keywords)
    given = roles.given
    return GraphRunner(
        lambda values: pytree.tree_leaves(compiled(*[values[place] for place in given])),
        count,
        outputs,
        numbers,
        roles,
        fixed_sizes,
    )


def _compiled_for_call(call: GraphCall, roles: InputRoles, keywords: dict[str, Any]) -> tuple[CompiledModel, bool]:
    """Return the graph compiled for its first call, and whether it takes the sizes of this call only."""
    piece, _ = _piece_module(call, call.graph, roles)
    keywords.pop("data_transform_fn", None)
    sample = Sample(tuple(call.values[place] for place in roles.given))
    dynamic = {id(call.values[place]): call.graph.inputs[place].symbolic for place in roles.given}
    return compile_for_one_call(piece, keywords, sample, dynamic, fixed_sizes=call.fixed_sizes)


def _compiled_for_samples(call: GraphCall, roles: InputRoles, keywords: dict[str, Any]) -> CompiledModel:
    """Return the graph compiled for its inputs when the model runs on the samples."""
    free = tuple(call.graph.inputs[place].name for place in roles.given)
    key = (call.place, free, variant(call.values, roles, call.graph.numbers))
    known = call.session.pieces.get(key)
    if known is not None and _computes_the_same(known[0], call):
        return known[1]
    graph, samples = _graph_and_samples(call, free, keywords)
    piece, weights = _piece_module(call, graph, roles)
    keywords.pop("data_transform_fn", None)
    settings = _settings_of_piece(call.root, weights, keywords)
    compiled = without_origin(compile_model(piece, **{**settings, **samples}))
    call.session.pieces[key] = graph, compiled
    return compiled


def _computes_the_same(graph: TracedGraph, call: GraphCall) -> bool:
    """Return whether another graph computes the same function of the same inputs."""
    values = call.graph.by_name(call.values)
    if not {each.name for each in graph.inputs if each.size_of is None} <= values.keys():
        return False
    own = call.graph.run(call.values, call.root)
    return are_identical(own, graph.run(graph.arguments(values), call.root))


def _graph_and_samples(
    call: GraphCall, free: Sequence[str], keywords: Mapping[str, Any]
) -> tuple[TracedGraph, dict[str, list[Sample]]]:
    """Return a graph for all sizes, and its inputs when the model runs on the samples."""
    found: dict[str, list[Sample]] = {}
    graphs = [call.graph]
    for name in SAMPLES:
        if keywords.get(name) is None:
            continue
        if keywords[name] is keywords.get(SAMPLES[0]) and SAMPLES[0] in found:
            found[name] = found[SAMPLES[0]]
            continue
        found[name], others = _samples_of_piece(call, free, keywords, name)
        graphs += others
    general = max(graphs, key=lambda graph: graph.symbolic_dims)
    return (general if _computes_the_same(general, call) else call.graph), found


def _samples_of_piece(
    call: GraphCall, free: Sequence[str], keywords: Mapping[str, Any], name: str
) -> tuple[list[Sample], list[TracedGraph]]:
    """Return the graph's inputs when the model runs on the samples called ``name``, and the graphs that are reached."""
    function, transform = call.model_call.function, keywords.get("data_transform_fn")
    samples = normalize_samples(function, keywords[name], name=name, data_transform_fn=transform)
    skips = call.session.skips_eval_mode
    with torch.no_grad():
        runs, _ = replay(function, samples, skips_eval_mode=skips, dynamic=True, only=call.place)
    own = {call.graph.inputs[place].name: call.values[place] for place in call.graph.tensor_inputs}
    fixed = own.keys() - set(free)
    found, graphs = [], []
    for run in runs:
        given = run.graph.by_name(run.values)
        names = {run.graph.inputs[place].name for place in run.graph.tensor_inputs}
        if names == own.keys() and all(given[each] is own[each] for each in fixed):
            found.append(Sample(tuple(given[each] for each in free)))
            graphs.append(run.graph)
    if not found:
        file, code, line = call.place or ("", "", 0)
        raise SettingsError(
            f"No sample of {name} reaches the graph at {file}:{line} ({code}) the way that this call does, so its "
            f"inputs are not known. Add a sample like this call. {REMEDY}"
        )
    return found, graphs


def _piece_module(call: GraphCall, graph: TracedGraph, roles: InputRoles) -> tuple[nn.Module, list[str]]:
    """Return the graph as a module with the layers of the model, and the FQNs of the weights that it reads.

    The module takes the inputs that are given with each call, in their order.
    """
    values = call.values
    given = [call.graph.inputs[place].name for place in roles.given]
    fixed = {each.name: values[i] for i, each in enumerate(call.graph.inputs) if i not in roles.given}
    names = {id(tensor): name for name, tensor in named_state(call.root)}
    fqns = {name: names[id(value)] for name, value in fixed.items() if id(value) in names}
    module = copy.copy(call.root)

    def forward(*args: Any) -> Any:
        weights = {name: functools.reduce(getattr, fqn.split("."), module) for name, fqn in fqns.items()}
        arguments = graph.arguments({**fixed, **weights, **dict(zip(given, args, strict=True))})
        return tuple(graph.tensors(graph.module.forward(*arguments)))

    _set_parameters(forward, [name.removeprefix("L_").strip("_") for name in given])
    module.__dict__["forward"] = forward
    return module, list(fqns.values())


def _set_parameters(forward: Callable[..., Any], names: Sequence[str]) -> None:
    """Give ``forward`` a signature with these names, as far as they are identifiers."""
    parameters = [
        inspect.Parameter(name if name.isidentifier() else f"input_{i}", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        for i, name in enumerate(names)
    ]
    forward.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]


def _settings_of_piece(root: nn.Module, weights: Sequence[str], keywords: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments for a piece with these weights: float if none belongs to a layer that is to be quantized."""
    settings, rules = (keywords.get(name) for name in _LAYERS)
    if settings is None:
        return keywords
    quantized = {row.fqn for row in explain_settings(root, settings, rules) if row.settings is not None}
    if any(fqn.rpartition(".")[0] in quantized for fqn in weights):
        return keywords
    return {name: value for name, value in keywords.items() if name not in _LAYERS}
