"""Which names are read after a statement."""

from __future__ import annotations

import ast
import textwrap

import pytest

from prepbench.capture.statements.ranges import Function, live_after, live_before, surely_stored


def function(text: str) -> Function:
    found = ast.parse(textwrap.dedent(text)).body[0]
    assert isinstance(found, ast.FunctionDef)
    return found


def statement_at(node: Function, line: int) -> ast.stmt:
    return next(each for each in ast.walk(node) if isinstance(each, ast.stmt) and each.lineno == line)


@pytest.mark.parametrize(
    ("text", "line", "live"),
    [
        ("def f(x):\n y = x\n z = y\n return z", 2, {"y"}),
        ("def f(x):\n y = x\n y = 2\n return y", 2, set()),
        ("def f(x):\n y = x\n y += 2\n return y", 2, {"y"}),
        ("def f(x, c):\n y = x\n if c:\n  y = 1\n return y", 2, {"y", "c"}),
        ("def f(x, c):\n y = x\n if c:\n  y = 1\n else:\n  y = 2\n return y", 2, {"c"}),
        ("def f(x):\n s = 0\n for i in x:\n  s = s + i\n  t = i\n return s", 4, {"s", "i", "x"} - {"x"}),
        ("def f(x):\n t = 0\n while x > t:\n  y = x\n  x = x - y\n return 1", 5, {"x", "t"}),
        ("def f(x):\n t = 0\n for i in x:\n  if i:\n   t = i\n   break\n  t = 1\n return t", 5, {"t"}),
        ("def f(x):\n y = x\n g = lambda: y\n y = 2\n return g", 4, {"g", "y"}),
        ("def f(x):\n y = x\n return [y for y in x]", 2, {"x"}),
        ("def f(x):\n y = x\n try:\n  y = 1\n except E:\n  pass\n return y", 2, {"y", "E"}),
        ("def f(x):\n y = x\n with c as y:\n  z = y\n return z", 2, {"c"}),
        ("def f(x, k):\n y = x\n match k:\n  case 1:\n   z = y\n return z", 2, {"k", "y", "z"}),
    ],
)
def test_live_after(text: str, line: int, live: set[str]) -> None:
    node = function(text)
    assert live_after(node)[statement_at(node, line)] == live


def test_what_a_branch_may_leave_as_it_was_is_live_before_it() -> None:
    node = function("def f(x, y):\n if x:\n  y = 1\n  t = y\n return y")
    assert live_before(node.body[:1], frozenset({"y"})) == {"x", "y"}


def test_surely_stored_needs_both_sides() -> None:
    node = function("def f(x):\n if x:\n  y = z = 1\n else:\n  y = 2\n for i in x:\n  k = 1")
    assert surely_stored(node.body) == {"y"}
