"""The results of :func:`prepbench.fix`: fixes with their proof, and drafts with the reason why they are not fixes."""

from __future__ import annotations

import functools
import os
import tokenize
import types
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

import torch

from prepbench._display import view
from prepbench.document.model import Failure
from prepbench.errors import StorageError, UnknownNameError
from prepbench.fixes.syntax import SourceText
from prepbench.running.source_lines import source_line
from prepbench.storage import typed_errors, write_file

if TYPE_CHECKING:
    from pathlib import Path

    from prepbench.fixes.site import Limit
    from prepbench.fixes.syntax import SourceText


_ASSUMED: weakref.WeakKeyDictionary[torch.nn.Module, tuple[str, ...]] = weakref.WeakKeyDictionary()


def assumptions_of(model: Any) -> tuple[str, ...]:
    """Return the assumptions of a model that :func:`prepbench.fix` made, in words."""
    return _ASSUMED.get(model, ()) if isinstance(model, torch.nn.Module) else ()


def fixed_model(model: torch.nn.Module, applied: Sequence[Fix]) -> torch.nn.Module:
    """Return the model, marked with the assumptions of its fixes."""
    _ASSUMED[model] = tuple(fix.assumption for fix in applied if fix.assumption)
    return model


@dataclass(frozen=True)
class Fix:
    """A proven change to the user's source that removes a failure.

    Attributes:
        fqn: the first module that it is for ("" is the model itself).
        kind: the rewrite in words, e.g. ``"a branch on a tensor becomes torch.where"``.
        diff: the change as a unified diff of the user's file.
        file: that file, as Python names it.
        line: the line of the failure there, or the first that is changed, if the change stands elsewhere.
        right_if: the condition under which the change is correct.
        assumption: beyond the samples; "" for none. One about values is checked at run time, one about shapes is not.
        proof: a description of the proof.
        function: the names that lead to the changed function in its file.
        limit: the assumption as data.
    """

    fqn: str
    kind: str
    diff: str
    file: str
    line: int
    right_if: str
    proof: str
    assumption: str = ""
    function: tuple[tuple[str, int], ...] = ()
    limit: Limit | None = None

    @property
    def narrows(self) -> bool:
        """Whether the changed model refuses calls that the original accepts, or answers them otherwise, without the
        user having allowed it.
        """
        return bool(self.assumption) and (self.limit is None or not self.limit.is_given)

    @property
    def place(self) -> str:
        """The file's display name and the line, e.g. ``"model.py:12"``."""
        return f"{PurePath(source_line(self.file, self.line).file).name}:{self.line}"

    def __repr__(self) -> str:
        lines = [f"{self.fqn or 'the model'}, {self.place}: {self.kind}", f"  proof: {self.proof}"]
        if self.assumption:
            lines.append(f"  assumption: {self.assumption}")
        return "\n".join([*lines, *(f"  {line}" for line in self.diff.splitlines())])


@dataclass(frozen=True)
class Draft:
    """A failure that stays, with an attempted change and the reason why it is not a fix.

    Attributes:
        failure: the failure; its line is one of the user's file.
        kind: the attempted rewrite; "" where none was tried.
        diff: the draft as a unified diff; "" where there is none.
        reason: why it is no fix.
        fix: the change as a fix, if only its assumption makes it a draft: :meth:`Fixed.model_with` applies it, and so
            do ``bounds=`` that grant the assumption.
    """

    failure: Failure
    reason: str
    kind: str = ""
    diff: str = ""
    fix: Fix | None = None

    @property
    def fqn(self) -> str:
        """The module that fails."""
        return self.failure.fqn

    def __repr__(self) -> str:
        place = f", {self.failure.source.file}:{self.failure.source.line}" if self.failure.source else ""
        lines = [f"{self.failure.fqn or 'the model'}: {self.failure.kind}{place}", f"  no fix: {self.reason}"]
        if self.fix is not None:
            lines.append(f"  model_with({self.fqn!r}) applies it all the same; proof: {self.fix.proof}")
        return "\n".join([*lines, *(f"  {line}" for line in self.diff.splitlines())])


@dataclass(frozen=True, repr=False)
class Fixed:
    """The result of :func:`prepbench.fix`.

    Attributes:
        model: a copy of the model with every fix; it shares the tensors.
        applied: the fixes, in the order in which they were found.
        remaining: the failures that stay, each as a draft.
    """

    model: torch.nn.Module
    applied: tuple[Fix, ...]
    remaining: tuple[Draft, ...]
    _sources: tuple[SourceText, ...] = field(default=(), repr=False)
    _original: torch.nn.Module | None = field(default=None, repr=False)
    _assuming: Fixed | None = field(default=None, repr=False)

    @property
    def passed(self) -> bool:
        """Whether no failure is left."""
        return not self.remaining

    def model_with(self, *fqns: str) -> torch.nn.Module:
        """Return a copy of the model with the fixes of these modules only; it shares the tensors.

        Args:
            fqns: the modules. A draft whose ``fix`` takes something for granted is applied, too, where its module is
                named.

        Raises:
            UnknownNameError: a module has no fix.
        """
        from prepbench.objects.copy import swapped_twin

        known = {fix.fqn for fix in self.applied}
        assumed = {draft.fqn for draft in self.remaining if draft.fix is not None}
        if self._assuming is not None and not assumed.isdisjoint(fqns) and known.union(assumed).issuperset(fqns):
            return self._assuming.model_with(*fqns)
        for fqn in fqns:
            if not isinstance(fqn, str) or fqn not in known:
                raise UnknownNameError(f"fqns: there is no fix for {fqn!r}. Choose from {sorted(known | assumed)}.")
        assert self._original is not None
        paths = {(fix.file, fix.function) for fix in self.applied if fix.fqn in fqns}
        changes: dict[types.CodeType, types.CodeType] = {}
        for source in self._sources:
            changes |= source.changes({path for file, path in paths if file == source.file})
        chosen = [fix for fix in self.applied if (fix.file, fix.function) in paths]
        return fixed_model(swapped_twin(self._original, changes, shares=True)[0].model, chosen)

    def diff_of(self, fqn: str) -> str:
        """Return what :meth:`model_with` changes for a module, as a unified diff of the user's files; "" for nothing.

        Args:
            fqn: the module.
        """
        chosen = [fix for fix in self.applied if fix.fqn == fqn]
        changed = [source for source in self._sources if any(fix.file == source.file for fix in chosen)]
        own = (source.only([fix.function for fix in chosen if fix.file == source.file]) for source in changed)
        return "".join(source.diff() for source in own)

    def whole(self, fix: Fix) -> Fix:
        """Return one of the applied fixes with all that is changed for its module in its diff."""
        return self._whole[id(fix)]

    @functools.cached_property
    def _whole(self) -> dict[int, Fix]:
        return {id(fix): replace(fix, diff=self.diff_of(fix.fqn)) for fix in self.applied}

    @property
    def diff(self) -> str:
        """Return all fixes as one unified diff of the user's files."""
        return "".join(source.diff() for source in self._sources)

    def code(self) -> str:
        """Return a cell with the changed classes and functions, and the lines that let ``model`` use them."""
        from prepbench.fixes.cell import cell_of

        assert self._original is not None
        return cell_of(self._original, self._sources)

    def write(self) -> list[Path]:
        """Write the changes into the user's files; return the files.

        Raises:
            StorageError: a file has changed since it was read, is a notebook cell, or cannot be written.
        """
        return write_sources(self._sources)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> Any:
        return view("views.display", "fixed_bundle", self)

    def __repr__(self) -> str:
        counts = f"{len(self.applied)} fixed, {len(self.remaining)} left"
        parts = [*map(repr, self.applied), *map(repr, self.remaining)]
        return "\n".join([f"{type(self.model).__name__}: {counts}", *parts])


# Writing changes into the user's files.


def write_sources(sources: Iterable[SourceText]) -> list[Path]:
    """Write the changed texts of files, all or none: each is written completely to a temporary file before any is
    moved.

    Raises:
        StorageError: a file has changed since it was read, is no file, or cannot be written.
    """
    changed = [source for source in sources if source.text != source.original]
    encodings = {source.file: _checked(source) for source in changed}
    _write_all([(Path(source.file), source.text.encode(encodings[source.file])) for source in changed])
    return [Path(source.file) for source in changed]


def _write_all(files: Sequence[tuple[Path, bytes]]) -> None:
    if files:
        (path, data), *others = files
        write_file(path, data, before=lambda: _write_all(others))


def _checked(source: SourceText) -> str:
    """Return the encoding of a file; raise if the file has changed since it was read."""
    path = Path(source.file)
    if not path.is_file():
        raise StorageError(
            f"{source.file} is not a file, so nothing was written. Print .code() and run it in a cell of its own."
        )
    with typed_errors(path), tokenize.open(path) as opened:
        text, encoding = opened.read(), opened.encoding
    if text != source.original:
        raise StorageError(
            f"{source.file} has changed since it was read, so nothing was written. Import it again and call pb.fix "
            "again."
        )
    if not os.access(path, os.W_OK):
        raise StorageError(f"{source.file} is read-only, so nothing was written. Make it writable, or use .code().")
    return encoding
