"""The search for fixes: take the next failure, apply a kind that fits, prove it, and repeat."""

from __future__ import annotations

import ast
import inspect
import itertools
import re
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import Any

import libcst as cst
import torch

from prepbench.capture.aten.capture import FullGraphError, capture
from prepbench.capture.failures.describe import describe_failure
from prepbench.capture.failures.reproduce import received_inputs
from prepbench.checks import check_progress, check_table, described
from prepbench.document.model import Failure
from prepbench.errors import CaptureError, InputError, sentence
from prepbench.fixes.facts import PARAMETERS, PROBE, Facts, Place, instrumented_codes, outermost_function, place_of
from prepbench.fixes.kinds import KINDS, NARROWING_KINDS, Kind
from prepbench.fixes.proof import NO_SAMPLE, Observed, Proof, observe, program_problem, prove, with_sides
from prepbench.fixes.results import Draft, Fix, Fixed, fixed_model
from prepbench.fixes.site import Function, Part, Proposal, Site
from prepbench.fixes.syntax import CannotFix, SourceText, equal_but_for_lines, with_import
from prepbench.inputs import Sample
from prepbench.jobs import Progress, ProgressCallback, check_cancelled, report_nothing
from prepbench.objects.copy import CannotSwap, Twin, swapped_twin
from prepbench.progress_bar import shows_progress
from prepbench.running.callable_module import as_module
from prepbench.running.check_inputs import check_traced, checked_samples
from prepbench.running.source_lines import code_frame, file_of, source_line
from prepbench.running.unchanged import without_output

_MOST_FIXES = 60
_MOST_STEPS = 8

Key = tuple[str, int, str]
"""The user's file, the line there, and the text of the failing line."""


@dataclass
class _Step:
    kind: Kind
    proposal: Proposal
    before: SourceText
    after: SourceText
    proof: Proof
    failure: Failure

    @property
    def assumption(self) -> str:
        return self.proposal.assumption or self.proof.assumption


@dataclass
class Search:
    """Searches for fixes of one model.

    Attributes:
        model: the user's model, which stays as it is.
        samples: its samples.
        bounds: the most iterations of loops.
        progress: hears of each failure.
        assumes: whether fixes count that take something for granted beyond the samples; otherwise they are drafts.
        sources: the files that were read, with their changes.
        applied: the proven fixes.
        drafts: why a failure stays, by its key.
    """

    model: torch.nn.Module
    samples: Sequence[Sample]
    bounds: Mapping[str, int] | int | None = None
    progress: ProgressCallback = report_nothing
    assumes: bool = False
    sources: dict[str, SourceText] = field(default_factory=dict)
    applied: list[Fix] = field(default_factory=list)
    drafts: dict[Key, Draft] = field(default_factory=dict)
    failures: list[Failure] = field(default_factory=list)
    program: torch.export.ExportedProgram | None = None
    _observed: dict[str, list[Observed]] = field(default_factory=dict)
    _assuming: dict[Key, _Step] = field(default_factory=dict)

    def run(self) -> None:
        """Fix what can be fixed."""
        self.failures = self._captured()
        for _ in range(_MOST_FIXES):
            failure = next((f for f in self.failures if self.key(f) not in self.drafts), None)
            if failure is None:
                return
            check_cancelled()
            done = len(self.applied) + len(self.drafts)
            self.progress(Progress("fix", done, max(done, len(self.failures)), failure.fqn or "the model itself"))
            self._fix(failure)

    # -- the model with the changes ------------------------------------------------------------------------------------

    def changes(self, others: Mapping[str, Any] | None = None) -> dict[Any, Any]:
        """Return the changed code by the code that it replaces; ``others`` are more codes of one file, by path."""
        found = {}
        for file, source in self.sources.items():
            now = source.codes()
            if others is not None and file in others:
                now = others[file]
            found.update({old: now[path] for path, old in source.original_codes().items() if now.get(path, old) != old})
        return found

    def swapped(
        self, others: Mapping[str, Any] | None = None, scope: Mapping[str, Any] | None = None, *, shares: bool = False
    ) -> torch.nn.Module:
        """Return a copy of the model with the changes; ``scope`` has more global names for the changed functions."""
        try:
            twin, _ = swapped_twin(self.model, self.changes(others), scope, shares=shares)
        except CannotSwap as error:
            raise CannotFix(str(error)) from error
        swapped: torch.nn.Module = twin.model
        return swapped

    def _captured(self) -> list[Failure]:
        """Return the remaining failures; if there are none, keep the program."""
        for source in self.sources.values():
            source.shown()
        model = self.swapped()
        try:
            with without_output():
                self.program = capture(model, self.samples).program
        except FullGraphError as error:
            return list(error.failures)
        except CaptureError as error:
            name = type(self.model).__name__
            return [describe_failure(error, fqn="", module_type=name, module=self.model)]
        return []

    def program_problem(self) -> str:
        """Return how the finally captured program differs from the user's model; "" if it does not."""
        if self.program is None or not self.applied:
            return ""
        changed = self.swapped() if any(fix.narrows for fix in self.applied) else None
        return program_problem(self.program.module(), self.observed(""), changed)

    def give_up(self, reason: str) -> None:
        """Undo every fix, because the whole model is not equal."""
        self.sources = _unchanged(self.sources, {})
        diffs, self.applied = {fix.fqn: fix.diff for fix in self.applied}, []
        self.failures = self._captured()
        for failure in self.failures:
            self.drafts[self.key(failure)] = Draft(failure, reason, diff=diffs.get(failure.fqn, ""))

    # -- one failure ---------------------------------------------------------------------------------------------------

    def key(self, failure: Failure) -> Key:
        """Return an identity of a failure that survives changes of the text around it."""
        source = self._source_of(failure)
        if failure.source is None or source is None:
            return failure.fqn, 0, failure.message
        return source.file, source.original_line(failure.source.line), failure.source.code

    def _source_of(self, failure: Failure) -> SourceText | None:
        file = file_of(failure.source) if failure.source is not None else ""
        return next((source for source in self.sources.values() if source.name == file), self.sources.get(file))

    def _fix(self, failure: Failure) -> None:
        """Apply kinds until the failure is gone and there is no new one; otherwise keep a draft."""
        draft, count = self._chained(failure)
        # a change may be right in Python and in no graph, such as torch.cond of sides with other shapes
        if draft is not None and draft.fix is None and count and not draft.reason.startswith(NO_SAMPLE):
            narrow, _ = self._chained(failure, only_narrowing=True)
            draft = narrow if narrow is None or narrow.fix is not None else draft
        if draft is not None:
            self.drafts[self.key(failure)] = draft

    def _chained(self, failure: Failure, *, only_narrowing: bool = False) -> tuple[Draft | None, int]:
        """Apply kinds one after the other, and return how many; where the failure is not gone then, restore the text
        and return a draft.
        """
        start, failures, program = dict(self.sources), self.failures, self.program
        steps: list[_Step] = []
        wanted, current = self.key(failure), failure
        reason = Draft(self.in_users_file(failure), "")
        for _ in range(_MOST_STEPS):
            found = self._attempt(current, only_narrowing=only_narrowing and not steps)
            if isinstance(found, Draft):
                if not steps or found.diff:
                    reason = replace(reason, reason=found.reason, kind=found.kind, diff=found.diff)
                break
            steps.append(found)
            self.sources[found.after.file] = found.after
            self.failures = self._captured()
            is_fewer = len(self.failures) < len(failures)
            left = [f for f in self.failures if self._is_unsolved(f, wanted, steps, is_fewer=is_fewer)]
            if not left:
                fixes = [self._as_fix(step) for step in steps]
                narrow = next((fix for fix in fixes if fix.narrows), None)
                if narrow is None or self.assumes:
                    self.applied += fixes
                    return None, len(steps)
                diff = self._own_diff(found.after, current.fqn, steps)
                why = f"it takes for granted that {narrow.assumption}"
                reason = replace(reason, reason=why, kind=narrow.kind, diff=diff, fix=replace(narrow, diff=diff))
                break
            current = left[0]
            reason = replace(
                reason,
                reason="it still fails with this change",
                kind=found.kind.name,
                diff=self._own_diff(found.after, current.fqn, steps),
            )
        self.sources, self.failures, self.program = start | _unchanged(self.sources, start), failures, program
        return reason, len(steps)

    def _is_unsolved(self, failure: Failure, wanted: Key, steps: Sequence[_Step], *, is_fewer: bool) -> bool:
        """Return whether it is the failure to fix, or one at a line that the change has made."""
        if self.key(failure) == wanted:
            return True
        source = self._source_of(failure)
        if source is None or failure.source is None or not any(step.after.file == source.file for step in steps):
            return False
        before = next(step.before for step in steps if step.after.file == source.file)
        if not is_fewer and source.is_new(failure.source.line, before.text):
            return True
        return failure.source.code not in {line.strip() for line in before.text.splitlines()}

    def _as_fix(self, step: _Step) -> Fix:
        # a kind may change other lines of the function than the one that failed
        first, last = step.after.changed_lines(step.before.text)
        failed = step.failure.source.line if step.failure.source else first
        line = step.before.original_line(failed if first <= failed <= last else first)
        return Fix(
            step.failure.fqn, step.kind.name, step.after.diff(step.before.text), step.after.file, line,
            step.kind.right_if, step.proof.text, step.assumption, _outermost_change(step), step.proposal.limit,
        )  # fmt: skip

    def in_users_file(self, failure: Failure) -> Failure:
        """Return the failure with its line in the user's original file."""
        source = self._source_of(failure)
        if source is None or failure.source is None or source.text == source.original:
            return failure
        line = source.original_line(failure.source.line)
        return replace(failure, source=source_line(source.file, line), frame=code_frame(source.file, line))

    # -- one attempt ---------------------------------------------------------------------------------------------------

    def _attempt(self, failure: Failure, *, only_narrowing: bool = False) -> _Step | Draft:
        """Return the first kind with a proven change, or a draft with the reason why there is none."""
        drafts: list[Draft] = []
        try:
            sites = []
            for site in itertools.chain(self._sites(failure), self._called_sites(failure, drafts)):
                sites.append(site)
                for kind in () if only_narrowing else KINDS:
                    found = self._tried(kind, site, failure)
                    if isinstance(found, _Step) and not found.proof.assumption:
                        return found
                    if isinstance(found, _Step):  # another kind may need no assumption
                        self._assuming.setdefault(self.key(failure), found)
                    elif found is not None:
                        drafts.append(found)
            if self.key(failure) in self._assuming:
                return self._assuming[self.key(failure)]
            # the reason of an attempted change is more useful than that of a skipped kind
            drafts.sort(key=lambda draft: not draft.diff)
            # a change that a further sample completes is better than one that refuses calls
            can_be_completed = bool(drafts) and drafts[0].reason.startswith(NO_SAMPLE)
            for site, kind in itertools.product(sites, () if can_be_completed else NARROWING_KINDS):
                found = self._tried(kind, site.read_again(), failure)
                if isinstance(found, _Step):
                    return found
        except CannotFix as error:
            drafts.append(Draft(failure, sentence(error)))
        return drafts[0] if drafts else Draft(failure, "no kind of change is known for this line")

    def _sites(self, failure: Failure) -> Iterable[Site]:
        """Yield the functions around the failing line, innermost first."""
        if failure.source is None or not file_of(failure.source):
            raise CannotFix("the failing line is not known")
        source = self._source_of(failure)
        if source is None:
            source = SourceText.of(file_of(failure.source))
            self.sources[source.file] = source
        self._check_unchanged(failure.fqn, source)
        line = failure.source.line
        part = Part.at(source, line)
        facts, names = self._facts(failure.fqn, source, line), self._names(failure.fqn, source)
        for function in part.functions(line):
            yield Site(source, part, function, line, facts, names, self.bounds)

    def _called_sites(self, failure: Failure, drafts: Sequence[Draft]) -> Iterable[Site]:
        """Yield the methods that the failing line calls, if no kind fits the line itself."""
        source = self._source_of(failure)
        if drafts or source is None or failure.source is None:
            return
        for line in lines_of_called_methods(self._module(failure.fqn), source, failure.source.line):
            called = replace(failure, source=source_line(source.name, line))
            yield from self._sites(called)

    def _check_unchanged(self, fqn: str, source: SourceText) -> None:
        """Raise for a file that has changed since it was imported."""
        read = set(source.original_codes().values())
        for kind in type(self._module(fqn)).__mro__:
            for member in vars(kind).values():
                code = _code_of(getattr(member, "__func__", member))
                if code is not None and code.co_filename == source.file and code not in read:
                    raise CannotFix(f"{source.file} has changed since it was imported; import it again")

    def _module(self, fqn: str) -> torch.nn.Module:
        found: torch.nn.Module | None = dict(self.model.named_modules(remove_duplicate=False)).get(fqn)
        if found is None:
            raise CannotFix(f"{fqn} is inside a scripted module, which has no Python source")
        return found

    def _names(self, fqn: str, source: SourceText) -> dict[str, Any]:
        """Return the global names of the file, as the functions of the module see them."""
        for module in (self._module(fqn), *self.model.modules()):
            for kind in type(module).__mro__:
                for member in vars(kind).values():
                    code = _code_of(member)
                    if code is not None and code.co_filename == source.file:
                        names: dict[str, Any] = member.__globals__
                        return names
        return next((f for f in _global_names(self.model) if _is_of(f, source.file)), {})

    def observed(self, fqn: str) -> list[Observed]:
        """Return the answers of the original module on its recorded inputs, and on derived ones."""
        if fqn not in self._observed:
            with without_output():
                samples = received_inputs(self.model, self._module(fqn), self.samples)
            self._observed[fqn] = observe(Twin(self.model).model.get_submodule(fqn), samples)
        return self._observed[fqn]

    def _facts(self, fqn: str, source: SourceText, line: int) -> Facts:
        facts = Facts()
        codes = {source.file: instrumented_codes(source, line)}
        probes = {PROBE: facts.probe, PARAMETERS: facts.probe_parameters}
        instrumented = self.swapped(codes, probes).get_submodule(fqn)
        self._observed[fqn] = with_sides(
            instrumented, facts, self.observed(fqn), lambda: tests_on_data(source, line, facts)
        )
        return facts

    def _tried(self, kind: Kind, site: Site, failure: Failure) -> _Step | Draft | None:
        draft: Draft | None = None
        try:
            for proposal in kind.propose(site):
                found = self._checked(kind, site, failure, proposal)
                if isinstance(found, _Step):
                    return found
                draft = draft or found
        except CannotFix as error:
            return draft or Draft(failure, sentence(error), kind.name)
        except cst.ParserSyntaxError:  # no kind may keep the others from being tried
            return draft or Draft(failure, "the changed text is not valid Python", kind.name)
        return draft

    def _checked(self, kind: Kind, site: Site, failure: Failure, proposal: Proposal) -> _Step | Draft | None:
        after = _with_function(site, site.function, proposal)
        if after.text == site.source.text:
            return None
        proof = self._proven(after, proposal, failure.fqn, site)
        if proof.problem:
            after.forgotten()
            step = _Step(kind, proposal, site.source, after, proof, failure)
            return Draft(failure, proof.problem, kind.name, self._own_diff(after, failure.fqn, [step]))
        return _Step(kind, proposal, site.source, after, proof, failure)

    def _own_diff(self, after: SourceText, fqn: str, steps: Iterable[_Step]) -> str:
        """Return what the steps for a module change in the user's file, with what is proven for it already."""
        steps = [step for step in steps if step.after.file == after.file]
        proven = [fix.function for fix in self.applied if (fix.file, fix.fqn) == (after.file, fqn)]
        return after.only([*map(_outermost_change, steps), *proven]).diff()

    def _proven(self, after: SourceText, proposal: Proposal, fqn: str, site: Site) -> Proof:
        before = self.sources[after.file]
        self.sources[after.file] = after
        after.shown()
        try:
            changed = self.swapped().get_submodule(fqn)
            return prove(
                changed, self.observed(fqn), proposal.conditions, lambda place: _line(site, place),
                is_compiling=proposal.is_compiling,
            )  # fmt: skip
        except (CannotFix, SyntaxError) as error:
            return Proof(sentence(error))
        finally:
            self.sources[after.file] = before


def _outermost_change(step: _Step) -> tuple[tuple[str, int], ...]:
    """Return where the changed function is in its file."""
    before, after = step.before.codes(), step.after.codes()
    changed = [
        path for path, code in before.items() if not (equal_but_for_lines(code, after.get(path)) or _is_class(code))
    ]
    return min(changed, key=len)


def _is_class(code: Any) -> bool:
    return "__qualname__" in code.co_names and "__module__" in code.co_names and not code.co_argcount


def _line(site: Site, place: Place) -> int:
    return site.source.original_line(place[0])


def _with_function(site: Site, function: Function, proposal: Proposal) -> SourceText:
    text = site.part.replaced(site.source, function, proposal.function)
    knows_torch = any(value is torch for value in site.names.values())
    return site.source.with_text(text if knows_torch else with_import(text, "torch"))


def _unchanged(now: Mapping[str, SourceText], start: Mapping[str, SourceText]) -> dict[str, SourceText]:
    """Return the files that were read since ``start``, unchanged."""
    return {file: source.with_text(source.original) for file, source in now.items() if file not in start}


def _is_of(names: dict[str, Any], file: str) -> bool:
    """Return whether global names belong to a file; the cells of a notebook share theirs."""
    codes = map(_code_of, list(names.values()))
    return names.get("__file__") == file or any(code is not None and code.co_filename == file for code in codes)


def _code_of(value: object) -> types.CodeType | None:
    """Return the code of a function; None for others, such as the class of functions, which has an attribute for it."""
    code = getattr(value, "__code__", None)
    return code if isinstance(code, types.CodeType) else None


def _global_names(model: torch.nn.Module) -> list[dict[str, Any]]:
    """Return the globals of all files of the model's methods, and of those that they import functions from."""
    found: dict[int, dict[str, Any]] = {}
    for module in model.modules():
        for kind in type(module).__mro__:
            for member in vars(kind).values():
                names = getattr(member, "__globals__", None)
                if isinstance(names, dict):
                    found[id(names)] = names
    for names in list(found.values()):
        for value in list(names.values()):
            other = getattr(value, "__globals__", None)
            if isinstance(other, dict):
                found.setdefault(id(other), other)
    return list(found.values())


# The methods of a module that a line calls: what fails at the line may stand in them.


def lines_of_called_methods(module: torch.nn.Module, source: SourceText, line: int) -> Iterator[int]:
    """Yield the last line of each method of a module's class that a line of a file calls, if it is in this file.

    The line of a ``def`` stands for all lines of the function.
    """
    now, original = source.codes(), source.original_codes()
    lines = source.text.splitlines()
    last = line
    if lines[line - 1].lstrip().startswith("def "):
        last = max((_last_line(code) for code in now.values() if _has_line(code, line)), default=line)
    for name in dict.fromkeys(re.findall(r"\bself\.(\w+)\(", "\n".join(lines[line - 1 : last]))):
        method = getattr(type(module), name, None)
        code = getattr(inspect.unwrap(method), "__code__", None) if callable(method) else None
        path = next((path for path, known in original.items() if known == code), None)
        if path in now:
            yield _last_line(now[path])


def _last_line(code: types.CodeType) -> int:
    return max(number for _, _, number in code.co_lines() if number is not None)


def _has_line(code: types.CodeType, line: int) -> bool:
    """Return whether a function begins on a line; the code of a class has no such line among its own."""
    return code.co_firstlineno == line and bool(code.co_flags & inspect.CO_OPTIMIZED)


# The conditions of a function that depend on the values of tensors.


_OF_SIZES = frozenset(("shape", "ndim", "dtype", "device", "is_cuda", "requires_grad", "training"))
_CALLS_OF_SIZES = frozenset(("size", "dim", "ndimension", "isinstance", "hasattr", "type", "is_floating_point"))


def tests_on_data(source: SourceText, line: int, facts: Facts) -> set[Place]:
    """Return the positions of the conditions on tensors in the outermost function around a line.

    Numbers made of tensors are followed through the names that they get.
    """
    function = outermost_function(ast.parse(source.text), line)
    if function is None:
        return set()
    lines = source.text.splitlines()
    found = _Data(facts, lines)
    assignments = [node for node in ast.walk(function) if isinstance(node, ast.Assign | ast.AugAssign)]
    before = -1
    while before != len(found.names):
        before = len(found.names)
        for node in assignments:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if found.is_data(node.value):
                found.names.update(ast.unparse(each) for target in targets for each in _parts(target))
    tests = [node.test for node in ast.walk(function) if isinstance(node, ast.If | ast.While | ast.IfExp | ast.Assert)]
    return {place_of(test, lines) for test in tests if found.is_data(test)}


def _parts(target: ast.expr) -> list[ast.expr]:
    return list(target.elts) if isinstance(target, ast.Tuple | ast.List) else [target]


class _Data:
    """Decides which expressions depend on the values of tensors."""

    def __init__(self, facts: Facts, lines: list[str]) -> None:
        self._facts, self._lines = facts, lines
        self.names: set[str] = set()

    def is_data(self, node: ast.AST) -> bool:
        """Return whether an expression depends on tensors' values, not on their sizes or their presence."""
        if isinstance(node, ast.Compare) and all(isinstance(sign, ast.Is | ast.IsNot) for sign in node.ops):
            return False
        if isinstance(node, ast.Attribute) and node.attr in _OF_SIZES:
            return False
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name in _CALLS_OF_SIZES:
                return False
        if isinstance(node, ast.Name | ast.Attribute) and ast.unparse(node) in self.names:
            return True
        if isinstance(node, ast.expr) and node.end_lineno is not None:
            fact = self._facts.found.get(place_of(node, self._lines))
            if fact is not None and fact.is_tensor:
                return True
        return any(self.is_data(part) for part in ast.iter_child_nodes(node))


# ``fix``: change a model's source so that it can be captured, and prove each change.


@shows_progress("fix")
def fix(
    model: Any,
    samples: Any,
    *,
    bounds: Mapping[str, int] | int | None = None,
    progress: ProgressCallback = report_nothing,
) -> Fixed:
    """Change a copy of the model, failure by failure, until it can be captured as one graph.

    Each change is made in the user's source, and counts only once it is proven: the failure is gone and there is no
    new one, and values, shapes, dtypes, buffers, gradients and errors equal the original on all samples and on
    derived calls that take the other sides of conditions. Unproven changes are drafts, with the reason, and so are
    changes that rest on an assumption which neither the code nor the caller states: the most iterations of a loop, or
    that a branch on data always takes the side that it takes on every sample, where no graph holds both, or that both
    sides have one shape for every size of a call, where ``torch.where`` would broadcast without an error.

    The model, its classes and its files are not changed.

    Args:
        model: a module, function or bound method.
        samples: sample inputs, as for :func:`prepbench.capture`.
        bounds: the most iterations of loops that end when values say so: one number for all, or by the name of the
            variable that a loop counts or decides with. Left out, what the code proves (``and steps < 3``) is used,
            and a loop whose code proves nothing is a draft with the most that were seen.
        progress: hears of each failure that is looked into; raise :class:`prepbench.Cancelled` from it to stop.

    Returns:
        A :class:`Fixed`: ``.model`` is the changed copy, which shares the tensors, ``.applied`` the fixes,
        ``.remaining`` the drafts; ``.code()`` prints a cell, ``.write()`` changes the files.

    Raises:
        InputError: the samples do not fit the model.
        CaptureError: the model itself raises on one of them.

    Example:
        >>> fixed = fix(torch.nn.Linear(2, 2), [torch.ones(2, 2), torch.ones(3, 2)])
        >>> fixed.passed, fixed.applied
        (True, ())
    """
    check_traced("model", model)
    _check_bounds(bounds)
    check_progress(progress)
    chosen = checked_samples(model, samples)
    fixed = _searched(Search(as_module(model), chosen, bounds, progress))
    if any(draft.fix is not None for draft in fixed.remaining):
        assuming = _searched(Search(as_module(model), chosen, bounds, progress, assumes=True))
        found = {fix.fqn for fix in assuming.applied}
        # a refused program is no fix
        left = [each if each.fqn in found else replace(each, fix=None) for each in fixed.remaining]
        fixed = replace(fixed, remaining=tuple(left), _assuming=assuming)
    return fixed


def _searched(search: Search) -> Fixed:
    search.run()
    problem = search.program_problem()
    if problem:
        search.give_up(problem)
    remaining = [search.drafts[search.key(failure)] for failure in _once(search)]
    sources = tuple(source for source in search.sources.values() if source.text != source.original)
    model = fixed_model(search.swapped(shares=True), search.applied)
    return Fixed(model, tuple(search.applied), tuple(remaining), sources, search.model)


def _check_bounds(bounds: Any) -> None:
    if isinstance(bounds, Mapping):
        check_table("bounds", bounds, '{"n": 16}')
    values = list(bounds.values()) if isinstance(bounds, Mapping) else [] if bounds is None else [bounds]
    for value in values:
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise InputError(
                f"bounds must be a number of iterations, or a dict of such numbers by name, got {described(value)}. "
                "Give the most iterations that a loop may need."
            )


def _once(search: Search) -> list[Any]:
    found = {search.key(failure): failure for failure in reversed(search.failures)}
    return list(reversed(found.values()))


# Attach fixes to failures.


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
    first = found[0] if found else None
    return fixed.whole(first) if isinstance(first, Fix) else first
