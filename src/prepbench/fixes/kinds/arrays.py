"""NumPy on tensors becomes the equivalent torch function."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import libcst as cst
import numpy as np
import torch

from prepbench.fixes import syntax
from prepbench.fixes.site import Kind, Proposal, Site
from prepbench.fixes.syntax import CannotFix, Expression

# Functions of NumPy that torch has under another name or in another form.


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
    """Return the replacement of one of these functions; None for others.

    Raises:
        CannotFix: it is called in a way that torch has no form for.
    """
    plain = [arg.value for arg in args if arg.keyword is None]
    named = {arg.keyword.value: arg.value for arg in args if arg.keyword is not None}
    if name == "sort" and len(args) == 1:
        return syntax.expression("{x}.sort().values", x=syntax.atom(plain[0]))
    if name == "digitize" and len(plain) == 2:
        right = "True" if not named else f"not {syntax.text_of(named['right'])}"
        return syntax.expression(
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
        made = syntax.expression("{torch}.linalg.norm()", torch=torch)
        return made.with_changes(args=[*(cst.Arg(value) for value in plain), *rest])
    return None


def _quantile(name: str, plain: list[Expression], named: dict[str, Expression], torch: Expression) -> Expression:
    share = syntax.expression("0.5") if name == "median" else plain[1] if len(plain) > 1 else named.pop("q")
    if name == "percentile":
        if isinstance(share, cst.List | cst.Tuple):
            share = syntax.expression("{torch}.tensor({q}) / 100", torch=torch, q=share)
        else:
            share = syntax.expression("{q} / 100", q=syntax.atom(share))
    elif isinstance(share, cst.List | cst.Tuple):
        share = syntax.expression("{torch}.tensor({q})", torch=torch, q=share)
    made = syntax.expression("{torch}.quantile({x}, {q})", torch=torch, x=syntax.bare(plain[0]), q=syntax.bare(share))
    axis = plain[1:2] if name == "median" else plain[2:3]
    if set(named) - {"axis", "keepdims"}:
        raise CannotFix(f"no torch function is known to equal numpy.{name} with {', '.join(named)}")
    rest = [cst.Arg(value, cst.Name("dim")) for value in axis]
    rest += [cst.Arg(value, cst.Name({"axis": "dim", "keepdims": "keepdim"}[key])) for key, value in named.items()]
    assert isinstance(made, cst.Call)
    return made.with_changes(args=[*made.args, *rest])


def _interpolated(torch: Expression, x: Expression, grid: Expression, table: Expression) -> Expression:
    """Rewrite ``numpy.interp`` of a table: beyond its ends the values stay those of the ends."""
    return syntax.expression(
        "(lambda x, grid, table, at: table[at - 1] + (table[at] - table[at - 1]) * "
        "((x.clamp(grid[0], grid[-1]) - grid[at - 1]) / (grid[at] - grid[at - 1])))"
        "({x}.to({grid}.dtype), {grid}, {table}, "
        "{torch}.searchsorted({grid}, {x}.to({grid}.dtype)).clamp(1, {grid}.shape[0] - 1))",
        torch=torch, x=syntax.atom(x), grid=syntax.atom(grid), table=syntax.atom(table),
    )  # fmt: skip


def _convolved(
    plain: list[Expression], named: dict[str, Expression], torch: Expression, dtype: Expression
) -> Expression:
    """Rewrite ``numpy.convolve`` of two vectors, of which the second is not longer than the first."""
    mode = named.get("mode", plain[2] if len(plain) > 2 else None)
    name = syntax.text_of(mode).strip("\"'") if mode is not None else "full"
    if name not in _MODES:
        raise CannotFix("the mode of numpy.convolve is not known")
    return syntax.expression(_MODES[name], torch=torch, a=syntax.atom(plain[0]), v=syntax.atom(plain[1]), dtype=dtype)


def _histogram(plain: list[Expression], named: dict[str, Expression], torch: Expression) -> Expression:
    """Rewrite ``numpy.histogram`` with a number of bins and a range: counts and edges."""
    bins = named.get("bins", plain[1] if len(plain) > 1 else None)
    limits = named.get("range", plain[2] if len(plain) > 2 else None)
    if bins is None or not isinstance(limits, cst.Tuple | cst.List) or set(named) - {"bins", "range"}:
        raise CannotFix("numpy.histogram has bins that torch has no form for")
    low, high = (element.value for element in limits.elements)
    return syntax.expression(
        "({torch}.histc({x}.double(), {bins}, {low}, {high}).long(), "
        "{torch}.linspace({low}, {high}, {bins} + 1, dtype={torch}.float64))",
        torch=torch, x=syntax.atom(plain[0]), bins=syntax.atom(bins), low=low, high=high,
    )  # fmt: skip


_SAME = frozenset(
    (
        "abs absolute exp expm1 log log1p log2 log10 sqrt square sin cos tan tanh sinh cosh arcsin arccos arctan "
        + "arctan2 floor ceil trunc sign maximum minimum where isnan isinf isfinite logical_and logical_or logical_not "
        + "outer dot matmul einsum reciprocal power fmax fmin hypot stack concatenate round multiply add subtract "
        + "divide zeros_like ones_like tril triu kron cross inner clip bincount unique diff tile squeeze ravel trace"
    ).split()
)
_OTHER = {
    "absolute": "abs", "arcsin": "asin", "arccos": "acos", "arctan": "atan", "arctan2": "atan2", "power": "pow",
    "concatenate": "cat",
}  # fmt: skip
_REDUCED = {
    "sum": "sum", "mean": "mean", "prod": "prod", "max": "amax", "min": "amin", "amax": "amax", "amin": "amin",
    "argmax": "argmax", "argmin": "argmin", "cumsum": "cumsum", "cumprod": "cumprod", "argsort": "argsort",
    "any": "any", "all": "all", "flip": "flip", "roll": "roll", "std": "std", "var": "var",
}  # fmt: skip
_WITHOUT = ("detach", "cpu", "numpy", "clone")
_COMPUTES = (cst.Call, cst.BinaryOperation, cst.Subscript)
_FROM = ("from_numpy", "as_tensor", "tensor")


def propose(site: Site) -> Iterator[Proposal]:
    """Propose to rewrite every NumPy call in the function whose arguments come from tensors."""
    numpy = site.library(np, "np")
    arrays = _Arrays(site, numpy)
    if not arrays.is_needed:
        return
    found: dict[cst.CSTNode, cst.CSTNode] = {}
    inside: set[cst.CSTNode] = set()
    for node in site.expressions(cst.BaseExpression):
        if node in inside or not isinstance(node, _COMPUTES):
            continue
        new = arrays.changed(node)
        if new is not None:
            found[node] = new
            inside.update(syntax.walk_here(node))
    if found:
        yield Proposal(syntax.replaced(site.function, found))


class _Arrays:
    """Rewrites NumPy computations on tensors in torch."""

    def __init__(self, site: Site, numpy: str) -> None:
        self._site, self._numpy = site, numpy
        self._names: set[str] = set()
        before = -1
        while len(self._names) != before:
            before = len(self._names)
            for node in site.expressions(cst.Assign):
                if self.is_data(node.value):
                    self._names.update(name for target in node.targets for name in syntax.target_names(target.target))

    @property
    def is_needed(self) -> bool:
        """Return whether the function converts a tensor to an array."""
        calls = self._site.expressions(cst.Call)
        return any(self._is_array_of(call) for call in calls) or any(self._gets_tensor(call) for call in calls)

    def _is_array_of(self, call: cst.Call) -> bool:
        is_numpy = isinstance(call.func, cst.Attribute) and call.func.attr.value == "numpy"
        return is_numpy and self._site.fact(getattr(call.func, "value", call)).is_tensor

    def _gets_tensor(self, call: cst.Call) -> bool:
        return self._function(call) != "" and any(self._site.fact(arg.value).is_tensor for arg in call.args)

    def _function(self, call: cst.Call) -> str:
        """Return the name of a NumPy function; "" for others."""
        name = syntax.text_of(call.func)
        is_plain = name.startswith(f"{self._numpy}.") and name.replace(".", "_").isidentifier()
        return name.removeprefix(f"{self._numpy}.") if is_plain else ""

    def is_data(self, node: cst.CSTNode) -> bool:
        """Return whether an expression is an array, or a number of one, that comes from a tensor."""
        if isinstance(node, cst.Name):
            return node.value in self._names and not self._site.fact(node).is_tensor
        if isinstance(node, cst.Call) and (self._is_array_of(node) or self._gets_tensor(node)):
            return True
        if self._site.fact(node).is_tensor:
            return False
        return any(self.is_data(part) for part in node.children)

    def tensor(self, node: Expression) -> Expression:
        """Return an expression as a tensor; arrays that do not come from one are converted."""
        fact = self._site.fact(node)
        if fact.is_array and not self.is_data(node):
            return syntax.expression("{torch}.as_tensor({x})", torch=self._site.torch, x=syntax.bare(node))
        new = self.changed(node) if isinstance(node, _COMPUTES) else None
        if new is not None:
            return new
        parts = [part for part in syntax.walk_here(node) if isinstance(part, _COMPUTES) and part is not node]
        found: dict[cst.CSTNode, cst.CSTNode] = {}
        inside: set[cst.CSTNode] = set()
        for part in parts:
            if part not in inside and (made := self.changed(part)) is not None:
                found[part] = syntax.atom(made)
                inside.update(syntax.walk_here(part))
        changed: Expression = syntax.replaced(node, found)
        return changed

    def changed(self, node: cst.CSTNode) -> Expression | None:
        """Return the replacement of a call or an operation; None where it stays."""
        if isinstance(node, cst.BinaryOperation):
            sides = [node.left, node.right]
            if not any(self.is_data(side) for side in sides):
                return None
            left, right = (
                syntax.atom(self.tensor(side)) if _is_array(self._site, side) or self.is_data(side) else side
                for side in sides
            )
            return node.with_changes(left=left, right=right)
        if isinstance(node, cst.Subscript):
            return self._looked_up(node)
        assert isinstance(node, cst.Call)
        if self._is_array_of(node):
            return self._of_tensor(node)
        function = self._function(node)
        if function:
            return (
                self._of_numpy(function, node)
                if any(self.is_data(arg.value) or self._site.fact(arg.value).is_tensor for arg in node.args)
                else None
            )
        return self._made(node) or self._method(node)

    def _looked_up(self, node: cst.Subscript) -> Expression | None:
        """Rewrite ``table[index]`` of an array that does not come from a tensor, by one that does."""
        index = node.slice[0].slice
        is_table = _is_array(self._site, node.value) and not self.is_data(node.value) and len(node.slice) == 1
        if not is_table or not isinstance(index, cst.Index) or not self.is_data(index.value):
            return None
        whole = syntax.expression("{torch}.as_tensor({x})", torch=self._site.torch, x=syntax.bare(node.value))
        return node.with_changes(
            value=whole, slice=[node.slice[0].with_changes(slice=cst.Index(self.tensor(index.value)))]
        )

    def _of_tensor(self, call: cst.Call) -> Expression:
        """Rewrite ``x.detach().cpu().numpy()`` as ``x.detach()``."""
        owner: Any = call
        while (
            isinstance(owner, cst.Call) and isinstance(owner.func, cst.Attribute) and owner.func.attr.value in _WITHOUT
        ):
            owner = owner.func.value
        return syntax.expression("{x}.detach()", x=syntax.atom(owner))

    def _made(self, call: cst.Call) -> Expression | None:
        """Rewrite ``torch.from_numpy(array)`` as the tensor that the array has become."""
        torch_name = syntax.text_of(self._site.torch)
        if syntax.text_of(call.func) not in [f"{torch_name}.{name}" for name in _FROM] or not call.args:
            return None
        value = call.args[0].value
        if not self.is_data(value):
            return None
        dtypes = {dtype for dtype in self._site.fact(call).dtypes if isinstance(dtype, torch.dtype)}
        if len(dtypes) != 1:
            raise CannotFix("the dtype of the array changes")
        made = self.tensor(value)
        if str(next(iter(self._site.fact(value).dtypes), "")) == str(next(iter(dtypes))).removeprefix("torch."):
            return made
        dtype = cst.parse_expression(str(next(iter(dtypes))).replace("torch", torch_name, 1))
        return syntax.expression("{x}.to({dtype})", x=syntax.atom(made), dtype=dtype)

    def _method(self, call: cst.Call) -> Expression | None:
        """Rewrite ``array.astype(np.float32)`` and methods that both have."""
        if not isinstance(call.func, cst.Attribute) or not self.is_data(call.func.value):
            return None
        owner, name = syntax.atom(self.tensor(call.func.value)), call.func.attr.value
        if name == "astype" and call.args:
            return syntax.expression("{x}.to({dtype})", x=owner, dtype=self._dtype(call))
        if name == "copy":
            return syntax.expression("{x}.clone()", x=owner)
        if name in _REDUCED:
            return self._reduced(name, owner, call.args)
        return call.with_changes(func=call.func.with_changes(value=owner))

    def _dtype(self, call: cst.Call) -> Expression:
        dtypes = {str(dtype) for dtype in self._site.fact(call).dtypes}
        if len(dtypes) != 1:
            raise CannotFix("the dtype of the array changes")
        return cst.parse_expression(f"{syntax.text_of(self._site.torch)}.{next(iter(dtypes))}")

    def _of_numpy(self, name: str, call: cst.Call) -> Expression | None:
        data = [arg.with_changes(value=self._argument(arg.value)) for arg in call.args]
        if name in _REDUCED and data:
            return self._reduced(name, syntax.atom(data[0].value), data[1:])
        dtypes = {str(dtype) for dtype in self._site.fact(call).dtypes}
        dtype = cst.parse_expression(f"{syntax.text_of(self._site.torch)}.{dtypes.pop()}") if len(dtypes) == 1 else None
        new = rewritten(name, data, self._site.torch, dtype)
        if new is not None:
            return new
        if name in ("array", "asarray", "copy") and data:
            return data[0].value
        if name not in _SAME:
            raise CannotFix(f"no torch function is known to equal {self._numpy}.{name}")
        function = syntax.expression(f"{{torch}}.{_OTHER.get(name, name)}", torch=self._site.torch)
        return cst.Call(function, [_with_dim(arg) for arg in data])

    def _argument(self, value: Expression) -> Expression:
        if isinstance(value, cst.List | cst.Tuple):
            elements = [each.with_changes(value=self._argument(each.value)) for each in value.elements]
            return value.with_changes(elements=elements)
        return self.tensor(value) if self.is_data(value) or _is_array(self._site, value) else value

    def _reduced(self, name: str, owner: Expression, args: Sequence[cst.Arg]) -> Expression:
        made = [_with_dim(arg) for arg in args]
        if name in ("std", "var") and not any(arg.keyword is not None and arg.keyword.value == "ddof" for arg in args):
            made.append(cst.Arg(cst.Integer("0"), cst.Name("correction")))
        call = syntax.expression(f"{{x}}.{_REDUCED[name]}()", x=owner)
        assert isinstance(call, cst.Call)
        return call.with_changes(args=made)


def _is_array(site: Site, node: cst.CSTNode) -> bool:
    return site.fact(node).is_array


def _with_dim(arg: cst.Arg) -> cst.Arg:
    """Rename a NumPy keyword argument to torch's name, e.g. ``axis`` to ``dim``."""
    names = {"axis": "dim", "keepdims": "keepdim", "ddof": "correction", "a_min": "min", "a_max": "max"}
    keyword = arg.keyword.value if arg.keyword is not None else ""
    return arg.with_changes(keyword=cst.Name(names[keyword])) if keyword in names else arg


ARRAYS = Kind(
    "NumPy on tensors becomes torch",
    "the torch functions equal those of NumPy, in dtype too",
    propose,
)
