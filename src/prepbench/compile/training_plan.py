"""The plan of a compile for training: observers, and one choice of bits and blocks for each layer."""

from __future__ import annotations

from dataclasses import replace

from torch import nn

from prepbench.compile.samples import flat_samples
from prepbench.compile.task import CompileTask
from prepbench.errors import SettingsError
from prepbench.jobs import ProgressCallback
from prepbench.quantize import LayerReport, Observed, calibrate, choose_weight_schemes
from prepbench.quantize.insert import insert_observers
from prepbench.running.tracing import tracing
from prepbench.settings import ExplainedLayer, QuantizationSettings


def observed_for_training(task: CompileTask, own: nn.Module, progress: ProgressCallback) -> Observed:
    """The float graph with observers, calibrated if ranges are to be learned from samples."""
    assert task.layer_settings is not None
    samples = flat_samples(task.calibration, task.call_spec)
    program = task.in_types_of_target().program
    with tracing(progress):
        observed = insert_observers(
            program,
            own,
            task.layer_settings,
            task.target.placement,
            task.captured.leaves,
            options=task.options,
            plain_weights=False,
        )
    return calibrate(observed, samples, progress) if task.is_pretrained else observed


def with_choices(task: CompileTask, own: nn.Module, progress: ProgressCallback) -> CompileTask:
    """The task with one number of bits and one size of blocks for each layer, where its settings name several."""
    rows = task.layer_settings
    if rows is None or not any(_is_open(row.settings) for row in rows):
        return task
    if not task.is_pretrained:
        raise SettingsError(
            "Bits, blocks and thresholds are chosen by measuring trained weights, which is_model_pretrained=False says "
            "these are not. Name one number of bits and one size of blocks, and no threshold."
        )
    samples = flat_samples(task.calibration, task.call_spec)
    chosen = {
        row.fqn: row
        for row in choose_weight_schemes(observed_for_training(task, own, progress), samples, progress).layers
    }
    return replace(task, layer_settings=tuple(_decided(row, chosen[row.fqn]) for row in rows))


def _is_open(settings: QuantizationSettings | None) -> bool:
    return settings is not None and (
        settings.quantization_sensitivity_threshold is not None or len(list(settings.candidates())) > 1
    )


def _decided(row: ExplainedLayer, report: LayerReport) -> ExplainedLayer:
    if row.settings is None or not _is_open(row.settings):
        return row
    if not report.quantized:
        return replace(row, settings=None)
    single = replace(
        row.settings,
        weights_num_bits=report.weights_bits,
        weights_only_quantization_block_size=report.block_size,
        quantization_sensitivity_threshold=None,
    )
    return replace(row, settings=single)
