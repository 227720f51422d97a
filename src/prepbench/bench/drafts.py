"""A draft of a fix as a notebook cell with the changed classes and functions, to edit and run where the model is."""

from __future__ import annotations

import re
from dataclasses import dataclass

from torch import nn

from prepbench.bench.names import Named
from prepbench.errors import SettingsError
from prepbench.fixes import CannotFix, Draft
from prepbench.fixes.cell import cell_of
from prepbench.fixes.source_text import SourceText
from prepbench.running.source_lines import file_of

_HEADER = re.compile(r"@@ -(\d+)")


@dataclass(frozen=True)
class _Hunk:
    line: int  # of the user's file, from 1
    before: tuple[str, ...]
    after: tuple[str, ...]


def draft_cell(model: nn.Module, draft: Draft, given: Named) -> str:
    """Return Python source that changes the classes of a model as the draft proposes; it runs as pasted.

    Args:
        model: the model.
        draft: a draft with a diff.
        given: how code calls the model there.

    Raises:
        SettingsError: there is no draft, or the file has changed since it was made.
    """
    source = draft.failure.source
    if not draft.diff or source is None:
        raise SettingsError(f"fqn: there is no draft for {draft.fqn!r}, {draft.reason}. Change its code by hand.")
    try:
        file = SourceText.of(file_of(source))
    except CannotFix as error:
        raise SettingsError(f"fqn: the draft for {draft.fqn!r} cannot be shown as a cell: {error}.") from error
    name = given.expressions["model"]
    lines = [
        f"# A draft, not proven: {draft.reason}.",
        f'# Edit it and run the cell, which changes the classes of {name}; then press "Capture again" in the bench.',
        *given.definitions,
        *([f"model = {name}"] if name != "model" else []),
    ]
    return "\n".join([*lines, "", cell_of(model, [file.with_text(_patched(file, draft))]).strip()]) + "\n"


def _patched(file: SourceText, draft: Draft) -> str:
    """Return the text of the user's file with the draft applied."""
    lines = file.text.splitlines()
    for hunk in reversed(_hunks(draft.diff)):
        count = len(hunk.before)
        places = [at for at in range(len(lines) - count + 1) if tuple(lines[at : at + count]) == hunk.before]
        if not places:
            raise SettingsError(
                f"fqn: the draft for {draft.fqn!r} does not fit {file.file} any more. Capture again to get a new one."
            )
        place = min(places, key=lambda at: abs(at + 1 - hunk.line))
        lines[place : place + count] = hunk.after
    return "\n".join(lines) + "\n"


def _hunks(diff: str) -> list[_Hunk]:
    """Return the hunks of a unified diff, in order."""
    found = []
    for part in re.split(r"(?m)^(?=@@ )", diff)[1:]:
        header, *rows = part.splitlines()
        number = _HEADER.match(header)
        before = tuple(row[1:] for row in rows if row[:1] in (" ", "-"))
        after = tuple(row[1:] for row in rows if row[:1] in (" ", "+"))
        found.append(_Hunk(int(number[1]) if number else 1, before, after))
    return found
