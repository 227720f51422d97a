"""Loops over the rows of a tensor whose number changes: ``torch.vmap`` of what is done to one row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import libcst as cst

from prepbench.fixes.cannot_fix import CannotFix
from prepbench.fixes.kinds.branches import with_body
from prepbench.fixes.kinds.kind import Kind
from prepbench.fixes.kinds.row_sources import Rows, assigned_once, rows_of, with_rows
from prepbench.fixes.kinds.row_steps import Steps, check_computes
from prepbench.fixes.site import Proposal, Site
from prepbench.fixes.syntax import (
    Expression,
    Statement,
    assignment,
    atom,
    bare,
    block_of,
    blocks_around,
    body_of,
    expression,
    has_exit,
    lines_after,
    quoted,
    read_first,
    read_names,
    replaced,
    same,
    small_of,
    statement,
    stored_names,
    text_of,
    walk,
    walk_here,
)


def propose(site: Site) -> Iterator[Proposal]:
    """The loops of the function whose results are the rows of a tensor, or are summed up.

    Right if no step reads what another one leaves behind, and no step has effects.
    """
    found: dict[cst.CSTNode, Any] = {}
    for call in site.expressions(cst.Call):
        parts = _joined(site, call)
        if isinstance(parts, cst.ListComp | cst.GeneratorExp):
            mapped = _comprehension(site, call, parts)
            if mapped is not None:
                found[call] = mapped
    if found:
        yield Proposal(replaced(site.function, found))
        return
    if not isinstance(site.function, cst.FunctionDef):
        return
    for node in site.expressions(cst.For):
        loop = _Loop.of(site, node)
        if loop is not None:
            yield Proposal(loop.function(site.function))
            return


def _joined(site: Site, call: cst.Call) -> Expression | None:
    """What ``torch.stack(parts)``, ``torch.cat(parts)`` or ``torch.tensor(parts)`` joins along the first dim."""
    prefix, _, name = text_of(call.func).rpartition(".")
    is_join = prefix == text_of(site.torch) and name in ("stack", "cat", "tensor", "as_tensor") and bool(call.args)
    if not is_join:
        return None
    rest = [text_of(arg.value) for arg in call.args[1:] if arg.keyword is None or arg.keyword.value == "dim"]
    if name in ("stack", "cat") and rest not in ([], ["0"]):
        return None
    parts = call.args[0].value
    if name not in ("stack", "cat") and len(call.args) > 1:
        return None
    if isinstance(parts, cst.Name):
        value = assigned_once(site, parts.value)
        reads = [node for node in site.expressions(cst.Name) if node.value == parts.value]
        return value if isinstance(value, cst.ListComp) and len(reads) == 2 else parts
    return parts


def _as_joined(site: Site, call: cst.Call, rows: Expression) -> Expression:
    """The rows as the call that joined them gave them."""
    name = text_of(call.func).rpartition(".")[2]
    if name == "stack":
        return rows
    if name == "cat":
        return expression("{r}.flatten(0, 1)", r=atom(rows))
    dtypes = [str(dtype) for dtype in site.fact(call).dtypes]
    if len(dtypes) != 1:
        raise CannotFix("the dtype of what the loop makes changes")
    dtype = dtypes[0].replace("torch", text_of(site.torch), 1)
    return expression("{r}.to({dtype})", r=atom(rows), dtype=dtype)


def _comprehension(site: Site, call: cst.Call, parts: Any) -> Expression | None:
    if parts.for_in.ifs or parts.for_in.inner_for_in is not None:
        return None
    rows = rows_of(site, parts.for_in.target, parts.for_in.iter)
    if rows is None:
        return None
    lines, value = Steps(site, rows.names).value(bare(parts.elt))
    if lines:
        raise CannotFix("a step of the loop needs more than one expression")
    rows, (value,) = with_rows(site, rows, [value])
    mapped: Any = expression("{torch}.vmap(lambda " + ", ".join(rows.names) + ": {value})()", torch=site.torch,
                             value=value)  # fmt: skip
    return _as_joined(site, call, mapped.with_changes(args=rows.arguments()))


@dataclass
class _Loop:
    """One loop over rows.

    Attributes:
        site: where it stands.
        node: the loop.
        rows: what it goes over.
        lists: what is appended to lists, with the calls that join these.
        tensors: tensors whose rows are written.
        sums: what is added up.
    """

    site: Site
    node: cst.For
    rows: Rows
    lists: dict[str, tuple[Expression, cst.Call]] = field(default_factory=dict)
    tensors: dict[str, bool] = field(default_factory=dict)
    sums: dict[str, Expression] = field(default_factory=dict)
    _steps: list[Statement] = field(default_factory=list)
    _signs: dict[str, str] = field(default_factory=dict)
    _added_up: dict[str, str] = field(default_factory=dict)
    _checks: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, site: Site, node: cst.For) -> _Loop | None:
        """A loop over rows with results; None for others."""
        rows = rows_of(site, node.target, node.iter) if node.orelse is None else None
        if rows is None:
            return None
        found = cls(site, node, rows)
        found._read()
        return found if found.lists or found.tensors or found.sums else None

    def _read(self) -> None:
        """Find the results."""
        body = body_of(self.node.body)
        for at, each in enumerate(body):
            small = small_of(each)
            name, value = _appended(small)
            added = self._added(small, [*body[:at], *body[at + 1 :]])
            if name:
                self.lists[name] = value, self._join_of(name)
            elif added is not None:
                self.sums[added[0]] = added[1]
            else:
                self._steps.append(each)
        for target in (t.target for n in walk_here(self._steps) if isinstance(n, cst.Assign) for t in n.targets):
            if isinstance(target, cst.Subscript):
                self._check_written(target)

    def _join_of(self, name: str) -> cst.Call:
        reads = [node for node in self.site.expressions(cst.Name) if node.value == name]
        for call in self.site.expressions(cst.Call):
            parts = _joined(self.site, call)
            if isinstance(parts, cst.Name) and parts.value == name and len(reads) == 3:
                found: cst.Call = call
                return found  # its list, the call that appends, and this one
        raise CannotFix(f"{name!r} is more than the rows of a tensor")

    def _added(self, small: Any, others: Sequence[Statement]) -> tuple[str, Expression] | None:
        """The name and the value of ``total += value`` and ``total = total + value``."""
        name, value, is_less = "", None, False
        if isinstance(small, cst.AugAssign) and isinstance(small.operator, cst.AddAssign | cst.SubtractAssign):
            name, value = text_of(small.target), small.value
            is_less = isinstance(small.operator, cst.SubtractAssign)
        elif isinstance(small, cst.Assign) and isinstance(small.value, cst.BinaryOperation):
            target, left, right = small.targets[0].target, small.value.left, small.value.right
            is_less = isinstance(small.value.operator, cst.Subtract)
            if same(target, left) and (is_less or isinstance(small.value.operator, cst.Add)):
                name, value = text_of(target), right
            elif same(target, right) and isinstance(small.value.operator, cst.Add):
                name, value = text_of(target), left
        if value is None or not name.isidentifier() or name in read_names([value, *others]):
            return None
        is_own = name in {*self.rows.names, *stored_names(others), *self.site.parameters}
        if is_own or not self.site.fact(value).is_tensor:
            return None
        self._signs[name] = "-" if is_less else "+"
        return name, value

    def _check_written(self, target: cst.Subscript) -> None:
        """A tensor whose rows are written must be made in the function."""
        name = text_of(target.value)
        first = target.slice[0].slice
        value = assigned_once(self.site, name) if name.isidentifier() else None
        if not self.rows.index or not isinstance(first, cst.Index) or text_of(first.value) != self.rows.index:
            if isinstance(target.value, cst.Name) and name in stored_names(self._steps):
                return  # a tensor of one step
            raise CannotFix("a step of the loop writes into more than its row")
        if not isinstance(value, cst.Call | cst.BinaryOperation):
            raise CannotFix(f"{name!r} may be more than what the loop writes")
        self.tensors[name] = self.tensors.get(name, False) or len(target.slice) > 1

    # -- the function --------------------------------------------------------------------------------------------------

    def function(self, function: cst.FunctionDef) -> cst.FunctionDef:
        """The function with the loop as a call of ``torch.vmap``."""
        blocks = blocks_around(function.body, self.node)
        if not blocks:
            raise CannotFix("the loop over rows is inside of another loop")
        body, later = body_of(blocks[-1]), lines_after(blocks)
        at = body.index(self.node)
        starts = {name: [each for each in body[:at] if _is_empty_list(each, name)] for name in self.lists}
        if any(len(found) != 1 for found in starts.values()):
            raise CannotFix("a list of the loop does not begin empty")
        self._check_steps(self._steps, [*body[at + 1 :], *later])
        made, rows, results = self._made()
        call: Any = expression(f"{{torch}}.vmap({made.name.value})()", torch=self.site.torch)
        mapped = call.with_changes(args=rows.arguments())
        gone = list({id(found[0]): found[0] for found in starts.values()}.values())
        if any(not set(stored_names(each)) <= set(self.lists) for each in gone):
            raise CannotFix("a list of the loop does not begin empty")
        gone += [each for each in body[:at] if self._is_made_anew(each, rows, [*body[at + 1 :], *later])]
        before = [each for each in body[:at] if each not in gone]
        is_alone = len(results) == 1 and bool(self.lists)
        after = [] if is_alone else [self._assigned(results, mapped), *self._used()]
        joins: dict[cst.CSTNode, Any] = {
            join: _as_joined(self.site, join, mapped if is_alone else cst.Name(name))
            for name, (_, join) in self.lists.items()
        }
        if not set(joins) <= set(walk(body[at + 1 :])):
            raise CannotFix("a list of the loop is joined in another block")
        changed = [*before, made, *after, *(replaced(each, joins) for each in body[at + 1 :])]
        if len(blocks) == 1:
            return with_body(function, changed)
        new: cst.FunctionDef = replaced(function, {blocks[-1]: block_of(changed)})
        return new

    def _made(self) -> tuple[cst.FunctionDef, Rows, list[str]]:
        """The function of one row, what it is called with, and the names of its results."""
        steps = Steps(self.site, self.rows.names)
        inner = self.site.fresh("each_row")
        lines: list[Statement] = []
        for each in self._steps:
            *first, last = steps.block([each])
            lines += [*first, self._of_rows_form(each, last)]
        values: list[Expression] = []
        for value in [*(value for value, _ in self.lists.values()), *self.sums.values()]:
            before, new = steps.value(value)
            lines += before
            values.append(bare(new))
        self._checks = steps.checks
        numbers = cst.Name(self.rows.index) if self.rows.index else None
        written = [expression("{x}[{i}]", x=name, i=numbers) for name in self.tensors if numbers is not None]
        values = [*written, *values, *(cst.Name(name) for name in steps.checks)]
        self._added_up = {name: steps.fresh(f"each_{name}") for name in self.sums}
        results = [*self.tensors, *self.lists, *self._added_up.values(), *steps.checks]
        rows, changed = with_rows(self.site, self.rows, [*lines, *values], steps.taken)
        lines, values = changed[: len(lines)], changed[len(lines) :]
        for (name, is_part), row in zip(self.tensors.items(), values, strict=False):
            if is_part:
                lines = [assignment(text_of(row), expression("{r}.clone()", r=row)), *lines]
            elif text_of(row) not in read_first(lines) and any(_assigns(each, row) for each in lines):
                at = next(i for i, tensor in enumerate(rows.tensors) if text_of(tensor) == name)
                rows = replace(rows, names=_without(rows.names, at), tensors=_without(rows.tensors, at))
        returned = values[0] if len(values) == 1 else cst.Tuple([cst.Element(value) for value in values], [], [])
        made: Any = statement(f"def {inner}({', '.join(rows.names)}):\n    return {{v}}", v=returned)
        lines = [*lines, *body_of(made.body)]
        return made.with_changes(body=block_of(lines), leading_lines=self.node.leading_lines), rows, results

    def _of_rows_form(self, each: Statement, changed: Statement) -> Statement:
        """``out[i] = value`` with a value of the row's own form."""
        small, new = small_of(each), small_of(changed)
        if not isinstance(small, cst.Assign) or not isinstance(small.targets[0].target, cst.Subscript):
            return changed
        target, fact = small.targets[0].target, self.site.fact(small.value)
        if text_of(target.value) not in self.tensors or len(target.slice) > 1:
            return changed
        is_alike = fact.is_tensor and fact.dims == {dims - 1 for dims in self.site.fact(target.value).dims}
        template = "{v}.to({x}.dtype)" if is_alike else "{v}.to({x}.dtype).expand_as({x})"
        template = template if fact.is_tensor else "{torch}.full_like({x}, {v})"
        value = expression(template, torch=self.site.torch, v=atom(new.value), x=target)
        formed: Statement = replaced(changed, {new.value: value})
        return formed

    def _is_made_anew(self, each: Statement, rows: Rows, after: Sequence[Statement]) -> bool:
        """Whether a statement makes a tensor of which the loop writes every row."""
        small = small_of(each)
        name = text_of(small.targets[0].target) if isinstance(small, cst.Assign) else ""
        reads = read_names([each for each in self._before() if each is not small] + list(rows.tensors))
        is_made = isinstance(small.value, cst.Call) and _last_name(small.value).startswith(_MAKES) if name else False
        return is_made and name in self.tensors and name not in reads and not has_exit(after, cst.Del)

    def _before(self) -> list[cst.CSTNode]:
        line = self.site.place(self.node)[0]
        nodes = self.site.expressions(cst.BaseSmallStatement)
        return [node for node in nodes if self.site.has_place(node) and self.site.place(node)[0] < line]

    def _assigned(self, results: Sequence[str], mapped: Expression) -> Statement:
        if len(results) == 1:
            return assignment(results[0], mapped)
        elements = [cst.Element(cst.Name(name)) for name in results]
        return cst.SimpleStatementLine([cst.Assign([cst.AssignTarget(cst.Tuple(elements, [], []))], mapped)])

    def _used(self) -> list[Statement]:
        """What is added up, and what must hold."""
        made: list[Statement] = []
        for name, each in self._added_up.items():
            made.append(assignment(name, expression(f"{name} {self._signs[name]} {each}.sum(0)")))
        for check in self._checks:
            text = quoted("a part of a row has no values")
            made.append(
                statement(f"{{torch}}._assert_async({check}.all(), {{text}})", torch=self.site.torch, text=text)
            )
        return made

    def _check_steps(self, steps: Sequence[Statement], after: Sequence[Statement]) -> None:
        """Refuse steps that are not independent of each other."""
        if has_exit(self.node.body, cst.Break, cst.Continue, cst.Return, cst.Raise, cst.Assert):
            raise CannotFix("the loop over rows is left early")
        own = set(stored_names(steps)) | set(self.rows.names) | ({self.rows.index} - {""})
        if own & read_names(after) or set(stored_names(steps)) & self.site.parameters:
            raise CannotFix(f"{', '.join(sorted(own & (read_names(after) | self.site.parameters)))!r} outlives its row")
        check_computes(steps, own, set(self.rows.names) | {self.rows.index})


def _assigns(each: Statement, row: Expression) -> bool:
    small = small_of(each)
    return isinstance(small, cst.Assign) and any(same(target.target, row) for target in small.targets)


_MAKES = ("zeros", "ones", "empty", "full", "new_")
"""What makes a tensor of which nothing is needed but its form."""


def _last_name(call: cst.Call) -> str:
    return text_of(call.func).rpartition(".")[2]


def _without(values: Sequence[Any], at: int) -> tuple[Any, ...]:
    return (*values[:at], *values[at + 1 :])


def _appended(small: Any) -> tuple[str, Any]:
    """The list and the value of ``parts.append(value)``."""
    call = small.value if isinstance(small, cst.Expr) else None
    if not isinstance(call, cst.Call) or not isinstance(call.func, cst.Attribute) or len(call.args) != 1:
        return "", None
    is_append = call.func.attr.value == "append" and isinstance(call.func.value, cst.Name)
    return (text_of(call.func.value), call.args[0].value) if is_append else ("", None)


def _is_empty_list(each: Statement, name: str) -> bool:
    small = small_of(each)
    if not isinstance(small, cst.Assign) or len(small.targets) != 1:
        return False
    pairs: list[tuple[Any, Any]] = [(small.targets[0].target, small.value)]
    if isinstance(small.value, cst.Tuple) and isinstance(pairs[0][0], cst.Tuple):
        both = zip(pairs[0][0].elements, small.value.elements, strict=False)
        pairs = [(one.value, other.value) for one, other in both]
    return any(text_of(target) == name for target, _ in pairs) and all(
        isinstance(value, cst.List) and not value.elements for _, value in pairs
    )


ROWS = Kind(
    "a loop over rows becomes torch.vmap",
    "no row's result depends on another row's",
    propose,
)
