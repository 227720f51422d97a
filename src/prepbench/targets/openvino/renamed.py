"""Other names for the inputs and outputs of OpenVINO IR."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def rename_ends(source: Path, place: Path, inputs: Mapping[str, str], outputs: Sequence[str]) -> None:
    """Write IR with other names; inputs and outputs in bfloat16 become float32, which arrays of NumPy have.

    Args:
        source: the IR, a file that ends in ``.xml``.
        place: of the new one, likewise.
        inputs: new names by the old ones.
        outputs: new names in order.
    """
    import openvino

    model = openvino.Core().read_model(source)
    names = [next(inputs[name] for name in end.get_names() if name in inputs) for end in model.inputs]
    for end, name in zip((*model.inputs, *model.outputs), (*names, *outputs), strict=True):
        end.get_tensor().set_names({name})
    openvino.save_model(_with_wide_ends(model), place, compress_to_fp16=False)


def _with_wide_ends(model: Any) -> Any:
    import openvino
    from openvino.preprocess import PrePostProcessor

    changed = PrePostProcessor(model)
    ends = [(changed.input, end) for end in model.inputs] + [(changed.output, end) for end in model.outputs]
    narrow = [(side, end) for side, end in ends if end.get_element_type() == openvino.Type.bf16]
    for side, end in narrow:
        side(end.get_any_name()).tensor().set_element_type(openvino.Type.f32)
    return changed.build() if narrow else model
