"""A graph's assertions on values, such as assumptions of a fix, as results that each call checks.

Most targets drop assertions. So a lowered program returns the asserted values, and the call is refused afterwards.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from prepbench._torch_compat.programs import with_further_outputs
from prepbench.document.model import SourceLine
from prepbench.errors import ConditionError
from prepbench.running.source_lines import place_in_stack_trace, source_line

Program = torch.export.ExportedProgram
_ASSERTIONS = (torch.ops.aten._assert_async.default, torch.ops.aten._assert_async.msg)


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
    nodes = [node for node in program.graph.nodes if node.op == "call_function" and node.target in _ASSERTIONS]
    if not nodes:
        return program, ()
    found = tuple(ValueCondition(_text(node), _source(node)) for node in nodes)
    return with_further_outputs(program, {node: node.args[0] for node in nodes}), found


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


def _text(node: torch.fx.Node) -> str:
    message = f", which fails with: {node.args[1]}" if len(node.args) > 1 else ""
    return f"a check of values passes{message}"


def _source(node: torch.fx.Node) -> SourceLine | None:
    place = place_in_stack_trace(node.meta.get("stack_trace"))
    return None if place is None else source_line(*place)
