"""One dim of one input, and the names of dims: by their role, and the same in every graph of a model."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from prepbench.checks import check_count, check_switches, check_text, check_type
from prepbench.document.model import Size


@dataclass(frozen=True)
class Axis:
    """One dim of one tensor argument.

    Attributes:
        path: the argument, e.g. ``"input_ids"`` or ``"past[0].key"``.
        dim: the dim, from 0.
        sizes: its size in each sample.
        dynamic: whether the captured graph must take other sizes.
        symbol: the name of the size when it is dynamic; axes of the same name vary together.
        named: whether the name was given with :meth:`DynamicAxes.rename`.
        minimum: the smallest size to support; ``None`` if not limited.
        maximum: the largest.

    Example:
        >>> axes = pb.DynamicAxes.infer([torch.ones(2, 4), torch.ones(3, 4)])
        >>> axes.axes[0].sizes, axes.axes[0].dynamic
        ((2, 3), True)
    """

    path: str
    dim: int
    sizes: tuple[int, ...]
    dynamic: bool = False
    symbol: str = ""
    named: bool = False
    minimum: int | None = None
    maximum: int | None = None

    def __post_init__(self) -> None:
        check_text("path", self.path, "input_ids")
        check_text("symbol", self.symbol, "batch")
        check_count("dim", self.dim)
        check_type("sizes", self.sizes, (tuple, list), "Give its size in each sample, such as (1, 4).")
        for index, size in enumerate(self.sizes):
            check_count(f"sizes[{index}]", size)
        check_switches(dynamic=self.dynamic, named=self.named)
        check_count("minimum", self.minimum, optional=True)
        check_count("maximum", self.maximum, optional=True)

    def allows(self, size: int) -> bool:
        """Return whether the size is within the limits.

        Args:
            size: a number of elements.

        Returns:
            True also where there are no limits.
        """
        return (self.minimum is None or size >= self.minimum) and (self.maximum is None or size <= self.maximum)

    @property
    def limits(self) -> str:
        """``"2 to 64"``, ``"at least 2"``, ``"at most 64"``, or "" without limits."""
        if self.minimum is not None and self.maximum is not None:
            return f"{self.minimum} to {self.maximum}"
        if self.maximum is not None:
            return f"at most {self.maximum}"
        return f"at least {self.minimum}" if self.minimum is not None else ""

    @property
    def range(self) -> tuple[int, int]:
        """The smallest and the largest size that was seen."""
        return min(self.sizes), max(self.sizes)

    @property
    def short_name(self) -> str:
        """The symbol as shapes show it, e.g. ``"B"`` for ``"batch"``; user-given names stay."""
        if self.named:
            return self.symbol
        role, _, number = self.symbol.partition("_")
        return "_".join(filter(None, (_SHORT.get(role, role), number)))


_SHORT = {"batch": "B", "height": "H", "width": "W", "sequence": "seq"}


def short_names(axes: Iterable[Axis]) -> dict[str, str]:
    """Return the shown name of each symbol; those of the user come first, and on a clash a size keeps its symbol."""
    names: dict[str, str] = {}
    for axis in sorted(axes, key=lambda axis: not axis.named):
        if axis.symbol not in names:
            names[axis.symbol] = axis.symbol if axis.short_name in names.values() else axis.short_name
    return names


def with_symbols(axes: Sequence[Axis]) -> tuple[Axis, ...]:
    """Return the axes with a name for each dynamic one: axes that vary together share a name."""
    roles = _roles(axes)
    names: dict[Any, str] = {}
    result = []
    for axis in axes:
        if not axis.dynamic:
            result.append(replace(axis, symbol="", named=False, minimum=None, maximum=None))
            continue
        key = _key(axis)
        if key not in names and axis.named:
            names[key] = axis.symbol
        if key not in names:
            names[key] = _unused(roles[key], set(names.values()))
        result.append(replace(axis, symbol=names[key]))
    return tuple(result)


def _key(axis: Axis) -> Any:
    # sizes that never varied say nothing about varying together, but the same dim probably does
    return axis.sizes if len(set(axis.sizes)) > 1 else (axis.dim, axis.sizes)


def _roles(axes: Sequence[Axis]) -> dict[Any, str]:
    """Return the role of each size, by its key; the first axis of that size decides."""
    tensors: dict[str, list[Axis]] = {}
    for axis in axes:
        tensors.setdefault(axis.path, []).append(axis)
    often: dict[tuple[tuple[int, ...], ...], int] = {}
    for dims in tensors.values():
        often[tuple(axis.sizes for axis in dims)] = often.get(tuple(axis.sizes for axis in dims), 0) + 1
    roles: dict[Any, str] = {}
    for axis in axes:
        if axis.dynamic:
            same = tensors[axis.path]
            roles.setdefault(_key(axis), _role(axis, same, often[tuple(a.sizes for a in same)] > 1))
    varied = {_key(axis) for axis in axes if len(set(axis.sizes)) > 1}
    for past in [key for key, role in roles.items() if role == "past" and key in varied]:
        for new in [key for key, role in roles.items() if role == "sequence" and key in varied]:
            total = tuple(a + b for a, b in zip(past, new, strict=True))
            for key, role in roles.items():
                # a mask over what is cached and what is new, where a window may have dropped the oldest
                if role == "sequence" and key in varied and key != new and _covers(key, total):
                    roles[key] = "total"
    return roles


def _covers(sizes: tuple[int, ...], total: tuple[int, ...]) -> bool:
    """Return whether sizes are a total, or more than it in some samples and equal to it in others."""
    return all(a >= b for a, b in zip(sizes, total, strict=True)) and any(map(int.__eq__, sizes, total))


def _role(axis: Axis, dims: Sequence[Axis], has_twin: bool) -> str:
    """Return the role of a dim; ``has_twin``: another tensor has the same sizes, as keys and values of a cache do."""
    rank = len(dims)
    if axis.dim == 0:
        return "batch"
    is_nested = re.search(r"[.\[]", axis.path) is not None
    # (batch, heads, length, size): only the length varies
    if rank == 4 and has_twin and not dims[-1].dynamic and dims[-2].dynamic:
        return {1: "heads", 2: "past"}[axis.dim]
    is_image = rank >= 4 and (dims[-1].dynamic or (dims[-3].sizes[0] <= 4 and not is_nested))
    if is_image and axis.dim >= rank - 2:
        return ("height", "width")[axis.dim - rank + 2]
    if axis.dim == (1 if rank in (2, 3) else rank - 2):
        return "sequence"
    return f"dim{axis.dim}"


def _unused(name: str, used: set[str]) -> str:
    candidates = [name, *(f"{name}_{number}" for number in range(2, len(used) + 3))]
    return next(candidate for candidate in candidates if candidate not in used)


def pattern_of(path: str) -> str:
    """Return the path with ``*`` for each index, e.g. ``"past.layers[*].keys"``; the dim in ``.shape[2]`` stays."""
    return re.sub(r"(?<!\.shape)\[\d+\]", "[*]", path)


def in_pattern(pattern: str, path: str) -> bool:
    """Return whether a path is the pattern, has an index for each ``[*]``, or lies below a pattern ending in ``.*``."""
    if pattern.endswith(".*"):
        return any(in_pattern(pattern.removesuffix(".*"), above) for above in _above(path))
    return path == pattern or ("[*]" in pattern and _with_stars(path, pattern) == pattern)


def _with_stars(path: str, pattern: str) -> str:
    stars = iter(re.findall(r"\[(\*|\d+)\]", pattern))
    return re.sub(r"\[\d+\]", lambda match: "[*]" if next(stars, "") == "*" else match[0], path)


def _above(path: str) -> list[str]:
    """Return the objects around a path, the outermost first, e.g. ``["past", "past.layers", "past.layers[0]"]``."""
    return [path[: match.start()] for match in re.finditer(r"[.\[]", path)]


def counted_places(paths: Iterable[str], among: Iterable[str] = ()) -> list[str]:
    """Return paths as patterns, each with the number of paths, e.g. ``"past[*].key (6)"``.

    Args:
        paths: of tensors, or of their dims (``"past[0].key.shape[2]"``).
        among: all paths of the same form that there are; several patterns that are all of what one object holds are
            one then, e.g. ``"past.* (12)"``.
    """
    listed = list(dict.fromkeys(paths))
    counts: dict[str, int] = {}
    first: dict[str, str] = {}
    whole = _whole_objects(listed, among)
    for path in listed:
        pattern = whole.get(path) or pattern_of(path)
        counts[pattern] = counts.get(pattern, 0) + 1
        first.setdefault(pattern, path)
    return [f"{pattern} ({count})" if count > 1 else first[pattern] for pattern, count in counts.items()]


_DIM = re.compile(r"\.shape\[\d+\]$")


def _whole_objects(paths: Sequence[str], among: Iterable[str]) -> dict[str, str]:
    """Return the outermost object whose tensors are all among the paths of several patterns, e.g. ``"past.*"``."""
    below: dict[str, list[str]] = {}
    for path in dict.fromkeys(among):
        for above in _above(_DIM.sub("", path)):
            below.setdefault(above, []).append(path)
    listed, found = set(paths), {}
    for path in paths:
        tensor = _DIM.sub("", path)
        for above in _above(tensor):
            same = [other for other in below.get(above, ()) if path[len(tensor) :] == other[len(_DIM.sub("", other)) :]]
            if listed.issuperset(same) and len({pattern_of(other) for other in same}) > 1:
                found[path] = f"{above}.*{path[len(tensor) :]}"
                break
    return found


# Sizes in shapes as short texts: long formulas get names, which a legend explains.


class SizeTexts:
    """The sizes of one document.

    A size is a number, the name of an input's size, a formula with one operator (``"(past + seq)"``), or a name for a
    longer formula, such as ``"H1"`` for ``(H - 1)//2 + 1``. Names count up in the order in which formulas come.

    Args:
        inputs: the meaning of the names of inputs' sizes, e.g. ``{"H": "x.shape[2]"}``.
    """

    def __init__(self, inputs: Mapping[str, str]) -> None:
        self._inputs = dict(inputs)
        self._names: dict[str, str] = {}  # by formula
        self._texts: dict[str, str] = {}  # by formula as torch writes it, with names

    def shape(self, sizes: Iterable[Any], names: Mapping[str, str]) -> str:
        """Return ``"B×3×32×32"``; ``"scalar"`` for a scalar.

        Args:
            sizes: numbers or symbolic sizes.
            names: for torch's symbols the names of inputs' sizes; others stay as torch wrote them.
        """
        return "×".join(self._text(size, names) for size in sizes) or "scalar"

    def legend(self) -> tuple[Size, ...]:
        """Return the meaning of each used name: inputs first."""
        used = {word for text in (*self._texts, *self._texts.values()) for word in re.findall(r"[A-Za-z_]\w*", text)}
        named = {name: meaning for name, meaning in self._inputs.items() if name in used}
        named |= {name: formula for formula, name in self._names.items()}
        return tuple(Size(name, meaning) for name, meaning in named.items())

    def _text(self, size: Any, names: Mapping[str, str]) -> str:
        raw = re.sub(r"\b[a-z]+\d+\b", lambda match: names.get(match[0], match[0]), str(size))
        if raw not in self._texts:
            self._texts[raw] = raw if re.fullmatch(r"\w+", raw) else self._formula(raw)
        return self._texts[raw]

    def _formula(self, raw: str) -> str:
        try:
            parsed = _Ordered().visit(ast.parse(raw, mode="eval").body)
        except (SyntaxError, ValueError, RecursionError):
            return self._named(raw, re.findall(r"[A-Za-z_]\w*", raw))
        if _is_short(parsed):
            return f"({_written(parsed)})"
        if _written(parsed) not in self._names:
            parsed = _Ordered().visit(_WithNames(self._names).generic_visit(parsed))
        if _is_short(parsed):
            return f"({_written(parsed)})"
        functions = {id(node.func) for node in ast.walk(parsed) if isinstance(node, ast.Call)}
        used = [n.id for n in ast.walk(parsed) if isinstance(n, ast.Name) and id(n) not in functions]
        return self._named(_written(parsed), used)

    def _named(self, formula: str, symbols: Iterable[str]) -> str:
        """Return a name for a formula: that of its only size with a number, else ``N`` with a number."""
        if formula not in self._names:
            base = {self._origin(symbol) for symbol in symbols}
            stem = next(iter(base)) if len(base) == 1 else "N"
            stem += "_" * stem[-1].isdecimal()
            taken = {*self._names.values(), *self._inputs}
            numbered = (f"{stem}{number}" for number in range(1, len(taken) + 2))
            self._names[formula] = next(name for name in numbered if name not in taken)
        return self._names[formula]

    def _origin(self, symbol: str) -> str:
        """Return the input's size that a derived size is named after: ``"H"`` for ``"H1"``."""
        derived = set(self._names.values())
        return symbol.rstrip("0123456789").rstrip("_") or symbol if symbol in derived else symbol


class _WithNames(ast.NodeTransformer):
    """Replaces the formulas inside of a formula by their names."""

    def __init__(self, names: Mapping[str, str]) -> None:
        self._names = names

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        if _written(node) not in self._names:
            self.generic_visit(node)
        name = self._names.get(_written(node))
        return ast.Name(name, ast.Load()) if name else node


class _Ordered(ast.NodeTransformer):
    """Puts the terms of sums and products into a canonical order, since torch's order varies between graphs."""

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        if not isinstance(node.op, ast.Add | ast.Mult):
            return node
        in_sum = isinstance(node.op, ast.Add)
        parts = sorted(
            _parts(node, type(node.op)), key=lambda part: (isinstance(part, ast.Constant) == in_sum, _written(part))
        )
        whole = parts[0]
        for part in parts[1:]:
            whole = ast.BinOp(whole, node.op, part)
        return whole


def _parts(formula: ast.expr, operator: type[ast.operator]) -> list[ast.expr]:
    if isinstance(formula, ast.BinOp) and isinstance(formula.op, operator):
        return [*_parts(formula.left, operator), *_parts(formula.right, operator)]
    return [formula]


def _is_short(formula: ast.expr) -> bool:
    """Return whether the text has one operator, between names and numbers."""
    return isinstance(formula, ast.BinOp) and all(
        isinstance(side, ast.Name | ast.Constant) for side in (formula.left, formula.right)
    )


def _written(formula: ast.expr) -> str:
    return re.sub(r" (\*\*?|//) ", r"\1", ast.unparse(formula))
