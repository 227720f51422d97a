"""Checks of values: ``assert`` and ``raise if`` still raise in Python, and become assertions in the graph."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce
from typing import Any

import libcst as cst

from prepbench.fixes.kinds.conditions import condition_of, depends_on_data
from prepbench.fixes.kinds.kind import Kind
from prepbench.fixes.site import Proposal, Site
from prepbench.fixes.syntax import Expression, atom, block_of, body_of, quoted, replaced, small_of, statement, text_of


def propose(site: Site) -> Iterator[Proposal]:
    """Propose to rewrite every data-dependent check of the function."""
    if isinstance(site.function, cst.Lambda):
        return
    found: dict[cst.CSTNode, Any] = {}
    conditions = []
    for line in site.expressions(cst.SimpleStatementLine):
        small = small_of(line)
        if isinstance(small, cst.Assert) and depends_on_data(site, small.test):
            found[line] = _assertion(site, line, small)
            conditions.append(site.place(small.test))
    branches = site.expressions(cst.If)
    elifs = {node.orelse for node in branches}
    for node in branches:
        if is_check(node) and depends_on_data(site, node.test):
            found[node] = _refusal(site, node)
            conditions.append(site.place(node.test))
            continue
        tests = _refusing_tests(node) if node not in elifs else []
        if any(depends_on_data(site, test) for test in tests):
            found[node] = cst.FlattenSentinel(_refused_otherwise(site, node, tests))
    if found:
        yield Proposal(replaced(site.function, found), tuple(conditions), is_compiling=True)


def is_check(node: cst.If) -> bool:
    """Return whether a branch does nothing but raise."""
    body = body_of(node.body)
    return node.orelse is None and len(body) == 1 and isinstance(small_of(body[0]), cst.Raise)


def _refusing_tests(node: cst.If) -> list[Expression]:
    """Return the tests of ``if ... elif ... else: raise``; empty where the end differs."""
    tests, last = [node.test], node
    while isinstance(last.orelse, cst.If):
        last = last.orelse
        tests.append(last.test)
    body = body_of(last.orelse.body) if isinstance(last.orelse, cst.Else) else []
    return tests if len(tests) > 1 and len(body) == 1 and isinstance(small_of(body[0]), cst.Raise) else []


def _refused_otherwise(site: Site, node: cst.If, tests: Sequence[Expression]) -> Sequence[cst.BaseStatement]:
    """Return an assertion that one of the tests holds, and the branch with its last test turned into ``else``."""
    whole = reduce(lambda a, b: cst.BooleanOperation(a, cst.Or(), b), [atom(test) for test in tests])
    sides: list[Any] = [node]
    while isinstance(sides[-1].orelse, cst.If):
        sides.append(sides[-1].orelse)
    raised = body_of(sides[-1].orelse.body)[0]
    made: cst.If = statement(
        "if {torch}.compiler.is_compiling():\n    {torch}._assert_async({test}, {text})\nelif not {whole}:\n    pass",
        torch=site.torch, test=condition_of(site, whole), text=_raised_message(raised, whole), whole=atom(whole),
    )  # fmt: skip
    refusal = cst.ensure_type(made.orelse, cst.If).with_changes(body=block_of([raised]))
    orelse: Any = cst.Else(sides[-1].body)
    for side in reversed(sides[:-1]):
        orelse = side.with_changes(orelse=orelse)
    made = made.with_changes(orelse=refusal, leading_lines=node.leading_lines)
    return [made, orelse.with_changes(leading_lines=())]


def _raised_message(line: cst.BaseStatement, test: Expression) -> Expression:
    error = small_of(line).exc
    arguments = error.args if isinstance(error, cst.Call) else ()
    return _message(arguments[0].value if arguments else None, test)


def _assertion(site: Site, line: cst.SimpleStatementLine, small: cst.Assert) -> cst.If:
    made: cst.If = statement(
        "if {torch}.compiler.is_compiling():\n    {torch}._assert_async({test}, {text})\nelse:\n    pass",
        torch=site.torch, test=condition_of(site, small.test), text=_message(small.msg, small.test),
    )  # fmt: skip
    orelse = cst.Else(cst.IndentedBlock([line.with_changes(leading_lines=())]))
    return made.with_changes(orelse=orelse, leading_lines=line.leading_lines)


def _refusal(site: Site, node: cst.If) -> cst.If:
    made: cst.If = statement(
        "if {torch}.compiler.is_compiling():\n    {torch}._assert_async(~{test}, {text})",
        torch=site.torch, test=atom(condition_of(site, node.test)),
        text=_raised_message(body_of(node.body)[0], node.test),
    )  # fmt: skip
    return made.with_changes(orelse=node.with_changes(leading_lines=()), leading_lines=node.leading_lines)


def _message(message: Expression | None, test: Expression) -> Expression:
    """Return a text that is known without data: the user's, or the condition itself."""
    if isinstance(message, cst.SimpleString):
        return message
    return quoted(text_of(test))


CHECKS = Kind(
    "a check of values becomes an assertion of the graph",
    "the check only refuses calls; in the graph it raises RuntimeError, in Python what it raised before",
    propose,
)
