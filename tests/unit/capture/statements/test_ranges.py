"""The range of statements that a failing line makes."""

from __future__ import annotations

import ast

import pytest

from prepbench.capture.statements.ranges import statement_at


def lines(text: str, line: int) -> tuple[int, int] | None:
    function = ast.parse(text).body[0]
    assert isinstance(function, ast.FunctionDef)
    found = statement_at(function, line)
    assert found is not None
    closed = found.closed()
    return None if closed is None else closed.lines


@pytest.mark.parametrize(
    ("text", "line", "expected"),
    [
        ("def f(x):\n a = 1\n b = 2\n return a", 3, (3, 3)),
        ("def f(x):\n a = 1\n if x:\n  b = 2\n return a", 3, (3, 4)),
        ("def f(x):\n a = 1\n for i in x:\n  b = 2\n return a", 4, (4, 4)),
        ("def f(x):\n a = 1\n for i in x:\n  if i:\n   break\n return a", 4, (3, 5)),
        ("def f(x):\n a = 1\n for i in x:\n  for j in i:\n   if j:\n    continue\n   a = j\n return a", 5, (4, 7)),
        ("def f(x):\n a = 1\n if x:\n  return a\n b = 1\n return b", 3, (3, 6)),
        ("def f(x):\n a = 1\n for i in x:\n  if i:\n   return a\n b = 1\n return b", 4, (3, 7)),
        ("def f(x):\n a = 1\n try:\n  b = 2\n finally:\n  c = 1\n return a", 4, (3, 6)),
        ("def f(x):\n a = 1\n with autocast('cpu'):\n  b = 2\n return a", 4, (3, 4)),
        ("def f(x):\n a = 1\n with torch.no_grad():\n  b = 2\n return a", 4, (4, 4)),
        ("def f(x):\n a = 1\n if x:\n  pass\n elif a:\n  b = 1\n return a", 5, (5, 6)),
        ("def f(x):\n a = 1\n b = [i for i in x if i]\n return b", 3, (3, 3)),
        ("def f(x):\n a = 1\n b = locals()\n return b", 3, None),
        ("def f(x):\n a = 1\n yield a\n return b", 3, None),
        ("def f(x):\n 'text'\n if x:\n  return 1\n return 2", 3, None),
    ],
)
def test_the_smallest_range_with_one_way_in_and_one_way_out(
    text: str, line: int, expected: tuple[int, int] | None
) -> None:
    assert lines(text, line) == expected


def test_a_range_grows_to_the_next_statement_and_then_to_the_one_around() -> None:
    function = ast.parse("def f(x):\n if x:\n  a = 1\n  b = 2\n c = 3\n return c").body[0]
    assert isinstance(function, ast.FunctionDef)
    found, seen = statement_at(function, 3), []
    while found is not None:
        seen.append(found.lines)
        found = found.with_next()
    assert seen == [(3, 3), (3, 4), (2, 4), (2, 5)]
