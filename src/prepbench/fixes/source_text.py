"""The text of a user's file: original, changed, and as code."""

from __future__ import annotations

import ast
import difflib
import functools
import linecache
import types
import zlib
from collections.abc import Collection
from dataclasses import dataclass, replace

from prepbench.errors import PrepbenchError
from prepbench.running.source_lines import CodePath, cell_flags, file_codes, source_line


@dataclass(frozen=True)
class SourceText:
    """The text of one file or notebook cell.

    Attributes:
        file: the name that Python knows it by.
        original: the text as the user wrote it.
        text: the text with changes.
    """

    file: str
    original: str
    text: str

    @classmethod
    def of(cls, file: str) -> SourceText:
        """Return the text of a file, notebook cell or other source that Python's tracebacks can show.

        Raises:
            CannotFix: there is none, or it is not Python.
        """
        linecache.checkcache(file)
        text = "".join(linecache.getlines(file))
        if not text:
            raise CannotFix(f"the source of {file} is not available")
        try:
            _codes(text, file, cell_flags(file))
        except SyntaxError as error:
            raise CannotFix(f"{file} is not Python: {error.msg}") from error
        return cls(file, text, text)

    @property
    def name(self) -> str:
        """The name by which tracebacks find the changed text."""
        is_changed = self.text != self.original
        return (
            f"<fixed {source_line(self.file, 1).file} {zlib.crc32(self.text.encode()):08x}>"
            if is_changed
            else self.file
        )

    def with_text(self, text: str) -> SourceText:
        return replace(self, text=text)

    def shown(self) -> None:
        """Register the changed text for tracebacks."""
        if self.name != self.file:
            linecache.cache[self.name] = (len(self.text), None, self.text.splitlines(True), self.name)

    def forgotten(self) -> None:
        """Undo :meth:`shown`."""
        if self.name != self.file:
            linecache.cache.pop(self.name, None)

    def codes(self) -> dict[CodePath, types.CodeType]:
        """Return the changed text as code objects."""
        return _codes(self.text, self.name, cell_flags(self.file))

    def original_codes(self) -> dict[CodePath, types.CodeType]:
        """Return the user's text as code objects."""
        return _codes(self.original, self.file, cell_flags(self.file))

    def changes(self, within: Collection[CodePath] | None = None) -> dict[types.CodeType, types.CodeType]:
        """Return the changed code by the code that it replaces; all of it, or only that inside of some functions."""
        now = self.codes()
        return {
            old: now[path]
            for path, old in self.original_codes().items()
            if now.get(path, old) != old and (within is None or any(path[: len(p)] == p for p in within))
        }

    def original_line(self, line: int) -> int:
        """Return the line of the user's file that a line of the changed text came from, or the one before it."""
        before, after = self.original.splitlines(), self.text.splitlines()
        for _, a, b, c, d in difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
            if c <= line - 1 < d:
                return min(a + (line - 1 - c), max(b - 1, a)) + 1
        return min(line, len(before))

    def is_new(self, line: int, since: str) -> bool:
        """Return whether a line of the changed text is not in an earlier text."""
        before, after = since.splitlines(), self.text.splitlines()
        blocks = difflib.SequenceMatcher(None, before, after, autojunk=False).get_matching_blocks()
        return not any(block.b <= line - 1 < block.b + block.size for block in blocks)

    def changed_lines(self, since: str) -> tuple[int, int]:
        """Return the first and the last changed line of an earlier text; 1 and 1 if all are."""
        before, after = since.splitlines(), self.text.splitlines()
        changes = difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes()
        lines = [(a + 1, max(a + 1, b)) for kind, a, b, *_ in changes if kind != "equal"]
        return (lines[0][0], lines[-1][1]) if lines else (1, 1)

    def diff(self, since: str | None = None) -> str:
        """Return the unified diff of the user's file, or of an earlier ``since``; line numbers are those of the
        file.
        """
        before, name = self.original if since is None else since, source_line(self.file, 1).file
        lines = difflib.unified_diff(before.splitlines(True), self.text.splitlines(True), name, name, n=2)
        earlier = replace(self, text=before)
        return "".join(_renumbered(line, earlier) if line.startswith("@@") else line for line in lines)


def _renumbered(header: str, earlier: SourceText) -> str:
    """Return the header of a diff with the number of its first line in the user's file."""
    _, old, new, *_ = header.split()
    first, _, count = old[1:].partition(",")
    line = earlier.original_line(int(first)) if int(first) else 0
    return f"@@ -{line}{',' + count if count else ''} {new} @@\n"


@functools.lru_cache(maxsize=256)
def _codes(text: str, name: str, flags: int | None) -> dict[CodePath, types.CodeType]:
    return file_codes(ast.parse(text), name, flags)


def equal_but_for_lines(one: types.CodeType, other: types.CodeType | None) -> bool:
    """Return whether two code objects differ in their lines at most."""
    if other is None or len(one.co_consts) != len(other.co_consts):
        return False
    left, right = ((c.co_code, c.co_names, c.co_varnames, c.co_freevars, c.co_cellvars) for c in (one, other))
    if left != right:
        return False
    return all(
        equal_but_for_lines(a, b if isinstance(b, types.CodeType) else None)
        if isinstance(a, types.CodeType)
        else repr(a) == repr(b)
        for a, b in zip(one.co_consts, other.co_consts, strict=True)
    )


# ``CannotFix``: a kind of change does not apply.


class CannotFix(PrepbenchError, ValueError):
    """The change does not apply or would be wrong; the message says why."""
