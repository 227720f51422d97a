"""Conditions in files for other tools: metadata of ONNX, ``rt_info`` of IR, and a line of JSON beside them.

No other runtime checks them, but a reader of the file can: sizes before a call, and values by an output of the file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.sax.saxutils import quoteattr

from prepbench.capture.sizes.conditions import SizeCondition
from prepbench.compile.value_conditions import ValueCondition
from prepbench.storage import write_file

KEY = "prepbench.conditions"
"""In the metadata of ONNX; in IR it is ``rt_info`` at ``["prepbench_conditions"]``."""
_FORMAT = {"format": "prepbench conditions", "version": "1.1"}


@dataclass(frozen=True)
class FileConditions:
    """The conditions of a model in a file.

    Attributes:
        sizes: what sizes must fulfil.
        inputs: the name that each leaf of a call has in the file.
        values: what values must fulfil, by the output that tells whether they do.
        variants: what sizes must fulfil for each variant of the model.
    """

    sizes: Sequence[SizeCondition]
    inputs: Sequence[str]
    values: Mapping[str, ValueCondition]
    variants: Sequence[Sequence[SizeCondition]] = ()

    def __bool__(self) -> bool:
        return bool(self.sizes or self.values or self.variants)


def conditions_text(conditions: FileConditions) -> str:
    """Return the conditions as one line of JSON.

    Each has its words (``text``), the line that asked (``source``: file, number, code; null where there is none), and a
    formula over ``s0``, ``s1``, ..., which are the listed ``sizes`` in order, each a dim of an input of the file.
    One on values has the ``output`` of the file, a boolean, that is true where it holds. Of a model with variants,
    ``variants`` has the conditions of each, of which a call must meet those of one.
    """
    rows = [_row(one, conditions.inputs) for one in conditions.sizes]
    rows += [{**value.to_dict(), "output": name} for name, value in conditions.values.items()]
    content: dict[str, Any] = {**_FORMAT, "conditions": rows}
    if conditions.variants:
        content["variants"] = [[_row(one, conditions.inputs) for one in some] for some in conditions.variants]
    return json.dumps(content)


def _row(condition: SizeCondition, inputs: Sequence[str]) -> dict[str, Any]:
    sizes = [{"input": inputs[leaf], "dim": dim} for leaf, dim in condition.places]
    kept = {name: value for name, value in condition.to_dict().items() if name in ("text", "source", "formula")}
    return {**kept, "sizes": sizes}


def write_conditions(file: Path, conditions: FileConditions) -> None:
    """Write conditions into an ONNX or IR file, in place.

    Args:
        file: ends in ``.onnx`` or ``.xml``.
        conditions: of the model in it; where there are none, nothing is written.
    """
    if not conditions:
        return
    text = conditions_text(conditions)
    if file.suffix == ".onnx":
        _into_onnx(file, text)
    else:
        _into_ir(file, text)


def write_beside(file: Path, conditions: FileConditions) -> None:
    """Write ``<file>.conditions.json``, or remove an old one where there are no conditions."""
    beside = file.with_name(f"{file.name}.conditions.json")
    if conditions:
        write_file(beside, conditions_text(conditions) + "\n")
    else:
        beside.unlink(missing_ok=True)


def _into_onnx(file: Path, text: str) -> None:
    """Append the entry: protobuf merges lists of concatenated messages, so the file need not be parsed."""
    import onnx

    entry = onnx.ModelProto()
    entry.metadata_props.add(key=KEY, value=text)
    added = entry.SerializeToString()
    with file.open("r+b") as opened:
        size = opened.seek(0, 2)
        opened.seek(max(0, size - len(added)))
        if opened.read() != added:  # the file of a loaded model has the entry already
            opened.write(added)


def _into_ir(file: Path, text: str) -> None:
    """Put the entry at the end of the IR's ``rt_info`` for the whole model."""
    content = file.read_text(encoding="utf-8")
    before, end, after = content.rpartition("</rt_info>")
    entry = f"<prepbench_conditions value={quoteattr(text)} />"
    if end and entry not in before:
        write_file(file, f"{before}{entry}{end}{after}")
