"""Sorting as TopK of ONNX, which keeps equal values in the order that they have, as a stable sort does."""

from __future__ import annotations

from typing import Any

# TopK of ONNX Runtime takes other types only
_WIDER = {"BOOL": "INT32", "INT8": "INT32", "INT16": "INT32", "UINT8": "INT32", "BFLOAT16": "FLOAT"}


def sort(x: Any, dim: int = -1, descending: bool = False) -> Any:
    """``aten::sort``."""
    return _sorted(x, dim, descending)


def stable_sort(x: Any, *, stable: bool = True, dim: int = -1, descending: bool = False) -> Any:
    """``aten::sort.stable``."""
    return _sorted(x, dim, descending)


def stable_argsort(x: Any, *, stable: bool = True, dim: int = -1, descending: bool = False) -> Any:
    """``aten::argsort.stable``."""
    return _sorted(x, dim, descending)[1]


def argsort(x: Any, dim: int = -1, descending: bool = False) -> Any:
    """``aten::argsort``."""
    return _sorted(x, dim, descending)[1]


def _sorted(x: Any, dim: int, descending: bool) -> tuple[Any, Any]:
    """The sorted values and where they stood."""
    import onnx_ir
    from onnxscript import opset21

    onnx: Any = opset21
    if not x.shape:
        return onnx.Identity(x), onnx.Constant(value_int=0)
    wider = _WIDER.get(x.dtype.name)
    size = onnx.Shape(x, start=dim, end=dim + 1 or None)
    keys = x if wider is None else onnx.Cast(x, to=onnx_ir.DataType[wider].value)
    values, indices = onnx.TopK(keys, size, axis=dim, largest=int(descending), sorted=1)
    if wider is not None:
        # OpenVINO (2026.4) refuses to cast what TopK returns to truth values
        values = onnx.Cast(onnx.GatherElements(keys, indices, axis=dim), to=x.dtype.value)
    return values, indices
