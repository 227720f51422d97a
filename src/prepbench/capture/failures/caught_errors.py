"""What a graph does not have: the handlers of ``try`` around what it computes."""

from __future__ import annotations

import ast
import functools
import linecache
import re
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from prepbench.document.model import Finding
from prepbench.running.source_lines import code_frame, is_user_file, source_line

CAUGHT = "errors are not caught"

_REMEDY = (
    "Ask before the call whether it would fail, or use the operator's form that tells, such as "
    "torch.linalg.cholesky_ex, and choose between the two results with torch.where."
)


@dataclass(frozen=True)
class _Try:
    line: int
    block: range  # the lines that may raise
    handlers: range
    caught: str


def findings_of_tries(program: torch.export.ExportedProgram) -> Iterator[Finding]:
    """Each ``try`` whose block or handler the graph computes; the other one is not part of it."""
    owners: dict[tuple[str, _Try], torch.fx.Node] = {}
    handled: set[tuple[str, _Try]] = set()
    for node in program.graph.nodes:
        for file, line in re.findall(r'File "([^"]+)", line (\d+)', node.meta.get("stack_trace") or ""):
            for each in _tries(file) if is_user_file(file) else ():
                if int(line) in each.block or int(line) in each.handlers:
                    owners.setdefault((file, each), node)
                if int(line) in each.handlers:
                    handled.add((file, each))
    for (file, each), node in owners.items():
        fqn, kind = (list((node.meta.get("nn_module_stack") or {}).values()) or [("", "")])[-1]
        kind = kind if isinstance(kind, str) else kind.__name__
        text = (
            f"forward catches {each.caught} here, and a sample raised it: the graph always does what the handler does."
            if (file, each) in handled
            else f"forward catches {each.caught} here, and no sample raised it: the graph has no handler, so it raises."
        )
        place = source_line(file, each.line)
        yield Finding(fqn, kind.rpartition(".")[2], CAUGHT, text, place, code_frame(file, each.line), _REMEDY)


def _tries(file: str) -> tuple[_Try, ...]:
    return _tries_of("".join(linecache.getlines(file)))


@functools.lru_cache(maxsize=64)
def _tries_of(text: str) -> tuple[_Try, ...]:
    try:
        tree = ast.parse(text)
    except SyntaxError:  # a file that has changed since it was imported
        return ()
    return tuple(_described(node) for node in ast.walk(tree) if isinstance(node, ast.Try) and _goes_on(node))


def _goes_on(node: ast.Try) -> bool:
    """Whether a handler does more than to raise."""
    return any(not isinstance(handler.body[-1], ast.Raise) for handler in node.handlers)


def _described(node: ast.Try) -> _Try:
    caught = [ast.unparse(handler.type) if handler.type is not None else "every error" for handler in node.handlers]
    block = range(node.body[0].lineno, (node.body[-1].end_lineno or node.body[-1].lineno) + 1)
    last = node.handlers[-1].body[-1]
    handlers = range(node.handlers[0].lineno, (last.end_lineno or last.lineno) + 1)
    return _Try(node.lineno, block, handlers, ", ".join(caught))
