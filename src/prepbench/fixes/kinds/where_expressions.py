"""Conditions on tensors and ``torch.where`` as syntax trees."""

from __future__ import annotations

import ast
import copy
import functools
from collections.abc import Callable, Iterator

from prepbench.fixes.results import CannotRewrite

_Replace = Callable[[ast.expr], None]
_Container = ast.Tuple | ast.Dict | ast.List


def condition_parts(branch: ast.If | ast.IfExp) -> Iterator[tuple[ast.expr, _Replace]]:
    """The parts of a condition between ``and``, ``or`` and ``not``, as tensors, each with what replaces it."""
    yield from _parts(branch.test, lambda new: setattr(branch, "test", new))


def _parts(test: ast.expr, replace: _Replace) -> Iterator[tuple[ast.expr, _Replace]]:
    if isinstance(test, ast.BoolOp):
        for index, value in enumerate(test.values):
            yield from _parts(value, functools.partial(test.values.__setitem__, index))
    elif isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        yield from _parts(test.operand, lambda new: setattr(test, "operand", new))
    else:
        yield _as_tensors(test), replace


def condition_of(test: ast.expr) -> ast.expr:
    """A condition as a tensor of bools: ``a and b`` becomes ``torch.logical_and(a, b)``."""
    if isinstance(test, ast.BoolOp):
        name = "logical_and" if isinstance(test.op, ast.And) else "logical_or"
        return functools.reduce(lambda one, two: _torch_call(name, one, two), map(condition_of, test.values))
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return _torch_call("logical_not", condition_of(test.operand))
    if isinstance(test, ast.Compare) and len(test.ops) > 1:
        operands = zip([test.left, *test.comparators[:-1]], test.ops, test.comparators, strict=True)
        return condition_of(ast.BoolOp(ast.And(), [ast.Compare(left, [op], [right]) for left, op, right in operands]))
    return _is_true(_as_tensors(test))


def _is_true(value: ast.expr) -> ast.expr:
    """A value as a tensor of bools, which is what ``torch.where`` takes; a comparison is one."""
    return value if isinstance(value, ast.Compare) else ast.Compare(value, [ast.NotEq()], [ast.Constant(0)])


def where(condition: ast.expr, yes: ast.expr, no: ast.expr) -> ast.expr:
    """``torch.where`` for two values, or for each part of two tuples or dicts.

    Raises:
        CannotRewrite: the two values have different structures.
    """
    if isinstance(yes, ast.Tuple) and isinstance(no, ast.Tuple) and len(yes.elts) == len(no.elts):
        return ast.Tuple([where(condition, a, b) for a, b in zip(yes.elts, no.elts, strict=True)], ast.Load())
    if isinstance(yes, ast.Dict) and isinstance(no, ast.Dict) and _keys(yes) == _keys(no):
        pairs = zip(yes.values, no.values, strict=True)
        return ast.Dict(yes.keys, [where(condition, a, b) for a, b in pairs])
    if isinstance(yes, _Container) or isinstance(no, _Container):
        raise CannotRewrite("the two sides return different structures.")
    return yes if ast.dump(yes) == ast.dump(no) else _torch_call("where", condition, yes, no)


def _keys(value: ast.Dict) -> list[str]:
    return [ast.unparse(key) if key else "" for key in value.keys]


def _torch_call(name: str, *args: ast.expr) -> ast.expr:
    return ast.Call(ast.Attribute(ast.Name("torch", ast.Load()), name, ast.Load()), list(args), [])


def _as_tensors(expression: ast.expr) -> ast.expr:
    """The expression on tensors: ``x.max().item() > 0`` becomes ``x.max() > 0``."""
    found: ast.expr = _WithoutNumbers().visit(copy.deepcopy(expression))
    return found


class _WithoutNumbers(ast.NodeTransformer):
    """Replaces what makes Python numbers of tensors by what computes the same on tensors."""

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        function = node.func
        if isinstance(function, ast.Attribute) and function.attr == "item" and not node.args:
            return function.value
        if not isinstance(function, ast.Name) or len(node.args) != 1:
            return node
        (value,) = node.args
        if function.id == "int":
            return _torch_call("trunc", value)
        if function.id == "bool":
            return _is_true(value)
        return value if function.id == "float" else node
