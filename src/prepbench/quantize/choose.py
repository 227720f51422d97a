"""The stage after calibration: choose weight schemes, correct biases, and leave inexact layers in float."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from prepbench.inputs import Sample
from prepbench.jobs import ProgressCallback, report_nothing
from prepbench.quantize.decide import decide
from prepbench.quantize.layer_reports import decided_report
from prepbench.quantize.observed import Observed, fit_biases
from prepbench.quantize.statistics import Statistics


def choose_weight_schemes(
    observed: Observed,
    samples: Sequence[Sample],
    progress: ProgressCallback = report_nothing,
    statistics: Statistics | None = None,
) -> Observed:
    """Measure each layer on a few samples and choose its weight scheme among the candidates of the settings.

    Biases are corrected, and layers that quantization would ruin stay in float, as ``observed.options`` says.

    Args:
        observed: calibrated; its graph is changed.
        samples: the calibration inputs, as calls of the captured program.
        progress: called after each sample; may raise to cancel.
        statistics: the calibration cache of the same float graph and samples; new entries are added.
    """
    decisions = decide(observed.graph, observed.plan, observed.options, samples, progress, statistics)
    fit_biases(observed.graph)
    return replace(
        observed,
        layers=tuple(decided_report(row, observed, decisions) for row in observed.layers),
        plan=observed.plan.without(decisions.left_in_float.keys()),
        score=decisions.score,
        reused=(*observed.reused, *decisions.reused),
    )
