"""Conditions on sizes as nodes of an ONNX graph."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Any

from prepbench.capture.sizes.size_formulas import python_text
from prepbench.errors import TargetError

Asked = Sequence[tuple[str, Sequence[tuple[str, int]]]]
"""Formulas, each with the input and the dim behind each of its sizes."""

_ARITHMETIC = {ast.Add: "Add", ast.Sub: "Sub", ast.Mult: "Mul", ast.Mod: "Mod", ast.FloorDiv: "FloorDiv"}
_RELATIONS = {ast.Eq: "Equal", ast.NotEq: "Equal", ast.Lt: "Less", ast.LtE: "LessOrEqual"}
_RELATIONS |= {ast.Gt: "Greater", ast.GtE: "GreaterOrEqual"}
_FUNCTIONS = {"max": "Max", "min": "Min", "abs": "Abs"}


class SizePredicates:
    """Writes conditions on sizes, in 64-bit integers.

    Attributes:
        nodes: the nodes so far.
    """

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self._known: dict[Any, str] = {}

    def all_of(self, asked: Asked) -> str:
        """Return the name of a boolean value: whether all formulas hold.

        Raises:
            TargetError: a formula has a part that ONNX computes otherwise than Python.
        """
        truths = []
        for formula, places in asked:
            names = [f"n{index}" for index in range(len(places))]
            sizes = {name: self._size(*place) for name, place in zip(names, places, strict=True)}
            tree = ast.parse(python_text(formula, names), mode="eval").body
            truths.append(self._written(tree, sizes))
        return self._folded("And", truths or [self._constant(True)])

    def _size(self, name: str, dim: int) -> str:
        return self._node("Gather", [self._node("Shape", [name]), self._constant(dim)])

    def _written(self, node: ast.expr, sizes: dict[str, str]) -> str:
        def parts(*nodes: ast.expr) -> list[str]:
            return [self._written(each, sizes) for each in nodes]

        match node:
            case ast.Constant(value=bool() | int() as value):
                return self._constant(value)
            case ast.Name():
                return sizes[node.id]
            case ast.UnaryOp(op=ast.USub()):
                return self._node("Neg", parts(node.operand))
            case ast.UnaryOp(op=ast.Not()):
                return self._node("Not", parts(node.operand))
            case ast.BoolOp():
                return self._folded("And" if isinstance(node.op, ast.And) else "Or", parts(*node.values))
            case ast.IfExp():
                return self._node("Where", parts(node.test, node.body, node.orelse))
            case ast.Call(func=ast.Name(id=name)) if name in _FUNCTIONS:
                return self._node(_FUNCTIONS[name], parts(*node.args))
            case ast.BinOp() if (kind := _ARITHMETIC.get(type(node.op))) is not None:
                return self._computed(kind, node.right, *parts(node.left, node.right))
            case ast.Compare(ops=[relation]) if type(relation) in _RELATIONS:
                found = self._node(_RELATIONS[type(relation)], parts(node.left, *node.comparators))
                return self._node("Not", [found]) if isinstance(relation, ast.NotEq) else found
        raise TargetError(
            f"A condition on sizes has a part that ONNX would compute otherwise: {ast.unparse(node)}. Save the model "
            "with save(folder), or compile it once for each side of the branch."
        )

    def _computed(self, kind: str, by: ast.expr, left: str, right: str) -> str:
        if kind in ("Mod", "FloorDiv") and not (isinstance(by, ast.Constant) and by.value):
            raise TargetError(
                f"A condition on sizes divides by a size, {ast.unparse(by)}, which may be 0 where ONNX computes it. "
                "Save the model with save(folder), or compile it once for each side of the branch."
            )
        if kind != "FloorDiv":
            return self._node(kind, [left, right])
        # Div truncates toward zero
        return self._node("Div", [self._node("Sub", [left, self._node("Mod", [left, right])]), right])

    def _folded(self, kind: str, names: Sequence[str]) -> str:
        found, *rest = names
        for name in rest:
            found = self._node(kind, [found, name])
        return found

    def _constant(self, value: int) -> str:
        import numpy as np
        from onnx import numpy_helper

        array = np.array(value, np.bool_ if isinstance(value, bool) else np.int64)
        return self._node("Constant", [], value=numpy_helper.from_array(array))

    def _node(self, kind: str, inputs: Sequence[str], **attributes: Any) -> str:
        from onnx import helper

        key = (kind, *inputs, *(str(value) for value in attributes.values()))
        if key not in self._known:  # each size is read once
            self._known[key] = f"sizes.{len(self.nodes)}"
            self.nodes.append(helper.make_node(kind, inputs, [self._known[key]], self._known[key], **attributes))
        return self._known[key]
