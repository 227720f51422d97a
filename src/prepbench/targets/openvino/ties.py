"""Equal values among those that are sorted or chosen."""

from __future__ import annotations

from typing import Any


def keep_order_of_equals(model: Any) -> None:
    """Let the first of equal values come first, in place.

    ONNX says so of its TopK; OpenVINO (2026.4) has an attribute for it, which its reader of ONNX does not set. It
    is refused where any order will do, so these are sorted, too.

    Args:
        model: an ``openvino.Model``.
    """
    for operation in model.get_ops():
        if operation.get_type_name() == "TopK" and "stable" in operation.get_attributes():
            if operation.get_attributes()["sort"] == "none":
                operation.set_attribute("sort", "value")
            operation.set_attribute("stable", True)
