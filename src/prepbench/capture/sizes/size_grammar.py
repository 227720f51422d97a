"""The grammar of sizes in a saved program.

torch evaluates these texts with sympy, which runs any Python in them. So each text is parsed here first, and only what
torch itself writes for a size passes: known functions, symbols, numbers.
"""

from __future__ import annotations

import ast
import re

from prepbench.errors import ArtifactError

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
_OPAQUE = re.compile(r"OpaqueUnaryFn_(sqrt|cos|cosh|sin|sinh|tan|tanh|asin|acos|atan|exp|log|log2|asinh)")
_BITWISE = re.compile(r"BitwiseFn_bitwise_(and|or|xor)")
_NAMES = frozenset({"true", "false"})


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
    elif not (isinstance(node, ast.Name) and (node.id in _NAMES or SYMBOL.fullmatch(node.id))):
        raise _refused(where, f"{ast.unparse(node)[:60]!r} is no size")


def _check_call(node: ast.Call, where: str, depth: int, powers: int, any_exponent: bool) -> None:
    name = node.func.id if isinstance(node.func, ast.Name) else ""
    if name not in _FUNCTIONS and not _OPAQUE.fullmatch(name) and not _BITWISE.fullmatch(name):
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
