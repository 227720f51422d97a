"""Tensors in and out of OpenVINO."""

from __future__ import annotations

from typing import Any

import torch

from prepbench.errors import TargetError
from prepbench.targets.base import Lowering
from prepbench.targets.plain_tensors import plain_tensor

_INT32 = torch.iinfo(torch.int32)


def check_dtypes(lowering: Lowering) -> None:
    """Raise ``TargetError`` for inputs and outputs in float64, which OpenVINO silently computes in float32."""
    signature = lowering.program.graph_signature
    values = {node.name: node.meta.get("val") for node in lowering.program.graph.nodes}
    for kind, names, nodes in (
        ("input", lowering.input_names, signature.user_inputs),
        ("output", lowering.output_names, signature.user_outputs),
    ):
        for name, node in zip(names, nodes, strict=False):
            value = values.get(node) if isinstance(node, str) else None
            if isinstance(value, torch.Tensor) and value.dtype == torch.float64:
                raise TargetError(
                    f"The {kind} {name} is float64, and OpenVINO has no kernels for it: it would compute in float32. "
                    "Compile model.float() with float32 inputs, or choose OnnxRuntimeDeployment()."
                )


def to_openvino(leaf: torch.Tensor, name: str) -> tuple[Any, torch.Tensor]:
    """Return the tensor as OpenVINO's, and the torch tensor whose memory it reads without owning it.

    The memory is the leaf's own if it is contiguous and on the CPU, and a copy otherwise.

    Raises:
        TargetError: an int64 value that does not fit into 32 bits, in which OpenVINO computes.
    """
    import openvino

    leaf = plain_tensor(leaf)
    if leaf.dtype == torch.int64 and leaf.numel():
        low, high = (int(value) for value in torch.aminmax(leaf))
        if low < _INT32.min or high > _INT32.max:
            raise TargetError(
                f"{name} reaches from {low} to {high}, and OpenVINO computes int64 in 32 bits. Choose "
                "OnnxRuntimeDeployment() for such values."
            )
    if leaf.dtype == torch.bfloat16:  # which NumPy does not have
        array = leaf.view(torch.int16).numpy()
        return openvino.Tensor(array, openvino.Shape(list(leaf.shape)), openvino.Type.bf16), leaf
    return openvino.Tensor(leaf.numpy(), shared_memory=True), leaf


def from_openvino(tensor: Any, *, is_bfloat16: bool) -> tuple[torch.Tensor, Any]:
    """Return its memory as a torch tensor, and the array that lives as long as any view of that tensor."""
    array = tensor.data
    if is_bfloat16:
        array = array.view("int16")
        return torch.from_numpy(array).view(torch.bfloat16), array
    return torch.from_numpy(array), array
