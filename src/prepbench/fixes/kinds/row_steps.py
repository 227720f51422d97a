"""What is done to one row, with the numbers in it as tensors and the parts that data sizes as masks."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import libcst as cst
import torch
from torch import nn

from prepbench.fixes.cannot_fix import CannotFix
from prepbench.fixes.kinds.chosen_by_number import Choices
from prepbench.fixes.kinds.numbers import Numbers
from prepbench.fixes.site import Site
from prepbench.fixes.syntax import (
    Expression,
    Statement,
    assignment,
    atom,
    bare,
    body_of,
    expression,
    orelse_of,
    read_names,
    replaced,
    same,
    small_of,
    stored_names,
    text_of,
    walk_here,
)

_POINTWISE = frozenset(
    ["relu", "gelu", "silu", "elu", "tanh", "sigmoid", "exp", "log", "abs", "sqrt", "square", "float", "double"]
)
_POINTWISE_LAYERS = (
    nn.Linear, nn.LayerNorm, nn.Embedding, nn.Identity, nn.ReLU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.ELU,
    nn.LeakyReLU, nn.Hardtanh, nn.Softplus,
)  # fmt: skip
_REDUCTIONS = {"mean": "0", "sum": "0", "max": 'float("-inf")', "amax": 'float("-inf")', "min": 'float("inf")',
               "amin": 'float("inf")', "logsumexp": 'float("-inf")'}  # fmt: skip
"""What is reduced beside the part, which changes nothing."""
_NEED_VALUES = ("max", "amax", "min", "amin")


@dataclass(frozen=True)
class _Part:
    """A part of a tensor whose size depends on data.

    Attributes:
        whole: the tensor, or what is computed from each of its positions.
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
        """The mask with a size of 1 for each dim after its own."""
        more = self.dims - 1 - self.at
        index = "[:" + ", None" * more + "]"
        return expression(f"{{m}}{index}", m=atom(self.mask)) if more else self.mask


@dataclass
class Steps:
    """Changes the statements that are done to one row.

    Attributes:
        site: where they stand.
        numbers: the names of rows that are numbers.
        checks: names of bools that must hold.
    """

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
        """The statements; what they need first stands before them."""
        made: list[Statement] = []
        for each in statements:
            new = self._changed(each)
            made += [*self._lines, new]
            self._lines.clear()
        return made

    def value(self, node: Expression) -> tuple[list[Statement], Expression]:
        """What must stand before an expression, and the expression."""
        new = self._expression(node)
        lines = list(self._lines)
        self._lines.clear()
        return lines, new

    def _changed(self, each: Statement) -> Statement:
        small = small_of(each)
        if isinstance(small, cst.Assign) and len(small.targets) == 1:
            target = small.targets[0].target
            if isinstance(target, cst.Subscript):
                written = self._written(target, small.value)
                if written is not None:
                    return written.with_changes(leading_lines=getattr(each, "leading_lines", ()))
        if isinstance(small, cst.Assign | cst.AugAssign | cst.AnnAssign | cst.Expr) and small.value is not None:
            changed: Statement = replaced(each, {small.value: self._expression(small.value)})
            return changed
        return each

    def _expression(self, node: Expression) -> Expression:
        """An expression on tensors."""
        found: dict[cst.CSTNode, Any] = {}
        inside: set[cst.CSTNode] = set()
        for part in walk_here(node):
            if part in inside or not isinstance(part, cst.Call | cst.Subscript):
                continue
            new = self._reduced(part) if isinstance(part, cst.Call) else None
            if new is None:
                new = self._choices.called(part) if isinstance(part, cst.Call) else self._choices.read(part)
            if new is None and isinstance(part, cst.Call):
                new = self._found.outermost(part)
            if new is not None:
                found[part] = atom(new)
                inside.update(walk_here(part))
            elif isinstance(part, cst.Subscript) and self._part(part) is not None:
                raise CannotFix("a step of the loop takes a part of its row whose size depends on data")
        changed: Expression = bare(found[node]) if node in found else replaced(node, found)
        return changed

    # -- parts that data sizes -----------------------------------------------------------------------------------------

    def _is_data(self, node: cst.CSTNode | None) -> bool:
        if node is None:
            return False
        fact = self.site.fact(node)
        return fact.is_tensor or self._found.is_number(node) or bool(read_names(node) & set(self.numbers))

    def _part(self, node: cst.CSTNode) -> _Part | None:
        """What ``x[i, :n]`` or ``x[mask]`` is a part of; None for other nodes."""
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
        """How many dims a part has; one that is written is known by what it is a part of."""
        known = self.site.fact(node).dims
        gone = sum(isinstance(each.slice, cst.Index) and not self._is_mask(each.slice.value) for each in node.slice)
        return known or {dims - gone for dims in self.site.fact(node.value).dims}

    def _is_mask(self, node: cst.CSTNode) -> bool:
        fact = self.site.fact(node)
        return fact.is_tensor and fact.dtypes == {torch.bool} and fact.dims == {1}

    def _inside(self, whole: Expression, at: int, part: cst.Slice) -> Expression:
        """The name of a mask of the positions in a part."""
        key = f"{text_of(whole)} {at} {text_of(part)}"
        if key in self._masks:
            return cst.Name(self._masks[key])
        place, name = self.fresh("position"), self.fresh("inside")
        parts = {"torch": self.site.torch, "x": atom(whole)}
        count = f"{{x}}.shape[{at}]"
        self._lines.append(
            assignment(place, expression(f"{{torch}}.arange({count}, device={{x}}.device)", **parts))
        )  # fmt: skip
        tests = []
        for bound, sign in ((part.lower, ">="), (part.upper, "<")):
            if bound is None:
                continue
            limit: Expression = self._found.tensor(bound)
            counted: Expression = cst.Name(place)
            if not isinstance(bound, cst.Integer):
                # a negative number counts from the end, as in a slice
                counted = expression(
                    f"{{torch}}.where({{b}} < 0, {place} - {count}, {place})", b=atom(limit), **parts
                )  # fmt: skip
            tests.append(expression(f"({{p}} {sign} {{b}})", p=counted, b=atom(limit)))
        whole_test = bare(tests[0]) if len(tests) == 1 else expression("{a} & {b}", a=tests[0], b=tests[1])
        self._lines.append(assignment(name, whole_test))
        self._masks[key] = name
        return cst.Name(name)

    def _computed(self, node: cst.CSTNode) -> _Part | None:
        """A part, or what is computed from each of its positions alone."""
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
        return _Part(replaced(node, {inner: part.whole}), part.mask, part.at, min(dims))

    def _is_pointwise(self, call: cst.Call) -> bool:
        name = call.func.attr.value if isinstance(call.func, cst.Attribute) else text_of(call.func)
        is_method = isinstance(call.func, cst.Attribute) and self.site.fact(call.func.value).is_tensor
        is_torch = text_of(call.func).rpartition(".")[0].partition(".")[0] in (text_of(self.site.torch), "F")
        return name in _POINTWISE and (is_method or is_torch)

    def _is_pointwise_layer(self, function: cst.CSTNode) -> bool:
        layers = self.site.fact(function).values
        if isinstance(function, cst.Attribute):
            layers = [getattr(owner, function.attr.value, None) for owner in self.site.fact(function.value).values]
        parts = [part for layer in layers for part in (layer if isinstance(layer, nn.Sequential) else [layer])]
        return bool(parts) and all(isinstance(part, _POINTWISE_LAYERS) for part in parts)

    def _reduced(self, call: cst.Call) -> Expression | None:
        """``x[i, :n].mean(0)`` as a reduction of the whole row with a mask; None for other calls."""
        if not isinstance(call.func, cst.Attribute) or call.func.attr.value not in _REDUCTIONS:
            return None
        name, is_function = call.func.attr.value, text_of(call.func.value) == text_of(self.site.torch)
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
        parts = {"torch": self.site.torch, "m": part.fitted, "x": bare(part.whole)}
        is_float = all(dtype.is_floating_point for dtype in self.site.fact(source).dtypes)
        if not is_float and name in _NEED_VALUES:
            return None
        masked = expression(f"{{torch}}.where({{m}}, {{x}}, {_REDUCTIONS[name]})", **parts)
        if name in _NEED_VALUES:
            check = self.fresh("has_values")
            self._lines.append(assignment(check, expression("{m}.any()", m=atom(part.mask))))
            self.checks.append(check)
        wanted = "sum" if name == "mean" else name
        made: Any = expression(f"{{x}}.{wanted}()", x=masked)
        made = made.with_changes(args=args)
        return expression("{s} / {m}.sum(0)", s=made, m=atom(part.fitted)) if name == "mean" else made

    def _written(self, target: cst.Subscript, value: Expression) -> Statement | None:
        """``row[:n] = v`` as a choice between the row and what is written."""
        part = self._part(target)
        if part is None:
            return None
        fact, source = self.site.fact(value), self._part(value)
        if source is not None and same(source.mask, part.mask):
            new = source.whole
        elif fact.is_number or fact.dims == {0} or isinstance(value, cst.Integer | cst.Float):
            new = self._expression(value)
        else:
            raise CannotFix("a part whose size depends on data gets other values than one number")
        parts = {"torch": self.site.torch, "m": part.fitted, "v": bare(new), "x": part.whole}
        chosen = expression("{torch}.where({m}, {v}, {x})", **parts)
        target_of_whole: Any = part.whole
        return cst.SimpleStatementLine([cst.Assign([cst.AssignTarget(target_of_whole)], chosen)])


def _without_comma(elements: Sequence[cst.SubscriptElement]) -> list[cst.SubscriptElement]:
    return [*elements[:-1], elements[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)]


def _dims(args: Sequence[cst.Arg], dims: int) -> set[int] | None:
    """The dims that a reduction is over; None where that is not written as numbers."""
    named = {arg.keyword.value: arg.value for arg in args if arg.keyword is not None}
    plain = [arg.value for arg in args if arg.keyword is None]
    value = named.get("dim", named.get("axis", plain[0] if plain else None))
    if value is None:
        return set(range(dims))
    try:
        found = int(text_of(value))
    except ValueError:
        return None
    return {found % dims}


def check_computes(steps: Sequence[Statement], own: set[str], known: set[str]) -> set[str]:
    """The names that steps have given a value; each must have one in the same step before it is read."""
    for each in steps:
        small = small_of(each)
        if isinstance(each, cst.If):
            _check_reads([each.test], own, known)
            sides = [check_computes(side, own, set(known)) for side in (body_of(each.body), orelse_of(each))]
            known = sides[0] & sides[1]
        elif isinstance(each, cst.For) and each.orelse is None:
            _check_reads([each.iter], own, known)
            check_computes(body_of(each.body), own, known | set(stored_names(each.target)))
        elif isinstance(small, cst.Assign | cst.AnnAssign | cst.AugAssign) and small.value is not None:
            targets = [t.target for t in small.targets] if isinstance(small, cst.Assign) else [small.target]
            if any(isinstance(target, cst.Attribute) for target in targets):
                raise CannotFix("a step of the loop does more than compute values")
            _check_reads([small.value, *targets] if isinstance(small, cst.AugAssign) else [small.value], own, known)
            known = known | set(stored_names(each))
        elif not isinstance(small, cst.Pass):
            raise CannotFix("a step of the loop does more than compute values")
    return known


def _check_reads(nodes: Sequence[cst.CSTNode], own: set[str], known: set[str]) -> None:
    if (read_names(nodes) & own) - known:
        raise CannotFix("a step of the loop reads what another step leaves behind")
