"""Functions of NumPy that torch has under another name or in another form."""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst

from prepbench.fixes.cannot_fix import CannotFix
from prepbench.fixes.syntax import Expression, atom, bare, expression, text_of

_FULL = (
    "{torch}.nn.functional.conv1d({a}.to({dtype}).reshape(1, 1, -1), {v}.to({dtype}).flip(0).reshape(1, 1, -1), "
    "padding={v}.shape[0] - 1).reshape(-1)"
)
_MODES = {
    "full": _FULL,
    "same": _FULL + "[({v}.shape[0] - 1) // 2 : ({v}.shape[0] - 1) // 2 + {a}.shape[0]]",
    "valid": _FULL.replace("padding={v}.shape[0] - 1", "padding=0"),
}


def rewritten(name: str, args: Sequence[cst.Arg], torch: Expression, dtype: Expression | None) -> Expression | None:
    """What stands for one of these functions; None for others.

    Args:
        name: of the function of NumPy.
        args: its arguments, as tensors where they are arrays.
        torch: how the file calls torch.
        dtype: of the result, None where it has several.

    Raises:
        CannotFix: it is called in a way that torch has no form for.
    """
    plain = [arg.value for arg in args if arg.keyword is None]
    named = {arg.keyword.value: arg.value for arg in args if arg.keyword is not None}
    if name == "sort" and len(args) == 1:
        return expression("{x}.sort().values", x=atom(plain[0]))
    if name == "digitize" and len(plain) == 2:
        right = "True" if not named else f"not {text_of(named['right'])}"
        return expression(
            f"{{torch}}.bucketize({{x}}, {{bins}}, right={right})", torch=torch, x=plain[0], bins=plain[1]
        )
    if name in ("percentile", "quantile", "median"):
        return _quantile(name, plain, named, torch)
    if name == "interp" and len(plain) == 3:
        return _interpolated(torch, *plain)
    if name == "convolve" and dtype is not None and len(plain) >= 2:
        return _convolved(plain, named, torch, dtype)
    if name == "histogram":
        return _histogram(plain, named, torch)
    if name == "linalg.norm" and plain:
        rest = [
            cst.Arg(value, cst.Name({"axis": "dim", "keepdims": "keepdim"}.get(k, k))) for k, value in named.items()
        ]
        made = expression("{torch}.linalg.norm()", torch=torch)
        return made.with_changes(args=[*(cst.Arg(value) for value in plain), *rest])
    return None


def _quantile(name: str, plain: list[Expression], named: dict[str, Expression], torch: Expression) -> Expression:
    share = expression("0.5") if name == "median" else plain[1] if len(plain) > 1 else named.pop("q")
    if name == "percentile":
        if isinstance(share, cst.List | cst.Tuple):
            share = expression("{torch}.tensor({q}) / 100", torch=torch, q=share)
        else:
            share = expression("{q} / 100", q=atom(share))
    elif isinstance(share, cst.List | cst.Tuple):
        share = expression("{torch}.tensor({q})", torch=torch, q=share)
    made = expression("{torch}.quantile({x}, {q})", torch=torch, x=bare(plain[0]), q=bare(share))
    axis = plain[1:2] if name == "median" else plain[2:3]
    if set(named) - {"axis", "keepdims"}:
        raise CannotFix(f"no torch function is known to equal numpy.{name} with {', '.join(named)}")
    rest = [cst.Arg(value, cst.Name("dim")) for value in axis]
    rest += [cst.Arg(value, cst.Name({"axis": "dim", "keepdims": "keepdim"}[key])) for key, value in named.items()]
    assert isinstance(made, cst.Call)
    return made.with_changes(args=[*made.args, *rest])


def _interpolated(torch: Expression, x: Expression, grid: Expression, table: Expression) -> Expression:
    """``numpy.interp`` of a table: beyond its ends the values stay those of the ends."""
    return expression(
        "(lambda x, grid, table, at: table[at - 1] + (table[at] - table[at - 1]) * "
        "((x.clamp(grid[0], grid[-1]) - grid[at - 1]) / (grid[at] - grid[at - 1])))"
        "({x}.to({grid}.dtype), {grid}, {table}, "
        "{torch}.searchsorted({grid}, {x}.to({grid}.dtype)).clamp(1, {grid}.shape[0] - 1))",
        torch=torch, x=atom(x), grid=atom(grid), table=atom(table),
    )  # fmt: skip


def _convolved(
    plain: list[Expression], named: dict[str, Expression], torch: Expression, dtype: Expression
) -> Expression:
    """``numpy.convolve`` of two vectors, of which the second is not longer than the first."""
    mode = named.get("mode", plain[2] if len(plain) > 2 else None)
    name = text_of(mode).strip("\"'") if mode is not None else "full"
    if name not in _MODES:
        raise CannotFix("the mode of numpy.convolve is not known")
    return expression(_MODES[name], torch=torch, a=atom(plain[0]), v=atom(plain[1]), dtype=dtype)


def _histogram(plain: list[Expression], named: dict[str, Expression], torch: Expression) -> Expression:
    """``numpy.histogram`` with a number of bins and a range: counts and edges."""
    bins = named.get("bins", plain[1] if len(plain) > 1 else None)
    limits = named.get("range", plain[2] if len(plain) > 2 else None)
    if bins is None or not isinstance(limits, cst.Tuple | cst.List) or set(named) - {"bins", "range"}:
        raise CannotFix("numpy.histogram has bins that torch has no form for")
    low, high = (element.value for element in limits.elements)
    return expression(
        "({torch}.histc({x}.double(), {bins}, {low}, {high}).long(), "
        "{torch}.linspace({low}, {high}, {bins} + 1, dtype={torch}.float64))",
        torch=torch, x=atom(plain[0]), bins=atom(bins), low=low, high=high,
    )  # fmt: skip
