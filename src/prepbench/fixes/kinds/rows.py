"""Loops over the rows of a tensor with a dynamic number of rows: ``torch.vmap`` of the work on one row."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import libcst as cst
import torch
from torch import nn

from prepbench.fixes import syntax
from prepbench.fixes.kinds.branches import with_body
from prepbench.fixes.kinds.chosen import Choices
from prepbench.fixes.kinds.numbers import Numbers
from prepbench.fixes.kinds.row_sources import Rows, assigned_once, rows_of, with_rows
from prepbench.fixes.site import Kind, Proposal, Site
from prepbench.fixes.syntax import CannotFix, Expression, Statement

# The work on one row, with its numbers as tensors and its data-sized parts as masks.


_POINTWISE = frozenset(
    ["relu", "gelu", "silu", "elu", "tanh", "sigmoid", "exp", "log", "abs", "sqrt", "square", "float", "double"]
)
_POINTWISE_LAYERS = (
    nn.Linear, nn.LayerNorm, nn.Embedding, nn.Identity, nn.ReLU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.ELU,
    nn.LeakyReLU, nn.Hardtanh, nn.Softplus,
)  # fmt: skip
_REDUCTIONS = {"mean": "0", "sum": "0", "max": 'float("-inf")', "amax": 'float("-inf")', "min": 'float("inf")',
               "amin": 'float("inf")', "logsumexp": 'float("-inf")'}  # fmt: skip
"""The neutral element that is reduced beside the part."""
_NEED_VALUES = ("max", "amax", "min", "amin")


@dataclass(frozen=True)
class _Part:
    """A part of a tensor whose size depends on data.

    Attributes:
        whole: the tensor, or an elementwise function of it.
        mask: which positions belong to the part.
        at: the dim that they are of.
        dims: how many the whole has.
    """

    whole: Expression
    mask: Expression
    at: int
    dims: int

    @property
    def fitted(self) -> Expression:
        """Return the mask with a size of 1 for each dim after its own."""
        more = self.dims - 1 - self.at
        index = "[:" + ", None" * more + "]"
        return syntax.expression(f"{{m}}{index}", m=syntax.atom(self.mask)) if more else self.mask


@dataclass
class Steps:
    """Rewrites the statements that work on one row."""

    site: Site
    numbers: Collection[str]
    taken: list[str] = field(default_factory=list)
    checks: list[str] = field(default_factory=list)
    _lines: list[Statement] = field(default_factory=list)
    _masks: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._found = Numbers(self.site)
        self._choices = Choices(self.site)

    def fresh(self, base: str) -> str:
        name = self.site.fresh(base, *self.taken)
        self.taken.append(name)
        return name

    def block(self, statements: Sequence[Statement]) -> list[Statement]:
        """Return the rewritten statements, each preceded by the statements that it needs."""
        made: list[Statement] = []
        for each in statements:
            new = self._changed(each)
            made += [*self._lines, new]
            self._lines.clear()
        return made

    def value(self, node: Expression) -> tuple[list[Statement], Expression]:
        """Return the statements that an expression requires, and the expression."""
        new = self._expression(node)
        lines = list(self._lines)
        self._lines.clear()
        return lines, new

    def _changed(self, each: Statement) -> Statement:
        small = syntax.small_of(each)
        if isinstance(small, cst.Assign) and len(small.targets) == 1:
            target = small.targets[0].target
            if isinstance(target, cst.Subscript):
                written = self._written(target, small.value)
                if written is not None:
                    return written.with_changes(leading_lines=getattr(each, "leading_lines", ()))
        if isinstance(small, cst.Assign | cst.AugAssign | cst.AnnAssign | cst.Expr) and small.value is not None:
            changed: Statement = syntax.replaced(each, {small.value: self._expression(small.value)})
            return changed
        return each

    def _expression(self, node: Expression) -> Expression:
        """Return an expression on tensors."""
        found: dict[cst.CSTNode, Any] = {}
        inside: set[cst.CSTNode] = set()
        for part in syntax.walk_here(node):
            if part in inside or not isinstance(part, cst.Call | cst.Subscript):
                continue
            new = self._reduced(part) if isinstance(part, cst.Call) else None
            if new is None:
                new = self._choices.called(part) if isinstance(part, cst.Call) else self._choices.read(part)
            if new is None and isinstance(part, cst.Call):
                new = self._found.outermost(part)
            if new is not None:
                found[part] = syntax.atom(new)
                inside.update(syntax.walk_here(part))
            elif isinstance(part, cst.Subscript) and self._part(part) is not None:
                raise CannotFix("a step of the loop takes a part of its row whose size depends on data")
        changed: Expression = syntax.bare(found[node]) if node in found else syntax.replaced(node, found)
        return changed

    # -- parts that data sizes -----------------------------------------------------------------------------------------

    def _is_data(self, node: cst.CSTNode | None) -> bool:
        if node is None:
            return False
        fact = self.site.fact(node)
        return fact.is_tensor or self._found.is_number(node) or bool(syntax.read_names(node) & set(self.numbers))

    def _part(self, node: cst.CSTNode) -> _Part | None:
        """Return the part that ``x[i, :n]`` or ``x[mask]`` is; None for other nodes."""
        if not isinstance(node, cst.Subscript):
            return None
        dims, at = self._dims(node), 0
        for index, element in enumerate(node.slice):
            inner: Any = element.slice
            if isinstance(inner, cst.Slice) and (self._is_data(inner.lower) or self._is_data(inner.upper)):
                if inner.step is not None or len(dims) != 1:
                    return None
                rest = [*node.slice[:index], *node.slice[index + 1 :]]
                full = [
                    *node.slice[:index],
                    element.with_changes(slice=cst.Slice(None, None)),
                    *node.slice[index + 1 :],
                ]
                whole = node.value if not rest else node.with_changes(slice=full)
                if index == len(node.slice) - 1 and rest:
                    whole = node.with_changes(slice=_without_comma(rest))
                return _Part(whole, self._inside(whole, at, inner), at, min(dims))
            if isinstance(inner, cst.Slice):
                at += 1
            elif self._is_mask(inner.value) and len(dims) == 1:
                if index < len(node.slice) - 1 or at:
                    return None
                rest = list(node.slice[:index])
                whole = node.with_changes(slice=_without_comma(rest)) if rest else node.value
                return _Part(whole, inner.value, 0, min(dims))
        return None

    def _dims(self, node: cst.Subscript) -> set[int]:
        """Return the possible numbers of dims of a part; for a written one, those of the tensor that it is part of."""
        known = self.site.fact(node).dims
        gone = sum(isinstance(each.slice, cst.Index) and not self._is_mask(each.slice.value) for each in node.slice)
        return known or {dims - gone for dims in self.site.fact(node.value).dims}

    def _is_mask(self, node: cst.CSTNode) -> bool:
        fact = self.site.fact(node)
        return fact.is_tensor and fact.dtypes == {torch.bool} and fact.dims == {1}

    def _inside(self, whole: Expression, at: int, part: cst.Slice) -> Expression:
        """Return the name of a mask of the positions in a part."""
        key = f"{syntax.text_of(whole)} {at} {syntax.text_of(part)}"
        if key in self._masks:
            return cst.Name(self._masks[key])
        place, name = self.fresh("position"), self.fresh("inside")
        parts = {"torch": self.site.torch, "x": syntax.atom(whole)}
        count = f"{{x}}.shape[{at}]"
        self._lines.append(
            syntax.assignment(place, syntax.expression(f"{{torch}}.arange({count}, device={{x}}.device)", **parts))
        )  # fmt: skip
        tests = []
        for bound, sign in ((part.lower, ">="), (part.upper, "<")):
            if bound is None:
                continue
            limit: Expression = self._found.tensor(bound)
            counted: Expression = cst.Name(place)
            if not isinstance(bound, cst.Integer):
                # a negative number counts from the end, as in a slice
                counted = syntax.expression(
                    f"{{torch}}.where({{b}} < 0, {place} - {count}, {place})", b=syntax.atom(limit), **parts
                )  # fmt: skip
            tests.append(syntax.expression(f"({{p}} {sign} {{b}})", p=counted, b=syntax.atom(limit)))
        whole_test = (
            syntax.bare(tests[0]) if len(tests) == 1 else syntax.expression("{a} & {b}", a=tests[0], b=tests[1])
        )
        self._lines.append(syntax.assignment(name, whole_test))
        self._masks[key] = name
        return cst.Name(name)

    def _computed(self, node: cst.CSTNode) -> _Part | None:
        """Return a part, or a value that is computed from a part elementwise."""
        part = self._part(node)
        if part is not None or not isinstance(node, cst.Call):
            return part
        method = isinstance(node.func, cst.Attribute) and not node.args
        inner: Any = (
            cst.ensure_type(node.func, cst.Attribute).value
            if method
            else node.args[0].value
            if len(node.args) == 1
            else None
        )
        if inner is None or not (self._is_pointwise(node) or self._is_pointwise_layer(node.func)):
            return None
        dims = self.site.fact(node).dims
        part = self._computed(inner)
        if part is None or len(dims) != 1:
            return None
        return _Part(syntax.replaced(node, {inner: part.whole}), part.mask, part.at, min(dims))

    def _is_pointwise(self, call: cst.Call) -> bool:
        name = call.func.attr.value if isinstance(call.func, cst.Attribute) else syntax.text_of(call.func)
        is_method = isinstance(call.func, cst.Attribute) and self.site.fact(call.func.value).is_tensor
        is_torch = syntax.text_of(call.func).rpartition(".")[0].partition(".")[0] in (
            syntax.text_of(self.site.torch),
            "F",
        )
        return name in _POINTWISE and (is_method or is_torch)

    def _is_pointwise_layer(self, function: cst.CSTNode) -> bool:
        layers = self.site.fact(function).values
        if isinstance(function, cst.Attribute):
            layers = [getattr(owner, function.attr.value, None) for owner in self.site.fact(function.value).values]
        parts = [part for layer in layers for part in (layer if isinstance(layer, nn.Sequential) else [layer])]
        return bool(parts) and all(isinstance(part, _POINTWISE_LAYERS) for part in parts)

    def _reduced(self, call: cst.Call) -> Expression | None:
        """Rewrite ``x[i, :n].mean(0)`` as a reduction of the whole row with a mask; None for other calls."""
        if not isinstance(call.func, cst.Attribute) or call.func.attr.value not in _REDUCTIONS:
            return None
        name, is_function = call.func.attr.value, syntax.text_of(call.func.value) == syntax.text_of(self.site.torch)
        args = list(call.args)
        if is_function and not args:
            return None
        source = args.pop(0).value if is_function else call.func.value
        lines, masks = len(self._lines), dict(self._masks)
        part = self._computed(source)
        if part is None:
            return None
        over = _dims(args, part.dims)
        if over is None or part.at not in over or (name == "mean" and len(over) > 1):
            del self._lines[lines:]
            self._masks = masks
            return None
        parts = {"torch": self.site.torch, "m": part.fitted, "x": syntax.bare(part.whole)}
        is_float = all(dtype.is_floating_point for dtype in self.site.fact(source).dtypes)
        if not is_float and name in _NEED_VALUES:
            return None
        masked = syntax.expression(f"{{torch}}.where({{m}}, {{x}}, {_REDUCTIONS[name]})", **parts)
        if name in _NEED_VALUES:
            check = self.fresh("has_values")
            self._lines.append(syntax.assignment(check, syntax.expression("{m}.any()", m=syntax.atom(part.mask))))
            self.checks.append(check)
        wanted = "sum" if name == "mean" else name
        made: Any = syntax.expression(f"{{x}}.{wanted}()", x=masked)
        made = made.with_changes(args=args)
        return syntax.expression("{s} / {m}.sum(0)", s=made, m=syntax.atom(part.fitted)) if name == "mean" else made

    def _written(self, target: cst.Subscript, value: Expression) -> Statement | None:
        """Rewrite ``row[:n] = v`` as a selection between the row and the written value."""
        part = self._part(target)
        if part is None:
            return None
        fact, source = self.site.fact(value), self._part(value)
        if source is not None and syntax.same(source.mask, part.mask):
            new = source.whole
        elif fact.is_number or fact.dims == {0} or isinstance(value, cst.Integer | cst.Float):
            new = self._expression(value)
        else:
            raise CannotFix("a part whose size depends on data gets other values than one number")
        parts = {"torch": self.site.torch, "m": part.fitted, "v": syntax.bare(new), "x": part.whole}
        chosen = syntax.expression("{torch}.where({m}, {v}, {x})", **parts)
        target_of_whole: Any = part.whole
        return cst.SimpleStatementLine([cst.Assign([cst.AssignTarget(target_of_whole)], chosen)])


def _without_comma(elements: Sequence[cst.SubscriptElement]) -> list[cst.SubscriptElement]:
    return [*elements[:-1], elements[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)]


def _dims(args: Sequence[cst.Arg], dims: int) -> set[int] | None:
    """Return the dims of a reduction; None where they are not written as numbers."""
    named = {arg.keyword.value: arg.value for arg in args if arg.keyword is not None}
    plain = [arg.value for arg in args if arg.keyword is None]
    value = named.get("dim", named.get("axis", plain[0] if plain else None))
    if value is None:
        return set(range(dims))
    try:
        found = int(syntax.text_of(value))
    except ValueError:
        return None
    return {found % dims}


def check_computes(steps: Sequence[Statement], own: set[str], known: set[str]) -> set[str]:
    """Raise for a name that an iteration reads before it assigns it."""
    for each in steps:
        small = syntax.small_of(each)
        if isinstance(each, cst.If):
            _check_reads([each.test], own, known)
            sides = [
                check_computes(side, own, set(known)) for side in (syntax.body_of(each.body), syntax.orelse_of(each))
            ]
            known = sides[0] & sides[1]
        elif isinstance(each, cst.For) and each.orelse is None:
            _check_reads([each.iter], own, known)
            check_computes(syntax.body_of(each.body), own, known | set(syntax.stored_names(each.target)))
        elif isinstance(small, cst.Assign | cst.AnnAssign | cst.AugAssign) and small.value is not None:
            targets = [t.target for t in small.targets] if isinstance(small, cst.Assign) else [small.target]
            if any(isinstance(target, cst.Attribute) for target in targets):
                raise CannotFix("a step of the loop does more than compute values")
            _check_reads([small.value, *targets] if isinstance(small, cst.AugAssign) else [small.value], own, known)
            known = known | set(syntax.stored_names(each))
        elif not isinstance(small, cst.Pass):
            raise CannotFix("a step of the loop does more than compute values")
    return known


def _check_reads(nodes: Sequence[cst.CSTNode], own: set[str], known: set[str]) -> None:
    if (syntax.read_names(nodes) & own) - known:
        raise CannotFix("a step of the loop reads what another step leaves behind")


def propose(site: Site) -> Iterator[Proposal]:
    """Propose to rewrite the loops of the function whose results are the rows of a tensor, or are summed.

    This is correct if no iteration reads what another one leaves behind, and none has effects.
    """
    found: dict[cst.CSTNode, Any] = {}
    for call in site.expressions(cst.Call):
        parts = _joined(site, call)
        if isinstance(parts, cst.ListComp | cst.GeneratorExp):
            mapped = _comprehension(site, call, parts)
            if mapped is not None:
                found[call] = mapped
    if found:
        yield Proposal(syntax.replaced(site.function, found))
        return
    if not isinstance(site.function, cst.FunctionDef):
        return
    for node in site.expressions(cst.For):
        loop = _Loop.of(site, node)
        if loop is not None:
            yield Proposal(loop.function(site.function))
            return


def _joined(site: Site, call: cst.Call) -> Expression | None:
    """Return what ``torch.stack(parts)``, ``torch.cat(parts)`` or ``torch.tensor(parts)`` joins along the first dim."""
    prefix, _, name = syntax.text_of(call.func).rpartition(".")
    is_join = (
        prefix == syntax.text_of(site.torch) and name in ("stack", "cat", "tensor", "as_tensor") and bool(call.args)
    )
    if not is_join:
        return None
    rest = [syntax.text_of(arg.value) for arg in call.args[1:] if arg.keyword is None or arg.keyword.value == "dim"]
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
    """Return the rows in the form that the joining call gave them."""
    name = syntax.text_of(call.func).rpartition(".")[2]
    if name == "stack":
        return rows
    if name == "cat":
        return syntax.expression("{r}.flatten(0, 1)", r=syntax.atom(rows))
    dtypes = [str(dtype) for dtype in site.fact(call).dtypes]
    if len(dtypes) != 1:
        raise CannotFix("the dtype of what the loop makes changes")
    dtype = dtypes[0].replace("torch", syntax.text_of(site.torch), 1)
    return syntax.expression("{r}.to({dtype})", r=syntax.atom(rows), dtype=dtype)


def _comprehension(site: Site, call: cst.Call, parts: Any) -> Expression | None:
    if parts.for_in.ifs or parts.for_in.inner_for_in is not None:
        return None
    rows = rows_of(site, parts.for_in.target, parts.for_in.iter)
    if rows is None:
        return None
    lines, value = Steps(site, rows.names).value(syntax.bare(parts.elt))
    if lines:
        raise CannotFix("a step of the loop needs more than one expression")
    rows, (value,) = with_rows(site, rows, [value])
    mapped: Any = syntax.expression("{torch}.vmap(lambda " + ", ".join(rows.names) + ": {value})()", torch=site.torch,
                             value=value)  # fmt: skip
    return _as_joined(site, call, mapped.with_changes(args=rows.arguments()))


@dataclass
class _Loop:
    """One loop over rows.

    Attributes:
        site: where it stands.
        node: the loop.
        rows: the rows that it iterates over.
        lists: the values that are appended to lists, with the calls that join these.
        tensors: tensors whose rows are written.
        sums: the values that are summed.
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
        """Return a loop over rows with results; None for others."""
        rows = rows_of(site, node.target, node.iter) if node.orelse is None else None
        if rows is None:
            return None
        found = cls(site, node, rows)
        found._read()
        return found if found.lists or found.tensors or found.sums else None

    def _read(self) -> None:
        """Find the results."""
        body = syntax.body_of(self.node.body)
        for at, each in enumerate(body):
            small = syntax.small_of(each)
            name, value = _appended(small)
            added = self._added(small, [*body[:at], *body[at + 1 :]])
            if name:
                self.lists[name] = value, self._join_of(name)
            elif added is not None:
                self.sums[added[0]] = added[1]
            else:
                self._steps.append(each)
        for target in (t.target for n in syntax.walk_here(self._steps) if isinstance(n, cst.Assign) for t in n.targets):
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
        """Return the name and the value of ``total += value`` and ``total = total + value``."""
        name, value, is_less = "", None, False
        if isinstance(small, cst.AugAssign) and isinstance(small.operator, cst.AddAssign | cst.SubtractAssign):
            name, value = syntax.text_of(small.target), small.value
            is_less = isinstance(small.operator, cst.SubtractAssign)
        elif isinstance(small, cst.Assign) and isinstance(small.value, cst.BinaryOperation):
            target, left, right = small.targets[0].target, small.value.left, small.value.right
            is_less = isinstance(small.value.operator, cst.Subtract)
            if syntax.same(target, left) and (is_less or isinstance(small.value.operator, cst.Add)):
                name, value = syntax.text_of(target), right
            elif syntax.same(target, right) and isinstance(small.value.operator, cst.Add):
                name, value = syntax.text_of(target), left
        if value is None or not name.isidentifier() or name in syntax.read_names([value, *others]):
            return None
        is_own = name in {*self.rows.names, *syntax.stored_names(others), *self.site.parameters}
        if is_own or not self.site.fact(value).is_tensor:
            return None
        self._signs[name] = "-" if is_less else "+"
        return name, value

    def _check_written(self, target: cst.Subscript) -> None:
        """Raise unless a tensor whose rows are written is created in the function."""
        name = syntax.text_of(target.value)
        first = target.slice[0].slice
        value = assigned_once(self.site, name) if name.isidentifier() else None
        if not self.rows.index or not isinstance(first, cst.Index) or syntax.text_of(first.value) != self.rows.index:
            if isinstance(target.value, cst.Name) and name in syntax.stored_names(self._steps):
                return  # a tensor of one step
            raise CannotFix("a step of the loop writes into more than its row")
        if not isinstance(value, cst.Call | cst.BinaryOperation):
            raise CannotFix(f"{name!r} may be more than what the loop writes")
        self.tensors[name] = self.tensors.get(name, False) or len(target.slice) > 1

    # -- the function --------------------------------------------------------------------------------------------------

    def function(self, function: cst.FunctionDef) -> cst.FunctionDef:
        """Return the function with the loop as a call of ``torch.vmap``."""
        blocks = syntax.blocks_around(function.body, self.node)
        if not blocks:
            raise CannotFix("the loop over rows is inside of another loop")
        body, later = syntax.body_of(blocks[-1]), syntax.lines_after(blocks)
        at = body.index(self.node)
        starts = {name: [each for each in body[:at] if _is_empty_list(each, name)] for name in self.lists}
        if any(len(found) != 1 for found in starts.values()):
            raise CannotFix("a list of the loop does not begin empty")
        self._check_steps(self._steps, [*body[at + 1 :], *later])
        made, rows, results = self._made()
        call: Any = syntax.expression(f"{{torch}}.vmap({made.name.value})()", torch=self.site.torch)
        mapped = call.with_changes(args=rows.arguments())
        gone = list({id(found[0]): found[0] for found in starts.values()}.values())
        if any(not set(syntax.stored_names(each)) <= set(self.lists) for each in gone):
            raise CannotFix("a list of the loop does not begin empty")
        gone += [each for each in body[:at] if self._is_made_anew(each, rows, [*body[at + 1 :], *later])]
        before = [each for each in body[:at] if each not in gone]
        is_alone = len(results) == 1 and bool(self.lists)
        after = [] if is_alone else [self._assigned(results, mapped), *self._used()]
        joins: dict[cst.CSTNode, Any] = {
            join: _as_joined(self.site, join, mapped if is_alone else cst.Name(name))
            for name, (_, join) in self.lists.items()
        }
        if not set(joins) <= set(syntax.walk(body[at + 1 :])):
            raise CannotFix("a list of the loop is joined in another block")
        changed = [*before, made, *after, *(syntax.replaced(each, joins) for each in body[at + 1 :])]
        if len(blocks) == 1:
            return with_body(function, changed)
        new: cst.FunctionDef = syntax.replaced(function, {blocks[-1]: syntax.block_of(changed)})
        return new

    def _made(self) -> tuple[cst.FunctionDef, Rows, list[str]]:
        """Return the function of one row, its arguments, and the names of its results."""
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
            values.append(syntax.bare(new))
        self._checks = steps.checks
        numbers = cst.Name(self.rows.index) if self.rows.index else None
        written = [syntax.expression("{x}[{i}]", x=name, i=numbers) for name in self.tensors if numbers is not None]
        values = [*written, *values, *(cst.Name(name) for name in steps.checks)]
        self._added_up = {name: steps.fresh(f"each_{name}") for name in self.sums}
        results = [*self.tensors, *self.lists, *self._added_up.values(), *steps.checks]
        rows, changed = with_rows(self.site, self.rows, [*lines, *values], steps.taken)
        lines, values = changed[: len(lines)], changed[len(lines) :]
        for (name, is_part), row in zip(self.tensors.items(), values, strict=False):
            if is_part:
                lines = [syntax.assignment(syntax.text_of(row), syntax.expression("{r}.clone()", r=row)), *lines]
            elif syntax.text_of(row) not in syntax.read_first(lines) and any(_assigns(each, row) for each in lines):
                at = next(i for i, tensor in enumerate(rows.tensors) if syntax.text_of(tensor) == name)
                rows = replace(rows, names=_without(rows.names, at), tensors=_without(rows.tensors, at))
        returned = values[0] if len(values) == 1 else cst.Tuple([cst.Element(value) for value in values], [], [])
        made: Any = syntax.statement(f"def {inner}({', '.join(rows.names)}):\n    return {{v}}", v=returned)
        lines = [*lines, *syntax.body_of(made.body)]
        return made.with_changes(body=syntax.block_of(lines), leading_lines=self.node.leading_lines), rows, results

    def _of_rows_form(self, each: Statement, changed: Statement) -> Statement:
        """Rewrite ``out[i] = value`` with a value in the form of a row."""
        small, new = syntax.small_of(each), syntax.small_of(changed)
        if not isinstance(small, cst.Assign) or not isinstance(small.targets[0].target, cst.Subscript):
            return changed
        target, fact = small.targets[0].target, self.site.fact(small.value)
        if syntax.text_of(target.value) not in self.tensors or len(target.slice) > 1:
            return changed
        is_alike = fact.is_tensor and fact.dims == {dims - 1 for dims in self.site.fact(target.value).dims}
        template = "{v}.to({x}.dtype)" if is_alike else "{v}.to({x}.dtype).expand_as({x})"
        template = template if fact.is_tensor else "{torch}.full_like({x}, {v})"
        value = syntax.expression(template, torch=self.site.torch, v=syntax.atom(new.value), x=target)
        formed: Statement = syntax.replaced(changed, {new.value: value})
        return formed

    def _is_made_anew(self, each: Statement, rows: Rows, after: Sequence[Statement]) -> bool:
        """Return whether a statement creates a tensor of which the loop writes every row."""
        small = syntax.small_of(each)
        name = syntax.text_of(small.targets[0].target) if isinstance(small, cst.Assign) else ""
        reads = syntax.read_names([each for each in self._before() if each is not small] + list(rows.tensors))
        made = syntax.text_of(small.value.func).rpartition(".")[2] if name and isinstance(small.value, cst.Call) else ""
        return (
            made.startswith(_MAKES)
            and name in self.tensors
            and name not in reads
            and not syntax.has_exit(after, cst.Del)
        )

    def _before(self) -> list[cst.CSTNode]:
        line = self.site.place(self.node)[0]
        nodes = self.site.expressions(cst.BaseSmallStatement)
        return [node for node in nodes if self.site.has_place(node) and self.site.place(node)[0] < line]

    def _assigned(self, results: Sequence[str], mapped: Expression) -> Statement:
        if len(results) == 1:
            return syntax.assignment(results[0], mapped)
        elements = [cst.Element(cst.Name(name)) for name in results]
        return cst.SimpleStatementLine([cst.Assign([cst.AssignTarget(cst.Tuple(elements, [], []))], mapped)])

    def _used(self) -> list[Statement]:
        """Return the sums, and the checks of assumptions."""
        made: list[Statement] = []
        for name, each in self._added_up.items():
            made.append(syntax.assignment(name, syntax.expression(f"{name} {self._signs[name]} {each}.sum(0)")))
        for check in self._checks:
            text = syntax.quoted("a part of a row has no values")
            made.append(
                syntax.statement(f"{{torch}}._assert_async({check}.all(), {{text}})", torch=self.site.torch, text=text)
            )
        return made

    def _check_steps(self, steps: Sequence[Statement], after: Sequence[Statement]) -> None:
        """Raise unless iterations are independent of each other."""
        if syntax.has_exit(self.node.body, cst.Break, cst.Continue, cst.Return, cst.Raise, cst.Assert):
            raise CannotFix("the loop over rows is left early")
        own = set(syntax.stored_names(steps)) | set(self.rows.names) | ({self.rows.index} - {""})
        if own & syntax.read_names(after) or set(syntax.stored_names(steps)) & self.site.parameters:
            raise CannotFix(
                f"{', '.join(sorted(own & (syntax.read_names(after) | self.site.parameters)))!r} outlives its row"
            )
        check_computes(steps, own, set(self.rows.names) | {self.rows.index})


def _assigns(each: Statement, row: Expression) -> bool:
    small = syntax.small_of(each)
    return isinstance(small, cst.Assign) and any(syntax.same(target.target, row) for target in small.targets)


_MAKES = ("zeros", "ones", "empty", "full", "new_")
"""Functions that make a tensor of which only the shape and dtype are needed."""


def _without(values: Sequence[Any], at: int) -> tuple[Any, ...]:
    return (*values[:at], *values[at + 1 :])


def _appended(small: Any) -> tuple[str, Any]:
    """Return the list and the value of ``parts.append(value)``."""
    call = small.value if isinstance(small, cst.Expr) else None
    if not isinstance(call, cst.Call) or not isinstance(call.func, cst.Attribute) or len(call.args) != 1:
        return "", None
    is_append = call.func.attr.value == "append" and isinstance(call.func.value, cst.Name)
    return (syntax.text_of(call.func.value), call.args[0].value) if is_append else ("", None)


def _is_empty_list(each: Statement, name: str) -> bool:
    small = syntax.small_of(each)
    if not isinstance(small, cst.Assign) or len(small.targets) != 1:
        return False
    pairs: list[tuple[Any, Any]] = [(small.targets[0].target, small.value)]
    if isinstance(small.value, cst.Tuple) and isinstance(pairs[0][0], cst.Tuple):
        both = zip(pairs[0][0].elements, small.value.elements, strict=False)
        pairs = [(one.value, other.value) for one, other in both]
    return any(syntax.text_of(target) == name for target, _ in pairs) and all(
        isinstance(value, cst.List) and not value.elements for _, value in pairs
    )


ROWS = Kind(
    "a loop over rows becomes torch.vmap",
    "no row's result depends on another row's",
    propose,
)
