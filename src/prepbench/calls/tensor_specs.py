"""The required dtype and sizes of each tensor argument of a compiled model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from prepbench._torch_compat import pytree
from prepbench._torch_compat.programs import input_placeholders
from prepbench.errors import InputError, sentence
from prepbench.inputs import dense_fault, meta_fault, tensor_fault

# per input leaf: {"dtype": "float32", "shape": [None, 3, 32, 32], "example": [2, 3, 32, 32]} with None for a dynamic
# size, "symbols": ["s0", "", "", ""] where there is one, and "below": 100 for indices into a table of 100 rows, with
# "from": -100 where they may count from the end; None for a constant
TensorSpecs = tuple[Mapping[str, Any] | None, ...]


def tensor_specs(program: torch.export.ExportedProgram) -> TensorSpecs:
    """Return the spec of each input leaf of a captured program."""
    values = {node.name: node.meta.get("val") for node in program.graph.nodes if node.op == "placeholder"}
    examples = pytree.tree_leaves(program.example_inputs)
    limits = index_limits(program.graph)
    return tuple(
        _spec(values.get(name), example, limits.get(name)) if name is not None else None
        for name, example in zip(input_placeholders(program), examples, strict=True)
    )


def joined_tensor_specs(specs: Sequence[TensorSpecs]) -> TensorSpecs:
    """Return the union of several graphs' specs: a size is dynamic where it is so in one, or they differ."""
    return tuple(_joined(rows) for rows in zip(*specs, strict=True))


def _joined(rows: Sequence[Mapping[str, Any] | None]) -> Mapping[str, Any] | None:
    known = [row for row in rows if row is not None]
    if len(known) < len(rows):
        return None
    first, shapes = known[0], zip(*(row["shape"] for row in known), strict=True)
    made = {**first, "shape": [sizes[0] if len(set(sizes)) == 1 else None for sizes in shapes]}
    if None in made["shape"]:
        made["symbols"] = first.get("symbols", [""] * len(made["shape"]))
    if not all("below" in row for row in known):
        made = {name: value for name, value in made.items() if name not in ("below", "from")}
    elif "below" in made:
        made["below"] = max(row["below"] for row in known)
        made |= {"from": least} if (least := min(row.get("from", 0) for row in known)) else {}
    return made


def dummy_tensor(spec: Mapping[str, Any], generator: torch.Generator) -> torch.Tensor:
    """Return a tensor with the example's sizes: noise for floating point, zeros for integers, True for booleans."""
    dtype = getattr(torch, spec["dtype"])
    sizes = spec.get("example") or [2 if size is None else size for size in spec["shape"]]
    if dtype.is_floating_point or dtype.is_complex:
        return torch.randn(sizes, generator=generator, dtype=torch.float32).to(dtype)
    return torch.ones(sizes, dtype=dtype) if dtype is torch.bool else torch.zeros(sizes, dtype=dtype)


def with_empty_tensors(
    leaves: Sequence[Any], missing: Sequence[bool], specs: TensorSpecs, noted: Mapping[str, int] | None = None
) -> list[Any]:
    """Return the leaves with tensors in place of missing ones: of sizes from other leaves, else of size 0.

    Args:
        leaves: of a call.
        missing: the indices of the missing ones.
        specs: the required dtypes and sizes.
        noted: sizes that something else than a leaf says, by symbol.
    """
    known = dict(noted or {})
    for leaf, absent, spec in zip(leaves, missing, specs, strict=True):
        if spec is not None and not absent and isinstance(leaf, torch.Tensor):
            known.update(zip(spec.get("symbols", ()), leaf.shape, strict=False))
    return [
        _empty(spec, known) if absent and spec is not None else leaf
        for leaf, absent, spec in zip(leaves, missing, specs, strict=True)
    ]


def _empty(spec: Mapping[str, Any], known: Mapping[str, int]) -> torch.Tensor:
    symbols = spec.get("symbols", [""] * len(spec["shape"]))
    sizes = [known.get(name, 0) if size is None else size for size, name in zip(spec["shape"], symbols, strict=True)]
    return torch.zeros(sizes, dtype=getattr(torch, spec["dtype"]))


class TensorChecks:
    """The requirements on each input leaf of a call, in a form that is fast to check."""

    def __init__(self, specs: TensorSpecs, paths: Sequence[str]) -> None:
        self._rows = [
            None
            if spec is None
            else (getattr(torch, spec["dtype"], None), len(spec["shape"]), _fixed(spec), spec, path)
            for spec, path in zip(specs, paths, strict=True)
        ]

    def checked(self, leaves: Sequence[Any]) -> list[Any]:
        """Return the leaves; a negated or conjugated view becomes a tensor of its own.

        Raises:
            InputError: the compiled graph cannot take a leaf; names it and says what it should be.
        """
        found = []
        for leaf, row in zip(leaves, self._rows, strict=True):
            if row is not None:
                dtype, dims, fixed, spec, path = row
                fits = isinstance(leaf, torch.Tensor) and leaf.dtype is dtype and _has_plain_data(leaf)
                if not fits or not _has_sizes(leaf.shape, dims, fixed):
                    raise _misfit(leaf, spec, path)
                if "below" in spec and leaf.numel():
                    _check_indices(leaf, spec.get("from", 0), spec["below"], path)
                if leaf.is_neg() or (leaf.is_complex() and leaf.is_conj()):
                    leaf = leaf.resolve_neg().resolve_conj()
            found.append(leaf)
        return found


def _fixed(spec: Mapping[str, Any]) -> list[tuple[int, int]]:
    return [(dim, size) for dim, size in enumerate(spec["shape"]) if size is not None]


def _has_sizes(shape: torch.Size, dims: int, fixed: Sequence[tuple[int, int]]) -> bool:
    if len(shape) != dims:
        return False
    for dim, size in fixed:  # noqa: SIM110 (a generator takes twice as long)
        if shape[dim] != size:
            return False
    return True


def contradiction(leaves: Sequence[Any], specs: TensorSpecs, paths: Sequence[str]) -> str:
    """Return a sentence on two sizes that must be equal, or on a wrong sum; else "".

    Example:
        >>> one = {"dtype": "float32", "shape": [None], "example": [4], "symbols": ["s0"]}
        >>> contradiction([torch.ones(3), torch.ones(5)], (one, one), ("x", "y"))
        'y.shape[0] is 5 and x.shape[0] is 3, but in the tracing inputs they were equal. '
    """
    found: dict[str, tuple[str, int]] = {}
    for leaf, spec, path in zip(leaves, specs, paths, strict=True):
        symbols = spec.get("symbols", ()) if spec is not None and isinstance(leaf, torch.Tensor) else ()
        for dim, symbol in enumerate(symbols):
            here = f"{path}.shape[{dim}]", int(leaf.shape[dim])
            place, size = found.setdefault(symbol, here)
            if symbol and size != here[1]:
                return f"{here[0]} is {here[1]} and {place} is {size}, but in the tracing inputs they were equal. "
    for symbol, (place, size) in found.items():
        terms = [found.get(term) for term in symbol.split(" + ")]
        if len(terms) > 1 and None not in terms and size != sum(term[1] for term in terms if term):
            parts = " and ".join(f"{term[0]} ({term[1]} here)" for term in terms if term)
            return f"{place} is {size}, but in the tracing inputs it was the sum of {parts}. "
    return ""


def failed_call(
    leaves: Sequence[Any], specs: TensorSpecs, paths: Sequence[str], target: str, error: Exception
) -> InputError:
    """Return the error for a call that failed in a target, with a note on odd sizes."""
    ranges = [
        f"{path} from {int(leaf.min())} to {int(leaf.max())}"
        for path, leaf in zip(paths, leaves, strict=True)
        if isinstance(leaf, torch.Tensor) and leaf.numel() and leaf.dtype in (torch.int32, torch.int64)
    ]
    given = f" The integers given are {', '.join(ranges)}." if ranges else ""
    nothing = [
        f"{path} of shape {tuple(leaf.shape)}"
        for path, leaf in zip(paths, leaves, strict=True)
        if isinstance(leaf, torch.Tensor) and not leaf.numel()
    ]
    remedy = "Check that the original model takes these values; indices beyond the end of a table are one reason."
    if nothing:
        remedy = (
            f"Empty: {', '.join(nothing)}. Not all kernels of {target} take empty tensors, also where PyTorch does: "
            "leave such calls out, or choose another target."
        )
    return InputError(
        f"{target} fails on this call: {contradiction(leaves, specs, paths)}{type(error).__name__}: {sentence(error)}"
        f"{given} {remedy}"
    )


def _check_indices(leaf: torch.Tensor, least: int, below: int, path: str) -> None:
    smallest, largest = (int(value) for value in torch.aminmax(leaf))
    if smallest < least or largest >= below:
        raise InputError(
            f"{path} holds indices into a table of {below} rows: expected {least} to {below - 1}, got {smallest} to "
            f"{largest}. PyTorch refuses these, too: give indices of rows that are there."
        )


def _misfit(leaf: Any, spec: Mapping[str, Any], path: str) -> InputError:
    wanted = f"{path} must be a torch.{spec['dtype']} tensor of shape {_shape_text(spec['shape'])}"
    if not isinstance(leaf, torch.Tensor):
        return InputError(f"{wanted}, got {type(leaf).__name__}. Convert it, e.g. torch.as_tensor(...).")
    fault = dense_fault(leaf) or meta_fault(leaf)
    if fault is not None:
        return InputError(f"{wanted}, got {fault[0]}. {fault[1].format(path)}")
    if _name(leaf.dtype) != spec["dtype"]:
        return InputError(f"{wanted}, got {leaf.dtype}. Convert it: {path}.to(torch.{spec['dtype']}).")
    return InputError(
        f"{wanted}, got shape {tuple(leaf.shape)}. A size that differs between the tracing inputs becomes dynamic (*): "
        "compile again with such samples."
    )


def _has_plain_data(leaf: torch.Tensor) -> bool:
    if leaf.layout is not torch.strided or leaf.is_meta or leaf.is_nested:
        return False
    return type(leaf) is torch.Tensor or tensor_fault(leaf) is None


def _spec(value: Any, example: Any, limits: tuple[int, int] | None) -> Mapping[str, Any] | None:
    if not isinstance(value, torch.Tensor):
        return None
    sizes = [size if isinstance(size, int) else None for size in value.shape]
    shape = list(example.shape) if isinstance(example, torch.Tensor) else None
    spec: dict[str, Any] = {"dtype": _name(value.dtype), "shape": sizes, "example": shape}
    if None in sizes:
        spec["symbols"] = ["" if isinstance(size, int) else str(size) for size in value.shape]
    if limits is None:
        return spec
    least, below = limits
    return {**spec, "below": below, **({"from": least} if least else {})}


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _shape_text(sizes: Sequence[int | None]) -> str:
    return (
        "(" + ", ".join("*" if size is None else str(size) for size in sizes) + ("," if len(sizes) == 1 else "") + ")"
    )


# The inputs of a program that are indices into tables, and the tables' sizes.
#
# PyTorch raises for an out-of-bounds index, where a runtime may read other memory or return a result.


_aten = torch.ops.aten

_Lookup = tuple[fx.Node | int, int, Any]


def _of_dim(table: fx.Node, dim: int, ids: Any, *rest: Any) -> Iterable[_Lookup]:
    return [(table, dim, ids)]


_TABLES: dict[Any, Callable[..., Iterable[_Lookup]]] = {
    **dict.fromkeys(
        (_aten.embedding.default, _aten.embedding_bag.default, _aten.embedding_bag.padding_idx),
        lambda table, ids, *rest: [(table, 0, ids)],
    ),
    _aten.one_hot.default: lambda ids, classes=-1: [(classes, 0, ids)] if type(classes) is int else [],
    _aten.index.Tensor: lambda table, ids: _of_index(table, ids),
    _aten.index_put.default: lambda table, ids, *rest: _of_index(table, ids),
    **dict.fromkeys(
        (
            _aten.index_select.default, _aten.index_add.default, _aten.index_copy.default, _aten.gather.default,
            _aten.index_fill.int_Scalar, _aten.scatter.src, _aten.scatter.value, _aten.scatter_add.default,
            _aten.scatter_reduce.two,
        ),
        _of_dim,
    ),
}  # fmt: skip
"""The lookups of each operator: the table or its size, its dim, and the indices, from its arguments."""

FROM_THE_END = frozenset({_aten.index.Tensor, _aten.index_put.default, _aten.index_fill.int_Scalar})
"""Operators that also take negative indices, which count from the end of the table."""

_NO_INDICES = frozenset({"include_self", "alpha"})

SAME_NUMBERS = frozenset({
    _aten.view.default, _aten.reshape.default, _aten.flatten.using_ints, _aten.unsqueeze.default,
    _aten.squeeze.default, _aten.squeeze.dim, _aten.squeeze.dims, _aten.permute.default, _aten.transpose.int,
    _aten.t.default, _aten.expand.default, _aten.clone.default, _aten.contiguous.default, _aten.alias.default,
    _aten.detach.default, _aten.to.dtype, _aten._to_copy.default,
})  # fmt: skip
"""Operators whose result contains exactly the numbers of their first argument."""


def _of_index(table: fx.Node, indices: Sequence[fx.Node | None]) -> Iterable[_Lookup]:
    given = [one.meta["val"] for one in indices if one is not None]
    if any(value.dtype in (torch.bool, torch.uint8) for value in given):
        return ()  # a mask may be for several dims
    return [(table, dim, one) for dim, one in enumerate(indices)]


def index_limits(graph: fx.Graph) -> dict[str, tuple[int, int]]:
    """Return limits by placeholder of integers that index tables of static size: the least index that all tables take,
    and the smallest of their sizes.

    Args:
        graph: of an exported program, with ``meta["val"]``.
    """
    limits: dict[str, tuple[int, int]] = {}
    for node in graph.nodes:
        for placeholder, least, size in _lookups(node):
            before = limits.get(placeholder, (least, size))
            limits[placeholder] = max(least, before[0]), min(size, before[1])
    return limits


def _size(table: fx.Node, dim: int) -> Any:
    """Return the size of a dim of a table; None for what is no tensor."""
    value = table.meta.get("val")
    if not isinstance(value, torch.Tensor):
        return None
    return value.shape[dim] if value.ndim else 1


def lookups_of(node: fx.Node) -> Iterable[_Lookup]:
    """Return what a node looks up: the table or its size, the dim of it, and the indices."""
    lookups = _TABLES.get(node.target) if node.op == "call_function" else None
    return () if lookups is None or node.kwargs.keys() - _NO_INDICES else lookups(*node.args)


def _lookups(node: fx.Node) -> Iterator[tuple[str, int, int]]:
    for table, dim, ids in lookups_of(node):
        while isinstance(ids, fx.Node) and ids.op == "call_function" and ids.target in SAME_NUMBERS:
            ids = ids.args[0]
        if not isinstance(ids, fx.Node) or ids.op != "placeholder":
            continue
        size, value = table if isinstance(table, int) else _size(table, dim), ids.meta.get("val")
        if (
            isinstance(size, int)
            and size >= 0
            and isinstance(value, torch.Tensor)
            and value.dtype in (torch.int32, torch.int64)
        ):
            yield ids.name, -size if node.target in FROM_THE_END else 0, size
