"""Conditions on tensors, and selections between two values by one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce

import libcst as cst

from prepbench.fixes.site import Kind, Proposal, Site
from prepbench.fixes.syntax import CannotFix, Expression, atom, bare, expression, replaced, same, text_of, walk_here


def depends_on_data(site: Site, test: cst.CSTNode) -> bool:
    """Return whether the truth of a condition depends on a tensor's values."""
    return any("Tensor" in site.fact(part).kinds or _is_question(site, part) for part in condition_parts(test))


def condition_parts(test: cst.CSTNode) -> list[Expression]:
    """Return the operands of ``and``, ``or`` and ``not`` in a condition, without calls of ``bool``."""
    if isinstance(test, cst.BooleanOperation):
        return [*condition_parts(test.left), *condition_parts(test.right)]
    if isinstance(test, cst.UnaryOperation) and isinstance(test.operator, cst.Not):
        return condition_parts(test.expression)
    if isinstance(test, cst.Call) and text_of(test.func) == "bool" and len(test.args) == 1:
        return condition_parts(test.args[0].value)
    assert isinstance(test, cst.BaseExpression)
    return [test]


def _is_question(site: Site, part: cst.CSTNode) -> bool:
    """Return whether a part asks tensors for a Python number: ``x.max().item() > 0``, ``torch.allclose(x, y)``."""
    return any(_number_call(site, node) is not None for node in walk_here(part))


def _number_call(site: Site, node: cst.CSTNode) -> Expression | None:
    """Rewrite a call that makes a number or a bool of a tensor as a tensor; None for other nodes."""
    if isinstance(node, cst.Comparison):
        return _membership(site, node)
    if not isinstance(node, cst.Call):
        return None
    if text_of(node.func) in ("any", "all") and len(node.args) == 1:
        return _any_or_all(site, text_of(node.func), node.args[0].value)
    name = node.func.attr.value if isinstance(node.func, cst.Attribute) else text_of(node.func)
    if isinstance(node.func, cst.Attribute) and name == "item" and site.fact(node.func.value).is_tensor:
        return node.func.value
    if name in ("float", "int", "bool") and len(node.args) == 1 and site.fact(node.args[0].value).is_tensor:
        value = atom(node.args[0].value)
        return {"float": value, "bool": expression("{v} != 0", v=value)}.get(name) or expression("{v}.trunc()", v=value)
    if name == "is_nonzero" and node.args and site.fact(node.args[0].value).is_tensor:
        return expression("{v} != 0", v=atom(node.args[0].value))
    values = [bare(arg.value) for arg in node.args if arg.keyword is None]
    if name in ("allclose", "equal") and len(values) == 2 and all(site.fact(value).is_tensor for value in values):
        if name == "allclose":
            call = expression("{torch}.isclose()", torch=site.torch)
            return expression("{call}.all()", call=call.with_changes(args=node.args))
        return expression("({one} == {other}).all()", one=atom(values[0]), other=atom(values[1]))
    return None


def _any_or_all(site: Site, name: str, values: Expression) -> Expression | None:
    """Rewrite ``any(c(x) for x in xs)`` and ``any(xs)`` of tensors; None where data does not decide."""
    if isinstance(values, cst.GeneratorExp | cst.ListComp):
        if not depends_on_data(site, values.elt):
            return None
        one = expression("{c}.reshape(())", c=atom(condition_of(site, values.elt)))
        each = cst.ListComp(one, values.for_in)
        return expression(f"{{torch}}.stack({{each}}).{name}()", torch=site.torch, each=each)
    fact = site.fact(values)
    if fact.is_tensor and fact.dims == {1}:
        return expression(f"{{v}}.{name}()", v=atom(values))
    if fact.holds_tensors:
        return expression(f"{{torch}}.stack([x.reshape(()) for x in {{v}}]).{name}()", torch=site.torch, v=atom(values))
    return None


def _membership(site: Site, node: cst.Comparison) -> Expression | None:
    """Rewrite ``x.item() in (1, 3)`` as ``(x == torch.tensor((1, 3))).any()``."""
    if len(node.comparisons) != 1 or not isinstance(node.comparisons[0].operator, cst.In | cst.NotIn):
        return None
    target = node.comparisons[0]
    tensor, values = _as_tensors(site, node.left), target.comparator
    if not site.fact(node.left).is_tensor and same(tensor, node.left):
        return None
    if not site.fact(values).is_tensor:
        if site.fact(values).kinds - {"list", "tuple", "set", "frozenset", "range"}:
            return None
        values = values if isinstance(values, cst.List | cst.Tuple) else expression("list({v})", v=values)
        values = expression(
            "{torch}.tensor({v}, device={x}.device)", torch=site.torch, v=values, x=atom(tensor)
        )  # fmt: skip
    found = expression("({v} == {x}).any()", v=atom(values), x=atom(tensor))
    return found if isinstance(target.operator, cst.In) else expression("~{c}", c=found)


def condition_of(site: Site, test: Expression) -> Expression:
    """Return a condition as a tensor of one bool: ``a and b`` becomes ``a & b``.

    A part that Python answers is still asked first, so that the code that it guards does not run.
    """
    if isinstance(test, cst.BooleanOperation):
        return _joined(site, test)
    if isinstance(test, cst.UnaryOperation) and isinstance(test.operator, cst.Not):
        return expression("~{v}", v=atom(condition_of(site, test.expression)))
    if isinstance(test, cst.Call) and text_of(test.func) == "bool" and len(test.args) == 1:
        return condition_of(site, test.args[0].value)
    if isinstance(test, cst.Comparison) and len(test.comparisons) > 1:
        return _chain(site, test)
    return _truth(site, test)


def _joined(site: Site, test: cst.BooleanOperation) -> Expression:
    is_and = isinstance(test.operator, cst.And)
    left, right = depends_on_data(site, test.left), depends_on_data(site, test.right)
    if left and right:
        sign = "&" if is_and else "|"
        parts = [atom(condition_of(site, side)) for side in (test.left, test.right)]
        return expression(f"{{a}} {sign} {{b}}", a=parts[0], b=parts[1])
    plain, tensor = (test.right, test.left) if left else (test.left, test.right)
    other = expression(f"{{torch}}.tensor({not is_and})", torch=site.torch)
    truth = condition_of(site, tensor)
    template = "{truth} if {plain} else {other}" if is_and else "{other} if {plain} else {truth}"
    return expression(template, truth=atom(truth), plain=atom(plain), other=other)


def _chain(site: Site, test: cst.Comparison) -> Expression:
    """Rewrite ``a < b < c`` as ``(a < b) & (b < c)``."""
    parts, left = [], test.left
    for target in test.comparisons:
        one = cst.Comparison(left, [target], [cst.LeftParen()], [cst.RightParen()])
        parts.append(_as_tensors(site, one))
        left = target.comparator
    return reduce(lambda a, b: expression("{a} & {b}", a=a, b=b), parts)


def _truth(site: Site, test: Expression) -> Expression:
    fact = site.fact(test)
    value = _as_tensors(site, test)
    if fact.kinds == {"Tensor", "bool"}:
        return expression("{torch}.as_tensor({v})", torch=site.torch, v=bare(value))
    if fact.is_tensor and fact.dims - {0}:
        value = expression("{v}.reshape(())", v=atom(value))
    names = {str(dtype) for dtype in fact.dtypes}
    if fact.is_tensor and names != {"torch.bool"}:
        return expression("{v} != 0", v=atom(value))
    return bare(value) if not isinstance(value, cst.Comparison) else value


def _as_tensors(site: Site, node: Expression) -> Expression:
    """Rewrite an expression on tensors: ``x.max().item() > 0`` becomes ``x.max() > 0``."""
    made = _number_call(site, node)
    if made is not None:
        return made
    found = {part: atom(new) for part in walk_here(node) if (new := _number_call(site, part)) is not None}
    changed: Expression = replaced(node, found)
    return changed


def choice(site: Site, condition: Expression, yes: Expression, no: Expression) -> Expression:
    """Return ``torch.where`` for two values, or for each part of two tuples, lists or dicts of one form.

    Raises:
        CannotFix: the two values have different structures.
    """
    if same(yes, no):
        return yes
    for structure in (cst.Tuple, cst.List):
        if isinstance(yes, structure) and isinstance(no, structure) and len(yes.elements) == len(no.elements):
            return _of_elements(site, condition, yes, no)
    if isinstance(yes, cst.Dict) and isinstance(no, cst.Dict) and _keys(yes) == _keys(no):
        pairs = zip(yes.elements, no.elements, strict=True)
        return yes.with_changes(
            elements=[a.with_changes(value=choice(site, condition, a.value, b.value)) for a, b in pairs]
        )
    one, other = site.fact(yes), site.fact(no)
    if isinstance(yes, cst.Call) and isinstance(no, cst.Call) and not one.is_tensor and _are_alike(yes, no):
        arguments = zip(yes.args, no.args, strict=True)
        return yes.with_changes(
            args=[a.with_changes(value=choice(site, condition, a.value, b.value)) for a, b in arguments]
        )
    for fact in (one, other):
        if fact.kinds & {"NoneType", "str", "dtype", "device"}:
            kind = ", ".join(sorted(fact.kinds))
            raise CannotFix(f"a side gives a value that no tensor can hold ({kind})")
    if one.is_callable or other.is_callable:
        return expression(
            "lambda *args: {torch}.where({c}, {a}(*args), {b}(*args))",
            torch=site.torch, c=condition, a=atom(yes), b=atom(no),
        )  # fmt: skip
    return _of_values(site, condition, yes, no, one.kinds | other.kinds)


def _are_alike(one: cst.Call, other: cst.Call) -> bool:
    """Return whether two calls create an object of the same class with arguments in the same positions."""
    names = [[arg.keyword.value if arg.keyword else arg.star for arg in call.args] for call in (one, other)]
    return same(one.func, other.func) and names[0] == names[1]


def _of_values(site: Site, condition: Expression, yes: Expression, no: Expression, kinds: set[str]) -> Expression:
    parts = {"torch": site.torch, "c": condition, "a": bare(yes), "b": bare(no)}
    if kinds and kinds <= {"tuple", "list"}:
        start = "tuple" if kinds == {"tuple"} else "list"
        return expression(f"{start}({{torch}}.where({{c}}, one, other) for one, other in zip({{a}}, {{b}}))", **parts)
    if kinds == {"dict"} and isinstance(yes, cst.Name) and isinstance(no, cst.Name):
        return expression("{key: {torch}.where({c}, {a}[key], {b}[key]) for key in {a}}", **parts)
    return expression("{torch}.where({c}, {a}, {b})", **parts)


def _of_elements(site: Site, condition: Expression, yes: cst.Tuple | cst.List, no: cst.Tuple | cst.List) -> Expression:
    if any(isinstance(element, cst.StarredElement) for element in (*yes.elements, *no.elements)):
        raise CannotFix("a side gives a number of values that is not known")
    pairs = zip(yes.elements, no.elements, strict=True)
    return yes.with_changes(
        elements=[a.with_changes(value=choice(site, condition, a.value, b.value)) for a, b in pairs]
    )


def _keys(value: cst.Dict) -> Sequence[str]:
    return [text_of(element.key) if isinstance(element, cst.DictElement) else "**" for element in value.elements]


def propose_flags(site: Site) -> Iterator[Proposal]:
    """Propose to rewrite every data-dependent condition of the function that is assigned to a name."""
    if isinstance(site.function, cst.Lambda):
        return
    found: dict[cst.CSTNode, cst.CSTNode] = {}
    for node in site.expressions(cst.Assign):
        value = node.value
        is_answer = isinstance(value, cst.BooleanOperation | cst.UnaryOperation) or (
            isinstance(value, cst.Call) and text_of(value.func) in ("bool", "any", "all")
        )
        if (
            is_answer
            and site.fact(value).kinds & {"bool", "Tensor"}
            and _is_not(value)
            and depends_on_data(site, value)
        ):
            found[value] = condition_of(site, value)
    if found:
        yield Proposal(replaced(site.function, found))


def _is_not(value: cst.BaseExpression) -> bool:
    """Return whether a unary operation is ``not``."""
    return not isinstance(value, cst.UnaryOperation) or isinstance(value.operator, cst.Not)


FLAGS = Kind(
    "an answer with a name stays a tensor",
    "nothing needs it as a Python bool",
    propose_flags,
)
