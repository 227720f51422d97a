"""The rows that a loop iterates over: ``x``, ``zip(x, y)``, ``enumerate(x)``, ``range(len(x))``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import libcst as cst

from prepbench.fixes import syntax
from prepbench.fixes.site import Site
from prepbench.fixes.syntax import CannotFix, Expression


@dataclass(frozen=True)
class Rows:
    """The rows that a loop iterates over.

    Attributes:
        names: of one row of each tensor, in order.
        tensors: the tensors.
        index: the name of the step's number; "" where none is used.
        counted: the tensor whose rows are counted; None where the tensors are.
    """

    names: tuple[str, ...]
    tensors: tuple[Expression, ...]
    index: str = ""
    counted: Expression | None = None

    def arguments(self) -> list[cst.Arg]:
        """Return the tensors as arguments of the function of one row."""
        return [cst.Arg(syntax.bare(tensor)) for tensor in self.tensors]


def rows_of(site: Site, target: Any, over: Expression) -> Rows | None:
    """Return the rows that a loop iterates over; None for other loops."""
    name = syntax.text_of(over.func) if isinstance(over, cst.Call) else ""
    args = [arg.value for arg in over.args if arg.keyword is None] if isinstance(over, cst.Call) else []
    if name == "enumerate" and len(args) == 1 and isinstance(target, cst.Tuple) and len(target.elements) == 2:
        number, inner = (element.value for element in target.elements)
        found = rows_of(site, inner, args[0]) if isinstance(number, cst.Name) else None
        return None if found is None or found.index else replace(found, index=syntax.text_of(number))
    if name == "zip" and isinstance(target, cst.Tuple | cst.List):
        names = tuple(syntax.target_names(target))
        tensors = [tensor_of(site, each) for each in args]  # strict= is what vmap does
        is_plain = len(names) == len(tensors) == len(target.elements)
        return Rows(names, tuple(t for t in tensors if t)) if is_plain and None not in tensors else None
    if not isinstance(target, cst.Name):
        return None
    tensor = tensor_of(site, over)
    if tensor is not None:
        return Rows((target.value,), (tensor,))
    if name == "range" and len(args) == 1:
        counted = _counted(site, args[0])
        return Rows((), (), target.value, counted) if counted is not None else None
    return None


def tensor_of(site: Site, node: Expression) -> Expression | None:
    """Return the tensor whose rows an expression has: itself, or that of ``x.unbind(0)`` or ``lengths.tolist()``."""
    if has_rows(site, node):
        return node
    if isinstance(node, cst.Name):
        value = assigned_once(site, node.value)
        held = None if value is None or isinstance(value, cst.Name) else _held(value)
        is_plain = isinstance(held, cst.Name) and sum(_stores(site, held.value)) <= (held.value not in site.parameters)
        return held if held is not None and is_plain and has_rows(site, held) else None
    held = _held(node)
    return held if held is not None and has_rows(site, held) else None


def _held(node: cst.CSTNode) -> Expression | None:
    while isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute):
        method, texts = node.func.attr.value, [syntax.text_of(arg.value) for arg in node.args]
        if method not in ("unbind", "tolist", "cpu", "numpy", "detach") or texts not in ([], ["0"]):
            return None
        node = node.func.value
    return node if isinstance(node, cst.BaseExpression) else None


def has_rows(site: Site, node: cst.CSTNode) -> bool:
    """Return whether an expression is a tensor with rows."""
    fact = site.fact(node)
    if not fact.kinds and isinstance(node, cst.Name | cst.Attribute):  # a copy in a changed statement
        alike = [other for other in site.expressions(type(node)) if syntax.same(other, node) and site.fact(other).kinds]
        fact = site.fact(alike[0]) if alike else fact
    return fact.is_tensor and 0 not in fact.dims


def _stores(site: Site, name: str) -> list[bool]:
    kinds = (cst.Assign, cst.AugAssign, cst.AnnAssign, cst.For, cst.NamedExpr)
    targets = [t.target for n in site.expressions(kinds) for t in getattr(n, "targets", (n,))]
    return [True for target in targets if name in syntax.target_names(target)]


def assigned_once(site: Site, name: str) -> Expression | None:
    """Return the value of a name that is assigned once; None for others."""
    if name in site.parameters or len(_stores(site, name)) != 1:
        return None
    for node in site.expressions(cst.Assign):
        if len(node.targets) == 1 and syntax.text_of(node.targets[0].target) == name:
            value: Expression = node.value
            return value
    return None


def _counted(site: Site, count: Expression) -> Expression | None:
    """Return the tensor of ``x.shape[0]``, ``x.size(0)`` or ``len(x)``, or of a name for one of these."""
    if isinstance(count, cst.Name):
        value = assigned_once(site, count.value)
        return _counted(site, value) if value is not None else _first_size(site, count.value)
    text, found = syntax.text_of(count), None
    if isinstance(count, cst.Call) and syntax.text_of(count.func) == "len" and len(count.args) == 1:
        return tensor_of(site, count.args[0].value)
    if isinstance(count, cst.Call) and text.endswith(".size(0)"):
        found = cst.ensure_type(count.func, cst.Attribute).value
    if isinstance(count, cst.Subscript) and text.endswith(".shape[0]"):
        found = cst.ensure_type(count.value, cst.Attribute).value
    return found if found is not None and has_rows(site, found) else None


def _first_size(site: Site, name: str) -> Expression | None:
    """Return the tensor of ``count, width = x.shape``."""
    for node in site.expressions(cst.Assign):
        target = node.targets[0].target
        if not isinstance(target, cst.Tuple) or syntax.text_of(target.elements[0].value) != name:
            continue
        shape: Any = node.value.func if isinstance(node.value, cst.Call) and not node.value.args else node.value
        is_shape = isinstance(shape, cst.Attribute) and shape.attr.value in ("shape", "size")
        if is_shape and len(_stores(site, name)) == 1 and has_rows(site, shape.value):
            return cst.ensure_type(shape, cst.Attribute).value
    return None


def with_rows(site: Site, rows: Rows, nodes: Sequence[Any], taken: Sequence[str] = ()) -> tuple[Rows, list[Any]]:
    """Add a name for each tensor of which an iteration reads the row of its own number.

    Raises:
        CannotFix: a step needs the row of something that is no tensor.
    """
    if not rows.index:
        return rows, list(nodes)
    named = _RowsByNumber(site, rows.index, taken)
    changed = [node.visit(named) for node in nodes]
    known = named.known
    names = (*rows.names, *(name for name, _ in known.values()))
    tensors = (*rows.tensors, *(tensor for _, tensor in known.values()))
    if rows.index in syntax.read_names(changed):
        counted = rows.counted or (tensors[0] if tensors else None)
        if counted is None or any(
            rows.index in syntax.read_names(n) and not _takes_tensors(site, n) for n in _items(changed)
        ):
            raise CannotFix("a step of the loop needs its number")
        numbers = syntax.expression("{torch}.arange({x}.shape[0], device={x}.device)", torch=site.torch, x=counted)
        names, tensors = (*names, rows.index), (*tensors, numbers)
    if not names:
        raise CannotFix("no step of the loop reads a row")
    return Rows(names, tensors), changed


def _items(nodes: Sequence[Any]) -> list[cst.Subscript]:
    return [node for node in syntax.walk_here(nodes) if isinstance(node, cst.Subscript)]


def _takes_tensors(site: Site, node: cst.Subscript) -> bool:
    """Return whether the number of an iteration may be a tensor in an index."""
    is_slice = any(isinstance(element.slice, cst.Slice) for element in node.slice)
    return site.fact(node.value).is_tensor and not is_slice


class _RowsByNumber(cst.CSTTransformer):
    """Replaces ``x[i]`` by names: ``known`` has a name and the tensor, by the text of the tensor."""

    def __init__(self, site: Site, index: str, taken: Sequence[str]) -> None:
        super().__init__()
        self.known: dict[str, tuple[str, Expression]] = {}
        self._site, self._index, self._taken = site, index, taken

    def leave_Subscript(self, original_node: cst.Subscript, updated_node: cst.Subscript) -> cst.BaseExpression:
        rest = _rest(updated_node, self._index)
        if rest is None or not has_rows(self._site, original_node.value):
            return updated_node
        key = syntax.text_of(original_node.value)
        if key not in self.known:
            others = (name for name, _ in self.known.values())
            base = f"{key}_row" if key.isidentifier() else "row"
            self.known[key] = self._site.fresh(base, *self._taken, *others), original_node.value
        name = cst.Name(self.known[key][0])
        return updated_node.with_changes(value=name, slice=rest) if rest else name


def _rest(node: cst.CSTNode, index: str) -> list[Any] | None:
    """Return what follows the iteration's number in ``x[i, ...]``; ``x[i : i + 1]`` is its row with a leading dim."""
    if not isinstance(node, cst.Subscript):
        return None
    first, rest = node.slice[0].slice, list(node.slice[1:])
    if isinstance(first, cst.Index) and syntax.text_of(first.value) == index:
        return rest
    if isinstance(first, cst.Slice) and syntax.text_of(first).replace(" ", "") == f"{index}:{index}+1":
        return [cst.SubscriptElement(cst.Index(cst.Name("None"))), *rest]
    return None
