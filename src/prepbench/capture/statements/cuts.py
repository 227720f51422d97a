"""``Cuts``: a model whose failing statements are cut out of its functions, one range after the other."""

from __future__ import annotations

import ast
import copy
import functools
import itertools
import types
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from prepbench.capture.sizes.learned_outputs import UnknownOutputsError
from prepbench.capture.statements.outline import (
    UNBOUND,
    CutFunction,
    Move,
    Outlined,
    Surroundings,
    described,
    move_out,
    moved_again,
    outlined,
    ranges_again,
)
from prepbench.capture.statements.ranges import SourceFile, StatementRange, source_file, statement_at
from prepbench.errors import CaptureError
from prepbench.objects.copy import CannotSwap, Twin, swapped_twin
from prepbench.objects.parts import is_user_file
from prepbench.running.callable_module import FURTHER
from prepbench.running.source_lines import CodePath

_MOST_STEPS = 8
"""The most times that one range may grow; after that its module is the leaf."""

_Place = tuple[str, CodePath]


@dataclass
class _Cut:
    """A range of statements that is cut out of a function.

    Attributes:
        found: the statements.
        fqn: the module that failed there first.
        reason: the exception of that module.
        steps: the number of times that it has grown.
        before: the statement as it was before expressions were moved out of it.
        moved: the assignments of these expressions.
    """

    found: StatementRange
    fqn: str
    reason: Exception
    steps: int = 0
    before: ast.stmt | None = None
    moved: tuple[ast.stmt, ...] = ()

    def undo(self) -> None:
        """Put the expressions that were moved out of the statement back into it."""
        statements = self.found.block.statements
        for each in self.moved:
            statements.remove(each)
        if self.before is not None and self.moved:
            statements[statements.index(self.found.start)] = self.before

    def grown(self, downwards: bool) -> _Cut | None:
        """Return the next larger range: with the moved expressions, or else with one more statement."""
        if self.moved:
            block, first = self.found.block, self.found.first - len(self.moved)
            self.undo()
            found = StatementRange.of(block, first, first).closed()
        else:
            found = self.found.with_next() if downwards else self.found.with_previous()
        return None if found is None else _Cut(found, self.fqn, self.reason, self.steps + (not self.moved))


@dataclass(frozen=True)
class _Call:
    """A range that was cut out: the place of its function, the function's code before and after, and the range."""

    place: _Place
    before: types.CodeType
    after: types.CodeType
    cut: _Cut
    outlined: Outlined


class Cuts:
    """A model in which ranges of statements are leaves.

    Args:
        model: as it was given; it stays as it is.

    Attributes:
        model: the model with the ranges cut out; ``model`` itself as long as there are none.
        leaves: the leaves by name: that of the module, and the lines.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self.model = model
        self.leaves: dict[str, StatementLeaf] = {}
        self._given = model
        self._files: dict[str, SourceFile | None] = {}
        self._number = 1
        self._modules: dict[_Place, str] = {}
        self._moves: dict[_Place, list[tuple[Move, tuple[ast.stmt, ...]]]] = {}
        self._twin: Twin | None = None
        self._cuts: dict[_Place, list[_Cut]] = {}
        self._refused: set[_Place] = set()
        self._current: dict[types.CodeType, _Place] = {}

    def original(self, part: Any) -> Any:
        """Return the part of the given model that a part of this one stands for."""
        return part if self._twin is None else self._twin.original(part)

    def give_back(self, program: torch.export.ExportedProgram) -> None:
        """Put the given model's tensors into a program that was exported from this one."""
        if self._twin is not None:
            self._twin.give_back(program)

    def add(self, failing: Mapping[str, Exception]) -> bool:
        """Cut out the statements that raised in some modules, or grow the ranges that did.

        Args:
            failing: the exception of each module, with the traceback from its forward on.

        Returns:
            Whether there is a new range. If not, the modules themselves have to be leaves.
        """
        # a copy, because _use rebuilds the model: the tracebacks belong to the code from before that
        current, touched = dict(self._current), set()
        for fqn, error in failing.items():
            frames = [
                (found, code in current, line, names)
                for code, line, names in _frames(error)
                if (found := current.get(code) or self._place(code)) is not None
            ]
            # Innermost first, so that as little as possible becomes a leaf. Its callers come next, where a statement
            # that calls the function can be cut out instead.
            for place, is_cut, line, names in reversed(frames):
                # another module failed in this function, which has changed since: its line numbers are stale
                if place in touched:
                    break
                # free variables of a nested function belong to the frame around it, which a leaf cannot receive
                if place in self._refused or any((place[0], place[1][:-1]) == other for other, _, _, _ in frames):
                    continue
                cut = self._next_cut(place, is_cut, line, fqn, error, names)
                if cut is not None and self._use(place, cut):
                    touched.add(place)
                    break
        return bool(touched)

    def put_back_moved(self) -> None:
        """Let the ranges compute the expressions that were moved out of them."""
        for place, cuts in list(self._cuts.items()):
            for cut in [cut for cut in cuts if cut.moved]:
                if place in self._refused:
                    break
                self._cuts[place].remove(cut)
                larger = cut.grown(downwards=True)
                if larger is None:
                    self._refuse(place)
                    self._rebuild()
                else:
                    self._use(place, larger)

    def take_back(self) -> dict[str, Exception]:
        """Drop all ranges and refuse further ones in their functions; return the modules that failed there."""
        failing = {cut.fqn: cut.reason for cuts in self._cuts.values() for cut in cuts}
        for place in list(self._cuts):
            self._refuse(place)
        self._rebuild()
        return failing

    def _refuse(self, place: _Place) -> None:
        self._refused.add(place)
        self._cuts.pop(place, None)

    def functions(self) -> tuple[CutFunction, ...]:
        """Return the cuts as plain data; see :meth:`restore`."""
        found = []
        for place, cuts in self._cuts.items():
            file, moves = self._file(place[0]), self._moves.get(place, [])
            code = file.codes[place[1]]
            ranges = [(cut.found, cut.fqn) for cut in cuts]
            found.append(described(file, code, place[1], self._modules[place], moves, ranges))
        return tuple(found)

    def restore(self, functions: Sequence[tuple[CutFunction, types.FunctionType]]) -> None:
        """Make the cuts in this model's functions that were made in another process.

        Raises:
            LookupError: a function is not the one that it was, or has no such range.
            CannotSwap: a class does not allow subclasses.
        """
        for cut, function in functions:
            code = function.__code__
            place = self._place(code)
            syntax = None if place is None else self._file(place[0]).function(code)
            if place is None or syntax is None:
                raise LookupError(f"the source of {cut.name} is not there")
            moved_again(syntax, code.co_firstlineno, cut.moves, self._surroundings(code, function.__globals__))
            found = ranges_again(syntax, cut)
            reason = RuntimeError(f"{cut.name} was compiled without these lines")
            self._cuts[place] = [_Cut(each, row.fqn, reason) for each, row in zip(found, cut.ranges, strict=True)]
        self._rebuild()
        if self._refused:
            raise LookupError(f"{', '.join(str(path) for _, path in self._refused)} is not reached by the model")

    # -- ranges --------------------------------------------------------------------------------------------------------

    def _place(self, code: types.CodeType) -> _Place | None:
        """Return the place of the user's function that has this code; None for other code."""
        name = code.co_filename
        if name not in self._files:
            found = source_file(name) if is_user_file(name) else None
            # the tree is edited in place, and source_file caches the original for all
            self._files[name] = None if found is None else replace(found, tree=copy.deepcopy(found.tree))
        file = self._files[name]
        if file is None or file.function(code) is None:
            return None
        return next((name, path) for path, known in file.codes.items() if known == code)

    def _file(self, name: str) -> SourceFile:
        file = self._files[name]
        assert file is not None
        return file

    def _new_cut(self, place: _Place, line: int, fqn: str, reason: Exception, names: Mapping[str, Any]) -> _Cut | None:
        """Return a cut of the statement at a line, without the expressions that can be computed before it."""
        file = self._file(place[0])
        function = file.function(file.codes[place[1]])
        found = None if function is None else statement_at(function, line)
        if found is None:
            return None
        before = copy.deepcopy(found.start)
        self._modules[place] = str(names.get("__name__", ""))
        surroundings = self._surroundings(file.codes[place[1]], names)
        # ``before`` is copied first, because move_out edits the statement, and undo() must restore the text
        moved = tuple(move_out(found.start, surroundings, itertools.count(self._number)))
        move = Move(found.start.lineno, found.start.col_offset, self._number)
        self._moves.setdefault(place, []).append((move, moved))
        self._number += len(moved)
        found.block.statements[found.first : found.first] = moved
        cut, larger = _Cut(found, fqn, reason, before=before, moved=moved), found.closed()
        if larger is not None and larger.start is found.start:
            return replace(cut, found=larger)
        # the closed range starts before the statement and takes in the moved expressions, so moving them gains nothing;
        # or there is no closed range
        first = found.first - len(moved)
        cut.undo()
        larger = StatementRange.of(found.block, first, first).closed()
        return None if larger is None else _Cut(larger, fqn, reason)

    def _surroundings(self, code: types.CodeType, names: Mapping[str, Any]) -> Surroundings:
        owners = [module for module in self._given.modules() if _has_method(type(module), code)]

        def is_torch(name: str) -> bool:
            value = names.get(name)
            return isinstance(value, types.ModuleType) and value.__name__.partition(".")[0] == "torch"

        def is_layer(text: str) -> bool:
            first, _, path = text.partition(".")
            if first != code.co_varnames[:1][0] or not path.replace(".", "_").isidentifier():
                return False
            return bool(owners) and all(_is_plain_layer(owner, path) for owner in owners)

        variables = frozenset((*code.co_varnames, *code.co_cellvars, *code.co_freevars))
        return Surroundings(variables, is_torch, is_layer)

    def _next_cut(
        self, place: _Place, is_cut: bool, line: int, fqn: str, reason: Exception, names: Mapping[str, Any]
    ) -> _Cut | None:
        known = next((cut for cut in self._cuts.get(place, ()) if cut.found.has_line(line)), None)
        if known is None:
            return self._new_cut(place, line, fqn, reason, names)
        if not is_cut or known.steps == _MOST_STEPS:
            self._refuse(place)  # the function runs without the cut, or no range of it can be a leaf
            return None
        self._cuts[place].remove(known)
        # Results that no leaf can return (UnknownOutputsError) are consumed further down, so the range grows downwards,
        # but every third step upwards, in case more statements below do not help. Other errors are about the inputs,
        # which statements above make.
        grown = known.grown(known.steps % 3 < 2 and type(reason) is UnknownOutputsError)
        if grown is None:
            self._refuse(place)
        return grown

    def _use(self, place: _Place, cut: _Cut) -> bool:
        """Cut the range out, merged with those that it touches; return False if that is impossible."""
        before = self._cuts.get(place, [])
        # merging two may reach a third; those that end inside of the merged range are dropped below
        merged = cut
        for other in before:
            merged = _merged(merged, other) or merged
        kept = [other for other in before if not merged.found.contains(other.found)]
        self._cuts[place] = [*kept, merged]
        try:
            self._rebuild()
        except CannotSwap:
            self._refuse(place)
        # _rebuild refuses places that it cannot connect, and the model that it has made still has their cuts
        if place in self._refused:
            self._rebuild()
        return place not in self._refused

    # -- the model -----------------------------------------------------------------------------------------------------

    def _rebuild(self) -> None:
        """Make the model with the present ranges."""
        # Always from the given model: swapping code in a twin of a twin would stack subclasses, and cuts may have gone.
        # All cuts of a file are made in one pass, because it is compiled as a whole.
        self._current, self.leaves = {}, {}
        changes: dict[types.CodeType, types.CodeType] = {}
        calls: list[_Call] = []
        for name in dict.fromkeys(name for name, _ in self._cuts):
            file = self._file(name)
            cuts = {path: found for (other, path), found in self._cuts.items() if other == name}
            codes, ranges = outlined(file, {path: [cut.found for cut in found] for path, found in cuts.items()})
            changes |= {old: codes[path] for path, old in file.codes.items() if codes.get(path, old) != old}
            self._current |= {codes[path]: (name, path) for path in cuts}
            for path, found in cuts.items():
                calls += [_Call((name, path), file.codes[path], codes[path], cut, ranges[cut.found]) for cut in found]
        # the new code calls its leaf by a global name; the calls are filled in after the twin exists, since leaves
        # belong to the twin's modules
        scope = {call.outlined.call: LeafCall(call.outlined) for call in calls}
        self._twin, changed = swapped_twin(self._given, changes, scope) if changes else (None, {})
        self.model = self._given if self._twin is None else self._twin.model
        for call in calls:
            origin = _only(changed.get(call.before, []))
            # reached by no function, or by several with different variables, of which the leaf could have one only
            if origin is None:
                self._refuse(call.place)
            else:
                self._connect(scope[call.outlined.call], call, origin)
        if self.leaves:
            vars(self.model)[FURTHER] = self.leaves

    def _connect(self, made: LeafCall, call: _Call, origin: types.FunctionType) -> None:
        """Give a call its leaves: one for each module that has the method, and one for other callers."""
        inner = next(
            code
            for code in call.after.co_consts
            if isinstance(code, types.CodeType) and code.co_name == call.outlined.path[-1][0]
        )
        leaf = functools.partial(StatementLeaf, call.outlined, inner, origin, reason=call.cut.reason)
        for fqn, module in self.model.named_modules() if call.outlined.owner else ():
            if _has_method(type(module), call.after):
                made.by_owner[id(module)] = self._named(leaf(fqn, module))
        made.other = self._named(leaf(call.cut.fqn))

    def _named(self, leaf: StatementLeaf) -> StatementLeaf:
        first, last = leaf.outlined.lines
        name = f"line_{first}" if first == last else f"line_{first}_to_{last}"
        base = f"{leaf.owner_fqn}.{name}".lstrip(".")
        names = [base, *(f"{base}_{number}" for number in range(2, 1000))]
        self.leaves[next(each for each in names if each not in self.leaves)] = leaf
        return leaf


def _frames(error: BaseException) -> Iterator[tuple[types.CodeType, int, Mapping[str, Any]]]:
    traceback = error.__traceback__
    while traceback is not None:
        yield traceback.tb_frame.f_code, traceback.tb_lineno, traceback.tb_frame.f_globals
        traceback = traceback.tb_next


def _merged(one: _Cut, other: _Cut) -> _Cut | None:
    """Return two ranges as one, if they overlap or are adjacent."""
    a, b = one.found, other.found
    if a.contains(b) or a.block.statements is not b.block.statements:
        return None
    if a.first > b.last + 1 or b.first > a.last + 1:
        return None
    both = StatementRange.of(a.block, min(a.first, b.first), max(a.last, b.last)).closed()
    if both is None:
        return None
    return replace(other, found=both, steps=max(one.steps, other.steps), before=None, moved=())


def _only(functions: Sequence[types.FunctionType]) -> types.FunctionType | None:
    """Return the one function with this code; None if there are several with different globals or closures."""
    if not functions:
        return None
    first = functions[0]
    alike = all(f.__globals__ is first.__globals__ and f.__closure__ == first.__closure__ for f in functions)
    return first if alike else None


# layers whose errors depend on the values of their inputs, such as an index out of range: computed before the
# statement, they would raise where the model's own branch around them does not
_RAISES_FOR_VALUES = (torch.nn.Embedding, torch.nn.EmbeddingBag, torch.nn.RNNBase)


def _is_plain_layer(owner: torch.nn.Module, path: str) -> bool:
    """Return whether an attribute is a torch layer without side effects in its mode, and total on its inputs."""
    layer: Any = owner
    for name in path.split("."):
        layer = getattr(layer, name, None)
    if not isinstance(layer, torch.nn.Module) or any(module.training for module in layer.modules()):
        return False
    parts = list(layer.modules())
    return all(
        type(part).__module__.startswith("torch.nn.modules") and not isinstance(part, _RAISES_FOR_VALUES)
        for part in parts
    )


def _has_method(kind: type, code: types.CodeType) -> bool:
    for base in kind.__mro__:
        for member in vars(base).values():
            function = getattr(member, "__func__", getattr(member, "fget", member))
            while hasattr(function, "__wrapped__"):
                function = function.__wrapped__
            if getattr(function, "__code__", None) == code:
                return True
    return False


# A range of statements as a callable: the implementation of the operator that stands for it in a graph.


class StatementLeaf:
    """The statements of one range, run for one module.

    Args:
        outlined: the range as a function.
        code: the code of that function.
        origin: the function that the range was cut out of; gives global names and closures.
        owner_fqn: the module that is the first argument, or else that in which the range was met first.
        owner: the module itself, if it is the first argument.
        reason: why the statements cannot be in a graph.
    """

    def __init__(
        self,
        outlined: Outlined,
        code: types.CodeType,
        origin: types.FunctionType,
        owner_fqn: str,
        owner: torch.nn.Module | None = None,
        *,
        reason: Exception,
    ) -> None:
        self.outlined = outlined
        self.owner_fqn = owner_fqn
        self.reason = reason
        self.has_owner = owner is not None
        self._code = code
        self._origin = origin
        self._owner = owner

    @property
    def file(self) -> str:
        """The name of the file that the statements are in."""
        return self._code.co_filename

    @property
    def name(self) -> str:
        """The lines, and the name of their module."""
        first, last = self.outlined.lines
        lines = f"Line {first}" if first == last else f"The code on lines {first} to {last}"
        return f"{lines} of {self.owner_fqn or 'the model'}"

    def forward(self, *values: Any) -> Any:
        """Run the statements.

        Args:
            values: those of ``outlined.inputs``, without the owner where the leaf knows it.

        Returns:
            The values of ``outlined.outputs`` as a tuple; or what the statements return.
        """
        return _run(self.outlined, self._code, self._origin, self._owner, values)

    def on(self, model: torch.nn.Module) -> Callable[..., Any]:
        """Run :meth:`forward` on the modules of a twin of the model."""
        return self.released(lambda part: part).on(model)

    def released(self, original: Callable[[Any], Any]) -> ReleasedLeaf:
        """Return the leaf without strong references to the model; ``original`` gives the function it was made of."""
        return ReleasedLeaf(
            self.outlined, self._code, weakref.ref(original(self._origin)), self.owner_fqn, self.has_owner
        )


class ReleasedLeaf:
    """The statements of a :class:`StatementLeaf`, for any model with the same modules.

    Attributes:
        outlined: the range as a function.
        owner_fqn: the module that is the first argument, or else that in which the range was met first.
        has_owner: whether the module is the first argument.
    """

    def __init__(
        self,
        outlined: Outlined,
        code: types.CodeType,
        origin: weakref.ref[types.FunctionType],
        owner_fqn: str,
        has_owner: bool,
    ) -> None:
        self.outlined = outlined
        self.owner_fqn = owner_fqn
        self.has_owner = has_owner
        self._code = code
        self._origin = origin

    @property
    def file(self) -> str:
        """The name of the file that contains the statements."""
        return self._code.co_filename

    def on(self, model: torch.nn.Module) -> Callable[..., Any]:
        """Return a function that runs the statements on the modules of a model."""
        origin = self._origin()
        if origin is None:
            raise CaptureError(f"The function around lines {self.outlined.lines} no longer exists: keep the model.")
        owner = model.get_submodule(self.owner_fqn) if self.has_owner else None
        return lambda *values: _run(self.outlined, self._code, origin, owner, values)

    def released(self, original: Callable[[Any], Any]) -> ReleasedLeaf:
        """Return itself."""
        return self


def _run(
    outlined: Outlined,
    code: types.CodeType,
    origin: types.FunctionType,
    owner: torch.nn.Module | None,
    values: tuple[Any, ...],
) -> Any:
    cells = dict(zip(origin.__code__.co_freevars, origin.__closure__ or (), strict=True))
    closure = tuple(cells[name] for name in code.co_freevars)
    function = types.FunctionType(code, origin.__globals__, code.co_name, None, closure)
    takes_owner = owner is not None and outlined.owner in outlined.inputs
    found = function(*((owner,) if takes_owner else ()), *values)
    if outlined.outputs is None:
        return found
    return tuple(found.get(name, UNBOUND) for name in outlined.outputs)


class LeafCall:
    """The function that replaces a range in the code.

    Attributes:
        by_owner: the leaf of each module whose method the function is, by the module's id.
        other: the leaf for all other calls.
    """

    def __init__(self, outlined: Outlined) -> None:
        self.by_owner: dict[int, StatementLeaf] = {}
        self.other: StatementLeaf | None = None
        self.outlined = outlined

    def __call__(self, variables: Mapping[str, Any]) -> Any:
        leaf = self.by_owner.get(id(variables.get(self.outlined.owner)))
        known = () if leaf is None else (self.outlined.owner,)
        leaf = leaf or self.other
        assert leaf is not None
        return leaf.forward(*(variables.get(name, UNBOUND) for name in self.outlined.inputs if name not in known))
