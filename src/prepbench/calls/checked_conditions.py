"""Conditions that lowered programs carry: assertions on values, checked after each call, and texts in exported files.

Most targets drop assertions. So a lowered program returns the asserted values, and the call is refused afterwards.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.sax.saxutils import quoteattr

import torch

from prepbench._torch_compat.programs import with_further_outputs
from prepbench.capture.sizes.conditions import SizeCondition
from prepbench.document.model import SourceLine
from prepbench.errors import ConditionError
from prepbench.running.source_lines import place_in_stack_trace, source_line
from prepbench.storage import write_file

Program = torch.export.ExportedProgram
_ASSERTIONS = (torch.ops.aten._assert_async.default, torch.ops.aten._assert_async.msg)
_OF_NUMBERS = torch.ops.aten._assert_scalar.default
_WORDS = {
    operator.eq: "must equal",
    operator.ne: "must differ from",
    operator.ge: "must be at least",
    operator.gt: "must be more than",
    operator.le: "must be at most",
    operator.lt: "must be less than",
}


@dataclass(frozen=True)
class ValueCondition:
    """One condition on a computed value.

    Attributes:
        text: e.g. ``"a check of values passes, which fails with: more than 3 iterations"``.
        source: the line that asserts.
    """

    text: str
    source: SourceLine | None

    def __str__(self) -> str:
        return f"{self.text} ({self.source.file}:{self.source.line}: {self.source.code})" if self.source else self.text

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready data."""
        source = None if self.source is None else [self.source.file, self.source.line, self.source.code]
        return {"text": self.text, "source": source}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ValueCondition:
        """Read the data that :meth:`to_dict` wrote."""
        return cls(data["text"], None if data["source"] is None else SourceLine(*data["source"]))


def with_assertions_returned(program: Program) -> tuple[Program, tuple[ValueCondition, ...]]:
    """Return a flat program with a further output for each assertion on values, in place of the assertion.

    What branches and loops of the graph assert inside stays there.
    """
    calls = [node for node in program.graph.nodes if node.op == "call_function"]
    of_numbers = [node for node in calls if node.target is _OF_NUMBERS and isinstance(node.args[0], torch.fx.Node)]
    telling = _telling(of_numbers)
    nodes = [node for node in calls if node.target in _ASSERTIONS or node in telling]
    if not nodes:
        return program, ()
    found = tuple(ValueCondition(_text(node), _source(node)) for node in nodes)
    # those on numbers stay: targets that trace the graph again learn from them
    without = [node for node in nodes if node not in telling]
    return with_further_outputs(program, {node: node.args[0] for node in nodes}, without), found


def check_values(conditions: Sequence[ValueCondition], held: Sequence[Any]) -> None:
    """Check the conditions on values in the result of a call.

    Raises:
        ConditionError: one is broken.
    """
    for condition, value in zip(conditions, held, strict=True):
        if not bool(value):
            raise ConditionError(
                f"This call breaks a condition of the compiled graph: {condition}. Call it with values for which it "
                "does, change the line (pb.fix takes other bounds=), or set compiled.allow_unproven = True, which may "
                "give wrong results."
            )


def _telling(nodes: Sequence[Any]) -> set[torch.fx.Node]:
    """Return the assertions on numbers that a call can break.

    Torch also asserts that sizes are not negative, that slices are no longer than what they are cut from, and the range
    of a number whose value it asserts as well.
    """
    equal = {node.args[0].args[0] for node in nodes if node.args[0].target is operator.eq}
    telling: dict[Any, torch.fx.Node] = {}
    for node in nodes:
        compared = node.args[0]
        if compared.target not in _WORDS:
            telling[node] = node
            continue
        left, right = compared.args
        is_least, is_range = (
            compared.target in (operator.ge, operator.gt),
            compared.target not in (operator.eq, operator.ne),
        )
        always = _is_size(left) and (right == 0 if compared.target is operator.ge else _is_cut(left, right))
        if always or (is_range and left in equal):
            continue
        if isinstance(right, int) and compared.target in (operator.gt, operator.lt):  # torch asserts both forms
            right += 1 if is_least else -1
        telling[left, is_least if is_range else compared.target, right] = node
    return set(telling.values())


def _is_size(value: Any) -> bool:
    return isinstance(value, torch.fx.Node) and value.target is torch.ops.aten.sym_size.int


def _is_cut(size: Any, whole: Any) -> bool:
    """Return whether one size is that of a slice of what has the other."""
    tensor, dim = size.args
    if not _is_size(whole) or tensor.target is not torch.ops.aten.slice.Tensor:
        return False
    return tensor.args[0] is whole.args[0] and dim == whole.args[1]


def _number_words(value: Any) -> str:
    """Return a number of a graph in words."""
    if not isinstance(value, torch.fx.Node):
        return str(value)
    if value.target in (torch.ops.aten.item.default, torch.ops.aten._local_scalar_dense.default):
        return "a number that is read from a tensor"
    if not _is_size(value):
        return "a number that is computed from values"
    parts: Any = value.args
    tensor, dim = parts
    return f"{tensor.name}.shape[{dim}]" if tensor.op == "placeholder" else "a size that values decide"


def _text(node: Any) -> str:
    compared = node.args[0]
    if node.target is _OF_NUMBERS:
        if compared.target not in _WORDS or getattr(compared.args[0], "target", None) is torch.sym_ite:
            return "a check of values passes"
        left, right = compared.args
        return f"{_number_words(left)} {_WORDS[compared.target]} {_number_words(right)}"
    message = f", which fails with: {node.args[1]}" if len(node.args) > 1 else ""
    return f"a check of values passes{message}"


def _source(node: torch.fx.Node) -> SourceLine | None:
    place = place_in_stack_trace(node.meta.get("stack_trace"))
    return None if place is None else source_line(*place)


# Conditions in files for other tools: metadata of ONNX, ``rt_info`` of IR, and a line of JSON beside them.
#
# No other runtime checks them, but a reader of the file can: sizes before a call, and values by an output of the file.


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
    """Write conditions into an ONNX (``.onnx``) or IR (``.xml``) file, in place; without any, nothing is written."""
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
