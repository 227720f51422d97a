"""The entry point of the dynamo backend, and the callable that replaces a graph of dynamo."""

from __future__ import annotations

import copy
import functools
import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx, nn

from prepbench._torch_compat import pytree
from prepbench._torch_compat.dynamo import compiled_calls_off, optimized_call, with_backend_options
from prepbench.compile.pipeline import compile_model
from prepbench.dynamo.graph_call import GraphCall, GraphRunner, InputRoles, variant
from prepbench.dynamo.session import (
    SAMPLES,
    GraphRun,
    Session,
    compile_for_one_call,
    current_call,
    is_training,
    replay,
    session_of,
    without_origin,
)
from prepbench.dynamo.traced_graph import TracedGraph, are_identical, is_tensor, named_state, state_tensors
from prepbench.errors import ConditionError, SettingsError, sentence
from prepbench.inputs import Sample
from prepbench.objects.compare import ROUNDED, difference
from prepbench.objects.flatten import register_nodes
from prepbench.package.compiled import CompiledModel
from prepbench.running.callable_module import as_module
from prepbench.running.given_samples import normalize_samples
from prepbench.settings import explain_settings


class CompiledGraph:
    """Replaces a graph: compiles at its first call, and again for other weights, numbers or sizes."""

    def __init__(self, graph: fx.GraphModule, options: Mapping[str, Any] | None, mode: str | None) -> None:
        self._graph = TracedGraph.of(graph)
        self._numbers = self._graph.numbers
        self._options = options
        self._mode = mode
        call = optimized_call()
        self._place = call.place if call is not None else None
        self._session: Session | None = None
        self._generation = 0
        self._roles = InputRoles()
        self._fixed_sizes = False
        self._runners: dict[Any, GraphRunner] = {}

    def __call__(self, *values: Any) -> Any:
        runner = self._runner(values) or self._compile(values)
        try:
            return runner(values)
        except ConditionError as error:  # dynamo made this graph for sizes like these, so PyTorch can run it
            warnings.warn(f"PyTorch runs this call. {sentence(error)}", stacklevel=2)
            with torch.no_grad():
                return self._graph.module(*values)

    def _runner(self, values: Sequence[Any]) -> GraphRunner | None:
        """Return the runner that was compiled for such a call before."""
        session = self._session
        if session is None or session.generation != self._generation:
            return None
        runner = self._runners.get(self._key(values))
        is_known = runner is not None and all(values[place] in session.versions for place in self._roles.state)
        return runner if is_known else None

    def _key(self, values: Sequence[Any]) -> Any:
        sizes = tuple(values[place].shape for place in self._roles.given) if self._fixed_sizes else ()
        return variant(values, self._roles, self._numbers), sizes

    def _compile(self, values: Sequence[Any]) -> GraphRunner:
        _check_options(self._options, self._mode)
        call = current_call()
        register_nodes((call.args, call.kwargs))
        session = self._session = session_of(call.function, self._options)
        root = as_module(call.function)
        with session.lock, compiled_calls_off(root):
            session.forget_changed_weights(root)
            if self._generation != session.generation:
                self._runners.clear()
                self._generation = session.generation
            runner = _compiled(GraphCall(self._graph, values, call, root, session, self._place, self._fixed_sizes))
            self._roles, self._fixed_sizes = runner.roles, runner.fixed_sizes
            # the run was undone, and restoring the buffers raised their versions
            session.versions.remember([*state_tensors(root), *(values[place] for place in runner.roles.state)])
            self._runners[self._key(values)] = runner
            return runner


def _compiled(call: GraphCall) -> GraphRunner:
    """Compile the whole model if this graph is all of it, otherwise this graph alone."""
    whole = _run_of_the_whole_model(call)
    runner = compile_whole(call, *whole) if whole is not None else None
    if runner is not None:
        return runner
    session = call.session
    if not session.has_several_graphs and session.options.get("quantization_settings") is not None:
        warnings.warn(
            f"dynamo makes several graphs of {type(call.root).__name__}, which are quantized one by one; layers that "
            f"are in no graph stay in float. {REMEDY}",
            stacklevel=5,
        )
    session.has_several_graphs = True
    return compile_piece(call)


def _run_of_the_whole_model(call: GraphCall) -> tuple[GraphRun, Any] | None:
    """Run the model through dynamo once more; return its only graph and the result.

    Return None if there are several graphs, or if the only graph computes something else than this one.

    Raises:
        SettingsError: the model is in training mode, and would compute something else in eval mode.
    """
    root, session = call.root, call.session
    outputs = call.graph.run(call.values, root)
    is_other_mode = not session.skips_eval_mode and is_training(root)
    if session.has_several_graphs and not is_other_mode:
        return None
    sample = Sample(call.model_call.args, call.model_call.kwargs)
    runs, result = replay(call.model_call.function, [sample], skips_eval_mode=session.skips_eval_mode)
    same = [run for run in runs if _is_same(outputs, run.tensors, exactly=is_other_mode)]
    if is_other_mode and not same:
        raise SettingsError(
            f"{type(root).__name__} is in training mode, in which it computes something else than in eval mode. Call "
            "model.eval() before the compiled model, or compile it in training mode with the option "
            "skip_eval_set_mode=True."
        )
    return (same[0], result) if same and len(runs) == 1 else None


def _is_same(outputs: list[torch.Tensor], others: list[torch.Tensor], *, exactly: bool) -> bool:
    if are_identical(outputs, others):
        return True
    return not exactly and difference(outputs, others, ROUNDED).equal


def _check_options(options: Mapping[str, Any] | None, mode: str | None) -> None:
    if mode is not None:
        raise SettingsError(
            f"mode={mode!r} is one of Inductor. Give the options of prepbench.compile_model: "
            "torch.compile(model, backend='prepbench', options={...})."
        )
    for name, why in (
        ("is_dry_run", "a dry run gives a report and no model"),
        ("module_or_func", "the model is what torch.compile is given"),
    ):
        if (options or {}).get(name):
            raise SettingsError(f"{name} is not an option of torch.compile: {why}. Call prepbench.compile_model.")


# Replace a graph that is the whole model by the compiled model.


def compile_whole(call: GraphCall, run: GraphRun, result: Any) -> GraphRunner | None:
    """Return a runner that calls the compiled model; None if the model computes more than this graph."""
    register_nodes(result)
    results = pytree.tree_leaves(result)
    places = {id(leaf): place for place, leaf in enumerate(results)}
    if not all(id(value) in places for value in run.tensors):
        return None
    leaves, spec = pytree.tree_flatten((call.model_call.args, call.model_call.kwargs))
    roles = call.roles({id(leaf) for leaf in leaves})
    inputs = {id(call.values[place]): place for place in roles.given}
    unused = [leaf for leaf in leaves if is_tensor(leaf) and id(leaf) not in inputs]
    compiled, fixed_sizes = _whole_compiled(call, roles, unused)
    # a graph receives neither unused tensors nor the original numbers of the call
    calls = _current_call(compiled) if unused or call.graph.numbers else _rebuilt_call(compiled, leaves, spec, inputs)
    outputs = call.graph.places(places[id(value)] for value in run.tensors)
    return GraphRunner(calls, len(results), outputs, call.graph.numbers_only(), roles, fixed_sizes)


def _whole_compiled(call: GraphCall, roles: InputRoles, unused: Sequence[Any]) -> tuple[CompiledModel, bool]:
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


def prepbench_backend(
    graph: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """Return the backend that ``torch.compile`` finds under the name ``"prepbench"``.

    The options are the keyword arguments of :func:`prepbench.compile_model`, and the result is the same: samples are
    given as for the model itself, and rules for layers by the names that the layers have in it. With samples, one
    compiled model serves every call. Without them, each graph is compiled in float for the inputs of its first call;
    the sizes that dynamo made dynamic stay dynamic.

    The result is for inference: its outputs carry no gradients. A model in training mode is compiled only if it
    computes the same in eval mode, or with ``skip_eval_set_mode``. ``forward_fn`` says how the model is called for a
    sample, and the compiled model is called like that, too. When parameters are replaced or written to, the next call
    compiles again.

    Args:
        graph: the graph that dynamo traced.
        example_inputs: the inputs of its first call.
        options: keyword arguments of :func:`prepbench.compile_model`.
        mode: an error unless None, because modes belong to Inductor.

    Returns:
        What runs in place of the graph. Its first call compiles, and raises what ``compile_model`` raises.

    Example:
        >>> net = torch.nn.Sequential(torch.nn.Linear(4, 2)).eval()
        >>> samples = [torch.randn(2, 4), torch.randn(5, 4)]
        >>> compiled = torch.compile(net, backend="prepbench", options={"tracing_inputs": samples})
        >>> compiled(torch.randn(9, 4)).shape
        torch.Size([9, 2])
    """
    if options is not None and options.get("disable"):
        return graph.forward
    if options is not None and not isinstance(options, _Options):
        options = with_backend_options(options, _Options)
    return CompiledGraph(graph, options, mode)


class _Options(dict[str, Any]):
    """Options that compare by identity.

    Dynamo compares the options of two compiles, and tensors in them have no truth value.
    """

    __hash__ = object.__hash__  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        return self is other


# Compile each graph on its own, for a model of which dynamo makes several.


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
