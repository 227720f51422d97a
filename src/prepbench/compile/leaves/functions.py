"""Functions with ranges cut out, in the JSON of a manifest."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from prepbench.capture.statements.cut_functions import Address, CutFunction, CutRange, Move
from prepbench.compile.leaves.values import NoJson

_MOST = 10_000
_FIELD = re.compile(r"body|orelse|finalbody|handlers|cases")
_DIGEST = re.compile(r"[0-9a-f]{16}")


def function_to_json(cut: CutFunction) -> dict[str, Any]:
    """Return a function as JSON."""
    return {
        "path": [list(step) for step in cut.path],
        "module": cut.module,
        "source": list(cut.source),
        "syntax": cut.syntax,
        "moves": [[move.line, move.column, move.number] for move in cut.moves],
        "ranges": [
            {
                "start": [list(step) for step in each.start],
                "end": [list(step) for step in each.end],
                "lines": list(each.lines),
                "fqn": each.fqn,
            }
            for each in cut.ranges
        ],
    }


def function_from_json(data: Any) -> CutFunction:
    """Read a function from JSON of :func:`function_to_json`.

    Raises:
        NoJson: it is something else.
    """
    if not isinstance(data, dict) or set(data) != {"path", "module", "source", "syntax", "moves", "ranges"}:
        raise NoJson("a function of another form")
    source = _list(data["source"], lambda text: isinstance(text, str) and _DIGEST.fullmatch(text) is not None)
    moves = _list(data["moves"], lambda row: isinstance(row, list) and len(row) == 3 and all(map(_is_count, row)))
    if not isinstance(data["module"], str) or not isinstance(data["syntax"], str):
        raise NoJson("a function of another form")
    path = _steps(data["path"], lambda name: len(name) < 1000)
    return CutFunction(
        path,
        data["module"],
        tuple(source),
        data["syntax"],
        tuple(Move(*row) for row in moves),
        tuple(_range(row, len(source)) for row in _list(data["ranges"], lambda row: isinstance(row, dict))),
    )


def _range(row: dict[str, Any], count: int) -> CutRange:
    if set(row) != {"start", "end", "lines", "fqn"} or not isinstance(row["fqn"], str):
        raise NoJson("a range of another form")
    lines = _list(row["lines"], _is_count)
    if len(lines) != 2 or not 0 <= lines[0] <= lines[1] < count:
        raise NoJson("a range of lines that the function has not")
    start, end = (_steps(row[name], lambda name: _FIELD.fullmatch(name) is not None) for name in ("start", "end"))
    return CutRange(start, end, (lines[0], lines[1]), row["fqn"])


def _steps(data: Any, is_name: Callable[[str], bool]) -> Address:
    def is_step(step: Any) -> bool:
        return isinstance(step, list) and len(step) == 2 and isinstance(step[0], str) and _is_count(step[1])

    steps = _list(data, is_step)
    if not steps or not all(is_name(name) for name, _ in steps):
        raise NoJson("a place that is none")
    return tuple((name, index) for name, index in steps)


def _list(data: Any, is_part: Callable[[Any], bool]) -> list[Any]:
    if not isinstance(data, list) or len(data) > _MOST or not all(map(is_part, data)):
        raise NoJson("a list of another form")
    return data


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**31
