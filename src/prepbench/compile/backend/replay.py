"""Run the model once more: through dynamo, or to see which call ``forward_fn`` makes."""

from __future__ import annotations

import contextlib
import inspect
import types
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx, nn

from prepbench._torch_compat.optimized_calls import OptimizedCall, compiled_apart, optimized_call
from prepbench.compile.backend.traced_graph import TracedGraph
from prepbench.errors import SettingsError
from prepbench.inputs import Sample
from prepbench.running.callable_module import as_module
from prepbench.running.twin import Twin
from prepbench.running.unchanged import own_copy, unchanged

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

    Args:
        function: the argument of ``torch.compile``.
        samples: the calls.
        skips_eval_mode: whether it runs in the mode that it is in.
        dynamic: as for ``torch.compile``.
        only: return the graphs of this code only.

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
