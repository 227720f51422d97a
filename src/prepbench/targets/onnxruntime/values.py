"""Zero-copy tensors in and out of ONNX Runtime.

``InferenceSession.run`` copies every result into an array of NumPy, which for a cache of many layers takes as long as
some of its kernels. ONNX Runtime never lets two results, or a result and an input, share memory, so that its values can
be handed out as they are.

The calls for that are not public, and have changed: from 1.32 on values know booleans, before they came as bytes. Where
they are not there at all, arrays of NumPy are copied, which is slower and all that is lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch.utils.dlpack import from_dlpack, to_dlpack  # type: ignore[attr-defined]

from prepbench.errors import TargetError, sentence


class Session:
    """The calls of one session, on values.

    Args:
        session: an ``onnxruntime.InferenceSession`` on the CPU.
        inputs: the names of what it is given.
        outputs: the names of what it computes.
    """

    def __init__(self, session: Any, inputs: Sequence[str], outputs: Sequence[str]) -> None:
        self._session, self._inputs, self._outputs = session, list(inputs), list(outputs)
        if shares_memory():
            from onnxruntime import RunOptions
            from onnxruntime.capi.onnxruntime_pybind11_state import OrtDevice, OrtValueVector

            self._options, self._vector = RunOptions(), OrtValueVector
            self._devices = [OrtDevice(OrtDevice.cpu(), OrtDevice.default_memory(), 0)] * len(self._outputs)

    def run(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return the results for inputs in the order of their names; several threads may call it at once.

        Args:
            tensors: as :func:`prepbench.targets.programs.plain_tensor` gives them.
        """
        if not shares_memory():
            values = {name: _value(tensor) for name, tensor in zip(self._inputs, tensors, strict=True)}
            return [_copied(result) for result in self._session.run_with_ort_values(self._outputs, values)]
        feeds, results = self._vector(), self._vector()
        feeds.reserve(len(tensors))
        for tensor in tensors:
            feeds.push_back(_shared_value(tensor))
        self._session.run_with_ortvaluevector(self._options, self._inputs, feeds, self._outputs, results, self._devices)
        made: list[torch.Tensor] = results.to_dlpacks(from_dlpack)
        if _booleans_are_bytes():
            for place in results.bool_tensor_indices():
                made[place] = made[place].view(torch.bool)
        return made


def public_value(tensor: torch.Tensor) -> Any:
    """Return an ``onnxruntime.OrtValue`` of a tensor, which it keeps alive, for ``run_with_ort_values``."""
    import onnxruntime

    return onnxruntime.OrtValue(_shared_value(tensor)) if shares_memory() else _value(tensor)


@cache
def shares_memory() -> bool:
    """Return whether this ONNX Runtime supports passing tensors without copies."""
    try:
        from onnxruntime import InferenceSession
        from onnxruntime.capi.onnxruntime_pybind11_state import OrtDevice, OrtValue, OrtValueVector
    except ImportError:
        return False
    needed = (
        (OrtValue, "from_dlpack"),
        (OrtValueVector, "to_dlpacks"),
        (OrtValueVector, "reserve"),
        (OrtDevice, "default_memory"),
        (InferenceSession, "run_with_ortvaluevector"),
    )
    return all(hasattr(owner, name) for owner, name in needed)


@cache
def _booleans_are_bytes() -> bool:
    from onnxruntime.capi.onnxruntime_pybind11_state import OrtValueVector

    return hasattr(OrtValueVector, "bool_tensor_indices")


def _shared_value(tensor: torch.Tensor) -> Any:
    from onnxruntime.capi.onnxruntime_pybind11_state import OrtValue

    # Tensor.__dlpack__ repeats the checks of plain_tensor in Python, which takes five times as long
    if not _booleans_are_bytes():
        return OrtValue.from_dlpack(to_dlpack(tensor))
    is_bool = tensor.dtype == torch.bool
    return OrtValue.from_dlpack(to_dlpack(tensor.view(torch.uint8) if is_bool else tensor), is_bool)


def _value(tensor: torch.Tensor) -> Any:
    import onnxruntime

    if tensor.dtype == torch.bfloat16:  # NumPy has no such type
        from onnx import TensorProto

        bits = tensor.view(torch.int16).numpy()
        return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, TensorProto.BFLOAT16)
    return onnxruntime.OrtValue.ortvalue_from_numpy(tensor.numpy())


def _copied(value: Any) -> torch.Tensor:
    try:
        return torch.from_numpy(value.numpy())
    except (RuntimeError, TypeError) as error:  # bfloat16, which NumPy does not have
        raise TargetError(
            f"This ONNX Runtime hands out no results of type {value.data_type()}: {sentence(error)} Install a version "
            "that shares memory (onnxruntime 1.22 to 1.32 do), or compile model.float()."
        ) from error


# ONNX Runtime sessions on prepbench's own files.


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
