"""Hoist the expressions of a failing statement that do not fail in front of it, so that the graph holds them.

``if x.mean() > 0: y = self.layer(x)`` becomes a comparison, a layer, and a choice between two computed values.
Operations of one branch are then always computed; so only elementwise operations and reductions of tensors, and torch's
own layers in evaluation are hoisted: they have no side effects and raise for no values.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from prepbench.capture.statements.live_names import stored_names

PREFIX = "__prepbench_value_"
"""The prefix of the names of hoisted expressions."""

_METHODS = frozenset({
    "abs", "add", "all", "any", "ceil", "clamp", "clip", "cos", "cumsum", "detach", "div", "eq", "erf", "exp",
    "expm1", "flatten", "float", "floor", "ge", "gelu", "gt", "isfinite", "isinf", "isnan", "le", "leaky_relu",
    "log", "log1p", "log2", "logical_and", "logical_not", "logical_or", "logsumexp", "lt", "maximum", "mean",
    "minimum", "mish", "mul", "ne", "neg", "norm", "ones_like", "reciprocal", "relu", "relu6", "round", "rsqrt",
    "sigmoid", "sign", "silu", "sin", "softmax", "softplus", "sqrt", "square", "std", "sub", "sum", "tanh", "t",
    "transpose", "trunc", "unsqueeze", "var", "zeros_like",
})  # fmt: skip
_NOT_OF_NOTHING = frozenset({"amax", "amin", "argmax", "argmin", "max", "min", "median"})
"""Operations that raise for empty tensors, so they are hoisted only from unconditional code."""


_HARMLESS = frozenset({"bool", "float", "int", "isinstance", "item", "len", "numel", "size", "dim", "tolist"})
"""Calls that are not hoisted, and have no side effects."""


@dataclass(frozen=True)
class Surroundings:
    """The known facts about the names of a function.

    Attributes:
        variables: its own names.
        is_torch: whether a global name is a module of torch.
        is_layer: whether an expression such as ``"self.head"`` is a layer that may run in any case.
    """

    variables: frozenset[str]
    is_torch: Callable[[str], bool]
    is_layer: Callable[[str], bool]


class _Mover:
    """Hoists expressions out of one statement.

    Args:
        around: the known facts about names.
        numbers: for new names.
    """

    def __init__(self, around: Surroundings, numbers: Iterator[int]) -> None:
        self.moved: list[ast.stmt] = []
        self._blocked: frozenset[str] = frozenset()
        self._always = True
        self._around = around
        self._numbers = numbers

    def statement(self, node: ast.stmt) -> bool:
        """Hoist all possible expressions; return False if everything after the statement must stay there."""
        if isinstance(node, ast.If):
            if not self._has_no_effects(node.test):
                return False
            node.test = self.expression(node.test)
            before, self._always = self._blocked, False
            for side in (node.body, node.orelse):
                self._blocked = before
                all(self.statement(inner) for inner in side)
            return False
        if not isinstance(node, ast.Assign | ast.Return) or node.value is None or not self._has_no_effects(node.value):
            return False
        node.value = self.expression(node.value)
        self._blocked |= stored_names(node)
        return isinstance(node, ast.Assign) and all(isinstance(target, ast.Name) for target in node.targets)

    def _has_no_effects(self, node: ast.expr) -> bool:
        """Return whether no part of an expression has side effects on the rest."""
        calls = [part for part in ast.walk(node) if isinstance(part, ast.Call)]
        names = [ast.unparse(call.func).rpartition(".")[2] for call in calls]
        known = all(
            name in _METHODS | _HARMLESS | _NOT_OF_NOTHING or self._around.is_layer(ast.unparse(call.func))
            for name, call in zip(names, calls, strict=True)
        )
        return known and not any(isinstance(part, ast.NamedExpr | ast.Await | ast.Yield) for part in ast.walk(node))

    def expression(self, node: ast.expr) -> ast.expr:
        if any(isinstance(part, ast.Call) for part in ast.walk(node)) and self._is_pure(node):
            name = f"{PREFIX}{next(self._numbers)}__"
            made = ast.Assign([ast.Name(name, ast.Store())], node)
            self.moved.append(ast.copy_location(made, node))
            return ast.copy_location(ast.Name(name, ast.Load()), node)
        if isinstance(node, ast.Lambda | ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp | ast.NamedExpr):
            return node
        for field, value in self._fields(node):
            if isinstance(value, ast.expr) and field != "func":
                setattr(node, field, self.expression(value))
            elif isinstance(value, ast.Attribute):  # what a method is called on
                value.value = self.expression(value.value)
            elif isinstance(value, list):
                self._all_of(value)
        return node

    def _fields(self, node: ast.expr) -> Iterator[tuple[str, Any]]:
        """Yield the parts of an expression, unconditionally evaluated ones first."""
        always = self._always
        if isinstance(node, ast.BoolOp):
            node.values[0] = self.expression(node.values[0])
        for field, value in sorted(ast.iter_fields(node), key=lambda part: part[0] != "test"):
            self._always = always and (field == "test" or not isinstance(node, ast.BoolOp | ast.IfExp))
            yield field, value
        self._always = always

    def _all_of(self, parts: list[ast.AST]) -> None:
        for index, part in enumerate(parts):
            if isinstance(part, ast.expr) and not isinstance(part, ast.Starred):
                parts[index] = self.expression(part)
            elif isinstance(part, ast.keyword):
                part.value = self.expression(part.value)

    def _is_pure(self, node: ast.expr) -> bool:
        if isinstance(node, ast.Constant):
            return True
        if isinstance(node, ast.Name):
            return node.id not in self._blocked
        if isinstance(node, ast.Attribute):
            return self._is_pure(node.value)
        if isinstance(node, ast.BinOp):
            raises = isinstance(node.op, ast.FloorDiv | ast.Mod | ast.Pow) and not isinstance(node.right, ast.Constant)
            return not raises and self._is_pure(node.left) and self._is_pure(node.right)
        if isinstance(node, ast.UnaryOp):
            return not isinstance(node.op, ast.Not) and self._is_pure(node.operand)
        if isinstance(node, ast.Compare):
            plain = not any(isinstance(op, ast.Is | ast.IsNot | ast.In | ast.NotIn) for op in node.ops)
            return plain and len(node.ops) == 1 and all(map(self._is_pure, [node.left, *node.comparators]))
        return isinstance(node, ast.Call) and self._is_pure_call(node)

    def _is_pure_call(self, node: ast.Call) -> bool:
        if not isinstance(node.func, ast.Attribute):
            return False
        values = [*node.args, *(keyword.value for keyword in node.keywords)]
        if not all(map(self._is_pure, values)):
            return False
        if self._around.is_layer(ast.unparse(node.func)):
            return True
        known = _METHODS | _NOT_OF_NOTHING if self._always else _METHODS
        if node.func.attr not in known or not self._is_pure(node.func):
            return False
        first: ast.expr = node.func
        while isinstance(first, ast.Attribute):
            first = first.value
        if not isinstance(first, ast.Name):
            return True
        if first.id in self._around.variables:  # attributes of these may be of any class
            return first is node.func.value
        return self._around.is_torch(first.id)


def move_out(statement: ast.stmt, around: Surroundings, numbers: Iterator[int]) -> list[ast.stmt]:
    """Hoist expressions out of a statement, in place; return the assignments to put before it.

    Args:
        statement: an ``if``, or a statement without others inside.
        around: the known facts about the names in it.
        numbers: for new names.
    """
    mover = _Mover(around, numbers)
    mover.statement(statement)
    for made in mover.moved:
        ast.fix_missing_locations(made)
    return mover.moved
