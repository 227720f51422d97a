"""Sessions of ONNX Runtime on files of ours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

# It gives convolutions and linear layers that read integers weights of 8 bits with one scale for all channels, also
# where these weights are floats because the layer was to stay in float.
_DISABLED = ("WeightBiasQuantization",)


def open_session(file: Path, options: Any) -> Any:
    """A session on the CPU that leaves layers in float which are in float in the file.

    Args:
        file: the ONNX file.
        options: an ``onnxruntime.SessionOptions``.
    """
    import onnxruntime

    return onnxruntime.InferenceSession(
        str(file), options, providers=["CPUExecutionProvider"], disabled_optimizers=list(_DISABLED)
    )
