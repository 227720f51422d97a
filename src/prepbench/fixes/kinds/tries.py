"""``try`` around an operator that may fail: its form with an error code, and a branch on that."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import libcst as cst

from prepbench.fixes.kinds.effects import is_effect
from prepbench.fixes.kinds.kind import Kind
from prepbench.fixes.site import Proposal, Site
from prepbench.fixes.syntax import (
    CannotFix,
    Expression,
    Statement,
    block_of,
    body_of,
    expression,
    has_exit,
    read_names,
    replaced,
    statement,
    text_of,
    walk_here,
)

_TELLING = {"cholesky": "cholesky_ex", "inv": "inv_ex", "inverse": "inv_ex", "solve": "solve_ex"}
"""The operators of torch.linalg that raise, and their forms that return what went wrong as an integer."""


def propose(site: Site) -> Iterator[Proposal]:
    """Propose to rewrite every ``try`` of the function with one such operator."""
    if isinstance(site.function, cst.Lambda):
        return
    found: dict[cst.CSTNode, Any] = {}
    for node in site.expressions(cst.Try):
        calls = [call for call in walk_here(node.body) if isinstance(call, cst.Call) and _form(site, call) is not None]
        if calls:
            if len(calls) > 1 or len(node.handlers) != 1 or node.finalbody is not None:
                raise CannotFix("several operators may fail inside of try, or several handlers catch their errors")
            found[node] = cst.FlattenSentinel(_branch(site, node, calls[0]))
    if found:
        yield Proposal(replaced(site.function, found))


def _form(site: Site, call: cst.CSTNode) -> Expression | None:
    """Return the call of the form with an error code; None for other calls."""
    if not isinstance(call, cst.Call) or not isinstance(call.func, cst.Attribute):
        return None
    name, owner = call.func.attr.value, call.func.value
    if name not in _TELLING:
        return None
    function = expression(f"{{torch}}.linalg.{_TELLING[name]}", torch=site.torch)
    if text_of(owner) in (f"{text_of(site.torch)}.linalg", text_of(site.torch)):
        return cst.Call(function, call.args)
    if site.fact(owner).is_tensor and name in ("inverse", "cholesky") and not call.args:
        return cst.Call(function, [cst.Arg(owner)])
    return None


def _told(site: Site, handler: cst.ExceptHandler, call: cst.Call, info: str) -> tuple[list[Statement], list[Statement]]:
    """Split a handler into the statements that read its error, and the rest.

    The first run in Python only, where they get the error by calling the raising operator again.
    """
    name = text_of(handler.name.name) if handler.name is not None else ""
    body = body_of(handler.body)
    told = [each for each in body if name in read_names(each) and is_effect(site, each)] if name else []
    if not told:
        return [], body
    made: cst.If = statement(
        f"if not {{torch}}.compiler.is_compiling() and ({info} != 0).any():\n    try:\n        {{call}}\n"
        "    except {kind} as {name}:\n        pass",
        torch=site.torch, call=call, kind=handler.type or "Exception", name=name,
    )  # fmt: skip
    asked = cst.ensure_type(body_of(made.body)[0], cst.Try)
    handlers = [asked.handlers[0].with_changes(body=block_of(told))]
    made = made.with_changes(body=block_of([asked.with_changes(handlers=handlers)]))
    return [made], [each for each in body if each not in told]


def _branch(site: Site, node: cst.Try, call: cst.Call) -> Sequence[Statement]:
    handler = node.handlers[0]
    info = site.fresh("info")
    told, rest_of_handler = _told(site, handler, call, info)
    if handler.name is not None and text_of(handler.name.name) in read_names(rest_of_handler):
        raise CannotFix("what is done about the error reads the error itself")
    body = body_of(node.body)
    at = next(i for i, each in enumerate(body) if any(part is call for part in walk_here(each)))
    if has_exit(body[:at], cst.Return, cst.Break, cst.Continue):
        raise CannotFix("the block of try is left before the operator that may fail")
    telling = _form(site, call) or call
    first = statement(f"{info} = {{call}}.info", call=telling)
    first = first.with_changes(leading_lines=node.leading_lines)
    # called twice, so that its operands can be replaced where its result is not chosen
    rest = [replaced(body[at], {call: expression("{call}[0]", call=telling)}), *body[at + 1 :]]
    rest += body_of(node.orelse.body) if node.orelse is not None else []
    made: cst.If = statement(f"if ({info} != 0).any():\n    pass\nelse:\n    pass")
    made = made.with_changes(body=block_of(rest_of_handler), orelse=cst.Else(block_of(rest)))
    return [*body[:at], first, *told, made]


TRIES = Kind(
    "try around an operator becomes a branch on what the operator tells",
    "the error that is caught is the operator's",
    propose,
)
