"""Attach fixes to failures."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import PurePath

from prepbench.document.model import Failure
from prepbench.fixes.results import Draft, Fix, Fixed


def attach_fixes(failures: Iterable[Failure], fixed: Fixed) -> None:
    """Attach the fix or draft of its line, or else of its module, to each failure."""
    for failure in failures:
        found = fix_of(failure, fixed)
        if found is not None:
            # no field: a failure is data, and documents hold only data
            object.__setattr__(failure, "_fix", found)


def fix_of(failure: Failure, fixed: Fixed) -> Fix | Draft | None:
    """Return the fix of a failure's line, or else of its module, or else its draft; None if there is none.

    If one fix of a module rests on an assumption, the module has only that draft: its other fixes are useless
    without it.
    """
    source = failure.source
    at_line = [
        fix
        for fix in fixed.applied
        if source and fix.line == source.line and PurePath(fix.file).name == PurePath(source.file).name
    ]
    in_module = [fix for fix in fixed.applied if fix.fqn == failure.fqn]
    drafts = [
        draft
        for draft in fixed.remaining
        if draft.failure.source == source and (draft.failure.fqn == failure.fqn or (source and draft.fix is not None))
    ]
    assuming = [draft for draft in fixed.remaining if draft.fix is not None and draft.fqn == failure.fqn]
    found: list[Fix | Draft] = [*assuming, *at_line, *drafts, *in_module]
    return found[0] if found else None
