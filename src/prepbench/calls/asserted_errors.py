"""Checks that the graph makes for runtimes that answer where PyTorch raises: indices beside their table, division of
integers by zero.
"""

from __future__ import annotations

import operator
from collections.abc import Container, Iterator
from typing import Any, cast

import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from prepbench._torch_compat.programs import copied_graph, with_graph
from prepbench.calls.tensor_specs import FROM_THE_END, SAME_NUMBERS, lookups_of

Program = torch.export.ExportedProgram

_aten = torch.ops.aten
_PLACES = frozenset({
    _aten.argmax.default, _aten.argmin.default, _aten.argsort.default, _aten.sort.default, _aten.sort.stable,
    _aten.topk.default, _aten.nonzero.default,
})  # fmt: skip
"""Operators whose results are places in their argument, which mostly is the table."""
_DIVISIONS = frozenset({
    _aten.floor_divide.default, _aten.floor_divide_.Tensor, _aten.div.Tensor_mode, _aten.div_.Tensor_mode,
    _aten.remainder.Tensor, _aten.remainder_.Tensor, _aten.remainder.Scalar_Tensor,
    _aten.fmod.Tensor, _aten.fmod_.Tensor,
})  # fmt: skip
_INVERSIONS = (_aten.linalg_inv.default, _aten.inverse.default, _aten.linalg_solve.default)


def with_errors_asserted(program: Program, kinds: Container[str]) -> Program:
    """Return a flat program with assertions where PyTorch raises for certain values.

    Args:
        program: is not changed.
        kinds: of errors. ``"indices"``: a tensor indexes a table beyond its end, where a call does not check that
            already: it checks inputs that index tables of a fixed size
            (:func:`prepbench.calls.tensor_specs.index_limits`). ``"positions"``: a number read from a tensor does,
            as in ``x[n.item()]``. ``"divisors"``: integers are divided by a tensor with zeros. ``"singular"``: a matrix
            that has no inverse is inverted, or its equations are solved.
    """
    module = fx.GraphModule(program.graph_module, copied_graph(program.graph_module.graph))
    inputs = set(program.graph_signature.user_inputs)
    asserted: set[tuple[fx.Node, Any]] = set()
    for node in list(module.graph.nodes):
        for table, dim, indices in _lookups(node, inputs) if "indices" in kinds else ():
            size = table if isinstance(table, int) else table.meta["val"].shape[dim]
            if (indices, key := size if isinstance(size, int) else str(size)) not in asserted:
                asserted.add((indices, key))
                _assert_inside(node, table, dim, indices)
        if "positions" in kinds and _is_read_position(node):
            asserted.add((node, None))
            _assert_position(node)
        if "divisors" in kinds and _divides_integers(node) and (node.args[1], None) not in asserted:
            asserted.add((node.args[1], None))
            _assert_divisor(node)
        if "singular" in kinds and node.target in _INVERSIONS:
            asserted.add((node, None))
            _assert_solved(node)
    if not asserted:
        return program
    module.recompile()
    return with_graph(program, module)


def _lookups(node: fx.Node, inputs: set[Any]) -> Iterator[tuple[Any, int, fx.Node]]:
    for table, dim, indices in lookups_of(node):
        value = indices.meta.get("val") if isinstance(indices, fx.Node) else None
        if not isinstance(value, torch.Tensor) or value.dtype not in (torch.int32, torch.int64):
            continue
        if not isinstance(table, int) and not table.meta["val"].ndim:
            continue
        root = indices
        while root.op == "call_function" and (root.target in SAME_NUMBERS or root.target is operator.getitem):
            root = root.args[0]
        size = table if isinstance(table, int) else table.meta["val"].shape[dim]
        is_input = root.op == "placeholder"
        is_checked = is_input and (root.name not in inputs or isinstance(size, int))
        if root.op != "get_attr" and not is_checked and root.target not in _PLACES:
            yield table, dim, indices


def _is_read_position(node: fx.Node) -> bool:
    """Return whether a node selects by a number that values decide; positions from sizes are conditions on sizes."""
    if node.target is not _aten.select.int:
        return False
    position: Any = node.args[2]
    return isinstance(position, fx.Node) and bool(free_unbacked_symbols(position.meta.get("val")))


def _divides_integers(node: fx.Node) -> bool:
    """Return whether a node divides integers by a tensor that is no constant."""
    divisor: Any = node.args[1] if node.target in _DIVISIONS else None
    if not isinstance(divisor, fx.Node) or divisor.op == "get_attr":
        return False
    value, result = divisor.meta.get("val"), node.meta.get("val")
    return all(isinstance(each, torch.Tensor) and not each.dtype.is_floating_point for each in (value, result))


class _Asserter:
    """Inserts operators before a node, or behind it, as of the same line of the model."""

    def __init__(self, node: fx.Node, *, behind: bool = False) -> None:
        self._node = node.next if behind else node
        self._place: dict[str, Any] = {
            key: node.meta[key] for key in ("nn_module_stack", "stack_trace") if key in node.meta
        }

    def add(self, target: Any, *args: Any) -> fx.Node:
        values = [arg.meta["val"] if isinstance(arg, fx.Node) else arg for arg in args]
        return self._insert(target, args, target(*values))

    def check(self, target: Any, condition: fx.Node, text: str) -> None:
        self._insert(target, (condition, text), None)

    def size(self, table: Any, dim: int) -> Any:
        size = table if isinstance(table, int) else table.meta["val"].shape[dim]
        return size if isinstance(size, int) else self.add(_aten.sym_size.int, table, dim)

    def negative(self, size: Any) -> Any:
        return -size if isinstance(size, int) else self.add(operator.neg, size)

    def _insert(self, target: Any, args: tuple[Any, ...], value: Any) -> fx.Node:
        with self._node.graph.inserting_before(self._node):
            made = self._node.graph.call_function(target, args)
        made.meta = {**self._place, "val": value}
        return made


def _assert_inside(node: fx.Node, table: Any, dim: int, indices: fx.Node) -> None:
    """Insert the assertion before a lookup by a tensor."""
    asserter = _Asserter(node)
    size = asserter.size(table, dim)
    least = asserter.negative(size) if node.target in FROM_THE_END else 0
    below, above = asserter.add(_aten.lt.Scalar, indices, size), asserter.add(_aten.ge.Scalar, indices, least)
    inside = asserter.add(_aten.all.default, asserter.add(_aten.logical_and.default, below, above))
    text = f"index out of range in {str(node.target).removeprefix('aten.').partition('.')[0]}"
    asserter.check(_aten._assert_async.msg, inside, text)


def _assert_position(node: fx.Node) -> None:
    """Insert the assertions before a lookup by a number."""
    asserter, (table, dim, position) = _Asserter(node), node.args
    size = asserter.size(table, cast(int, dim))
    for compare, limit in ((operator.lt, size), (operator.ge, asserter.negative(size))):
        compared = asserter.add(compare, position, limit)
        asserter.check(_aten._assert_scalar.default, compared, "index out of range in select")


def _assert_divisor(node: fx.Node) -> None:
    """Insert the assertion before a division."""
    asserter = _Asserter(node)
    is_right = asserter.add(_aten.all.default, asserter.add(_aten.ne.Scalar, node.args[1], 0))
    asserter.check(_aten._assert_async.msg, is_right, "division by zero")


def _assert_solved(node: fx.Node) -> None:
    """Insert the assertion behind an inversion of finite numbers: its result is finite."""
    asserter = _Asserter(node, behind=True)

    def is_finite(value: Any) -> fx.Node:
        rest = asserter.add(_aten.mul.Tensor, value, 0)  # NaN for NaN and infinity
        return asserter.add(_aten.all.default, asserter.add(_aten.eq.Scalar, rest, 0))

    odd = [
        asserter.add(_aten.logical_not.default, is_finite(given))
        for given in node.args[:2]
        if isinstance(given, fx.Node)
    ]
    is_right = is_finite(node)
    for each in odd:
        is_right = asserter.add(_aten.logical_or.default, is_right, each)
    asserter.check(_aten._assert_async.msg, is_right, "the matrix is singular")
