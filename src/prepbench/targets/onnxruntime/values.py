"""Tensors in and out of ONNX Runtime without copies.

``InferenceSession.run`` copies every result into an array of NumPy, which for a cache of many layers takes as long as
some of its kernels. ONNX Runtime never lets two results, or a result and an input, share memory, so that its values can
be handed out as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils.dlpack import from_dlpack, to_dlpack  # type: ignore[attr-defined]


def to_value(tensor: torch.Tensor) -> Any:
    """A value of ONNX Runtime in the memory of a tensor, which it keeps alive.

    Args:
        tensor: as :func:`prepbench.targets.plain_tensors.plain_tensor` gives it.
    """
    from onnxruntime.capi.onnxruntime_pybind11_state import OrtValue

    is_bool = tensor.dtype == torch.bool
    # Tensor.__dlpack__ asks in Python what plain_tensor has asked, which takes five times as long
    return OrtValue.from_dlpack(to_dlpack(tensor.view(torch.uint8) if is_bool else tensor), is_bool)


class Session:
    """The calls of one session, on values.

    Args:
        session: an ``onnxruntime.InferenceSession`` on the CPU.
        inputs: the names of what it is given.
        outputs: the names of what it computes.
    """

    def __init__(self, session: Any, inputs: Sequence[str], outputs: Sequence[str]) -> None:
        from onnxruntime import RunOptions
        from onnxruntime.capi.onnxruntime_pybind11_state import OrtDevice, OrtValueVector

        self._session, self._inputs, self._outputs = session, list(inputs), list(outputs)
        self._options, self._vector = RunOptions(), OrtValueVector
        self._devices = [OrtDevice(OrtDevice.cpu(), OrtDevice.default_memory(), 0)] * len(self._outputs)

    def run(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The results for inputs in the order of their names; several threads may call it at once."""
        feeds, results = self._vector(), self._vector()
        feeds.reserve(len(tensors))
        for tensor in tensors:
            feeds.push_back(to_value(tensor))
        self._session.run_with_ortvaluevector(self._options, self._inputs, feeds, self._outputs, results, self._devices)
        made: list[torch.Tensor] = results.to_dlpacks(from_dlpack)
        for place in results.bool_tensor_indices():  # they come as bytes
            made[place] = made[place].view(torch.bool)
        return made
