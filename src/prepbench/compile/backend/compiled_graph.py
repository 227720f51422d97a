"""The callable that replaces a graph of dynamo."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx

from prepbench._torch_compat.optimized_calls import compiled_calls_off, optimized_call
from prepbench.compile.backend.graph_call import GraphCall, GraphRunner, InputRoles, variant
from prepbench.compile.backend.model_state import are_identical, state_tensors
from prepbench.compile.backend.pieces import REMEDY, compile_piece
from prepbench.compile.backend.replay import GraphRun, current_call, is_training, replay
from prepbench.compile.backend.session import Session, session_of
from prepbench.compile.backend.traced_graph import TracedGraph
from prepbench.compile.backend.whole import compile_whole
from prepbench.errors import ConditionError, SettingsError, sentence
from prepbench.inputs import Sample
from prepbench.running.callable_module import as_module
from prepbench.running.equality import ROUNDED, difference
from prepbench.running.object_nodes import register_nodes


class CompiledGraph:
    """Replaces a graph: compiles at its first call, and again for other weights, numbers or sizes.

    Args:
        graph: the graph.
        options: for ``compile_model``.
        mode: of ``torch.compile``.
    """

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
