"""The first stage: fold batch norms, apply the algorithms that change weights, and insert observers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import fx, nn

from prepbench._torch_compat.scans import scans_in, steps_of
from prepbench._torchao_compat import pt2e
from prepbench.document.model import Failure
from prepbench.errors import SettingsError
from prepbench.inputs import Sample
from prepbench.jobs import ProgressCallback, report_nothing
from prepbench.quantize.algorithms import fold_batch_norms
from prepbench.quantize.annotate import annotate
from prepbench.quantize.changed_weights import change_weights
from prepbench.quantize.constant_weights import make_weights_plain
from prepbench.quantize.layer_nodes import SOURCES
from prepbench.quantize.layer_reports import LayerReporter
from prepbench.quantize.observed import Observed
from prepbench.quantize.placement import Placement
from prepbench.quantize.plan import Plan, make_plan
from prepbench.quantize.report import LayerReport
from prepbench.quantize.skips import skipped_downstream
from prepbench.quantize.statistics import Statistics
from prepbench.quantize.written_state import own_written_buffers
from prepbench.settings import CompileOptions, ExplainedLayer


def insert_observers(
    program: torch.export.ExportedProgram,
    model: nn.Module,
    explained: Sequence[ExplainedLayer],
    placement: Placement,
    leaves: Sequence[Failure] = (),
    *,
    options: CompileOptions | None = None,
    samples: Sequence[Sample] = (),
    progress: ProgressCallback = report_nothing,
    statistics: Statistics | None = None,
    plain_weights: bool = True,
) -> Observed:
    """Fold batch norms, apply the algorithms that change weights, and put observers where settings and target want.

    Args:
        program: the captured model; it is not changed.
        model: the model it was captured from, for parameter counts.
        explained: the decision for each layer, from :func:`prepbench.settings.explain_settings`.
        placement: what the target wants quantized, and how.
        leaves: leaf modules and lines, and why they are leaves: what is inside them cannot be quantized.
        options: which algorithms.
        samples: calibration inputs, for the algorithms that need some.
        progress: called after each sample; may raise to cancel.
        statistics: of the program as it is, on these samples; what is learned is added.
        plain_weights: see :func:`float_graph`.

    Raises:
        NothingQuantizedError: nothing would be quantized under these settings.
    """
    options = options or CompileOptions()
    graph, before = float_graph(program, options, plain_weights=plain_weights)
    behind = skipped_downstream(graph.graph, explained)
    settings = {row.fqn: row.settings for row in explained if row.settings is not None and row.fqn not in behind}
    layers = [row.fqn for row in explained]
    notes = change_weights(graph, settings, layers, options, samples, progress, statistics)
    plan = make_plan(graph, settings, placement)
    told = {fqn: note for fqn, note in notes.items() if fqn in settings}
    reporter = LayerReporter(model, graph, plan, leaves, behind, told)
    rows = tuple(reporter.report(layer) for layer in explained if not layer.is_assumed or reporter.is_layer(layer.fqn))
    _check_not_empty(rows)
    return replace(observed_with(graph, plan, placement, options, before), layers=rows, scaled=frozenset(notes))


class NothingQuantizedError(SettingsError):
    """No layer of a graph is quantized under these settings."""


def observed_with(
    graph: fx.GraphModule,
    plan: Plan,
    placement: Placement,
    options: CompileOptions,
    written: dict[str, torch.Tensor],
) -> Observed:
    """A float graph with observers where a plan wants them; ``graph`` is changed, ``written`` is kept."""
    annotate(graph, plan, placement, options.percentile)
    _keep_steps(graph)
    observed = pt2e().prepare(graph, pt2e().scopes(graph), is_qat=False)
    return Observed(observed, (), plan, options, written=written)


def _keep_steps(graph: fx.GraphModule) -> None:
    """Let torchao take the graphs of loops' steps, which it converts too, for observed ones; they have no observers."""
    for node in scans_in(graph.graph):
        name, steps = steps_of(graph, node)
        setattr(graph, name, pt2e().prepare(steps, pt2e().scopes(steps), is_qat=False))


def _check_not_empty(rows: Sequence[LayerReport]) -> None:
    if any(row.quantized for row in rows):
        return
    reasons = "; ".join(f"{row.fqn or 'the model'}: {row.reason}" for row in rows[:6])
    raise NothingQuantizedError(
        f"Nothing would be quantized: {reasons or 'the model has no layer with a weight matrix'}. "
        "Change layer_quantization_settings, or compile in float with quantization_settings=None."
    )


def float_graph(
    program: torch.export.ExportedProgram, options: CompileOptions, *, plain_weights: bool = True
) -> tuple[fx.GraphModule, dict[str, torch.Tensor]]:
    """The graph of a program with batch norms folded, and what the buffers that it writes to were, by name.

    With ``plain_weights``, weights that are computed from constants are computed now; training computes them in each
    step, because their parts learn.
    """
    graph = program.module(check_guards=False)
    for node in graph.graph.find_nodes(op="get_attr"):
        node.meta[SOURCES] = (str(node.target),)
    before = own_written_buffers(graph)
    if plain_weights:
        make_weights_plain(graph)
    if options.fold_batch_norm:
        fold_batch_norms(graph)
    return graph, before
