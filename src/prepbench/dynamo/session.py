"""The shared state of one compiled function's graphs: options, samples, and compiled models."""

from __future__ import annotations

import contextlib
import inspect
import threading
import types
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx, nn

from prepbench._torch_compat import pytree
from prepbench._torch_compat.dynamo import OptimizedCall, compiled_apart, optimized_call
from prepbench.capture.sizes.dynamic_axes import DynamicAxes
from prepbench.compile.pipeline import compile_model
from prepbench.dynamo.traced_graph import TensorVersions, TracedGraph, are_identical, is_tensor, state_tensors
from prepbench.errors import CaptureError, SettingsError
from prepbench.inputs import Sample, named_leaves
from prepbench.objects.copy import Twin
from prepbench.objects.flatten import register_nodes
from prepbench.package.compiled import CompiledModel
from prepbench.running.callable_module import as_module
from prepbench.running.check_inputs import twin_with_own_writes
from prepbench.running.given_samples import normalize_samples
from prepbench.running.unchanged import own_copy, unchanged

SAMPLES = ("tracing_inputs", "calibration_inputs")


class Session:
    """The shared state of one compiled function's graphs. Holds no strong reference to the function or its weights.

    Attributes:
        generation: counts how often the weights changed, after which everything is compiled again.
        versions: the weights that were compiled.
        has_several_graphs: whether dynamo broke the model into several graphs.
        pieces: the compiled graphs of several, by the place and the inputs of each.
    """

    def __init__(self, function: Callable[..., Any], options: Mapping[str, Any] | None) -> None:
        self.options = options or {}
        self.lock = threading.RLock()
        self.generation = 0
        self.versions = TensorVersions()
        self.has_several_graphs = False
        self.pieces: dict[Any, tuple[TracedGraph, CompiledModel]] = {}
        # a call, and the compiled model with the output that the model had for it
        self._probe: Sample | None = None
        self._compiled: list[tuple[Any, CompiledModel]] = []
        self._given = options
        owner, self._method = _owner(function)
        self._owner: Callable[[], Any] = weakref.ref(owner)
        self._samples: dict[str, Any] = {}

    def belongs_to(self, function: Callable[..., Any], options: Mapping[str, Any] | None) -> bool:
        """Return whether it was made for this function and these options."""
        owner, method = _owner(function)
        return self._given is options and self._owner() is owner and self._method is method

    @property
    def has_samples(self) -> bool:
        """Whether the options hold samples."""
        return any(self.options.get(name) is not None for name in SAMPLES)

    @property
    def skips_eval_mode(self) -> bool:
        """Whether the model is compiled in its current mode."""
        return bool(self.options.get("skip_eval_set_mode"))

    def keywords(self, function: Callable[..., Any]) -> dict[str, Any]:
        """Return arguments for ``compile_model``, with samples that can be read again and are calls of ``function``."""
        keywords = dict(self.options)
        forward_fn = keywords.pop("forward_fn", None)
        for name in SAMPLES:
            if keywords.get(name) is not None and name not in self._samples:
                self._samples[name] = self._read(function, forward_fn, name)
        return {**keywords, **self._samples}

    def _read(self, function: Callable[..., Any], forward_fn: Callable[..., Any] | None, name: str) -> Any:
        samples = self.options[name]
        for other, read in self._samples.items():
            if self.options[other] is samples:
                return read
        if forward_fn is None:
            # an iterator is used up by the first compile, and another may be needed
            return list(samples) if isinstance(samples, Iterator) else samples
        transform = self.options.get("data_transform_fn")
        normal = normalize_samples(function, samples, name=name, data_transform_fn=transform)
        return [sample_of_call(function, forward_fn, sample, name) for sample in normal]

    def forget_changed_weights(self, root: nn.Module) -> None:
        """Drop compiled models if the weights changed since."""
        if self.versions and not all(tensor in self.versions for tensor in state_tensors(root)):
            self._probe = None
            self._compiled.clear()
            self.pieces.clear()
            self.generation += 1

    def compiled_for_samples(self, call: OptimizedCall) -> CompiledModel:
        """Return the model compiled for the samples: once for all graphs, as long as its weights are unchanged.

        Dynamo also retraces when the model reads a changed value from an object that is not a module. Only a run of the
        model tells whether its results changed.
        """
        if self._probe is None:
            self._probe = own_copy(Sample(call.args, call.kwargs))
        twin = twin_with_own_writes(call.function, self._probe).model
        with in_mode(twin, skips_eval_mode=self.skips_eval_mode), torch.no_grad():
            output = own_copy(self._probe).call(twin)
            register_nodes(output)
            leaves = [leaf.clone() if is_tensor(leaf) else leaf for leaf in pytree.tree_leaves(output)]
        for before, compiled in self._compiled:
            if are_identical(before, leaves):
                return compiled
        compiled = without_origin(compile_model(call.function, **self.keywords(call.function)))
        self._compiled.append((leaves, compiled))
        return compiled


# dynamo's cache holds the graphs, and these hold their sessions
_sessions: weakref.WeakSet[Session] = weakref.WeakSet()
_sessions_lock = threading.Lock()


def session_of(function: Callable[..., Any], options: Mapping[str, Any] | None) -> Session:
    """Return the session of a compiled function, made at its first call."""
    with _sessions_lock:
        for session in _sessions:
            if session.belongs_to(function, options):
                return session
        session = Session(function, options)
        _sessions.add(session)
        return session


def _owner(function: Any) -> tuple[Any, Any]:
    """Return the object that lives as long as the function, and the name of the function if it is a method."""
    if isinstance(function, types.MethodType):
        return function.__self__, function.__func__
    return function, None


def compile_for_one_call(
    function: Callable[..., Any],
    keywords: Mapping[str, Any],
    sample: Sample,
    dynamic: Mapping[int, Sequence[int]],
    *,
    fixed_sizes: bool,
) -> tuple[CompiledModel, bool]:
    """Compile for one call, without other samples.

    Returns:
        The compiled model, and whether it takes the sizes of this call only.
    """
    keywords = {**keywords, "tracing_inputs": [sample]}
    if keywords.get("dynamic_axes") is None and not fixed_sizes:
        axes = DynamicAxes.infer([sample], function)
        for path, leaf in named_leaves(function, sample):
            for dim in dynamic.get(id(leaf), ()):
                axes = axes.set(path, dim)
        if axes.dynamic:
            with contextlib.suppress(CaptureError):  # sizes may depend on each other in ways that export refuses
                return without_origin(compile_model(function, **{**keywords, "dynamic_axes": axes})), False
            fixed_sizes = True
    return without_origin(compile_model(function, **keywords)), fixed_sizes


def without_origin(compiled: CompiledModel) -> CompiledModel:
    """Return the model without the data of its compile.

    This data would keep the original model alive, and dynamo drops a graph when its model dies.
    """
    compiled._origin = None
    return compiled


# Run the model once more: through dynamo, or to see which call ``forward_fn`` makes.


Place = tuple[str, str, int]
"""File, function and first line of the code that dynamo made a graph of."""


@dataclass(frozen=True)
class GraphRun:
    """One run of a graph of dynamo: its inputs, and those of its outputs that are tensors."""

    graph: TracedGraph
    values: tuple[Any, ...]
    tensors: list[torch.Tensor]


def replay(
    function: Callable[..., Any],
    samples: Iterable[Sample],
    *,
    skips_eval_mode: bool,
    dynamic: bool | None = None,
    only: Place | None = None,
) -> tuple[list[GraphRun], Any]:
    """Run a twin of a function through dynamo once more.

    Returns:
        The graphs as they ran, with the model's own tensors as inputs, and the result of the last call, which holds
        their outputs.
    """
    runs: list[GraphRun] = []
    twin = Twin(function)
    repeated = twin.model

    def call(*args: Any, **kwargs: Any) -> Any:
        return repeated(*args, **kwargs)

    def record(module: fx.GraphModule, _: Any) -> Callable[..., Any]:
        traced = optimized_call()
        graph, place = TracedGraph.of(module), traced.place if traced is not None else None

        def run(*values: Any) -> Any:
            outputs = module(*values)
            if only is None or place == only:
                runs.append(GraphRun(graph, values, graph.tensors(outputs)))
            return outputs

        return run

    call.__code__ = call.__code__.replace()  # dynamo's cache entries live as long as the code object
    recording = compiled_apart(call, record, dynamic=dynamic)
    result = None
    with in_mode(repeated, skips_eval_mode=skips_eval_mode):
        for sample in samples:
            result = own_copy(sample).call(recording)
    # outside of record(), because dynamo's cache would keep its closure alive, and with it the twin and the model
    found = [replace(run, values=tuple(map(twin.original, run.values))) for run in runs]
    runs.clear()  # dynamo's cache may hold the compiled graph
    return found, result


def sample_of_call(function: Callable[..., Any], forward_fn: Callable[..., Any], sample: Sample, name: str) -> Sample:
    """Return the call of ``function`` that ``forward_fn`` makes for a sample.

    Raises:
        SettingsError: ``forward_fn`` does more than one call, or changes its result.
    """
    calls: list[tuple[Sample, Any]] = []

    class Recorder:
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            calls.append((Sample(args, kwargs, sample.index), function(*args, **kwargs)))
            return calls[-1][1]

        def __getattr__(self, attribute: str) -> Any:
            return getattr(function, attribute)

    with torch.no_grad(), unchanged(as_module(function)):
        result = forward_fn(Recorder(), sample.args, sample.kwargs)
    if len(calls) != 1 or result is not calls[0][1]:
        raise SettingsError(
            f"forward_fn does more than call the model for {name}[{sample.index}], but torch.compile compiles the "
            "model alone. Write a function that does all of it, and compile that function."
        )
    return calls[0][0]


def current_call() -> OptimizedCall:
    """Return the call of the compiled module, function or bound method that is running.

    Raises:
        SettingsError: there is none, because something other than ``torch.compile`` uses the backend.
    """
    call = optimized_call()
    if call is None:
        raise SettingsError(
            'The backend "prepbench" works only inside torch.compile, which knows the model that is compiled. '
            "Otherwise call prepbench.compile_model."
        )
    if isinstance(call.function, types.FunctionType) and call.args and isinstance(call.args[0], nn.Module):
        plain = inspect.unwrap(call.function)
        members = [value for kind in type(call.args[0]).__mro__ for value in vars(kind).values()]
        if any(isinstance(value, types.FunctionType) and inspect.unwrap(value) is plain for value in members):
            method = types.MethodType(call.function, call.args[0])
            return OptimizedCall(method, call.args[1:], call.kwargs, call.place)
    return call


def is_training(root: nn.Module) -> bool:
    """Return whether any module is in training mode."""
    return any(module.training for module in root.modules())


@contextlib.contextmanager
def in_mode(twin: Callable[..., Any], *, skips_eval_mode: bool) -> Iterator[None]:
    """Put a model into the mode of its compile, with the same random numbers, during the block.

    Args:
        twin: of the model, because other threads may run the model itself, in the mode that it is in.
        skips_eval_mode: whether it stays in that mode; eval mode otherwise.
    """
    root = as_module(twin)
    with unchanged(root, seed=0):
        if not skips_eval_mode and is_training(root):
            root.eval()
        yield
