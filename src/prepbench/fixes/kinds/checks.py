"""Checks of values: ``assert`` and ``raise if`` go on to raise in Python, and become assertions in the graph."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from prepbench.fixes.kinds.conditions import condition_of, depends_on_data
from prepbench.fixes.kinds.kind import Kind
from prepbench.fixes.site import Proposal, Site
from prepbench.fixes.syntax import Expression, atom, body_of, quoted, replaced, small_of, statement, text_of


def propose(site: Site) -> Iterator[Proposal]:
    """Every check of the function that depends on data."""
    if isinstance(site.function, cst.Lambda):
        return
    found: dict[cst.CSTNode, cst.CSTNode] = {}
    conditions = []
    for line in site.expressions(cst.SimpleStatementLine):
        small = small_of(line)
        if isinstance(small, cst.Assert) and depends_on_data(site, small.test):
            found[line] = _assertion(site, line, small)
            conditions.append(site.place(small.test))
    for node in site.expressions(cst.If):
        if is_check(node) and depends_on_data(site, node.test):
            found[node] = _refusal(site, node)
            conditions.append(site.place(node.test))
    if found:
        yield Proposal(replaced(site.function, found), tuple(conditions), is_compiling=True)


def is_check(node: cst.If) -> bool:
    """Whether all that a branch does is to raise."""
    body = body_of(node.body)
    return node.orelse is None and len(body) == 1 and isinstance(small_of(body[0]), cst.Raise)


def _assertion(site: Site, line: cst.SimpleStatementLine, small: cst.Assert) -> cst.If:
    made: cst.If = statement(
        "if {torch}.compiler.is_compiling():\n    {torch}._assert_async({test}, {text})\nelse:\n    pass",
        torch=site.torch, test=condition_of(site, small.test), text=_message(small.msg, small.test),
    )  # fmt: skip
    orelse = cst.Else(cst.IndentedBlock([line.with_changes(leading_lines=())]))
    return made.with_changes(orelse=orelse, leading_lines=line.leading_lines)


def _refusal(site: Site, node: cst.If) -> cst.If:
    error = small_of(body_of(node.body)[0]).exc
    arguments = error.args if isinstance(error, cst.Call) else ()
    made: cst.If = statement(
        "if {torch}.compiler.is_compiling():\n    {torch}._assert_async(~{test}, {text})",
        torch=site.torch, test=atom(condition_of(site, node.test)),
        text=_message(arguments[0].value if arguments else None, node.test),
    )  # fmt: skip
    return made.with_changes(orelse=node.with_changes(leading_lines=()), leading_lines=node.leading_lines)


def _message(message: Expression | None, test: Expression) -> Expression:
    """A text that is known without data: the user's, or the condition itself."""
    if isinstance(message, cst.SimpleString):
        return message
    return quoted(text_of(test))


CHECKS = Kind(
    "a check of values becomes an assertion of the graph",
    "the check only refuses calls; in the graph it raises RuntimeError, in Python what it raised before",
    propose,
)
