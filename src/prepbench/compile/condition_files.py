"""Conditions on sizes in files that others run: metadata of ONNX, ``rt_info`` of IR, and a line of JSON beside them.

No other runtime checks them, but who reads the file can.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from xml.sax.saxutils import quoteattr

from prepbench.capture.sizes.conditions import SizeCondition
from prepbench.storage import write_file

KEY = "prepbench.conditions"
"""In the metadata of ONNX; in IR it is ``rt_info`` at ``["prepbench_conditions"]``."""
_FORMAT = {"format": "prepbench conditions on sizes", "version": "1"}


def conditions_text(conditions: Sequence[SizeCondition], inputs: Sequence[str]) -> str:
    """The conditions as one line of JSON.

    Each has its words (``text``), the line that asked (``source``: file, number, code; null where there is none), and a
    formula over ``s0``, ``s1``, ..., which are the listed ``sizes`` in order, each a dim of an input of the file.

    Args:
        conditions: of a compiled model.
        inputs: the name that each leaf of a call has in the file.
    """
    rows = []
    for condition in conditions:
        sizes = [{"input": inputs[leaf], "dim": dim} for leaf, dim in condition.places]
        kept = {name: value for name, value in condition.to_dict().items() if name in ("text", "source", "formula")}
        rows.append({**kept, "sizes": sizes})
    return json.dumps({**_FORMAT, "conditions": rows})


def write_conditions(file: Path, conditions: Sequence[SizeCondition], inputs: Sequence[str]) -> None:
    """Note conditions in an ONNX or IR file, in place.

    Args:
        file: ends in ``.onnx`` or ``.xml``.
        conditions: of the model in it; where there are none, nothing is written.
        inputs: the name that each leaf of a call has in the file.
    """
    if not conditions:
        return
    text = conditions_text(conditions, inputs)
    if file.suffix == ".onnx":
        _into_onnx(file, text)
    else:
        _into_ir(file, text)


def write_beside(file: Path, conditions: Sequence[SizeCondition], inputs: Sequence[str]) -> None:
    """Write ``<file>.conditions.json``, or remove an old one where there are no conditions."""
    beside = file.with_name(f"{file.name}.conditions.json")
    if conditions:
        write_file(beside, conditions_text(conditions, inputs) + "\n")
    else:
        beside.unlink(missing_ok=True)


def _into_onnx(file: Path, text: str) -> None:
    """Append the entry: of protobuf messages that follow each other, lists are joined, so nothing has to be read."""
    import onnx

    entry = onnx.ModelProto()
    entry.metadata_props.add(key=KEY, value=text)
    added = entry.SerializeToString()
    with file.open("r+b") as opened:
        size = opened.seek(0, 2)
        opened.seek(max(0, size - len(added)))
        if opened.read() != added:  # a model that was loaded has it
            opened.write(added)


def _into_ir(file: Path, text: str) -> None:
    """Put the entry at the end of what the IR says of the model as a whole."""
    content = file.read_text(encoding="utf-8")
    before, end, after = content.rpartition("</rt_info>")
    entry = f"<prepbench_conditions value={quoteattr(text)} />"
    if end and entry not in before:
        write_file(file, f"{before}{entry}{end}{after}")
