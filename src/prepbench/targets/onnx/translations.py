"""ONNX translations of operators that torch's exporter cannot translate."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import prepbench.capture.sizes.recurrent
import prepbench.quantize.blocks
import prepbench.quantize.dynamic_lstm  # noqa: F401 (these three define the operators)
from prepbench.targets.onnx.recurrent import dynamic_lstm_layer, lstm_layer, recurrent_layer
from prepbench.targets.onnx.size_arithmetic import size_translations
from prepbench.targets.onnx.sorting import argsort, sort, stable_argsort, stable_sort

# the first version with integers of 4 and 16 bits and with scales for blocks
OPSET = 21


def translations() -> dict[Callable[..., Any], Callable[..., Any]]:
    """For ``torch.onnx.export(custom_translation_table=...)``."""
    return {
        torch.ops.prepbench.dequantize_blocks.default: _dequantize_blocks,
        torch.ops.prepbench.lstm_layer.default: lstm_layer,
        torch.ops.prepbench.dynamic_lstm_layer.default: dynamic_lstm_layer,
        torch.ops.prepbench.recurrent_layer.default: recurrent_layer,
        torch.ops.aten.sort.default: sort,
        torch.ops.aten.sort.stable: stable_sort,
        torch.ops.aten.argsort.default: argsort,
        torch.ops.aten.argsort.stable: stable_argsort,
        **size_translations(),
    }


def _dequantize_blocks(q: Any, scale: Any, zero_point: Any, block_size: int, bits: int) -> Any:
    """The last axis of the weight is its inputs; ``pack_weights`` decides how many bits its integers take."""
    from onnxscript import opset21

    return opset21.DequantizeLinear(q, scale, zero_point, axis=1, block_size=block_size)
