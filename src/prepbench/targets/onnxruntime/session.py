"""ONNX Runtime sessions on prepbench's own files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

# By default it gives convolutions and linear layers on integers 8-bit weights with one scale for all channels, also
# where these weights are floats because the layer was to stay in float.
_DISABLED = ("WeightBiasQuantization",)


def open_session(file: Path, options: Any) -> Any:
    """Return a session on the CPU that keeps layers in float which are in float in the file.

    Args:
        file: the ONNX file.
        options: an ``onnxruntime.SessionOptions``.
    """
    import onnxruntime

    return onnxruntime.InferenceSession(
        str(file), options, providers=["CPUExecutionProvider"], disabled_optimizers=list(_DISABLED)
    )
