"""One side of a branch as unconditional statements with fresh names for its assignments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import libcst as cst
import torch

from prepbench.fixes import syntax
from prepbench.fixes.kinds.conditions import choice
from prepbench.fixes.site import Site
from prepbench.fixes.syntax import CannotFix, Expression, Statement

_OPERATORS = {
    cst.AddAssign: "+", cst.SubtractAssign: "-", cst.MultiplyAssign: "*", cst.DivideAssign: "/", cst.PowerAssign: "**",
    cst.BitAndAssign: "&", cst.BitOrAssign: "|", cst.MatrixMultiplyAssign: "@", cst.FloorDivideAssign: "//",
    cst.ModuloAssign: "%", cst.BitXorAssign: "^",
}  # fmt: skip


class Names(Protocol):
    """Makes unused names."""

    site: Site

    def fresh(self, base: str) -> str:
        """Return an unused name."""


@dataclass
class Side:
    """One side of a branch.

    Attributes:
        statements: the unconditional statements.
        values: the value of each name that the side assigns.
        returned: the returned value.
        writes: assignments to attributes and items, and calls that append, which are made once for both sides.
    """

    statements: list[Statement] = field(default_factory=list)
    values: dict[str, Expression] = field(default_factory=dict)
    returned: Expression | None = None
    writes: dict[str, tuple[Any, Expression]] = field(default_factory=dict)

    def value(self, site: Site, name: str) -> Expression:
        """Return the value of a name after this side."""
        return self.values.get(name) or cst.Name(name)

    def effects(self, site: Site, condition: Expression, other: Side) -> list[Statement]:
        """Return the writes of two sides as selections between the written values."""
        made: list[Statement] = []
        for text in dict.fromkeys([*self.writes, *other.writes]):
            one, two = self.writes.get(text), other.writes.get(text)
            target: Any = (one or two or ("", None))[0]
            if isinstance(target, cst.Call):
                if one is None or two is None:
                    raise CannotFix(f"only one side calls {text}")
                value = choice(site, condition, one[1], two[1])
                call = target.with_changes(args=[cst.Arg(value)])
                made.append(cst.SimpleStatementLine([cst.Expr(call)]))
                continue
            yes, no = (one[1] if one else target), (two[1] if two else target)
            value = choice(site, condition, yes, no)
            made.append(cst.SimpleStatementLine([cst.Assign([cst.AssignTarget(target)], value)]))
        return made


def side_of(
    names: Names,
    statements: Sequence[Statement],
    suffix: str,
    *,
    returns: bool = False,
    single: bool = False,
    guards: Mapping[str, Expression] | None = None,
) -> Side:
    """Return one side, with fresh names for its assignments.

    Args:
        names: makes fresh names.
        statements: the side, without branches on tensors.
        suffix: ends its names.
        returns: whether it ends in ``return``.
        single: whether its one value may stand where it is chosen, without a name.
        guards: replacements of names that the side computes with.

    Raises:
        CannotFix: it does more than compute values.
    """
    side, mapping = Side(), _Mapping(names, suffix)
    for name, value in (guards if guards and _computes(statements) else {}).items():
        side.statements.append(syntax.assignment(mapping.new(name), value))
    for index, each in enumerate(statements):
        small = syntax.small_of(each)
        if isinstance(small, cst.Return) and returns and index == len(statements) - 1:
            if small.value is None:
                raise CannotFix("a side of the branch returns nothing")
            side.returned = names.site.same_fact(mapping.applied(small.value), small.value)
        elif isinstance(small, cst.Assign | cst.AnnAssign | cst.AugAssign) and small.value is not None:
            _assign(names, side, mapping, each, small, single and len(statements) == 1)
        elif isinstance(small, cst.Expr):
            _call(names.site, side, mapping, small.value)
        elif isinstance(small, cst.Pass):
            continue
        elif isinstance(each, cst.If | cst.For | cst.With):
            _compound(names, side, mapping, each)
        else:
            raise CannotFix(f"a side of the branch does more than compute a value: {_first_line(each)!r}")
    if returns and side.returned is None:
        raise CannotFix("a side of the branch does not end in return")
    return side


def _computes(statements: Sequence[Statement]) -> bool:
    kinds = (cst.Call, cst.BinaryOperation, cst.UnaryOperation, cst.AugAssign, cst.Subscript)
    return any(isinstance(node, kinds) for node in syntax.walk_here(statements))


class _Mapping:
    """The names of one side by the user's names."""

    def __init__(self, names: Names, suffix: str) -> None:
        self._names, self._suffix = names, suffix
        self.known: dict[str, str] = {}

    def applied(self, node: Any) -> Any:
        return syntax.renamed(node, self.known)

    def new(self, name: str) -> str:
        if name not in self.known:
            self.known[name] = self._names.fresh(f"{name}_{self._suffix}")
        return self.known[name]


def _assign(names: Names, side: Side, mapping: _Mapping, line: Statement, small: Any, inline: bool) -> None:
    targets = [target.target for target in small.targets] if isinstance(small, cst.Assign) else [small.target]
    value = names.site.same_fact(mapping.applied(small.value), small.value)
    if isinstance(small, cst.AugAssign):
        sign = _OPERATORS[type(small.operator)]
        left = mapping.applied(small.target)
        value = syntax.expression(f"{{a}} {sign} {{b}}", a=syntax.atom(left), b=syntax.atom(value))
    if len(targets) != 1:
        raise CannotFix(f"a side assigns several names at once: {_first_line(line)!r}")
    target = targets[0]
    if isinstance(target, cst.Attribute | cst.Subscript):
        _check_kept(names.site, target)
        _write(side, mapping.applied(target), value)
        return
    if any(not isinstance(node, cst.Name | cst.Tuple | cst.Element) for node in _target_nodes(target)):
        raise CannotFix(f"a side assigns to {syntax.text_of(target)!r}")
    if inline and isinstance(target, cst.Name):
        side.values[target.value] = value
        return
    new = syntax.renamed(target, {name: mapping.new(name) for name in syntax.target_names(target)})
    made = cst.SimpleStatementLine([cst.Assign([cst.AssignTarget(new)], value)])
    side.statements.append(made.with_changes(leading_lines=getattr(line, "leading_lines", ())))
    for name in syntax.target_names(target):
        node = cst.Name(mapping.known[name])
        side.values[name] = names.site.same_fact(node, small.value) if isinstance(target, cst.Name) else node


def _target_nodes(target: cst.CSTNode) -> list[cst.CSTNode]:
    if isinstance(target, cst.Tuple | cst.List):
        return [target, *(node for element in target.elements for node in _target_nodes(element.value))]
    return [target]


def _check_kept(site: Site, target: cst.Attribute | cst.Subscript) -> None:
    """Raise for state that a graph does not keep between calls: numbers and entries of containers of the module."""
    root: cst.CSTNode = target
    while isinstance(root, cst.Attribute | cst.Subscript):
        root = root.value
    is_own = isinstance(root, cst.Name) and root.value not in syntax.stored_names(site.body)
    held = site.fact(target.value).values
    if isinstance(target, cst.Attribute):
        held = [getattr(owner, target.attr.value, None) for owner in held]
    if is_own and held and not all(isinstance(value, torch.Tensor) for value in held):
        raise CannotFix(
            f"a side assigns {syntax.text_of(target)!r}, which a graph does not keep from call to call; make it a "
            "buffer"
        )


def _write(side: Side, target: Any, value: Expression) -> None:
    text = syntax.text_of(target)
    if text in side.writes or any(isinstance(node, cst.Call) for node in syntax.walk_here(target)):
        raise CannotFix(f"a side writes to {text!r} more than once")
    side.writes[text] = target, value


def _call(site: Site, side: Side, mapping: _Mapping, call: Expression) -> None:
    """Handle a call whose result is unused: a method that appends, or one that writes into a tensor."""
    if isinstance(call, cst.SimpleString | cst.ConcatenatedString):
        return
    if isinstance(call, cst.Call) and isinstance(call.func, cst.Attribute):
        name, owner = call.func.attr.value, call.func.value
        if name == "append" and len(call.args) == 1:
            key = f"{syntax.text_of(call.func)} {len(side.writes)}"
            value = site.same_fact(mapping.applied(call.args[0].value), call.args[0].value)
            side.writes[key] = mapping.applied(call), value
            return
        if name.endswith("_") and not name.endswith("__") and site.fact(owner).is_tensor:
            root, value = _out_of_place(call)
            _write(side, syntax.expression("{x}[...]", x=mapping.applied(root)), mapping.applied(value))
            return
    raise CannotFix(f"a side of the branch does more than compute a value: {syntax.text_of(call)!r}")


def _out_of_place(call: cst.Call) -> tuple[Expression, Expression]:
    """Return the tensor that ``x.mul_(a).add_(b)`` writes into, and ``x.mul(a).add(b)``."""
    assert isinstance(call.func, cst.Attribute)
    name, owner = call.func.attr.value, call.func.value
    root, value = owner, owner
    if isinstance(owner, cst.Call) and isinstance(owner.func, cst.Attribute) and owner.func.attr.value.endswith("_"):
        root, value = _out_of_place(owner)
    if name == "copy_":
        return root, call.args[0].value
    if name == "zero_":
        return root, syntax.expression("{x} * 0", x=syntax.atom(value))
    if name == "fill_":
        return root, call.args[0].value
    return root, call.with_changes(func=call.func.with_changes(value=value, attr=cst.Name(name[:-1])))


def _compound(names: Names, side: Side, mapping: _Mapping, each: Any) -> None:
    """Handle a statement with a block: names that it assigns start with their value before it."""
    if syntax.has_exit(each, cst.Return, cst.Raise, cst.Break, cst.Continue, cst.Del, cst.Global, cst.Nonlocal):
        raise CannotFix(f"a side leaves the branch inside of a block: {_first_line(each)!r}")
    for small in (node for node in syntax.walk_here(each) if isinstance(node, cst.Expr | cst.Assert)):
        raise CannotFix(f"a side of the branch does more than compute a value: {syntax.text_of(small)!r}")
    for target in (t.target for node in syntax.walk_here(each) if isinstance(node, cst.Assign) for t in node.targets):
        if isinstance(target, cst.Attribute | cst.Subscript):
            raise CannotFix(f"a side writes to {syntax.text_of(target)!r} inside of a block")
    stored = [
        name for name in syntax.stored_names(each) if name in syntax.read_names(each.body) or name not in mapping.known
    ]
    for name in stored:
        before = mapping.known.get(name, name)
        if name not in mapping.known and _is_read(each, name):
            side.statements.append(syntax.assignment(mapping.new(name), cst.Name(before)))
        mapping.new(name)
    side.statements.append(mapping.applied(each))
    for name in syntax.stored_names(each):
        side.values[name] = cst.Name(mapping.known[name])


def _is_read(each: cst.CSTNode, name: str) -> bool:
    reads = name in syntax.read_names(each)
    augmented = any(
        isinstance(n, cst.AugAssign) and name in syntax.target_names(n.target) for n in syntax.walk_here(each)
    )
    return (reads or augmented) and not (isinstance(each, cst.For) and name in syntax.target_names(each.target))


def _first_line(each: cst.CSTNode) -> str:
    return syntax.text_of(each).splitlines()[0]
