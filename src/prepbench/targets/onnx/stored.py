"""What an ONNX file stores: read from the file itself, without its weights."""

from __future__ import annotations

import math
from pathlib import Path


def stored_bits(file: Path) -> dict[str, int]:
    """How many bits each constant takes in a file, by name; weights may lie beside it, and are not read.

    Numbers of 4 bits take half a byte each.
    """
    import onnx

    model = onnx.load(str(file), load_external_data=False)
    return {one.name: math.prod(one.dims) * _bits(one.data_type) for one in model.graph.initializer}


def _bits(data_type: int) -> int:
    """Of one number of a type."""
    import onnx

    name = onnx.TensorProto.DataType.Name(data_type)  # such as INT4
    if name == "STRING":
        return 0
    few = {"INT4": 4, "UINT4": 4, "FLOAT4E2M1": 4, "INT2": 2, "UINT2": 2}
    return few.get(name) or int(onnx.helper.tensor_dtype_to_np_dtype(data_type).itemsize) * 8
