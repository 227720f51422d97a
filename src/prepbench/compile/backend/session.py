"""The shared state of one compiled function's graphs: options, samples, and compiled models."""

from __future__ import annotations

import contextlib
import threading
import types
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from prepbench._torch_compat import pytree
from prepbench._torch_compat.optimized_calls import OptimizedCall
from prepbench.capture.sizes.dynamic_axes import DynamicAxes
from prepbench.compile.backend.model_state import TensorVersions, are_identical, is_tensor, state_tensors
from prepbench.compile.backend.replay import in_mode, sample_of_call
from prepbench.compile.backend.traced_graph import TracedGraph
from prepbench.compile.compiled import CompiledModel
from prepbench.compile.pipeline import compile_model
from prepbench.errors import CaptureError
from prepbench.inputs import Sample, named_leaves, normalize_samples
from prepbench.running.check_inputs import twin_with_own_writes
from prepbench.running.object_nodes import register_nodes
from prepbench.running.unchanged import own_copy

SAMPLES = ("tracing_inputs", "calibration_inputs")


class Session:
    """The shared state of one compiled function's graphs. Holds no strong reference to the function or its weights.

    Args:
        function: the argument of ``torch.compile``.
        options: the options of ``torch.compile``.

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
        """Return the arguments for ``compile_model``, with samples that can be read again and are calls of
        ``function``.
        """
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

    Args:
        function: the function to compile.
        keywords: further arguments for ``compile_model``.
        sample: the call.
        dynamic: the dims to make dynamic, by the ``id`` of the tensor.
        fixed_sizes: compile for the sizes of this call only.

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
