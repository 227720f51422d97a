"""Checks of values, which become assertions in the graph, and ``try`` around an operator that may fail."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce
from typing import Any

import libcst as cst

from prepbench.capture.failures.checks_of_values import CHECK_FUNCTIONS
from prepbench.fixes import syntax
from prepbench.fixes.kinds.conditions import condition_of, depends_on_data
from prepbench.fixes.kinds.effects import is_effect
from prepbench.fixes.site import Kind, Proposal, Site
from prepbench.fixes.syntax import CannotFix, Expression, Statement

_CALLED = {f"torch.{name}" for name in ("_assert", *CHECK_FUNCTIONS)}


def propose_checks(site: Site) -> Iterator[Proposal]:
    """Propose to rewrite every check of data in the function, and one of sizes at the failing line."""
    if isinstance(site.function, cst.Lambda):
        return
    found: dict[cst.CSTNode, Any] = {}
    conditions = []
    for line in site.expressions(cst.SimpleStatementLine):
        small = syntax.small_of(line)
        if isinstance(small, cst.Assert) and depends_on_data(site, small.test):
            found[line] = _assertion(site, line, small)
            conditions.append(site.place(small.test))
        elif isinstance(small, cst.Assert) and _is_of_sizes(site, small.test):
            found[line] = _assertion(site, line, small, of_sizes=True)
        elif (called := _called_check(small)) is not None and depends_on_data(site, called.test):
            found[line] = _assertion(site, line, called)  # whose sides are no branches of Python that trials could see
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
        yield Proposal(syntax.replaced(site.function, found), tuple(conditions), is_compiling=True)


def _called_check(small: cst.BaseSmallStatement) -> cst.Assert | None:
    """Return the assertion that ``torch._check(test, message)`` or ``torch._assert(test, message)`` stands for."""
    if not isinstance(small, cst.Expr) or not isinstance(small.value, cst.Call) or not small.value.args:
        return None
    called, (first, *more) = small.value, small.value.args
    if syntax.text_of(called.func) not in _CALLED or first.keyword is not None or first.star:
        return None
    test = first.value
    if isinstance(test, cst.Call) and syntax.text_of(test.func) == "bool" and len(test.args) == 1:
        test = test.args[0].value
    said = more[0].value if more else None
    return cst.Assert(test, said.body if isinstance(said, cst.Lambda) else said)


def is_check(node: cst.If) -> bool:
    """Return whether a branch does nothing but raise."""
    body = syntax.body_of(node.body)
    return node.orelse is None and len(body) == 1 and isinstance(syntax.small_of(body[0]), cst.Raise)


def _refusing_tests(node: cst.If) -> list[Expression]:
    """Return the tests of ``if ... elif ... else: raise``; empty where the end differs."""
    tests, last = [node.test], node
    while isinstance(last.orelse, cst.If):
        last = last.orelse
        tests.append(last.test)
    body = syntax.body_of(last.orelse.body) if isinstance(last.orelse, cst.Else) else []
    return tests if len(tests) > 1 and len(body) == 1 and isinstance(syntax.small_of(body[0]), cst.Raise) else []


def _refused_otherwise(site: Site, node: cst.If, tests: Sequence[Expression]) -> Sequence[cst.BaseStatement]:
    """Return an assertion that one of the tests holds, and the branch with its last test turned into ``else``."""
    whole = reduce(lambda a, b: cst.BooleanOperation(a, cst.Or(), b), [syntax.atom(test) for test in tests])
    sides: list[Any] = [node]
    while isinstance(sides[-1].orelse, cst.If):
        sides.append(sides[-1].orelse)
    raised = syntax.body_of(sides[-1].orelse.body)[0]
    made: cst.If = syntax.statement(
        "if {torch}.compiler.is_compiling():\n    {torch}._assert_async({test}, {text})\nelif not {whole}:\n    pass",
        torch=site.torch, test=condition_of(site, whole), text=_raised_message(raised, whole), whole=syntax.atom(whole),
    )  # fmt: skip
    refusal = cst.ensure_type(made.orelse, cst.If).with_changes(body=syntax.block_of([raised]))
    orelse: Any = cst.Else(sides[-1].body)
    for side in reversed(sides[:-1]):
        orelse = side.with_changes(orelse=orelse)
    made = made.with_changes(orelse=refusal, leading_lines=node.leading_lines)
    return [made, orelse.with_changes(leading_lines=())]


def _raised_message(line: cst.BaseStatement, test: Expression) -> Expression:
    error = syntax.small_of(line).exc
    arguments = error.args if isinstance(error, cst.Call) else ()
    return _message(arguments[0].value if arguments else None, test)


def _assertion(site: Site, line: cst.SimpleStatementLine, small: cst.Assert, *, of_sizes: bool = False) -> cst.If:
    text = _message(small.msg, small.test)
    checks = _checks_of_sizes(site, small.test, text) if of_sizes else [_check(site, small.test, text)]
    made = cst.If(syntax.expression("{torch}.compiler.is_compiling()", torch=site.torch), syntax.block_of(checks))
    orelse = cst.Else(cst.IndentedBlock([line.with_changes(leading_lines=())]))
    return made.with_changes(orelse=orelse, leading_lines=line.leading_lines)


def _check(site: Site, test: Expression, text: Expression) -> Statement:
    condition = condition_of(site, test)
    made: Statement = syntax.statement("{torch}._assert_async({c}, {text})", torch=site.torch, c=condition, text=text)
    return made


def _is_of_sizes(site: Site, test: Expression) -> bool:
    """Return whether the failing line compares numbers, or lists of them, such as sizes that values decide."""
    return site.is_at_line(test) and isinstance(test, cst.Comparison) and site.fact(test).kinds == {"bool"}


def _checks_of_sizes(site: Site, test: Any, text: Expression) -> list[Statement]:
    """Return checks by which torch knows in what follows that sizes are equal; one for each element of a list."""
    (target, *more), pairs = test.comparisons, [(test, False)]
    if not more and isinstance(target.operator, cst.Equal) and isinstance(target.comparator, cst.List | cst.Tuple):
        elements = target.comparator.elements
        if any(isinstance(element, cst.StarredElement) for element in elements):
            raise CannotFix("the number of values in a list is not known")
        pairs = []
        for index, value in enumerate(syntax.atom(element.value) for element in elements):
            equal = syntax.expression(f"{{left}}[{index}] == {{right}}", left=syntax.atom(test.left), right=value)
            pairs.append((equal, site.fact(elements[index].value).is_tensor))
    return [
        syntax.statement("{torch}._assert_async({c}, {text})" if is_tensor else "{torch}._check({c}, lambda: {text})",
                  torch=site.torch, c=condition, text=text)
        for condition, is_tensor in pairs
    ]  # fmt: skip


def _refusal(site: Site, node: cst.If) -> cst.If:
    made: cst.If = syntax.statement(
        "if {torch}.compiler.is_compiling():\n    {torch}._assert_async(~{test}, {text})",
        torch=site.torch, test=syntax.atom(condition_of(site, node.test)),
        text=_raised_message(syntax.body_of(node.body)[0], node.test),
    )  # fmt: skip
    return made.with_changes(orelse=node.with_changes(leading_lines=()), leading_lines=node.leading_lines)


def _message(message: Expression | None, test: Expression) -> Expression:
    """Return a text that is known without data: the user's, or the condition itself."""
    if isinstance(message, cst.SimpleString):
        return message
    return syntax.quoted(syntax.text_of(test))


CHECKS = Kind(
    "a check of values becomes an assertion of the graph",
    "the check only refuses calls; in the graph it raises RuntimeError, in Python what it raised before",
    propose_checks,
)


_TELLING = {"cholesky": "cholesky_ex", "inv": "inv_ex", "inverse": "inv_ex", "solve": "solve_ex"}
"""The operators of torch.linalg that raise, and their forms that return what went wrong as an integer."""


def propose_tries(site: Site) -> Iterator[Proposal]:
    """Propose to rewrite every ``try`` of the function with one such operator."""
    if isinstance(site.function, cst.Lambda):
        return
    found: dict[cst.CSTNode, Any] = {}
    for node in site.expressions(cst.Try):
        calls = [
            call for call in syntax.walk_here(node.body) if isinstance(call, cst.Call) and _form(site, call) is not None
        ]
        if calls:
            if len(calls) > 1 or len(node.handlers) != 1 or node.finalbody is not None:
                raise CannotFix("several operators may fail inside of try, or several handlers catch their errors")
            found[node] = cst.FlattenSentinel(_branch(site, node, calls[0]))
    if found:
        yield Proposal(syntax.replaced(site.function, found))


def _form(site: Site, call: cst.CSTNode) -> Expression | None:
    """Return the call of the form with an error code; None for other calls."""
    if not isinstance(call, cst.Call) or not isinstance(call.func, cst.Attribute):
        return None
    name, owner = call.func.attr.value, call.func.value
    if name not in _TELLING:
        return None
    function = syntax.expression(f"{{torch}}.linalg.{_TELLING[name]}", torch=site.torch)
    if syntax.text_of(owner) in (f"{syntax.text_of(site.torch)}.linalg", syntax.text_of(site.torch)):
        return cst.Call(function, call.args)
    if site.fact(owner).is_tensor and name in ("inverse", "cholesky") and not call.args:
        return cst.Call(function, [cst.Arg(owner)])
    return None


def _told(site: Site, handler: cst.ExceptHandler, call: cst.Call, info: str) -> tuple[list[Statement], list[Statement]]:
    """Split a handler into the statements that read its error, and the rest.

    The first run in Python only, where they get the error by calling the raising operator again.
    """
    name = syntax.text_of(handler.name.name) if handler.name is not None else ""
    body = syntax.body_of(handler.body)
    told = [each for each in body if name in syntax.read_names(each) and is_effect(site, each)] if name else []
    if not told:
        return [], body
    made: cst.If = syntax.statement(
        f"if not {{torch}}.compiler.is_compiling() and ({info} != 0).any():\n    try:\n        {{call}}\n"
        "    except {kind} as {name}:\n        pass",
        torch=site.torch, call=call, kind=handler.type or "Exception", name=name,
    )  # fmt: skip
    asked = cst.ensure_type(syntax.body_of(made.body)[0], cst.Try)
    handlers = [asked.handlers[0].with_changes(body=syntax.block_of(told))]
    made = made.with_changes(body=syntax.block_of([asked.with_changes(handlers=handlers)]))
    return [made], [each for each in body if each not in told]


def _branch(site: Site, node: cst.Try, call: cst.Call) -> Sequence[Statement]:
    handler = node.handlers[0]
    info = site.fresh("info")
    told, rest_of_handler = _told(site, handler, call, info)
    if handler.name is not None and syntax.text_of(handler.name.name) in syntax.read_names(rest_of_handler):
        raise CannotFix("what is done about the error reads the error itself")
    body = syntax.body_of(node.body)
    at = next(i for i, each in enumerate(body) if any(part is call for part in syntax.walk_here(each)))
    if syntax.has_exit(body[:at], cst.Return, cst.Break, cst.Continue):
        raise CannotFix("the block of try is left before the operator that may fail")
    telling = _form(site, call) or call
    first = syntax.statement(f"{info} = {{call}}.info", call=telling)
    first = first.with_changes(leading_lines=node.leading_lines)
    # called twice, so that its operands can be replaced where its result is not chosen
    rest = [syntax.replaced(body[at], {call: syntax.expression("{call}[0]", call=telling)}), *body[at + 1 :]]
    rest += syntax.body_of(node.orelse.body) if node.orelse is not None else []
    made: cst.If = syntax.statement(f"if ({info} != 0).any():\n    pass\nelse:\n    pass")
    made = made.with_changes(body=syntax.block_of(rest_of_handler), orelse=cst.Else(syntax.block_of(rest)))
    return [*body[:at], first, *told, made]


TRIES = Kind(
    "try around an operator becomes a branch on what the operator tells",
    "the error that is caught is the operator's",
    propose_tries,
)
