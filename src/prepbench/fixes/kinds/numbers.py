"""Python numbers made of tensors stay tensors: ``item()``, ``float()``, ``int()``, ``math``, ``max`` and others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import libcst as cst
import torch

from prepbench.fixes.site import Kind, Proposal, Site
from prepbench.fixes.syntax import (
    Expression,
    Statement,
    assignment,
    atom,
    bare,
    expression,
    replaced,
    stored_names,
    target_names,
    text_of,
    walk_here,
)

_MATH = {
    name: name
    for name in (
        "sqrt", "exp", "log", "log2", "log10", "log1p", "expm1", "sin", "cos", "tan", "sinh", "cosh", "tanh", "asin",
        "acos", "atan", "atan2", "pow", "erf", "hypot", "isnan", "isinf", "isfinite", "lgamma",
    )
} | {"fabs": "abs"}  # fmt: skip
_TO_INTEGER = {"floor": "floor", "ceil": "ceil", "trunc": "trunc"}


def propose_numbers(site: Site) -> Iterator[Proposal]:
    """Propose to keep every number of the function that comes from a tensor as a tensor."""
    numbers = Numbers(site)
    texts = {part for node in site.expressions(cst.FormattedString) for part in walk_here(node)}
    calls = [node for node in site.expressions(cst.Call) if node not in texts]
    found = {node: new for node in calls if (new := numbers.outermost(node)) is not None}
    if found:
        yield Proposal(replaced(site.function, found))


class Numbers:
    """Finds Python numbers that come from tensors, and rewrites them as tensors."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._names: set[str] = set()
        before = -1
        while len(self._names) != before:
            before = len(self._names)
            for node in site.expressions(cst.Assign):
                if self.is_number(node.value):
                    self._names.update(name for target in node.targets for name in target_names(target.target))
        self._inside: set[cst.CSTNode] = set()

    def is_number(self, node: cst.CSTNode) -> bool:
        """Return whether an expression is, or holds, a Python number that comes from a tensor."""
        if isinstance(node, cst.Name):
            return node.value in self._names and not self._site.fact(node).is_tensor
        if isinstance(node, cst.Call) and self._makes_number(node):
            return True
        if self._site.fact(node).is_tensor or isinstance(node, cst.Lambda | cst.Comparison):
            return False
        return any(self.is_number(part) for part in node.children)

    def _makes_number(self, call: cst.Call) -> bool:
        if isinstance(call.func, cst.Attribute) and call.func.attr.value in ("item", "tolist"):
            return self._site.fact(call.func.value).is_tensor
        name = text_of(call.func)
        known = name in ("float", "int", "round", "abs") or name.startswith("math.")
        return known and bool(call.args) and self._is_data(call.args[0].value)

    def _is_data(self, node: cst.CSTNode) -> bool:
        return self._site.fact(node).is_tensor or self.is_number(node)

    def outermost(self, call: cst.Call) -> Expression | None:
        """Return the replacement of a call that makes or uses a number; None for other calls and for parts of these."""
        if call in self._inside:
            return None
        new = self._changed(call)
        if new is not None:
            self._inside.update(walk_here(call))
        return new

    def tensor(self, node: Expression) -> Expression:
        """Return an expression with all numbers in it as tensors."""
        if isinstance(node, cst.Call) and (new := self._changed(node)) is not None:
            return new
        parts = {part: part for part in node.children if isinstance(part, cst.BaseExpression)}
        changed: Expression = replaced(node, {part: atom(self.tensor(part)) for part in parts})
        return changed

    def _changed(self, call: cst.Call) -> Expression | None:
        if isinstance(call.func, cst.Attribute) and call.func.attr.value in ("item", "tolist"):
            if not self._site.fact(call.func.value).is_tensor:
                return None
            is_list = call.func.attr.value == "tolist"
            value = call.func.value
            return expression("{x}.detach()", x=atom(value)) if is_list else self._of_tensor(value)
        name = text_of(call.func)
        values = [arg.value for arg in call.args]
        if values and _are_tensors(self._site.fact(values[0]).values) and name.endswith("torch.tensor"):
            return self._made(call, values[0])
        if not values or not any(self._is_data(value) for value in values):
            return None
        if name.startswith("math."):
            return self._of_math(name.removeprefix("math."), values)
        simple = {
            "float": self._float,
            "int": self._int,
            "round": self._round,
            "max": self._extreme,
            "min": self._extreme,
        }
        if name in simple and not any(arg.keyword for arg in call.args):
            return simple[name](name, values)
        is_made = name == f"{text_of(self._site.torch)}.tensor" or name == f"{text_of(self._site.torch)}.as_tensor"
        if is_made and self._site.fact(values[0]).is_tensor:
            is_same = self._site.fact(call).dtypes == self._site.fact(values[0]).dtypes and len(call.args) == 1
            return expression("{x}.detach().clone()", x=atom(values[0])) if is_same else None
        return self._made(call, values[0]) if is_made else None

    def _of_tensor(self, value: Expression) -> Expression:
        fact = self._site.fact(value)
        template = "{x}.detach()" if fact.dims == {0} or len(fact.dims) > 1 else "{x}.detach().reshape(())"
        return expression(template if fact.dims <= {0, 1} else "{x}.detach()", x=atom(value))

    def _data(self, value: Expression) -> Expression:
        """Return a value that comes from data, as a tensor without a gradient."""
        if self._site.fact(value).is_tensor:
            return self._of_tensor(value)
        return self.tensor(value)

    def _float(self, name: str, values: list[Expression]) -> Expression:
        value, fact = self._data(values[0]), self._site.fact(values[0])
        is_float = all("float" in str(dtype) for dtype in fact.dtypes) and (fact.dtypes or fact.kinds == {"float"})
        return value if is_float else expression("{x}.float()", x=atom(value))

    def _int(self, name: str, values: list[Expression]) -> Expression:
        is_int = self._site.fact(values[0]).kinds == {"int"}
        value = self._data(values[0])
        return value if is_int else expression("{x}.long()", x=atom(value))

    def _round(self, name: str, values: list[Expression]) -> Expression:
        value = self._data(values[0])
        if len(values) == 1:
            return expression("{torch}.round({x}).long()", torch=self._site.torch, x=bare(value))
        return expression("{torch}.round({x}, decimals={n})", torch=self._site.torch, x=bare(value), n=values[1])

    def _extreme(self, name: str, values: list[Expression]) -> Expression | None:
        """Rewrite ``max`` and ``min`` of tensors and numbers."""
        if len(values) != 2:
            return None
        data = [self._is_data(value) for value in values]
        if all(data):
            one, other = (bare(self._data(value)) for value in values)
            return expression(f"{{torch}}.{name}imum({{a}}, {{b}})", torch=self._site.torch, a=one, b=other)
        number, value = (values[1], values[0]) if data[0] else (values[0], values[1])
        bound = {"max": "min", "min": "max"}[name]
        return expression(f"{{x}}.clamp({bound}={{n}})", x=atom(self._data(value)), n=bare(number))

    def _of_math(self, name: str, values: list[Expression]) -> Expression | None:
        if name in _TO_INTEGER:
            return expression(f"{{x}}.{_TO_INTEGER[name]}().long()", x=atom(self._data(values[0])))
        if name not in _MATH:
            return None
        call = expression(f"{{torch}}.{_MATH[name]}()", torch=self._site.torch)
        args = [cst.Arg(bare(self._data(value)) if self._is_data(value) else value) for value in values]
        made: Expression = call.with_changes(args=args)
        return made

    def _made(self, call: cst.Call, value: Expression) -> Expression | None:
        """Rewrite ``torch.tensor(number)`` and ``torch.tensor([number, number])``."""
        dtypes = self._site.fact(call).dtypes
        if len(dtypes) != 1:
            return None
        dtype = cst.parse_expression(str(next(iter(dtypes))).replace("torch", text_of(self._site.torch), 1))
        kinds = self._site.fact(value).kinds
        if not isinstance(value, cst.List | cst.Tuple) and kinds & {"list", "tuple"}:
            if not _are_tensors(self._site.fact(value).values):
                return None
            return expression("{torch}.stack({x}).to({dtype})", torch=self._site.torch, x=bare(value), dtype=dtype)
        if not isinstance(value, cst.List | cst.Tuple):
            return expression("{x}.to({dtype})", x=atom(self.tensor(value)), dtype=dtype)
        parts = [element.value for element in value.elements]
        made = [
            self.tensor(part)
            if self._is_data(part)
            else expression("{torch}.tensor({n})", torch=self._site.torch, n=part)
            for part in parts
        ]
        elements = [cst.Element(expression("{x}.to({dtype})", x=atom(part), dtype=dtype)) for part in made]
        return expression("{torch}.stack({parts})", torch=self._site.torch, parts=cst.List(elements))


def _are_tensors(values: list[Any]) -> bool:
    """Return whether values were lists of tensors."""
    lists = [value for value in values if isinstance(value, list | tuple)]
    return bool(lists) and all(value and all(isinstance(part, torch.Tensor) for part in value) for value in lists)


def numbers_after(site: Site, node: cst.For | cst.While) -> list[Statement]:
    """Return the statements that restore numbers which a loop counts, and which are read after it."""
    last = site.place(node)[2]
    reads = [n for n in site.expressions(cst.Name) if site.has_place(n) and site.place(n)[0] > last]
    kinds = {
        name: {k for n in reads if n.value == name for k in site.fact(n).kinds} for name in stored_names(node.body)
    }
    made = [(name, next(iter(found))) for name, found in kinds.items() if found in ({"int"}, {"float"})]
    return [assignment(name, expression(f"{kind}({name})")) for name, kind in made]


NUMBERS = Kind(
    "a Python number made of a tensor stays a tensor",
    "nothing needs it as a Python number, and its precision suffices",
    propose_numbers,
)


def propose_one_hot(site: Site) -> Iterator[Proposal]:
    """Propose to rewrite every call of ``one_hot`` whose number of classes comes from data."""
    numbers = Numbers(site)
    found: dict[cst.CSTNode, cst.CSTNode] = {}
    for call in site.expressions(cst.Call):
        if text_of(call.func).rpartition(".")[2] == "one_hot" and call.args:
            labels, count = _arguments(call)
            if site.fact(labels).is_tensor and (count is None or _is_data(site, numbers, count)):
                found[call] = _compared(site, labels, count)
    if found:
        yield Proposal(replaced(site.function, found))


def _arguments(call: cst.Call) -> tuple[Expression, Expression | None]:
    """Return the labels, and the number of classes; None for the number in the data."""
    named = {arg.keyword.value: arg.value for arg in call.args if arg.keyword is not None}
    plain = [arg.value for arg in call.args if arg.keyword is None]
    labels = plain[0] if plain else named["tensor"] if "tensor" in named else call.args[0].value
    count = plain[1] if len(plain) > 1 else named.get("num_classes")
    return labels, None if count is not None and text_of(count) == "-1" else count


def _is_data(site: Site, numbers: Numbers, count: Expression) -> bool:
    return site.fact(count).is_tensor or numbers.is_number(count)


def _compared(site: Site, labels: Expression, count: Expression | None) -> Expression:
    size = count if count is not None else expression("int({x}.max()) + 1", x=atom(labels))
    return expression(
        "({x}.unsqueeze(-1) == {torch}.arange({n}, device={x}.device)).long()",
        torch=site.torch, x=atom(labels), n=size,
    )  # fmt: skip


ONE_HOT = Kind(
    "one_hot with a size from data becomes a comparison",
    "no label is negative or beyond the number of classes",
    propose_one_hot,
)
