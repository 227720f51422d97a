"""Formulas over sizes as untrusted text, evaluated by functions that Python compiles once."""

from __future__ import annotations

import ast
import functools
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from prepbench.errors import ArtifactError

# The grammar of sizes in a saved program.
#
# torch evaluates these texts with sympy, which runs any Python in them. So each text is parsed here first, and only
# what torch itself writes for a size passes: known functions, symbols, numbers.


MAX_LENGTH, MAX_DEPTH, MAX_NUMBER, MAX_POWER = 20_000, 100, 2**63, 64

SYMBOL = re.compile(r"[a-z]{1,4}\d{1,5}")
"""Names of sizes, e.g. ``s77`` or ``u0``. torch counts up to their number, so it must not be large."""

_ASSUMPTIONS = frozenset({"integer", "positive", "nonnegative", "nonzero", "real", "finite", "commutative"})
_POWERS = frozenset({"Pow", "PowByNatural", "FloatPow", "LShift", "RShift"})
_FUNCTIONS = _POWERS | {
    *("Symbol", "Integer", "Rational", "Float", "Add", "Mul", "Max", "Min", "Mod", "PythonMod", "ModularIndexing"),
    *("FloorDiv", "CleanDiv", "CeilDiv", "CeilToInt", "FloorToInt", "TruncToInt", "TruncToFloat", "RoundToInt"),
    *("RoundDecimal", "ToFloat", "FloatTrueDiv", "IntTrueDiv", "Identity", "Where", "floor", "ceiling", "Abs", "sqrt"),
    *("Equality", "Eq", "Unequality", "Ne", "StrictLessThan", "Lt", "LessThan", "Le", "StrictGreaterThan", "Gt"),
    *("GreaterThan", "Ge", "And", "Or", "Not", "Piecewise", "IsNonOverlappingAndDenseIndicator"),
}
_GRAMMAR_OPAQUE = re.compile(r"OpaqueUnaryFn_(sqrt|cos|cosh|sin|sinh|tan|tanh|asin|acos|atan|exp|log|log2|asinh)")
_BITWISE = re.compile(r"BitwiseFn_bitwise_(and|or|xor)")
_GRAMMAR_NAMES = frozenset({"true", "false"})


def parsed_size(text: object, where: str, *, any_exponent: bool = False) -> ast.expr:
    """Return the tree of one expression over sizes, after checking it.

    Args:
        text: as torch wrote it, e.g. ``"Mul(Integer(2), Symbol('s0', positive=True, integer=True))"``.
        where: named in the error.
        any_exponent: whether sizes may be exponents, for who computes powers that cannot become enormous.

    Raises:
        ArtifactError: it holds anything but sizes, numbers and known functions.

    Example:
        >>> parsed_size("Add(Symbol('s0', integer=True), Integer(1))", "the length of x").func.id
        'Add'
    """
    if not isinstance(text, str) or len(text) > MAX_LENGTH:
        raise _refused(where, "it is no text of a reasonable length")
    try:
        tree = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise _refused(where, "it cannot be parsed") from error
    _check(tree, where, depth=0, powers=0, any_exponent=any_exponent)
    return tree


def _check(node: ast.expr, where: str, depth: int, powers: int, any_exponent: bool) -> None:
    if depth > MAX_DEPTH:
        raise _refused(where, f"it nests more than {MAX_DEPTH} deep")
    if isinstance(node, ast.Call):
        _check_call(node, where, depth, powers, any_exponent)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        _check(node.operand, where, depth + 1, powers, any_exponent)
    elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        if abs(node.value) > MAX_NUMBER:
            raise _refused(where, f"the number {str(node.value)[:20]} is too large")
    elif not (isinstance(node, ast.Name) and (node.id in _GRAMMAR_NAMES or SYMBOL.fullmatch(node.id))):
        raise _refused(where, f"{ast.unparse(node)[:60]!r} is no size")


def _check_call(node: ast.Call, where: str, depth: int, powers: int, any_exponent: bool) -> None:
    name = node.func.id if isinstance(node.func, ast.Name) else ""
    if name not in _FUNCTIONS and not _GRAMMAR_OPAQUE.fullmatch(name) and not _BITWISE.fullmatch(name):
        raise _refused(where, f"{ast.unparse(node.func)[:60]!r} is no function of sizes")
    for keyword in node.keywords:
        known = keyword.arg in _ASSUMPTIONS or (name == "Float" and keyword.arg == "precision")
        if not known or not isinstance(keyword.value, ast.Constant) or type(keyword.value.value) not in (bool, int):
            raise _refused(where, f"{keyword.arg!r} is no property of a size")
        _check(keyword.value, where, depth + 1, powers, any_exponent)
    arguments = node.args
    if name in ("Symbol", "Float") and arguments and isinstance(arguments[0], ast.Constant):
        _check_text(name, arguments[0].value, where)
        arguments = arguments[1:] if isinstance(arguments[0].value, str) else arguments
    elif name == "Symbol":
        raise _refused(where, "a symbol without a name")
    if name in _POWERS:
        powers += 1
        if powers > 2 or not (any_exponent or all(_is_small(argument) for argument in arguments[1:])):
            raise _refused(where, f"powers are limited to {MAX_POWER} and may not nest")
    for argument in arguments:
        _check(argument, where, depth + 1, powers, any_exponent)


def _check_text(function: str, value: object, where: str) -> None:
    pattern = SYMBOL if function == "Symbol" else re.compile(r"-?[\d.]{1,60}(e[+-]?\d{1,3})?")
    if isinstance(value, str) and not pattern.fullmatch(value):
        raise _refused(where, f"{value[:40]!r} is no name of a size")


def _is_small(node: ast.expr) -> bool:
    """Return whether a power is a number that cannot make the result enormous."""
    if isinstance(node, ast.UnaryOp):
        return _is_small(node.operand)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("Integer", "Rational"):
        return all(map(_is_small, node.args))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Float" and node.args:
        value = node.args[0].value if isinstance(node.args[0], ast.Constant) else None
        return isinstance(value, str) and len(value) < 30 and abs(float(value)) <= MAX_POWER
    return isinstance(node, ast.Constant) and type(node.value) is int and abs(node.value) <= MAX_POWER


def _refused(where: str, why: str) -> ArtifactError:
    return ArtifactError(
        f"{where} is not a size that prepbench wrote: {why}. The file was changed or damaged. Compile and save the "
        "model again."
    )


# Python's counterparts of the grammar's functions; torch's Mod is for non-negative numbers
_PYTHON: Mapping[str, str] = {
    **dict.fromkeys(("Mod", "PythonMod"), "({0} % {1})"),
    **dict.fromkeys(("FloorDiv", "CleanDiv"), "({0} // {1})"),
    **dict.fromkeys(("FloatTrueDiv", "IntTrueDiv"), "({0} / {1})"),
    **dict.fromkeys(("Pow", "PowByNatural", "FloatPow"), "power({0}, {1})"),
    **dict.fromkeys(("Equality", "Eq"), "({0} == {1})"),
    **dict.fromkeys(("Unequality", "Ne"), "({0} != {1})"),
    **dict.fromkeys(("StrictLessThan", "Lt"), "({0} < {1})"),
    **dict.fromkeys(("LessThan", "Le"), "({0} <= {1})"),
    **dict.fromkeys(("StrictGreaterThan", "Gt"), "({0} > {1})"),
    **dict.fromkeys(("GreaterThan", "Ge"), "({0} >= {1})"),
    **dict.fromkeys(("floor", "FloorToInt"), "floor({0})"),
    **dict.fromkeys(("ceiling", "CeilToInt"), "ceil({0})"),
    "CeilDiv": "(-(-{0} // {1}))",
    "ModularIndexing": "({0} // {1} % {2})",
    "LShift": "({0} * power(2, {1}))",
    "RShift": "({0} >> {1})",
    "BitwiseFn_bitwise_and": "({0} & {1})",
    "BitwiseFn_bitwise_or": "({0} | {1})",
    "BitwiseFn_bitwise_xor": "({0} ^ {1})",
    "TruncToInt": "trunc({0})",
    "TruncToFloat": "float(trunc({0}))",
    "RoundToInt": "round({0})",
    "RoundDecimal": "round({0}, {1})",
    "ToFloat": "float({0})",
    "Identity": "{0}",
    "Where": "({1} if {0} else {2})",
    "Abs": "abs({0})",
    "Not": "(not {0})",
    "sqrt": "sqrt({0})",
    "Integer": "{0}",
    "Float": "{0}",
    "Rational": "({0} / {1})",
}
_OF_MANY = {"Add": " + ", "Mul": " * ", "And": " and ", "Or": " or "}
_OPAQUE = "OpaqueUnaryFn_"
# bits of the largest power that is computed
_LARGEST = 2**14


def _power(base: Any, exponent: Any) -> Any:
    """Return the power as Python does; infinity if the number would be enormous."""
    is_whole = isinstance(base, int) and isinstance(exponent, int) and abs(base) > 1
    return math.inf if is_whole and base.bit_length() * exponent > _LARGEST else base**exponent


_NAMES = {name: getattr(math, name) for name in ("floor", "ceil", "trunc", "sqrt")}
_GLOBALS = {
    "__builtins__": {"float": float, "round": round, "abs": abs, "max": max, "min": min},
    "math": math,
    "power": _power,
    **_NAMES,
}

# (number of the tensor, dim) for each size of a formula
Places = Sequence[tuple[int, int]]


UNDEFINED = (ArithmeticError, ValueError, TypeError)
"""Errors of Python for an undefined formula: division by zero, the logarithm of 0, comparison of a root of -1."""


def formula_text(expression: Any, symbols: Sequence[Any]) -> str | None:
    """Return a sympy expression as text over ``s0``, ``s1``, ...; None if the grammar of sizes cannot express it.

    Args:
        expression: over sizes.
        symbols: those in it, in the order of the new names.

    Example:
        >>> import sympy
        >>> n = sympy.Symbol("n")
        >>> formula_text(n > 30, [n])
        "StrictGreaterThan(Symbol('s0', integer=True, nonnegative=True), Integer(30))"
    """
    import sympy

    plain = [sympy.Symbol(f"s{index}", integer=True, nonnegative=True) for index in range(len(symbols))]
    text: str = sympy.srepr(expression.xreplace(dict(zip(symbols, plain, strict=True))))
    try:
        size_function(text, len(symbols))
    except ArtifactError:
        return None
    return text


@functools.lru_cache(maxsize=4096)
def size_function(formula: str, count: int) -> Callable[..., Any]:
    """Return a function that computes a formula from its ``count`` sizes.

    The compiled Python code is built piece by piece from the tree of the checked text only.

    Raises:
        ArtifactError: the text is no formula over these sizes.

    Example:
        >>> size_function("Equality(Mod(Symbol('s0'), Integer(4)), Integer(0))", 1)(25)
        False
    """
    names = [f"n{index}" for index in range(count)]
    return _compiled([f"def compute({', '.join(names)}):", f" return {python_text(formula, names)}"], "compute")


def check_function(formulas: Iterable[tuple[str, Places]]) -> Callable[[Sequence[Any]], bool]:
    """Return one function that decides for the tensors of a call whether all formulas hold.

    Args:
        formulas: each with the dim of a tensor behind each of its sizes.
    """
    listed = list(formulas)
    sizes = {place: f"n{index}" for index, place in enumerate(dict.fromkeys(p for _, ps in listed for p in ps))}
    tensors = sorted({tensor for tensor, _ in sizes})
    lines = [f" t{tensor} = tensors[{tensor}].shape" for tensor in tensors]
    lines += [f" {name} = t{tensor}[{dim}]" for (tensor, dim), name in sizes.items()]
    tests = [python_text(formula, [sizes[place] for place in places]) for formula, places in listed]
    lines.append(f" return {' and '.join(tests) or 'True'}")
    return _compiled(["def check(tensors):", *lines], "check")


def _compiled(lines: Sequence[str], name: str) -> Callable[..., Any]:
    space = dict(_GLOBALS)
    exec(compile("\n".join(lines), "<conditions on sizes>", "exec"), space)
    made: Callable[..., Any] = space[name]
    return made


def python_text(formula: str, names: Sequence[str]) -> str:
    """Return a formula as Python over other names for its sizes.

    Raises:
        ArtifactError: the text is no formula over as many sizes.

    Example:
        >>> python_text("StrictGreaterThan(Symbol('s0'), Integer(1))", ["len(x)"])
        '(len(x) > 1)'
    """
    return _written(parsed_size(formula, "A condition", any_exponent=True), names)


def _written(node: ast.expr, names: Sequence[str]) -> str:
    """Return Python code for a node of a checked tree, made only of the pieces above, own names and numbers."""
    if isinstance(node, ast.Constant) and isinstance(node.value, bool | int | float):
        return repr(node.value)
    if isinstance(node, ast.UnaryOp):
        return f"(-{_written(node.operand, names)})"
    if isinstance(node, ast.Name):
        return _truth(node.id)
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
        raise _unknown(type(node).__name__)
    function = node.func.id
    if function == "Symbol":
        return _name(node, names)
    if function == "Float" and isinstance(node.args[0], ast.Constant):
        return repr(float(node.args[0].value))  # type: ignore[arg-type] # the grammar lets in numbers and their texts
    if function == "Mul" and len(node.args) > 1 and (share := _share(node.args[0])) is not None:
        # multiplied first, so that even divisions are exact
        return f"({' * '.join(_written(other, names) for other in node.args[1:])} * {share[0]} / {share[1]})"
    arguments = [_written(argument, names) for argument in node.args]
    if function in _OF_MANY and arguments:
        return f"({_OF_MANY[function].join(arguments)})"
    if function in ("Max", "Min") and len(arguments) > 1:
        return f"{function.lower()}({', '.join(arguments)})"
    if function.startswith(_OPAQUE) and len(arguments) == 1:
        return f"math.{function.removeprefix(_OPAQUE)}({arguments[0]})"
    template = _PYTHON.get(function, "")
    if not template or len(arguments) != template.count("{"):
        raise _unknown(function)
    return template.format(*arguments)


def _share(node: ast.expr) -> list[str] | None:
    """Return numerator and denominator of a fraction that is the first factor of a product; None for others."""
    is_fraction = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Rational"
    if not is_fraction or not isinstance(node, ast.Call) or len(node.args) != 2:
        return None
    return [_written(part, []) for part in node.args]


def _truth(name: str) -> str:
    if name not in ("true", "false"):
        raise _unknown(name)
    return name.capitalize()


def _name(node: ast.Call, names: Sequence[str]) -> str:
    given = node.args[0].value if isinstance(node.args[0], ast.Constant) else None
    place = str(given).removeprefix("s")
    if not place.isdecimal() or int(place) >= len(names):
        raise _unknown(f"Symbol({given!r})")
    return names[int(place)]


def _unknown(what: str) -> ArtifactError:
    return ArtifactError(
        f"A condition on sizes holds {what[:60]}, which is computed nowhere. The file was changed or damaged. Compile "
        "and save the model again."
    )
