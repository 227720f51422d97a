"""``torch.compile(model, backend="prepbench", options={...})``: ``compile_model`` behind torch's own function.

Dynamo hands a backend a graph in which the model is hard to recognise: parameters and sizes are inputs, and the call's
structure is gone. So the graph only says which of its inputs and outputs are which leaves of the model's call and
result; what runs is ``compile_model`` of the model itself. Where dynamo breaks the model into several graphs, each of
them is compiled on its own.

Nothing is compiled before a graph runs for the first time: by then dynamo has finished, and errors reach the caller
as they are.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
import threading
import types
import warnings
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn
from torch.utils.weak import TensorWeakRef

from prepbench._torch_compat import pytree
from prepbench._torch_compat.optimized_calls import (
    GraphInput,
    OptimizedCall,
    compiled_apart,
    compiled_calls_off,
    graph_inputs,
    optimized_call,
    with_backend_options,
)
from prepbench.capture.sizes.dynamic_axes import DynamicAxes
from prepbench.compile.compiled import CompiledModel
from prepbench.compile.pipeline import compile_model
from prepbench.errors import CaptureError, SettingsError
from prepbench.inputs import Sample, named_leaves, normalize_samples
from prepbench.running.callable_module import as_module
from prepbench.running.object_nodes import register_nodes
from prepbench.running.outcomes import difference
from prepbench.running.unchanged import own_copy, unchanged
from prepbench.settings import explain_settings

_SAMPLES = ("tracing_inputs", "calibration_inputs")
_LAYERS = ("quantization_settings", "layer_quantization_settings")


def prepbench_backend(
    graph: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """The backend that ``torch.compile`` finds under the name ``"prepbench"``.

    The options are the keyword arguments of :func:`prepbench.compile_model`, and the result is the same: samples are
    given as for the model itself, and rules for layers by the names that the layers have in it. With samples, one
    compiled model serves every call; without them, each graph is compiled in float for the inputs of its first call,
    with the sizes dynamic that dynamo made so.

    The result is for inference: its outputs carry no gradients. A model in training mode is compiled only if it
    computes the same in eval mode, or with ``skip_eval_set_mode``. ``forward_fn`` says how the model is called for a
    sample; the compiled model is called like that, too. When parameters are replaced or written to, the next call
    compiles again.

    Args:
        graph: what dynamo traced.
        example_inputs: what it will first be called with.
        options: keyword arguments of :func:`prepbench.compile_model`.
        mode: refused, because it is one of Inductor.

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
    return _Graph(graph, options, mode)


class _Options(dict[str, Any]):
    """Options that equal only themselves: dynamo compares those of two compiles, and tensors have no truth value."""

    __hash__ = object.__hash__  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        return self is other


class _Session:
    """What the graphs of one compiled function have in common. It keeps neither the function nor its weights alive.

    Args:
        function: what was given to ``torch.compile``.
        options: what was given with it.
    """

    def __init__(self, function: Callable[..., Any], options: Mapping[str, Any] | None) -> None:
        self.options = options
        self.lock = threading.RLock()
        self.generation = 0
        self.several = False  # graphs
        self.pieces: dict[Any, tuple[fx.GraphModule, CompiledModel]] = {}
        # a call, and what was compiled when the model had which output for it
        self._probe: Sample | None = None
        self._compiled: list[tuple[Any, CompiledModel]] = []
        owner, self._method = _owner(function)
        self._owner: Callable[[], Any] = weakref.ref(owner)
        self._versions: dict[int, tuple[TensorWeakRef, int]] = {}
        self._read: dict[str, Any] = {}

    def belongs_to(self, function: Callable[..., Any], options: Mapping[str, Any] | None) -> bool:
        owner, method = _owner(function)
        return self.options is options and self._owner() is owner and self._method is method

    @property
    def has_samples(self) -> bool:
        return any((self.options or {}).get(name) is not None for name in _SAMPLES)

    def keywords(self, function: Callable[..., Any]) -> dict[str, Any]:
        """The arguments for ``compile_model``, with samples that can be read again and are calls of ``function``."""
        keywords = dict(self.options or {})
        forward_fn = keywords.pop("forward_fn", None)
        transform = keywords.get("data_transform_fn")
        for name in _SAMPLES:
            samples = keywords.get(name)
            if samples is None:
                continue
            if name not in self._read:
                shared = [self._read[other] for other in self._read if keywords.get(other) is samples]
                if shared:
                    self._read[name] = shared[0]
                elif forward_fn is not None:
                    normal = normalize_samples(function, samples, name=name, data_transform_fn=transform)
                    self._read[name] = [_as_called(function, forward_fn, sample, name) for sample in normal]
                else:
                    # an iterator is used up by the first compile, and another may be needed
                    self._read[name] = list(samples) if isinstance(samples, Iterator) else samples
        return {**keywords, **self._read}

    def note(self, tensors: Iterable[torch.Tensor]) -> None:
        """Remember the values that these tensors have now as those that were compiled."""
        alive = {key: known for key, known in self._versions.items() if known[0]() is not None}
        self._versions = {**alive, **{id(tensor): (TensorWeakRef(tensor), _version(tensor)) for tensor in tensors}}

    def knows(self, tensor: torch.Tensor) -> bool:
        """Whether this very tensor was compiled, with the values that it has now."""
        reference, version = self._versions.get(id(tensor), (None, 0))
        return reference is not None and reference() is tensor and version == _version(tensor)

    def refresh(self, root: nn.Module) -> None:
        """Forget what was compiled, if weights are no longer as they were."""
        if self._versions and not all(self.knows(tensor) for tensor in _state(root)):
            self._probe = None
            self._compiled.clear()
            self.pieces.clear()
            self.generation += 1

    def compiled_for(self, call: OptimizedCall, root: nn.Module) -> CompiledModel:
        """The model compiled for the samples: once for all graphs, as long as it computes the same.

        Dynamo traces anew when anything changes that the model reads, also in objects that are no modules; a run tells.
        """
        if self._probe is None:
            self._probe = own_copy(Sample(call.args, call.kwargs))
        with _for_compile(root, self.options), torch.no_grad():
            torch.manual_seed(0)
            output = own_copy(self._probe).call(call.function)
            register_nodes(output)
            output = [leaf.clone() if _is_tensor(leaf) else leaf for leaf in pytree.tree_leaves(output)]
        for before, compiled in self._compiled:
            if _identical(before, output):
                return compiled
        compiled = _released(compile_model(call.function, **self.keywords(call.function)))
        self._compiled.append((output, compiled))
        return compiled


# dynamo's cache holds the graphs, and these their sessions
_sessions: weakref.WeakSet[_Session] = weakref.WeakSet()
_sessions_lock = threading.Lock()


def _session_of(function: Callable[..., Any], options: Mapping[str, Any] | None) -> _Session:
    with _sessions_lock:
        for session in _sessions:
            if session.belongs_to(function, options):
                return session
        session = _Session(function, options)
        _sessions.add(session)
        return session


def _owner(function: Any) -> tuple[Any, Any]:
    """The object that lives as long as the function, and which of its methods it is."""
    if isinstance(function, types.MethodType):
        return function.__self__, function.__func__
    return function, None


@dataclass(frozen=True)
class _Runner:
    """How a graph is computed.

    Attributes:
        call: from the graph's inputs to leaves.
        leaves: how many leaves that gives.
        outputs: for each output of the graph its place among the leaves; None for a number.
        numbers: computes the outputs that are numbers, if there are any.
    """

    call: Callable[[Sequence[Any]], Sequence[Any]]
    leaves: int
    outputs: tuple[int | None, ...]
    numbers: fx.GraphModule | None

    def __call__(self, flat: Sequence[Any]) -> tuple[Any, ...]:
        leaves = self.call(flat)
        if len(leaves) != self.leaves:
            raise SettingsError(
                f"The compiled model returns {len(leaves)} values where the model returns {self.leaves}. Return "
                "tensors, tuples or dicts from the model."
            )
        numbers = iter(self.numbers(*flat) if self.numbers is not None else ())
        return tuple(next(numbers) if place is None else leaves[place] for place in self.outputs)


class _Graph:
    """What a graph of dynamo is replaced by.

    Args:
        graph: of dynamo.
        options: for ``compile_model``.
        mode: of ``torch.compile``.
    """

    def __init__(self, graph: fx.GraphModule, options: Mapping[str, Any] | None, mode: str | None) -> None:
        self._graph = graph
        self._options = options
        self._mode = mode
        self._inputs = graph_inputs(graph)
        self._tensors = _tensor_outputs(graph)
        call = optimized_call()
        self._place = call.place if call is not None else None
        self._session: _Session | None = None
        self._generation = 0
        # which inputs are given with each call, and which are tensors of the model
        self._given: tuple[int, ...] = ()
        self._state: tuple[int, ...] = ()
        # numbers that are not sizes of tensors, which a compiled model holds as constants
        self._numbers = tuple(i for i, form in enumerate(self._inputs) if not form.is_tensor and form.size_of is None)
        self._every_size_apart = False
        self._runners: dict[Any, _Runner] = {}

    def __call__(self, *flat: Any) -> Any:
        session = self._session
        if session is not None and session.generation == self._generation:
            runner = self._runners.get(self._key(flat))
            if runner is not None and all(session.knows(flat[place]) for place in self._state):
                return runner(flat)
        return self._compile(flat)(flat)

    def _key(self, flat: Sequence[Any]) -> Any:
        # dynamo runs one graph with the weights of every layer that is alike
        weights = tuple(id(flat[place]) for place in self._state)
        numbers = tuple(_number(flat[place]) for place in self._numbers)
        sizes = tuple(flat[place].shape for place in self._given) if self._every_size_apart else ()
        return weights, numbers, sizes

    def _compile(self, flat: Sequence[Any]) -> _Runner:
        _check_options(self._options, self._mode)
        call = _current_call()
        register_nodes((call.args, call.kwargs))
        session = self._session = _session_of(call.function, self._options)
        root = as_module(call.function)
        with session.lock, compiled_calls_off(root):
            session.refresh(root)
            if self._generation != session.generation:
                self._runners.clear()
                self._generation = session.generation
            outputs, training = self._outputs(flat, root, self._graph), _other_mode(root, self._options)
            runs: list[_Run] = []
            result = None
            if training or not session.several:
                with _for_compile(root, self._options):
                    torch.manual_seed(0)
                    runs, result = _retraced(call.function, [Sample(call.args, call.kwargs)])
            same = [
                run
                for run in runs
                if _identical(outputs, run.tensors)
                or (not training and difference(outputs, [value.detach() for value in run.tensors]).equal)
            ]
            if training and not same:
                raise SettingsError(
                    f"{type(root).__name__} is in training mode, in which it computes something else than in eval "
                    "mode. Call model.eval() before the compiled model, or compile it as it is with the option "
                    "skip_eval_set_mode=True."
                )
            runner = self._whole(session, call, root, flat, same[0], result) if same and len(runs) == 1 else None
            if runner is None:
                if not session.several and (self._options or {}).get("quantization_settings") is not None:
                    warnings.warn(_SEVERAL.format(name=type(root).__name__), stacklevel=3)
                session.several = True
                runner = self._piece(session, call, root, flat)
            # what ran on the model was undone, and writing back its buffers raised their versions
            session.note([*_state(root), *(flat[place] for place in self._state)])
            self._runners[self._key(flat)] = runner
            return runner

    def _outputs(self, flat: Sequence[Any], root: nn.Module, graph: fx.GraphModule) -> list[torch.Tensor]:
        """What a graph itself computes."""
        state = {id(tensor) for tensor in _state(root)}
        own = [value.clone() if _is_tensor(value) and id(value) not in state else value for value in flat]
        with unchanged(root), torch.no_grad():
            torch.manual_seed(0)
            return _chosen(graph(*own), _tensor_outputs(graph))

    def _whole(
        self, session: _Session, call: OptimizedCall, root: nn.Module, flat: Sequence[Any], run: _Run, result: Any
    ) -> _Runner | None:
        """A runner that calls the compiled model; None if this graph is not all that the model computes."""
        register_nodes(result)
        results = pytree.tree_leaves(result)
        places = {id(leaf): place for place, leaf in enumerate(results)}
        if not all(id(value) in places for value in run.tensors):
            return None
        tensors = [place for place, form in enumerate(self._inputs) if form.is_tensor]
        leaves, spec = pytree.tree_flatten((call.args, call.kwargs))
        given = {id(leaf) for leaf in leaves}
        self._given = tuple(place for place in tensors if id(flat[place]) in given)
        self._state = self._watched(root, flat, given)
        inputs = {id(flat[place]): place for place in self._given}
        hidden = [leaf for leaf in leaves if _is_tensor(leaf) and id(leaf) not in inputs]
        if session.has_samples:
            compiled = session.compiled_for(call, root)
        else:
            sizes: dict[int, Sequence[int]] = {id(leaf): range(leaf.dim()) for leaf in hidden}
            sizes.update((key, self._inputs[place].symbolic) for key, place in inputs.items())
            sample = Sample(call.args, call.kwargs)
            compiled = self._compiled_for(call.function, session.keywords(call.function), sample, sizes)
        order = iter(places[id(value)] for value in run.tensors)
        outputs = tuple(next(order) if is_tensor else None for is_tensor in self._tensors)
        sources = [inputs.get(id(leaf)) for leaf in leaves]
        constants = [None if source is not None else leaf for leaf, source in zip(leaves, sources, strict=True)]

        def run_call(values: Sequence[Any]) -> Sequence[Any]:
            filled = [c if source is None else values[source] for c, source in zip(constants, sources, strict=True)]
            args, kwargs = pytree.tree_unflatten(filled, spec)
            return pytree.tree_leaves(compiled(*args, **kwargs))

        def run_current_call(_: Sequence[Any]) -> Sequence[Any]:
            now = _current_call()
            return pytree.tree_leaves(compiled(*now.args, **now.kwargs))

        # a graph gets neither the tensors that it does not use nor the numbers of the call as they were
        run_it = run_current_call if hidden or self._numbers else run_call
        return _Runner(run_it, len(results), outputs, _numbers_only(self._graph))

    def _watched(self, root: nn.Module, flat: Sequence[Any], given: Collection[int]) -> tuple[int, ...]:
        """The inputs that are the model's; without buffers that the model counts up itself, as in training mode."""
        counting = any(module.training for module in root.modules())
        return tuple(
            place
            for place, form in enumerate(self._inputs)
            if form.is_tensor
            and id(flat[place]) not in given
            and (not counting or isinstance(flat[place], nn.Parameter))
        )

    def _compiled_for(
        self, function: Callable[..., Any], keywords: dict[str, Any], sample: Sample, sizes: Mapping[int, Sequence[int]]
    ) -> CompiledModel:
        """Compiled for one call: with the sizes dynamic that ``sizes`` names by tensor, or for these sizes only."""
        keywords = {**keywords, "tracing_inputs": [sample]}
        if keywords.get("dynamic_axes") is None and not self._every_size_apart:
            axes = DynamicAxes.infer([sample], function)
            for path, leaf in named_leaves(function, sample):
                for dim in sizes.get(id(leaf), ()):
                    axes = axes.set(path, dim)
            if axes.dynamic:
                with contextlib.suppress(CaptureError):  # sizes may depend on each other in ways that export refuses
                    return _released(compile_model(function, **{**keywords, "dynamic_axes": axes}))
                self._every_size_apart = True
        return _released(compile_model(function, **keywords))

    def _piece(self, session: _Session, call: OptimizedCall, root: nn.Module, flat: Sequence[Any]) -> _Runner:
        """A runner for one of several graphs."""
        numbers = _numbers_only(self._graph)
        outputs = list(range(sum(self._tensors)))
        order = iter(outputs)
        chosen = tuple(next(order) if is_tensor else None for is_tensor in self._tensors)
        if not outputs:
            return _Runner(lambda values: (), 0, chosen, numbers)
        keywords = session.keywords(call.function)
        if keywords.get("dynamic_axes") is not None:
            raise SettingsError(
                "dynamic_axes names arguments of the model, but dynamo makes several graphs of it, which have other "
                f"inputs. Let sizes be inferred from tracing_inputs. {_REMEDY}"
            )
        state = {id(tensor) for tensor in _state(root)}
        tensors = [place for place, form in enumerate(self._inputs) if form.is_tensor]
        self._given = tuple(place for place in tensors if id(flat[place]) not in state)
        self._state = self._watched(root, flat, {id(flat[place]) for place in self._given})
        free = [self._inputs[place].name for place in self._given]
        fixed = {form.name: flat[i] for i, form in enumerate(self._inputs) if i not in self._given}
        transform = keywords.pop("data_transform_fn", None)
        keywords.setdefault("graph_name", type(root).__name__)
        if session.has_samples:
            key = (self._place, tuple(free), self._key(flat))
            graph, compiled = session.pieces.get(key, (None, None))
            if graph is None or compiled is None or not self._equals(graph, root, flat):
                graph, recorded = self._recorded(call, root, keywords, transform, free, flat)
                piece, weights = _piece_module(root, graph, free, fixed)
                compiled = _released(compile_model(piece, **{**_for_layers(root, weights, keywords), **recorded}))
                session.pieces[key] = graph, compiled
        else:
            piece, _ = _piece_module(root, self._graph, free, fixed)
            sample = Sample(tuple(flat[place] for place in self._given))
            sizes = {id(flat[place]): self._inputs[place].symbolic for place in self._given}
            compiled = self._compiled_for(piece, keywords, sample, sizes)
        return _Runner(_calling(compiled, self._given), len(outputs), chosen, numbers)

    def _equals(self, graph: fx.GraphModule, root: nn.Module, flat: Sequence[Any]) -> bool:
        """Whether another graph computes the same as this one from the same inputs."""
        inputs, values = graph_inputs(graph), {form.name: flat[i] for i, form in enumerate(self._inputs)}
        if not {form.name for form in inputs if form.size_of is None} <= values.keys():
            return False
        return _identical(self._outputs(flat, root, self._graph), self._outputs(_filled(inputs, values), root, graph))

    def _recorded(
        self,
        call: OptimizedCall,
        root: nn.Module,
        keywords: Mapping[str, Any],
        transform: Callable[[Any], Any] | None,
        free: Sequence[str],
        flat: Sequence[Any],
    ) -> tuple[fx.GraphModule, dict[str, list[Sample]]]:
        """A graph for all sizes, and what it is called with when the model runs on the samples."""
        found: dict[str, list[Sample]] = {}
        graphs = [self._graph]
        own = {form.name: flat[place] for place, form in enumerate(self._inputs) if form.is_tensor}
        fixed = own.keys() - set(free)
        for name in _SAMPLES:
            if keywords.get(name) is None:
                continue
            if keywords[name] is keywords.get(_SAMPLES[0]) and _SAMPLES[0] in found:
                found[name] = found[_SAMPLES[0]]
                continue
            samples = normalize_samples(call.function, keywords[name], name=name, data_transform_fn=transform)
            with _for_compile(root, self._options), torch.no_grad():
                runs, _ = _retraced(call.function, samples, dynamic=True, only=self._place)
            found[name] = []
            for run in runs:
                given = {form.name: value for form, value in zip(run.inputs, run.flat, strict=True)}
                names = {form.name for form in run.inputs if form.is_tensor}
                if names == own.keys() and all(given[each] is own[each] for each in fixed):
                    found[name].append(Sample(tuple(given[each] for each in free)))
                    graphs.append(run.graph)
            if not found[name]:
                file, function, line = self._place or ("", "", 0)
                raise SettingsError(
                    f"No sample of {name} gets to the graph at {file}:{line} ({function}) as this call does, so its "
                    f"inputs are not known. Add a sample like this call. {_REMEDY}"
                )
        general = max(graphs, key=lambda graph: sum(len(form.symbolic) for form in graph_inputs(graph)))
        return (general if self._equals(general, root, flat) else self._graph), found


_REMEDY = (
    "torch.compile(fullgraph=True) says where the graph breaks; prepbench.compile_model(model, fullgraph=False) "
    "compiles the model as a whole."
)


_SEVERAL = (
    "dynamo makes several graphs of {name}, which are quantized one by one; layers that are in no graph stay in float. "
    + _REMEDY
)


@dataclass(frozen=True)
class _Run:
    """One run of a graph of dynamo; ``tensors`` are its outputs without numbers."""

    graph: fx.GraphModule
    inputs: tuple[GraphInput, ...]
    flat: tuple[Any, ...]
    tensors: list[torch.Tensor]


def _retraced(
    function: Callable[..., Any],
    samples: Iterable[Sample],
    *,
    dynamic: bool | None = None,
    only: tuple[str, str, int] | None = None,
) -> tuple[list[_Run], Any]:
    """Run a function through dynamo once more: the graphs as they ran (``only`` those of one place), and the last
    result, which holds their outputs.
    """
    runs: list[_Run] = []

    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    def record(graph: fx.GraphModule, _: Any) -> Callable[..., Any]:
        traced = optimized_call()
        place = traced.place if traced is not None else None
        inputs, tensors = graph_inputs(graph), _tensor_outputs(graph)

        def run(*flat: Any) -> Any:
            outputs = graph(*flat)
            if only is None or place == only:
                runs.append(_Run(graph, inputs, flat, _chosen(outputs, tensors)))
            return outputs

        return run

    call.__code__ = call.__code__.replace()  # what dynamo keeps for a code goes with it
    recording = compiled_apart(call, record, dynamic=dynamic)
    result = None
    for sample in samples:
        result = own_copy(sample).call(recording)
    found = runs.copy()
    runs.clear()  # dynamo may keep what it compiled
    return found, result


def _calling(compiled: CompiledModel, places: Sequence[int]) -> Callable[[Sequence[Any]], Sequence[Any]]:
    return lambda flat: pytree.tree_leaves(compiled(*[flat[place] for place in places]))


def _piece_module(
    root: nn.Module, graph: fx.GraphModule, free: Sequence[str], fixed: Mapping[str, Any]
) -> tuple[nn.Module, dict[str, str]]:
    """A graph as a module with the layers of ``root`` that takes the ``free`` inputs; and the names of its weights."""
    inputs = graph_inputs(graph)
    names = {id(tensor): name for name, tensor in _named_state(root)}
    fqns = {name: names[id(value)] for name, value in fixed.items() if id(value) in names}
    tensors = _tensor_outputs(graph)
    module = copy.copy(root)

    def forward(*args: Any) -> Any:
        values = {name: functools.reduce(getattr, fqn.split("."), module) for name, fqn in fqns.items()}
        flat = _filled(inputs, {**fixed, **values, **dict(zip(free, args, strict=True))})
        return tuple(_chosen(graph.forward(*flat), tensors))

    readable = [name.removeprefix("L_").strip("_") for name in free]
    parameters = [
        inspect.Parameter(name if name.isidentifier() else f"input_{i}", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        for i, name in enumerate(readable)
    ]
    forward.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    module.__dict__["forward"] = forward
    return module, fqns


def _filled(inputs: Sequence[GraphInput], values: Mapping[str, Any]) -> list[Any]:
    """What a graph is called with: the values by name, and sizes from the tensors that have them."""
    flat: list[Any] = [values.get(form.name) for form in inputs]
    for place, form in enumerate(inputs):
        if form.size_of is not None:
            flat[place] = flat[form.size_of[0]].shape[form.size_of[1]]
    return flat


def _for_layers(root: nn.Module, weights: Mapping[str, str], keywords: dict[str, Any]) -> dict[str, Any]:
    """The arguments for a piece with these weights; in float if none belongs to a layer that is to be quantized."""
    settings, rules = (keywords.get(name) for name in _LAYERS)
    if settings is None:
        return keywords
    rows = explain_settings(root, settings, rules)
    quantized = {row.fqn for row in rows if row.settings is not None}
    if any(fqn.rpartition(".")[0] in quantized for fqn in weights.values()):
        return keywords
    return {name: value for name, value in keywords.items() if name not in _LAYERS}


def _other_mode(root: nn.Module, options: Mapping[str, Any] | None) -> bool:
    """Whether the model is in another mode than it is compiled in."""
    return not (options or {}).get("skip_eval_set_mode") and any(module.training for module in root.modules())


@contextlib.contextmanager
def _for_compile(root: nn.Module, options: Mapping[str, Any] | None) -> Iterator[None]:
    """The mode that the model is compiled in; afterwards the model is as it was."""
    with unchanged(root):
        if _other_mode(root, options):
            root.eval()
        yield


def _as_called(function: Callable[..., Any], forward_fn: Callable[..., Any], sample: Sample, name: str) -> Sample:
    """The call of ``function`` that ``forward_fn`` makes of a sample."""
    calls: list[tuple[Sample, Any]] = []

    class Watched:
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            calls.append((Sample(args, kwargs, sample.index), function(*args, **kwargs)))
            return calls[-1][1]

        def __getattr__(self, attribute: str) -> Any:
            return getattr(function, attribute)

    with torch.no_grad(), unchanged(as_module(function)):
        result = forward_fn(Watched(), sample.args, sample.kwargs)
    if len(calls) != 1 or result is not calls[0][1]:
        raise SettingsError(
            f"forward_fn does more than call the model for {name}[{sample.index}], and torch.compile compiles the "
            "model alone. Write a function that does all of it, and compile that one."
        )
    return calls[0][0]


def _current_call() -> OptimizedCall:
    """The call that is running, of a module, a function or a bound method.

    Raises:
        SettingsError: none is, because something else than ``torch.compile`` uses the backend.
    """
    call = optimized_call()
    if call is None:
        raise SettingsError(
            'The backend "prepbench" works inside torch.compile only, which knows the model that is compiled. Call '
            "prepbench.compile_model for everything else."
        )
    if isinstance(call.function, types.FunctionType) and call.args and isinstance(call.args[0], nn.Module):
        plain = inspect.unwrap(call.function)
        members = [value for kind in type(call.args[0]).__mro__ for value in vars(kind).values()]
        if any(isinstance(value, types.FunctionType) and inspect.unwrap(value) is plain for value in members):
            method = types.MethodType(call.function, call.args[0])
            return OptimizedCall(method, call.args[1:], call.kwargs, call.place)
    return call


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
            raise SettingsError(f"{name} is no option of torch.compile: {why}. Call prepbench.compile_model.")


def _released(compiled: CompiledModel) -> CompiledModel:
    """Without what it keeps of its making: dynamo forgets a graph when its model dies, which this would prevent."""
    compiled._origin = None
    return compiled


def _named_state(root: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    yield from root.named_parameters(remove_duplicate=False)
    yield from root.named_buffers(remove_duplicate=False)


def _state(root: nn.Module) -> list[torch.Tensor]:
    plain = [value for module in root.modules() for value in vars(module).values() if _is_tensor(value)]
    return [*(tensor for _, tensor in _named_state(root)), *plain]


def _version(tensor: torch.Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def _identical(one: Sequence[Any], other: Sequence[Any]) -> bool:
    """Whether the tensors of two lists are equal, and NaN where the other is; other values are not compared."""
    return len(one) == len(other) and all(
        (a.shape == b.shape and a.dtype == b.dtype and torch.allclose(a, b, rtol=0, atol=0, equal_nan=True))
        if _is_tensor(a) and _is_tensor(b)
        else _is_tensor(a) == _is_tensor(b)
        for a, b in zip(one, other, strict=True)
    )


def _number(value: Any) -> Any:
    return value.item() if _is_tensor(value) else value


def _outputs(graph: fx.GraphModule) -> Sequence[Any]:
    (node,) = graph.graph.find_nodes(op="output")
    found: Sequence[Any] = node.args[0]
    return found


def _chosen(outputs: Sequence[Any], wanted: Sequence[bool]) -> list[torch.Tensor]:
    return [value for value, is_wanted in zip(outputs, wanted, strict=True) if is_wanted]


def _tensor_outputs(graph: fx.GraphModule) -> list[bool]:
    return [isinstance(node, fx.Node) and _is_tensor(node.meta.get("example_value")) for node in _outputs(graph)]


def _numbers_only(graph: fx.GraphModule) -> fx.GraphModule | None:
    """The part of a graph that computes its outputs that are numbers; None if it has none."""
    wanted = _tensor_outputs(graph)
    if all(wanted):
        return None
    part = copy.copy(graph)
    part.graph = copy.deepcopy(graph.graph)
    (node,) = part.graph.find_nodes(op="output")
    node.args = (tuple(value for value, is_tensor in zip(node.args[0], wanted, strict=True) if not is_tensor),)
    part.graph.eliminate_dead_code()
    part.recompile()
    return part
