"""What to do about a condition on data, by the statement that it stands in."""

from __future__ import annotations

import ast
import functools
import linecache

from prepbench.capture.failures.reasons import CHECK_REMEDY, LOOP_REMEDY, VALUES_REMEDY

_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def remedy_of_branch(file: str, line: int) -> str | None:
    """The remedy for a check or a loop; None where choosing between two results helps, or the source is not known.

    Args:
        file: name of the file, or of the notebook's cell, as :mod:`linecache` knows it.
        line: the line of the condition, counted from 1.
    """
    tree = _tree("".join(linecache.getlines(file)))
    around = _around(tree, line) if tree is not None else []
    for at, node in reversed(list(enumerate(around))):
        if isinstance(node, ast.Assert):
            return CHECK_REMEDY
        if isinstance(node, ast.If) and _spans(node, node.test, line):
            return _remedy_of_if(node, around[:at])
        if isinstance(node, ast.While) and _spans(node, node.test, line):
            return LOOP_REMEDY
        if isinstance(node, ast.For | ast.AsyncFor) and _spans(node, node.iter, line):
            return VALUES_REMEDY
        if isinstance(node, ast.IfExp) and _spans(node.test, node.test, line):
            return None
        if isinstance(node, _COMPREHENSIONS):
            return VALUES_REMEDY
    return None


def _remedy_of_if(node: ast.If, around: list[ast.AST]) -> str | None:
    if isinstance(node.body[-1], ast.Raise):
        return CHECK_REMEDY
    is_in_loop = any(isinstance(each, ast.While | ast.For | ast.AsyncFor) for each in around)
    return LOOP_REMEDY if is_in_loop and isinstance(node.body[-1], ast.Break | ast.Return) else None


def _spans(statement: ast.AST, test: ast.expr, line: int) -> bool:
    """Whether a line belongs to the head of a statement."""
    first: int = getattr(statement, "lineno", test.lineno)
    return first <= line <= (test.end_lineno or test.lineno)


def _around(tree: ast.AST, line: int) -> list[ast.AST]:
    """The nodes around a line within its innermost function, outermost first."""
    found: list[ast.AST] = []
    for node in ast.iter_child_nodes(tree):
        if getattr(node, "lineno", 0) <= line <= (getattr(node, "end_lineno", None) or 0):
            inner = _around(node, line)
            found = [*inner] if any(isinstance(each, _SCOPES) for each in inner) else [*found, node, *inner]
    return found


@functools.lru_cache(maxsize=16)
def _tree(text: str) -> ast.Module | None:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return None
