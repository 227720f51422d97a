"""``continue`` in a loop, as the other side of its condition."""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst

from prepbench.fixes.cannot_fix import CannotFix
from prepbench.fixes.syntax import Statement, block_of, body_of, has_exit, orelse_of, small_of


def without_continue(statements: Sequence[Statement]) -> list[Statement]:
    """``if c: ...; continue`` and the rest as ``if c: ... else: rest``."""
    for index, each in enumerate(statements):
        if not (isinstance(each, cst.If) and has_exit(each, cst.Continue)):
            continue
        body, rest = body_of(each.body), list(statements[index + 1 :])
        if not isinstance(small_of(body[-1]), cst.Continue) or has_exit([*body[:-1], *orelse_of(each)], cst.Continue):
            raise CannotFix("the loop goes on in more than one way at once")
        if has_exit(rest, cst.Break):
            raise CannotFix("the loop goes on and is left")
        other = without_continue([*orelse_of(each), *rest])
        orelse = cst.Else(block_of(other)) if other else None
        # changed in place, because it is known by what it is
        object.__setattr__(each, "body", block_of(body[:-1]))
        object.__setattr__(each, "orelse", orelse)
        return [*statements[:index], each]
    return list(statements)
