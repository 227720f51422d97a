"""Branches on tensor values become ``torch.where``: a proposed ``forward``, as a diff, checked against the original.

Only ``if`` statements and conditional expressions whose condition really is a tensor on the samples are changed; the
condition of each is looked at while an instrumented copy of the user's own function runs. Where a branch does more than
compute values, nothing is proposed and the reason is given.
"""

from __future__ import annotations

import ast
import copy
import difflib
import functools
import inspect
import linecache
import textwrap
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils import _pytree as pytree

from prepbench.capture.failures.reasons import BRANCH, NUMBER
from prepbench.capture.failures.reproduce import received_inputs
from prepbench.document.model import Failure, SourceLine
from prepbench.inputs import Sample, normalize_samples
from prepbench.running.outcomes import without_output
from prepbench.running.recorded_calls import replaced_forward
from prepbench.running.source_lines import source_line
from prepbench.running.unchanged import own_copy, unchanged

_PROBE = "__prepbench_probe__"


class CannotRewrite(ValueError):
    """Why a branch cannot become ``torch.where``."""


@dataclass(frozen=True)
class BranchResult:
    """One side of one condition: which it is, and how the rewritten forward compares when the model takes it.

    ``outcome`` is ``"equal"``, ``"equal after broadcasting"`` (another shape), ``"different"`` or ``"not reached"``.
    """

    line: int
    side: bool
    outcome: str
    largest_difference: float = 0.0


@dataclass(frozen=True)
class RewriteResult:
    """What :meth:`Rewrite.verify` found for each side of each condition."""

    branches: tuple[BranchResult, ...]

    @property
    def passed(self) -> bool:
        """Whether every side was reached and none is different."""
        return bool(self.branches) and all(branch.outcome.startswith("equal") for branch in self.branches)

    def __repr__(self) -> str:
        lines = [
            f"line {b.line}, condition {b.side}: {b.outcome}"
            + (f" (largest difference {b.largest_difference:.2g})" if b.outcome != "not reached" else "")
            for b in self.branches
        ]
        return "\n".join(["Verified" if self.passed else "Not verified", *(f"  {line}" for line in lines)])


@dataclass(frozen=True)
class Rewrite:
    """A proposed ``forward`` for one class.

    Attributes:
        fqn: the first module that has this forward.
        module_type: its class.
        source: where the function starts.
        diff: a unified diff; empty when nothing can be proposed.
        code: the whole rewritten function.
        reason: why nothing is proposed.
    """

    fqn: str
    module_type: str
    source: SourceLine | None
    diff: str = ""
    code: str = ""
    reason: str = ""
    _function: Callable[..., Any] | None = field(default=None, compare=False, repr=False)
    _lines: tuple[int, ...] = field(default=(), compare=False, repr=False)

    def verify(self, model: torch.nn.Module, inputs: Any) -> RewriteResult:
        """Run the module with its own and with the rewritten forward, so that both sides of each condition are taken.

        It runs on what it receives on the samples, and on the same negated, scaled, shuffled and with NaN, until every
        side was reached. The model is left as it was.

        Args:
            model: the model that the rewrite was proposed for.
            inputs: sample inputs.

        Raises:
            CannotRewrite: nothing was proposed.
        """
        if self._function is None:
            raise CannotRewrite(f"Nothing was proposed for {self.fqn or 'the model'}: {self.reason}")
        module = model.get_submodule(self.fqn)
        return _verify(self, self._function, module, received_inputs(model, module, normalize_samples(model, inputs)))

    def apply(self, model: torch.nn.Module) -> None:
        """Give every module of this class in ``model`` the rewritten forward (on the instances, not on the class).

        Raises:
            CannotRewrite: nothing was proposed.
        """
        if self._function is None:
            raise CannotRewrite(f"Nothing was proposed for {self.fqn or 'the model'}: {self.reason}")
        kind = type(model.get_submodule(self.fqn))
        for module in model.modules():
            if type(module) is kind:
                module.forward = types.MethodType(self._function, module)

    def __repr__(self) -> str:
        name = f"{self.fqn or 'the model'} ({self.module_type})"
        return f"Rewrite of {name}\n{self.diff}" if self.diff else f"No rewrite of {name}: {self.reason}"


def proposed_rewrites(
    model: torch.nn.Module, samples: Sequence[Sample], failures: Iterable[Failure]
) -> tuple[Rewrite, ...]:
    """A rewrite for each class that fails because of a branch on tensor values."""
    found: dict[type, Rewrite] = {}
    for failure in failures:
        module = model.get_submodule(failure.fqn)
        if failure.kind in (BRANCH, NUMBER) and type(module) not in found:
            found[type(module)] = _propose(model, failure.fqn, module, samples)
    return tuple(rewrite for rewrite in found.values() if rewrite.diff or rewrite.reason)


def _propose(model: torch.nn.Module, fqn: str, module: torch.nn.Module, samples: Sequence[Sample]) -> Rewrite:
    name = type(module).__name__
    try:
        source = _Source.of(module.forward)
    except CannotRewrite as error:
        return Rewrite(fqn, name, None, reason=str(error))
    place = source_line(source.file, source.first)
    try:
        conditions = _tensor_conditions(model, fqn, source, samples)
        if not conditions:
            return Rewrite(fqn, name, place)
        code = source.rewritten(conditions)
        function = source.compiled(code)
    except CannotRewrite as error:
        return Rewrite(fqn, name, place, reason=str(error))
    diff = "".join(difflib.unified_diff(source.whole_file(), source.whole_file(code), place.file, place.file, n=2))
    return Rewrite(fqn, name, place, diff, code, "", function, tuple(sorted(conditions)))


# -- the user's function


@dataclass(frozen=True)
class _Source:
    """The text of a function, dedented, with its globals."""

    function: types.FunctionType
    file: str
    first: int
    text: str
    tree: ast.FunctionDef

    @classmethod
    def of(cls, forward: Callable[..., Any]) -> _Source:
        plain = inspect.unwrap(getattr(forward, "__func__", forward))
        while isinstance(plain, functools.partial):
            plain = plain.func
        if not isinstance(plain, types.FunctionType):
            raise CannotRewrite("forward is not a Python function.")
        try:
            lines, first = inspect.getsourcelines(plain)
        except (OSError, TypeError) as error:
            raise CannotRewrite(f"The source of {plain.__qualname__} is not available.") from error
        text = textwrap.dedent("".join(lines))
        tree = ast.parse(text).body[0]
        if not isinstance(tree, ast.FunctionDef):
            raise CannotRewrite("forward is not defined by def.")
        if plain.__closure__ and set(plain.__code__.co_freevars) - {"__class__"}:
            raise CannotRewrite(f"{plain.__qualname__} uses variables of an enclosing function.")
        return cls(plain, plain.__code__.co_filename, first, text, tree)

    def compiled(self, code: str, probe: Any = None) -> types.FunctionType:
        """The function with other code, in the globals of the original."""
        tree = ast.parse(code)
        function = tree.body[0]
        assert isinstance(function, ast.FunctionDef)
        function.decorator_list = []
        if "__class__" in self.function.__code__.co_freevars:
            raise CannotRewrite("forward calls super().")
        name = f"<rewritten {self.function.__qualname__}>"
        linecache.cache[name] = (len(code), None, code.splitlines(True), name)
        scope = dict(self.function.__globals__)
        scope.setdefault("torch", torch)
        if probe is not None:
            scope[_PROBE] = probe
        # the user's own code, from the user's own file
        exec(compile(tree, name, "exec"), scope)
        made: types.FunctionType = scope[self.tree.name]
        made.__defaults__, made.__kwdefaults__ = self.function.__defaults__, self.function.__kwdefaults__
        return made

    def whole_file(self, code: str | None = None) -> list[str]:
        """The lines of the file, with the function replaced by ``code``."""
        lines = linecache.getlines(self.file)
        start, count = self.first - 1, len(self.text.splitlines())
        if code is None:
            return lines
        old = lines[start]
        margin = old[: len(old) - len(old.lstrip())]
        return [*lines[:start], *textwrap.indent(code, margin).splitlines(True), *lines[start + count :]]

    def instrumented(self) -> str:
        """The code with each condition passed through the probe, which gets its line and column."""
        tree = copy.deepcopy(self.tree)
        for node in ast.walk(tree):
            if isinstance(node, ast.If | ast.IfExp):
                _instrument(node)
        return ast.unparse(ast.fix_missing_locations(tree))

    def rewritten(self, conditions: set[int]) -> str:
        lines = self.text.splitlines(True)
        rewriter = _Rewriter(conditions, self.tree)
        edits = rewriter.edits(self.tree.body)
        for start, end, statements in sorted(edits, key=lambda edit: edit[0], reverse=True):
            indent = lines[start - 1][: len(lines[start - 1]) - len(lines[start - 1].lstrip())]
            new = [textwrap.indent(ast.unparse(ast.fix_missing_locations(node)), indent) + "\n" for node in statements]
            lines[start - 1 : end] = new
        return "".join(lines)


def _instrument(node: ast.If | ast.IfExp) -> None:
    place = ast.Constant(node.lineno * 1000 + node.col_offset)
    for leaf, replace in _atoms(node.test, lambda new: setattr(node, "test", new)):
        inner = leaf
        replace(ast.Call(ast.Name(_PROBE, ast.Load()), [place, inner], []))


def _atoms(
    test: ast.expr, replace: Callable[[ast.expr], None]
) -> Iterator[tuple[ast.expr, Callable[[ast.expr], None]]]:
    """The parts of a condition below ``and``, ``or`` and ``not``, and below numbers read from tensors."""
    if isinstance(test, ast.BoolOp):
        for index, value in enumerate(test.values):
            yield from _atoms(value, functools.partial(test.values.__setitem__, index))
    elif isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        yield from _atoms(test.operand, lambda new: setattr(test, "operand", new))
    else:
        yield _without_number(test), replace


def _without_number(expression: ast.expr) -> ast.expr:
    """The expression on tensors: ``x.max().item() > 0`` becomes ``x.max() > 0``, ``bool(c)`` becomes ``c``."""

    class Strip(ast.NodeTransformer):
        def visit_Call(self, node: ast.Call) -> ast.AST:
            self.generic_visit(node)
            function = node.func
            if isinstance(function, ast.Attribute) and function.attr == "item" and not node.args:
                return function.value
            if isinstance(function, ast.Name) and function.id in ("bool", "float", "int") and len(node.args) == 1:
                return node.args[0]
            return node

    return Strip().visit(copy.deepcopy(expression))  # type: ignore[no-any-return]


# -- which conditions are tensors


def _tensor_conditions(model: torch.nn.Module, fqn: str, source: _Source, samples: Sequence[Sample]) -> set[int]:
    seen: set[int] = set()

    def probe(place: int, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            seen.add(place)
        return value

    function = source.compiled(source.instrumented(), probe)
    module = model.get_submodule(fqn)
    forward = types.MethodType(function, module)
    for sample in _variants(samples):
        try:
            with unchanged(model), without_output(), torch.no_grad(), replaced_forward(model, fqn, forward):
                own_copy(sample).call(model)
        except Exception:  # a made-up value that the model does not take
            continue
    return seen


def _variants(samples: Sequence[Sample]) -> Iterator[Sample]:
    """The samples, and the same with other values of their floating-point tensors."""
    changes: list[Callable[[torch.Tensor], torch.Tensor]] = [
        lambda t: t, lambda t: -t, lambda t: t.abs(), lambda t: -t.abs(), lambda t: t * 100, lambda t: t * 0.01,
        lambda t: t * -100, lambda t: t.abs() * 100, lambda t: t.abs() * -100,
        torch.zeros_like, torch.ones_like, lambda t: torch.full_like(t, torch.nan),
        lambda t: t.flatten().flip(0).reshape(t.shape),
    ]  # fmt: skip
    for change in changes:
        for sample in samples:
            yield sample.map(functools.partial(_changed, change))


def _changed(change: Callable[[torch.Tensor], torch.Tensor], leaf: Any) -> Any:
    return change(leaf) if isinstance(leaf, torch.Tensor) and leaf.is_floating_point() else leaf


# -- the rewriting


class _Rewriter:
    """Turns ``if`` statements on tensors into assignments with ``torch.where``."""

    def __init__(self, conditions: set[int], function: ast.FunctionDef) -> None:
        self._conditions = conditions
        self._names = [node for node in ast.walk(function) if isinstance(node, ast.Name)]
        self._parameters = {node.arg for node in ast.walk(function.args) if isinstance(node, ast.arg)}

    def edits(self, body: list[ast.stmt]) -> list[tuple[int, int, list[ast.stmt]]]:
        """``(first line, last line, new statements)`` for each change in a block."""
        result: list[tuple[int, int, list[ast.stmt]]] = []
        for index, statement in enumerate(body):
            if isinstance(statement, ast.If) and self._is_chosen(statement):
                new, rest = self._statement(statement, body[index + 1 :])
                last = body[-1] if rest else statement
                result.append((statement.lineno, last.end_lineno or last.lineno, new))
                if rest:
                    break
            elif self._contains(statement):
                result += self._inside(statement)
        return result

    def _inside(self, statement: ast.stmt) -> list[tuple[int, int, list[ast.stmt]]]:
        blocks = [block for name in ("body", "orelse") if (block := getattr(statement, name, None))]
        if isinstance(statement, ast.For | ast.While | ast.If | ast.With) and blocks:
            return [edit for block in blocks for edit in self.edits(block)]
        if blocks:
            raise CannotRewrite(f"the branch on line {statement.lineno} is inside {type(statement).__name__.lower()}.")
        return [(statement.lineno, statement.end_lineno or statement.lineno, [self._expressions(statement)])]

    def _is_chosen(self, node: ast.If | ast.IfExp) -> bool:
        return node.lineno * 1000 + node.col_offset in self._conditions

    def _contains(self, statement: ast.AST) -> bool:
        return any(isinstance(n, ast.If | ast.IfExp) and self._is_chosen(n) for n in ast.walk(statement))

    def _expressions(self, statement: Any) -> Any:
        rewriter = self

        class Replace(ast.NodeTransformer):
            def visit_IfExp(self, node: ast.IfExp) -> ast.AST:
                chosen = rewriter._is_chosen(node)
                self.generic_visit(node)
                return _where(_condition(node.test), node.body, node.orelse) if chosen else node

        return Replace().visit(copy.deepcopy(statement))

    def _statement(self, node: ast.If, rest: list[ast.stmt]) -> tuple[list[ast.stmt], bool]:
        """What replaces an ``if`` and, when one of its sides returns, everything behind it."""
        if _ends_in_return(node.body) or _ends_in_return(node.orelse):
            yes = self._value(node.body, rest)
            no = self._value(node.orelse, rest)
            return self._returned(node, yes, no), True
        return self._assigned(node), False

    def _value(self, body: list[ast.stmt], rest: list[ast.stmt]) -> tuple[list[ast.stmt], ast.expr]:
        """Statements and the returned expression of one side; ``rest`` follows unless the side returns."""
        statements = list(body) if _ends_in_return(body) else [*body, *rest]
        if not _ends_in_return(statements) and statements and isinstance(statements[-1], ast.If):
            last = statements[-1]
            if self._is_chosen(last) and last.orelse:
                new, _ = self._statement(last, [])
                statements = [*statements[:-1], *new]
        if not _ends_in_return(statements):
            raise CannotRewrite("one side of the branch returns and the other returns nothing.")
        *before, final = statements
        flat: list[ast.stmt] = []
        for index, statement in enumerate(before):
            if isinstance(statement, ast.If) and self._is_chosen(statement):
                new, ended = self._statement(statement, [*before[index + 1 :], final])
                flat += new
                if ended:
                    *flat, final = flat
                    break
            else:
                flat.append(self._plain(statement))
        assert isinstance(final, ast.Return)
        if final.value is None:
            raise CannotRewrite(f"line {final.lineno} returns nothing.")
        return flat, self._expressions(final.value)

    def _plain(self, statement: ast.stmt) -> ast.stmt:
        _check_plain(statement)
        new: ast.stmt = self._expressions(statement)
        return new

    def _returned(self, node: ast.If, yes: Any, no: Any) -> list[ast.stmt]:
        (yes_before, yes_value), (no_before, no_value) = yes, no
        names = _assigned_names(yes_before) & (_used_names(no_before) | _used_names([ast.Expr(no_value)]))
        result: list[ast.stmt] = []
        condition: ast.expr = _condition(node.test)
        if yes_before or no_before:
            # names that a side assigns may be part of the condition, so it is computed first
            result.append(_assign("condition", condition))
            condition = ast.Name("condition", ast.Load())
        if names:
            yes_before, yes_value = _renamed(yes_before, yes_value, names, "_if_true")
        result += [*yes_before, *no_before]
        result.append(ast.Return(_where_all(condition, yes_value, no_value)))
        return result

    def _assigned(self, node: ast.If) -> list[ast.stmt]:
        """``if c: y = f(x)`` becomes ``y = torch.where(c, f(x), y)``."""
        yes, no = (self._assignments(side) for side in (node.body, node.orelse))
        condition: ast.expr = _condition(node.test)
        result: list[ast.stmt] = []
        names = [name for name in dict.fromkeys([*yes, *no]) if self._matters(name, node, name in yes and name in no)]
        if not names:
            return [ast.Pass(lineno=node.lineno)]
        if len(names) > 1:
            result.append(_assign("condition", condition))
            condition = ast.Name("condition", ast.Load())
        values = [
            _where_all(condition, yes.get(name, ast.Name(name, ast.Load())), no.get(name, ast.Name(name, ast.Load())))
            for name in names
        ]
        if len(names) == 1:
            return [*result, _assign(names[0], values[0])]
        # at once, because one value may use the name of another
        targets = ast.Tuple([ast.Name(name, ast.Store()) for name in names], ast.Store())
        return [*result, ast.Assign([targets], ast.Tuple(values, ast.Load()), lineno=node.lineno)]

    def _matters(self, name: str, node: ast.If, on_both_sides: bool) -> bool:
        """Whether a name that the branch assigns is used outside it; it must then have a value on either side."""
        end = node.end_lineno or node.lineno
        loads = [n.lineno for n in self._names if n.id == name and isinstance(n.ctx, ast.Load)]
        if not any(line < node.lineno or line > end for line in loads):
            return False
        before = any(n.id == name and isinstance(n.ctx, ast.Store) and n.lineno < node.lineno for n in self._names)
        if not on_both_sides and not before and name not in self._parameters:
            raise CannotRewrite(f"{name!r} has a value only where the condition on line {node.lineno} takes one side.")
        return True

    def _assignments(self, body: list[ast.stmt]) -> dict[str, ast.expr]:
        found: dict[str, ast.expr] = {}
        for statement in body:
            if isinstance(statement, ast.Pass):
                continue
            if isinstance(statement, ast.If) and self._is_chosen(statement):
                for new in self._assigned(statement):
                    _collect(new, found)
            else:
                _check_plain(statement)
                _collect(self._expressions(statement), found)
        return found


def _collect(statement: ast.stmt, found: dict[str, ast.expr]) -> None:
    if isinstance(statement, ast.AugAssign) and isinstance(statement.target, ast.Name):
        old = found.get(statement.target.id, ast.Name(statement.target.id, ast.Load()))
        found[statement.target.id] = ast.BinOp(old, statement.op, _filled(statement.value, found))
        return
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1 and isinstance(statement.targets[0], ast.Name):
        found[statement.targets[0].id] = _filled(statement.value, found)
        return
    raise CannotRewrite(f"line {statement.lineno} does more than assign to a name.")


def _filled(value: ast.expr, known: dict[str, ast.expr]) -> ast.expr:
    """The expression with names that were assigned before in the same side replaced by their values."""

    class Fill(ast.NodeTransformer):
        def visit_Name(self, node: ast.Name) -> ast.AST:
            return copy.deepcopy(known[node.id]) if node.id in known else node

    return Fill().visit(copy.deepcopy(value))  # type: ignore[no-any-return]


def _check_plain(statement: ast.stmt) -> None:
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
        return
    simple = isinstance(statement, ast.Assign | ast.AugAssign | ast.Pass)
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    targets = [statement.target] if isinstance(statement, ast.AugAssign) else targets
    for target in targets:
        names = target.elts if isinstance(target, ast.Tuple) else [target]
        simple = simple and all(isinstance(name, ast.Name) for name in names)
    if not simple:
        raise CannotRewrite(
            f"line {statement.lineno} ({ast.unparse(statement).splitlines()[0]}) does more than compute a value, and "
            "torch.where computes both sides."
        )


def _ends_in_return(body: list[ast.stmt]) -> bool:
    return bool(body) and isinstance(body[-1], ast.Return)


def _condition(test: ast.expr) -> ast.expr:
    if isinstance(test, ast.BoolOp):
        name = "logical_and" if isinstance(test.op, ast.And) else "logical_or"
        values = [_condition(value) for value in test.values]
        result = values[0]
        for value in values[1:]:
            result = _torch(name, result, value)
        return result
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return _torch("logical_not", _condition(test.operand))
    if isinstance(test, ast.Compare) and len(test.ops) > 1:
        parts = [
            ast.Compare(left, [op], [right])
            for left, op, right in zip([test.left, *test.comparators[:-1]], test.ops, test.comparators, strict=True)
        ]
        return _condition(ast.BoolOp(ast.And(), list(parts)))
    plain = _without_number(test)
    # torch.where takes a condition of bools only; a comparison is one
    return plain if isinstance(plain, ast.Compare) else ast.Compare(plain, [ast.NotEq()], [ast.Constant(0)])


def _torch(name: str, *args: ast.expr) -> ast.expr:
    return ast.Call(ast.Attribute(ast.Name("torch", ast.Load()), name, ast.Load()), list(args), [])


def _where(condition: ast.expr, yes: ast.expr, no: ast.expr) -> ast.expr:
    return _torch("where", condition, yes, no)


def _where_all(condition: ast.expr, yes: ast.expr, no: ast.expr) -> ast.expr:
    """``torch.where`` for each part of a tuple or dict, when both sides have the same parts."""
    if isinstance(yes, ast.Tuple) and isinstance(no, ast.Tuple) and len(yes.elts) == len(no.elts):
        pairs = zip(yes.elts, no.elts, strict=True)
        return ast.Tuple([_where_all(condition, a, b) for a, b in pairs], ast.Load())
    if isinstance(yes, ast.Dict) and isinstance(no, ast.Dict):
        keys = [ast.unparse(key) if key else "" for key in yes.keys]
        if keys == [ast.unparse(key) if key else "" for key in no.keys]:
            pairs = zip(yes.values, no.values, strict=True)
            return ast.Dict(yes.keys, [_where_all(condition, a, b) for a, b in pairs])
    if isinstance(yes, ast.Tuple | ast.Dict | ast.List) or isinstance(no, ast.Tuple | ast.Dict | ast.List):
        raise CannotRewrite("the two sides return different structures.")
    if ast.dump(yes) == ast.dump(no):
        return yes
    return _where(condition, yes, no)


def _assign(name: str, value: ast.expr) -> ast.stmt:
    return ast.Assign([ast.Name(name, ast.Store())], value, lineno=1)


def _assigned_names(body: Iterable[ast.stmt]) -> set[str]:
    return {n.id for s in body for n in ast.walk(s) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}


def _used_names(body: Iterable[ast.stmt]) -> set[str]:
    return {n.id for s in body for n in ast.walk(s) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}


def _renamed(body: list[ast.stmt], value: ast.expr, names: set[str], suffix: str) -> tuple[list[ast.stmt], ast.expr]:
    """One side with its own names for what it assigns; a name is the caller's until it is assigned."""
    done: set[str] = set()

    class Rename(ast.NodeTransformer):
        def visit_Name(self, node: ast.Name) -> ast.AST:
            if node.id in names and (isinstance(node.ctx, ast.Store) or node.id in done):
                return ast.Name(node.id + suffix, node.ctx)
            return node

    new_body = []
    for statement in body:
        copied = copy.deepcopy(statement)
        if isinstance(copied, ast.AugAssign) and isinstance(copied.target, ast.Name) and copied.target.id not in done:
            name = copied.target.id
            copied = ast.Assign(
                [ast.Name(name, ast.Store())], ast.BinOp(ast.Name(name, ast.Load()), copied.op, copied.value), lineno=1
            )
        if isinstance(copied, ast.Assign):
            copied.value = Rename().visit(copied.value)
            done |= {n.id for t in copied.targets for n in ast.walk(t) if isinstance(n, ast.Name)} & names
            copied.targets = [Rename().visit(target) for target in copied.targets]
        else:
            copied = Rename().visit(copied)
        new_body.append(copied)
    return new_body, Rename().visit(copy.deepcopy(value))


# -- checking


def _verify(
    rewrite: Rewrite, function: Callable[..., Any], module: torch.nn.Module, samples: Sequence[Sample]
) -> RewriteResult:
    source = _Source.of(module.forward)
    taken: set[tuple[int, bool]] = set()

    def probe(place: int, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            taken.add((place, bool(value)))
        return value

    instrumented = source.compiled(source.instrumented(), probe)
    results: dict[tuple[int, bool], BranchResult] = {}
    wanted = [(place, side) for place in rewrite._lines for side in (True, False)]
    for sample in _variants(samples):
        taken.clear()
        try:
            expected = _run_with(module, instrumented, sample)
        except Exception:  # a made-up value that the model does not take
            continue
        new = [branch for branch in taken if branch in wanted]
        if not new:
            continue
        try:
            outcome, largest = _compare(expected, _run_with(module, function, sample))
        except Exception:  # the rewritten forward fails where the original does not
            outcome, largest = "different", float("inf")
        for branch in new:
            known = results.get(branch)
            line = source.first + branch[0] // 1000 - 1
            if known is None or _ORDER.index(outcome) > _ORDER.index(known.outcome):
                results[branch] = BranchResult(line, branch[1], outcome, largest)
        if len(results) == len(wanted) and sample.index == samples[-1].index:
            break
    return RewriteResult(
        tuple(
            results.get(branch) or BranchResult(source.first + branch[0] // 1000 - 1, branch[1], "not reached")
            for branch in wanted
        )
    )


_ORDER = ("equal", "equal after broadcasting", "different")


def _run_with(module: torch.nn.Module, function: Any, sample: Sample) -> Any:
    forward = types.MethodType(function, module)
    with unchanged(module), without_output(), torch.no_grad(), replaced_forward(module, "", forward):
        output = own_copy(sample).call(module)
        return pytree.tree_map(lambda t: t.detach().clone() if isinstance(t, torch.Tensor) else t, output)


def _compare(expected: Any, actual: Any) -> tuple[str, float]:
    left, right = pytree.tree_leaves(expected), pytree.tree_leaves(actual)
    if len(left) != len(right):
        return "different", float("inf")
    worst, largest = 0, 0.0
    for one, two in zip(left, right, strict=True):
        if not isinstance(one, torch.Tensor) or not isinstance(two, torch.Tensor):
            if not torch.equal(torch.as_tensor(one), torch.as_tensor(two)):
                return "different", float("inf")
            continue
        try:
            shape = torch.broadcast_shapes(one.shape, two.shape)
        except RuntimeError:
            return "different", float("inf")
        worst = max(worst, int(one.shape != two.shape))
        difference = (one.expand(shape).double() - two.expand(shape).double()).abs()
        largest = max(largest, float(difference.max()) if difference.numel() else 0.0)
        if not torch.allclose(
            one.expand(shape).double(), two.expand(shape).double(), rtol=1e-5, atol=1e-6, equal_nan=True
        ):
            return "different", largest
    return _ORDER[worst], largest
