"""The captured graphs of a bench's model, with and without fixes, the verification of its axes, and drafts as cells."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import TypeVar

from torch import nn

from prepbench.bench.choices import Changes, Choices
from prepbench.bench.state import BenchState, check_steps
from prepbench.bench.variables import Named
from prepbench.capture.aten.capture import capture
from prepbench.capture.aten.captured import Captured
from prepbench.capture.aten.variants import DEFAULT_VARIANTS, sizes_may_decide
from prepbench.capture.aten.verification import AxesReport
from prepbench.capture.failures.describe import describe_failure
from prepbench.capture.modules.collection import GraphCollection, recursive_trace
from prepbench.capture.sizes.dynamic_axes import DynamicAxes
from prepbench.capture.sizes.resizing import base_sample, linked_axes, resized_to_fit, sizes_in
from prepbench.checks import check_progress, check_switch, described
from prepbench.document.model import GraphCollectionDocument, Module, Node
from prepbench.errors import CaptureError, PrepbenchError, SettingsError, sentence
from prepbench.fixes import CannotFix, Draft, Fix, Fixed, fix, fix_of
from prepbench.fixes.cell import cell_of
from prepbench.fixes.syntax import SourceText
from prepbench.inputs import Sample
from prepbench.jobs import Cancelled, Progress, ProgressCallback, report_nothing
from prepbench.objects.code import ModelCode, with_newest_code
from prepbench.running.source_lines import file_of
from prepbench.running.unchanged import run

_HEADER = re.compile(r"@@ -(\d+)")


@dataclass(frozen=True)
class Several:
    """Whether a compile can make a graph for each way that the sizes of the samples lead.

    Attributes:
        graphs: the indices of the samples of each; empty where it makes one, or cannot.
        reason: why it cannot.
    """

    graphs: tuple[tuple[int, ...], ...] = ()
    reason: str = ""


def _ways(captured: Captured) -> list[list[int]]:
    return [[sample.index for sample in variant.samples] for variant in captured.variants]


class Captures:
    """The graphs of one model for each set of applied fixes; computed on demand and kept.

    Args:
        model: the model; never changed.
        samples: the tracing inputs.

    Attributes:
        refused: why the model itself cannot run with another size of a dim, by argument and dim.
    """

    def __init__(self, model: nn.Module, samples: Sequence[Sample]) -> None:
        self._model = model
        self._samples = list(samples)
        self.refused: dict[tuple[str, int], str] = {}
        self._resized: list[Sample] = []
        self._followed = _unseen(None)
        self._collections: dict[tuple[str, ...], GraphCollection] = {}
        self._models: dict[tuple[str, ...], nn.Module] = {(): model}
        self._several: dict[tuple[str, ...], Several] = {}
        self._fixed: Fixed | None = None
        self._hopeless = False
        self._searching = threading.RLock()
        self._first: dict[tuple[tuple[str, ...], Several], GraphCollection] = {}
        self._verified: tuple[DynamicAxes, AxesReport] | None = None
        self._code = ModelCode.of(model)

    @property
    def newer_code(self) -> tuple[str, ...]:
        """The classes of the model whose code has changed since the capture."""
        return self._code.changed()

    def collection(self, fixes: tuple[str, ...] = ()) -> GraphCollection:
        """Return the graphs of the model with these fixes."""
        if fixes not in self._collections:
            self._collections[fixes] = recursive_trace(self.model(fixes), inputs=[*self._samples, *self._resized])
        return self._collections[fixes]

    def follows(self, axes: DynamicAxes) -> bool:
        """Return whether the graphs have the sizes that these axes make dynamic."""
        return self._followed == _unseen(axes)

    def follow(self, state: BenchState) -> None:
        """Make the graphs for the axes of a state: where no two samples differ along one, it is tried with a sample of
        another size.
        """
        if self.follows(state.axes):
            return
        made, refused = _resized(self._model, self._samples, state.axes)
        before = self._collections.get((), None)
        traced = {
            fixes: recursive_trace(self.model(fixes), inputs=[*self._samples, *made]) for fixes in {(), state.fixes}
        }
        self.refused.update(refused)
        self._resized, self._followed, self._collections = made, _unseen(state.axes), traced
        self._several.clear()
        self._first.clear()
        if before is None or _failing(before) != _failing(traced[()]):
            self._search_anew(state)

    def _search_anew(self, state: BenchState) -> None:
        """Forget the fixes that were found, but for those that are applied."""
        self._fixed = self._fixed if state.fixes else None
        self._hopeless = False

    def shown(self, fixes: tuple[str, ...]) -> GraphCollection:
        """Return the graphs of the model with these fixes; for the first samples where a compile makes several."""
        several = self.several(fixes)
        if not several.graphs or not self.collection(fixes).failures:
            return self.collection(fixes)
        if (key := (fixes, several)) not in self._first:
            first = [sample for sample in self._samples if sample.index in several.graphs[0]]
            self._first[key] = recursive_trace(self.model(fixes), inputs=first)
        return self._first[key]

    def several(self, fixes: tuple[str, ...]) -> Several:
        """Return what is known about several graphs of the model with these fixes."""
        return self._several.get(fixes, Several())

    def know_several(self, fixes: tuple[str, ...], graphs: Iterable[Sequence[int]]) -> None:
        """Remember for which samples a capture or a compile made a graph each; none where it made one for all."""
        self._several[fixes] = Several(tuple(map(tuple, graphs)))

    def may_be_several(self, state: BenchState) -> bool:
        """Return whether several graphs are the open question: nothing else fails, and they were not tried."""
        open_ = [failure for failure in self.collection(state.fixes).failures if failure.fqn not in state.leaves]
        return state.fixes not in self._several and sizes_may_decide(open_)

    def try_several(self, state: BenchState) -> None:
        """Find out whether a compile can make several graphs, where that is the open question."""
        if not self.may_be_several(state):
            return
        try:
            self.know_several(state.fixes, _ways(self._captured(state)))
        except Cancelled:
            raise  # which says nothing about the model: it is tried again
        except PrepbenchError as error:
            why = error.__cause__  # of a FullGraphError: why several graphs cannot be made
            self._several[state.fixes] = Several(reason=str(why if isinstance(why, CaptureError) else error))

    def model(self, fixes: tuple[str, ...]) -> nn.Module:
        """Return the model, or a copy that shares its tensors and has the fixes applied."""
        if fixes not in self._models:
            self._models[fixes] = self.search().model_with(*(self._fix(fqn).fqn for fqn in fixes))
        return self._models[fixes]

    @property
    def fixes(self) -> dict[str, Fix | Draft]:
        """The known fix or draft of each failure, by its FQN."""
        fixed = self._fixed
        if fixed is None:
            return {}
        found = {failure.fqn: fix_of(failure, fixed) for failure in self.collection().failures}
        return {fqn: each for fqn, each in found.items() if each is not None}

    @property
    def searched(self) -> bool:
        """Whether fixes were searched for, or none are needed."""
        return self._fixed is not None or self._hopeless or not self.collection().failures

    def search(self, progress: ProgressCallback = report_nothing) -> Fixed:
        """Return the fixes of the model; a second thread waits for the search of the first."""
        with self._searching:
            if self._fixed is None:
                try:
                    samples = [*self._samples, *self._resized]
                    self._fixed = fix(self._model, samples, progress=progress)
                except Exception as error:
                    # any error, of the model's code or ours: it would come again, and callers must not wait for fixes
                    self._hopeless = not isinstance(error, Cancelled)
                    raise
            return self._fixed

    def check_fix(self, fqn: str, *, anyway: bool = False) -> None:
        """Raise unless there is a proven fix.

        Args:
            fqn: the failing module.
            anyway: whether it may take something for granted beyond the samples.

        Raises:
            SettingsError: there is none; the message says why.
        """
        fix = self._fix(fqn)
        if fix.narrows and not anyway:
            raise SettingsError(
                f"fqn: the fix of {described(fqn)} takes for granted that {fix.assumption}. Where that is right, apply "
                "it with anyway=True."
            )

    def assumptions(self, fixes: tuple[str, ...]) -> tuple[str, ...]:
        """Return the assumptions of these fixes, each with its module."""
        found = [(fqn, self._fix(fqn).assumption) for fqn in fixes]
        return tuple(f"Fix of {fqn or 'the model itself'}: {text}" for fqn, text in found if text)

    def proven(self) -> tuple[str, ...]:
        """One failing module for each proven fix."""
        if not self.searched:
            self.search()
        first: dict[int, str] = {}
        for fqn, found in self.fixes.items():
            if isinstance(found, Fix):
                first.setdefault(id(found), fqn)
        return tuple(first.values())

    def found_fixes(self) -> frozenset[str]:
        """The failing modules whose fixes are proven by now; those that rest on an assumption do not count."""
        return frozenset(fqn for fqn, found in self.fixes.items() if isinstance(found, Fix) and not found.narrows)

    def draft(self, fqn: str) -> Draft:
        """Return the draft for a failing module.

        Raises:
            SettingsError: there is none.
        """
        if not self.searched:
            self.search()
        drafts = {name: found for name, found in self.fixes.items() if isinstance(found, Draft) and found.diff}
        if not isinstance(fqn, str) or fqn not in drafts:
            known = ", ".join(map(repr, drafts)) or "none"
            raise SettingsError(f"fqn: there is no draft for {described(fqn)}. Give one of: {known}.")
        return drafts[fqn]

    def capture(self, state: BenchState, progress: ProgressCallback) -> None:
        """Trace again, capture with the choices, and verify the axes."""
        self._collections.clear()  # the model may have changed since the twins with fixes were made
        self._several.clear()
        self._first.clear()
        self._models = {(): self._model}
        self._search_anew(state)
        self._code = ModelCode.of(self._model)
        self.refused, self._resized, self._followed = {}, [], _unseen(None)
        progress(Progress("capture", 0, 3))
        self.follow(state)
        self.collection(state.fixes)
        progress(Progress("capture", 1, 3))
        captured = self._captured(state)
        self.know_several(state.fixes, _ways(captured))
        progress(Progress("capture", 2, 3, "verify the axes"))
        self._verified = state.axes, captured.verify()
        progress(Progress("capture", 3, 3))

    def _captured(self, state: BenchState) -> Captured:
        return capture(
            self.model(state.fixes),
            self._samples,
            dynamic_axes=state.axes,
            fullgraph=state.fullgraph,
            leaf_modules=state.leaves,
            variants=DEFAULT_VARIANTS,  # as a compile with these choices makes them
        )

    def verified(self, axes: DynamicAxes) -> AxesReport | None:
        """Return the verification of these axes; None where they were not verified."""
        return self._verified[1] if self._verified is not None and self._verified[0] == axes else None

    def _fix(self, fqn: str) -> Fix:
        if not self.searched:
            self.search()
        found = self.fixes
        chosen = found.get(fqn) if isinstance(fqn, str) else None
        fix = chosen.fix if isinstance(chosen, Draft) else chosen
        if fix is None:
            known = ", ".join(repr(name) for name, each in found.items() if isinstance(each, Fix)) or "none"
            why = f": it is not proven, {chosen.reason}" if isinstance(chosen, Draft) else ""
            raise SettingsError(f"fqn: there is no fix to apply for {described(fqn)}{why}. Give one of: {known}.")
        return fix


def _unseen(axes: DynamicAxes | None) -> frozenset[tuple[str, int]]:
    """Return the dims that are dynamic although all samples have one size there."""
    dynamic = axes.dynamic if axes is not None else ()
    return frozenset((axis.path, axis.dim) for axis in dynamic if len(set(axis.sizes)) == 1)


def _failing(collection: GraphCollection) -> list[tuple[str, str]]:
    return [(failure.fqn, failure.message) for failure in collection.failures]


def _resized(
    model: nn.Module, samples: Sequence[Sample], axes: DynamicAxes
) -> tuple[list[Sample], dict[tuple[str, int], str]]:
    """Return a sample of another size for each size that is dynamic and the same in all samples.

    It is one entry longer, or twice as long where the model takes only multiples.

    Returns:
        The samples that the model runs on, and why it runs on none, by the dims of that size.
    """
    groups, unseen = linked_axes(axes), _unseen(axes)
    made: list[Sample] = []
    refused: dict[tuple[str, int], str] = {}
    for symbol, group in groups.items():
        places = [(axis.path, axis.dim) for axis in group]
        if not unseen.issuperset(places):
            continue
        base = base_sample(model, samples, axes)
        before = sizes_in(model, base)[places[0]]
        for step in dict.fromkeys((1, before)) if before else ():
            try:
                sample = resized_to_fit(model, base, {symbol: step}, groups, samples)
                run(model, sample, model)
            except Cancelled:
                raise
            except Exception as error:  # whatever a model raises
                path, dim = places[0]
                reason = f"with {path}.shape[{dim}] = {before + step} it raises {_raised(error, model)}"
                refused |= dict.fromkeys(places, reason)
            else:
                made.append(replace(sample, index=len(samples) + len(made)))
                refused = {place: reason for place, reason in refused.items() if place not in places}
                break
    return made, refused


def _raised(error: Exception, model: nn.Module) -> str:
    source = describe_failure(error, fqn="", module_type=type(model).__name__, module=model).source
    place = f" At {PurePath(source.file).name}:{source.line}: `{source.code}`" if source is not None else ""
    return f"{type(error).__name__}: {sentence(error)}{place}"


_Part = TypeVar("_Part", Module, Node)


@dataclass(eq=False)
class Fixing:
    """Captures with the choices of a bench, and chooses fixes of what cannot be; see :class:`prepbench.Bench`.

    Attributes:
        captures: the graphs of the model.
        choices: the current choices.
        changed: called after each change.
    """

    captures: Captures
    choices: Choices
    changed: Changes

    @property
    def collection(self) -> GraphCollection:
        """The graphs of the model with the applied fixes.

        Where the samples need several graphs, it is the one of the first; a compile that can make several fails for
        none of them.
        """
        return self.captures.shown(self.choices.state.fixes)

    @property
    def document(self) -> GraphCollectionDocument:
        """The document of :attr:`collection`, in which modules that are kept in PyTorch are no failures."""
        document, leaves = self.collection.document(), set(self.choices.state.leaves)
        if not leaves:
            return document

        def kept(part: _Part) -> _Part:
            return replace(part, status="leaf") if part.status == "failed" and part.fqn in leaves else part

        graphs = tuple(replace(graph, nodes=tuple(map(kept, graph.nodes))) for graph in document.graphs)
        return replace(document, modules=tuple(map(kept, document.modules)), graphs=graphs)

    @property
    def is_searched(self) -> bool:
        """Whether :meth:`find_fixes` would find nothing new."""
        captures, state = self.captures, self.choices.state
        return captures.follows(state.axes) and captures.searched and not captures.may_be_several(state)

    def capture(self, progress: ProgressCallback = report_nothing) -> None:
        """Trace the model again, capture it with the current choices, and verify it at sizes that no sample had.

        The findings appear in the steps "Capture" and "Axes".

        Args:
            progress: receives each step; it may raise :class:`prepbench.Cancelled`.

        Raises:
            CaptureError: the model cannot be captured with these choices; every failing module is listed.
        """
        check_progress(progress)
        self.captures.capture(self.choices.state, progress)
        self.changed()

    @property
    def newer_code(self) -> tuple[str, ...]:
        """The names of the model's classes whose code has changed since the capture; empty while it is the same."""
        return self.captures.newer_code

    def again(self, progress: ProgressCallback = report_nothing) -> None:
        """Give the model's modules the newest definitions of their classes, keep their weights, and capture again.

        Args:
            progress: receives each step; it may raise :class:`prepbench.Cancelled`.

        Raises:
            InputError: a module cannot take on its newest class.
            CaptureError: the model cannot be captured with these choices; every failing module is listed.
        """
        check_progress(progress)
        with_newest_code(self.choices.model)
        self.capture(progress)

    def find_fixes(self, progress: ProgressCallback = report_nothing) -> None:
        """Search for source changes that let the failing modules be captured, and prove them, as
        :func:`prepbench.fix` does.

        Where the sizes of the samples lead different ways, it also tries whether a compile can make a graph for each.
        Where an axis was made dynamic and all samples have one size there, it tries another one first.
        The cards of :meth:`summary` show both afterwards. The widget does this by itself, in the background.

        Args:
            progress: receives each step; it may raise :class:`prepbench.Cancelled`.
        """
        check_progress(progress)
        if self.is_searched:
            return
        try:
            self.captures.follow(self.choices.state)
            self.captures.try_several(self.choices.state)
            if not self.captures.searched:
                self.captures.search(progress)
        finally:
            self.changed()

    def apply_fix(self, fqn: str, *, anyway: bool = False) -> None:
        """Apply the proven fix of a failing module to a copy of the model.

        Args:
            fqn: the module.
            anyway: apply it also where it takes something for granted beyond the samples.

        Raises:
            SettingsError: there is none; the message says why.
        """
        check_switch("anyway", anyway)
        self.captures.check_fix(fqn, anyway=anyway)
        if fqn not in self.choices.state.fixes:
            self.choices.history.choose(fixes=(*self.choices.state.fixes, fqn))

    def apply_fixes(self) -> None:
        """Apply every proven fix except those that rest on an assumption, in one step; the page's "Apply all".

        Raises:
            SettingsError: there is none that is not applied.
        """
        known = {id(self.captures.fixes.get(fqn)) for fqn in self.choices.state.fixes}
        proven = [fqn for fqn in self.captures.proven() if id(self.captures.fixes[fqn]) not in known]
        if not proven:
            raise SettingsError("There is no proven fix that is not applied. bench.summary().failures says why.")
        self.choices.history.choose(fixes=(*self.choices.state.fixes, *proven))

    def remove_fix(self, fqn: str) -> None:
        """Take back an applied fix.

        Args:
            fqn: the module.

        Raises:
            SettingsError: none is applied to the module.
        """
        if fqn not in self.choices.state.fixes:
            known = ", ".join(map(repr, self.choices.state.fixes)) or "none"
            raise SettingsError(f"fqn: no fix is applied to {described(fqn)}. Choose one of: {known}.")
        self.choices.history.choose(fixes=tuple(other for other in self.choices.state.fixes if other != fqn))

    def take_over(self, states: Sequence[BenchState], position: int) -> None:
        """Set the steps of undo and redo; fixes in them are proven on the samples first.

        Args:
            states: as :attr:`steps` returns them.
            position: which of them is the current one.

        Raises:
            SettingsError: choices that do not fit the model, or a fix that is not proven.
        """
        check_steps(states, position)
        for fqn in dict.fromkeys(fqn for state in states for fqn in state.fixes):
            self.captures.check_fix(fqn, anyway=True)
        self.choices.take_over(states, position)


# A draft of a fix as a notebook cell with the changed classes and functions, to edit and run where the model is.


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
