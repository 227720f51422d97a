"""Decompose operators that the ONNX exporter translates badly or not at all."""

from __future__ import annotations

import math
import string
from collections.abc import Sequence
from typing import Any

import torch

from prepbench._torch_compat.sizes import sizes_from_values
from prepbench.targets.complex_numbers import with_real_numbers
from prepbench.targets.decompose import attention, decompose, grouped_products, sized_transposed
from prepbench.targets.dynamic_sizes import computed_from_sizes, cubic
from prepbench.targets.floors import FLOOR_DIVISIONS, REMAINDERS, in_place, remainder
from prepbench.targets.onnx.absent import absent_functions, small_matrices
from prepbench.targets.onnx.bags import embedding_bag
from prepbench.targets.pooling import average_pool, is_mean, maximum_pool

Program = torch.export.ExportedProgram
aten = torch.ops.aten


def decompose_for_onnx(program: Program) -> Program:
    """Decompose attention into two products and a softmax, reductions over all dims into ones with explicit dims,
    complex numbers into pairs of real ones, and what ONNX has no operator for: the middle and the k-th of sorted
    values, distances of all pairs, running products, places in sorted values, repeated entries of a known number,
    bags of embeddings, signs of zeros, and what has parts that no index chooses.

    The exporter's translation of attention computes the shape of the keys, scales queries and keys separately and
    replaces NaN in all weights, so that no runtime recognizes it. OpenVINO computes the products and the softmax in
    one kernel, also between integer layers.
    """
    return decompose(
        with_real_numbers(program),
        {
            aten.scaled_dot_product_attention.default: attention,
            aten.avg_pool1d.default: average_pool(1),
            aten.avg_pool2d.default: _average,
            aten.avg_pool3d.default: average_pool(3),
            aten.max_pool1d.default: maximum_pool(1),
            aten.max_pool2d.default: maximum_pool(2),
            aten.max_pool3d.default: maximum_pool(3),
            aten.amax.default: _over_all(aten.amax.default),
            aten.amin.default: _over_all(aten.amin.default),
            **dict.fromkeys((aten.any.default, aten.any.dim, aten.any.dims), _any),
            aten.einsum.default: _einsum,
            aten.mean.default: _mean,
            aten.mean.dim: _mean,
            aten.median.default: _median_of_all,
            aten.median.dim: _median,
            aten.kthvalue.default: _kth_value,
            aten.cdist.default: _distances,
            aten._cdist_forward.default: _distances,
            aten.cumprod.default: _running_product,
            **FLOOR_DIVISIONS,
            **REMAINDERS,
            **_with_sizes(),
            aten.isin.Tensor_Tensor: _is_in,
            **dict.fromkeys((aten.squeeze.dim, aten.squeeze.dims), _squeezed),
            **dict.fromkeys((aten.squeeze_.dim, aten.squeeze_.dims), _squeezed_in_place),
            aten.signbit.default: _signbit,
            aten.copysign.Tensor: _with_sign,
            aten.__lshift__.Tensor: torch.bitwise_left_shift,
            aten.__rshift__.Tensor: torch.bitwise_right_shift,
            **dict.fromkeys((aten.embedding_bag.default, aten.embedding_bag.padding_idx), embedding_bag),
            **{operator: _scattered(operator) for operator in _SCATTERS},
            **dict.fromkeys((aten.scatter_reduce.two, aten.scatter.reduce), _reduced_by_place),
            **dict.fromkeys((aten.scatter_reduce_.two, aten.scatter_.reduce), in_place(_reduced_by_place)),
            aten.scatter.value_reduce: _reduced_by_number,
            aten.scatter_.value_reduce: in_place(_reduced_by_number),
            aten.index_reduce.default: _reduced_by_row,
            aten.index_reduce_.default: in_place(_reduced_by_row),
            **small_matrices(),
            **absent_functions(),
            aten.cross_entropy_loss.default: _cross_entropy,
            aten.nll_loss_nd.default: _loss,
            aten.im2col.default: _blocks,
            aten.repeat_interleave.self_int: _each_repeated,
            aten.searchsorted.Tensor: _places_in_sorted,
            aten.repeat_interleave.Tensor: _repeated_places,
            aten.repeat_interleave.self_Tensor: _repeated,
            **grouped_products(program),
            **sized_transposed(),
            **computed_from_sizes(),
            aten.upsample_bicubic2d.vec: cubic,
        },
    )


_SCATTERS = (aten.scatter.src, aten.scatter_.src, aten.scatter_add.default, aten.scatter_add_.default)


def _scattered(operator: Any) -> Any:
    """Leave out the part of the source that has no index, which ONNX does not take."""

    def scatter(x: torch.Tensor, dim: int, index: torch.Tensor, src: torch.Tensor) -> Any:
        used = _with_index(index, src)
        return NotImplemented if used is src else operator(x, dim, index, used)

    return scatter


def _with_index(index: torch.Tensor, src: torch.Tensor) -> torch.Tensor:
    """Return the part of a source that an index places; the source itself where that is all."""
    for place, size in enumerate(index.shape):
        if not _is_equal(size, src.shape[place]):
            src = src.narrow(place, 0, size)
    return src


def _reduced_by_place(
    x: torch.Tensor, dim: int, index: torch.Tensor, src: torch.Tensor, reduce: str, include_self: bool = True
) -> torch.Tensor:
    """Reduce the values of each place by the reductions that ONNX has, which always include what stood there.

    The exporter writes a mean as the last of the values (onnxscript 0.7), and begins a maximum at the lowest finite
    number instead of infinity.
    """
    src = _with_index(index, src)
    if not x.ndim:
        row, at, values = (each.reshape(1) for each in (x, index, src))
        return _reduced_by_place(row, 0, at, values, reduce, include_self).reshape(())
    reduce = {"add": "sum", "multiply": "prod"}.get(reduce, reduce)
    began = x if include_self else x.scatter(dim, index, _neutral(reduce, x.dtype))
    if reduce != "mean":
        return torch.scatter_reduce(began, dim, index, src, reduce)
    counted = torch.ones_like(x) if include_self else torch.zeros_like(x)
    total = began.scatter_add(dim, index, src)
    count = counted.scatter_add(dim, index, torch.ones_like(src)).clamp(min=1)
    return total / count if x.is_floating_point() else torch.floor_divide(total, count)


def _neutral(reduce: str, dtype: torch.dtype) -> Any:
    """Return the number that changes no reduction of others."""
    if reduce not in ("amax", "amin"):
        return 1 if reduce == "prod" else 0
    lowest, highest = (False, True) if dtype is torch.bool else (-math.inf, math.inf)
    if not dtype.is_floating_point and dtype is not torch.bool:
        lowest, highest = torch.iinfo(dtype).min, torch.iinfo(dtype).max
    return lowest if reduce == "amax" else highest


def _reduced_by_number(x: torch.Tensor, dim: int, index: torch.Tensor, value: Any, *, reduce: str) -> torch.Tensor:
    return _reduced_by_place(x, dim, index, torch.full_like(index, value, dtype=x.dtype), reduce)


def _reduced_by_row(
    x: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor, reduce: str, *, include_self: bool = True
) -> Any:
    """Reduce rows of which an index tells where each goes, by an index for each of their values."""
    if not x.ndim or not source.ndim:
        return NotImplemented
    shape = [1] * source.ndim
    shape[dim] = -1
    places = index.to(torch.int64).reshape(shape).expand_as(source)
    return _reduced_by_place(x, dim, places, source, reduce, include_self)


def _is_equal(size: Any, other: Any) -> bool:
    """Return whether two sizes are the same number or expression."""
    return str(size) == str(other)


def _with_sizes() -> dict[Any, Any]:
    """Return operators of integers and a size, which the exporter takes as a number only."""
    names = ("bitwise_and", "bitwise_or", "bitwise_xor", "__and__", "__or__", "__xor__")
    of_rest = _of_size(aten.remainder.Tensor, remainder)
    return {
        **{getattr(aten, name).Scalar: _of_size(getattr(aten, name).Tensor) for name in names},
        **dict.fromkeys((aten.remainder.Scalar, aten.remainder.Scalar_Tensor), of_rest),
        aten.remainder_.Scalar: in_place(of_rest),
        aten.pow.Tensor_Scalar: _of_size(aten.pow.Tensor_Tensor, _power),
        aten.pow.Scalar: _of_size(aten.pow.Tensor_Tensor),
    }


def _of_size(form: Any, otherwise: Any = lambda x, y: NotImplemented) -> Any:
    """Return a function that makes a tensor of a size, for an operator's form of two tensors."""

    def compute(x: Any, y: Any) -> Any:
        size, other = (x, y) if isinstance(y, torch.Tensor) else (y, x)
        is_real = form is aten.remainder.Tensor and other.is_floating_point()
        if not isinstance(size, torch.SymInt) or other.dtype is torch.bool or is_real:
            return otherwise(x, y)
        # ONNX Runtime divides no integers by a zero that stands alone, also where there are none to divide
        alone = form is not aten.remainder.Tensor or size is x
        filled = aten.full.default([] if alone else other.shape, size, dtype=other.dtype, device=other.device)
        return form(filled, other) if isinstance(y, torch.Tensor) else form(other, filled)

    return compute


def _is_in(
    elements: torch.Tensor, test_elements: torch.Tensor, *, assume_unique: bool = False, invert: bool = False
) -> torch.Tensor:
    found = (elements.unsqueeze(-1) == test_elements.reshape(-1)).any(-1)
    return ~found if invert else found


def _squeezed(x: torch.Tensor, dims: Any) -> Any:
    """Leave the dims that are not 1, which ONNX refuses to remove."""
    dims = [dims] if isinstance(dims, int) else dims
    kept = [dim for dim in dims if x.ndim and _is_equal(x.shape[dim], 1)]
    if not x.ndim or len(kept) == len(dims):
        return NotImplemented
    return x.squeeze(kept) if kept else x


def _squeezed_in_place(x: torch.Tensor, dims: Any) -> Any:
    result = _squeezed(x, dims)
    return result if result is x else NotImplemented


def _signbit(x: torch.Tensor) -> Any:
    """Return which numbers have a sign, as the zero has whose inverse is negative."""
    return (x < 0) | (x.reciprocal() < 0) if x.is_floating_point() else NotImplemented


def _with_sign(x: torch.Tensor, y: Any) -> Any:
    if not isinstance(y, torch.Tensor) or x.dtype != y.dtype or not x.is_floating_point():
        return NotImplemented
    return torch.where(_signbit(y), -x.abs(), x.abs())


def functional_forms() -> dict[Any, Any]:
    """Return decompositions for the exporter's own table, of what writing into views becomes.

    torch's write into a view again, which its exporter refuses.
    """
    return {aten.diagonal_scatter.default: _with_diagonal}


def _with_diagonal(x: torch.Tensor, values: torch.Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    last = x.movedim((dim1, dim2), (-2, -1))
    rows, columns = last.shape[-2:]
    places = torch.arange(rows, device=x.device).unsqueeze(-1) + offset
    is_diagonal = torch.arange(columns, device=x.device) == places
    above = max(-offset, 0)
    by_row = torch.nn.functional.pad(values, (above, rows - above - values.shape[-1]))
    return torch.where(is_diagonal, by_row.unsqueeze(-1), last).movedim((-2, -1), (dim1, dim2))


def _average(x: torch.Tensor, *rest: Any) -> Any:
    """Return a mean for a window over the whole image; with ``ceil_mode`` it may be larger, which OpenVINO refuses."""
    if len(rest) > 3 and rest[3] and is_mean(x.shape[-2:], *rest):
        return x.mean((-2, -1), keepdim=True)
    return average_pool(2)(x, *rest)


def _over_all(reduction: Any) -> Any:
    def reduce(x: torch.Tensor, dim: Sequence[int] = (), keepdim: bool = False) -> Any:
        return NotImplemented if dim or not x.ndim else reduction(x, list(range(x.ndim)), keepdim)

    return reduce


def _any(x: torch.Tensor, dim: Any = None, keepdim: bool = False) -> Any:
    """Count what is true, because the exporter takes a maximum, which of nothing is no 0 but the lowest number."""
    if not x.ndim or x.dtype is torch.uint8:  # of which the result is no truth value
        return NotImplemented
    dims = [dim] if isinstance(dim, int) else list(dim or range(x.ndim))
    return x.to(torch.bool).sum(dims, keepdim) > 0


def _mean(x: torch.Tensor, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Any:
    """Compute a mean over what may be no values at all, which is NaN; runtimes' own means have 0 there."""
    dims = range(x.ndim) if dim is None or dim == [] else dim
    if not sizes_from_values([x.shape[each] for each in dims]):
        return NotImplemented
    return aten.sum.dim_IntList(x, list(dims), keepdim, dtype=dtype) / math.prod(x.shape[each] for each in dims)


def _einsum(equation: str, operands: Sequence[torch.Tensor], *, path: Any = None) -> Any:
    """Compute a sum of products whose sizes may be 0 as a product of matrices.

    ONNX Runtime 1.31 ends the process for an ``Einsum`` of an empty tensor (an integer division by zero).
    """
    is_dynamic = any(isinstance(size, torch.SymInt) for operand in operands for size in operand.shape)
    given, arrow, wanted = equation.replace(" ", "").partition("->")
    letters = given.split(",")
    if "." in equation and arrow and "." not in wanted:
        named = f"{_named_dims(letters, operands)}->{wanted}"
        result = _einsum(named, operands)
        return aten.einsum.default(named, operands) if result is NotImplemented else result
    if len(operands) != 2 or not is_dynamic or "." in equation or not arrow:
        return NotImplemented
    if any(len(set(each)) < len(each) for each in (*letters, wanted)):
        return NotImplemented
    shapes = [dict(zip(each, x.shape, strict=True)) for each, x in zip(letters, operands, strict=True)]
    sizes = shapes[0] | shapes[1]
    both = [name for name in letters[0] if name in letters[1]]
    shared, summed = [name for name in both if name in wanted], [name for name in both if name not in wanted]
    own = [[name for name in each if name not in both and name in wanted] for each in letters]
    is_plain = all(len(names) == 1 for names in (summed, *own))  # else several dims become one
    matrices = []
    for each, x, order in zip(letters, operands, ((own[0], summed), (summed, own[1])), strict=True):
        alone = [place for place, name in enumerate(each) if name not in both and name not in wanted]
        kept = [name for place, name in enumerate(each) if place not in alone]
        left = (x.sum(alone) if alone else x).permute(
            [kept.index(name) for names in (shared, *order) for name in names]
        )
        groups = [[sizes[name] for name in names] for names in (shared, *order)]
        matrices.append(left if is_plain else left.reshape([math.prod(group) for group in groups]))
    made = [*shared, *own[0], *own[1]]
    product = torch.matmul(*matrices) if is_plain else torch.bmm(*matrices).reshape([sizes[name] for name in made])
    return product.permute([made.index(name) for name in wanted])


def _named_dims(letters: Sequence[str], operands: Sequence[torch.Tensor]) -> str:
    """Return the operands of an equation with letters in place of dots; ONNX sums no dims without a name."""
    free = [letter for letter in string.ascii_letters if not any(letter in each for each in letters)]
    counts = [x.ndim - len(each.replace(".", "")) for each, x in zip(letters, operands, strict=True)]
    names = "".join(free[: max(counts)])
    return ",".join(
        each.replace("...", names[len(names) - count :]) for each, count in zip(letters, counts, strict=True)
    )


def _median_of_all(x: torch.Tensor) -> Any:
    return _median(x.reshape(-1), 0)[0] if x.numel() else NotImplemented


def _median(x: torch.Tensor, dim: int, keepdim: bool = False) -> Any:
    """Return the lower of the two values in the middle, and its place; NaN where there is one."""
    if not x.ndim:
        return NotImplemented
    values, places = _kth_value(x, (x.shape[dim] + 1) // 2, dim, keepdim)
    if not x.is_floating_point():
        return values, places
    is_nan = torch.isnan(x)
    has_nan = is_nan.any(dim, keepdim)
    first = is_nan.to(torch.int64).argmax(dim, keepdim)
    return torch.where(has_nan, torch.full_like(values, torch.nan), values), torch.where(has_nan, first, places)


def _kth_value(x: torch.Tensor, k: Any, dim: int = -1, keepdim: bool = False) -> Any:
    if not x.ndim:
        return NotImplemented
    place = torch.arange(k - 1, k, device=x.device)  # a slice would not be sure to have one entry
    found = [part.index_select(dim, place) for part in torch.sort(x, dim)]
    return tuple(part if keepdim else part.squeeze(dim) for part in found)


def _distances(one: torch.Tensor, other: torch.Tensor, p: float = 2.0, compute_mode: int | None = None) -> Any:
    """Return the distance of each row of one from each row of the other, without the products that cancel."""
    apart = (one.unsqueeze(-2) - other.unsqueeze(-3)).abs()
    if p == float("inf"):
        return apart.amax(-1)
    if p == 0:
        return (apart != 0).to(apart.dtype).sum(-1)
    if p == 1:
        return apart.sum(-1)
    return (apart * apart).sum(-1).sqrt() if p == 2 else apart.pow(p).sum(-1).pow(1 / p)


def _power(x: torch.Tensor, exponent: Any) -> Any:
    """Multiply integers; runtimes compute their powers in floating-point numbers, which round and do not wrap."""
    if x.is_floating_point() or x.is_complex() or x.dtype is torch.bool or type(exponent) is not int or exponent < 2:
        return NotImplemented
    result = x if exponent % 2 else None
    while exponent := exponent // 2:
        x = x * x
        if exponent % 2:
            result = x if result is None else result * x
    return result


def _running_product(x: torch.Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Any:
    """Return running products from sums of logarithms, and the signs from how many factors are negative."""
    if not x.is_floating_point() or dtype is not None or not x.ndim:
        return NotImplemented
    sizes = x.abs().log().cumsum(dim).exp()
    is_odd = (x < 0).to(torch.int64).cumsum(dim) % 2 == 1
    return torch.where(is_odd, -sizes, sizes)


def _repeated_places(repeats: torch.Tensor, *, output_size: Any = None) -> Any:
    """Return each place as often as told, where the number of all is told, too, which the exporter does not take."""
    if output_size is None:
        return NotImplemented
    ends = repeats.cumsum(0)
    places = torch.arange(output_size, device=repeats.device).unsqueeze(-1)
    return (ends <= places).sum(-1).to(repeats.dtype)


def _repeated(x: torch.Tensor, repeats: torch.Tensor, dim: int | None = None, *, output_size: Any = None) -> Any:
    if output_size is None or not repeats.ndim:
        return NotImplemented
    places = _repeated_places(repeats, output_size=output_size)
    return x.reshape(-1).index_select(0, places) if dim is None else x.index_select(dim, places)


def _each_repeated(x: torch.Tensor, repeats: Any, dim: int | None = None, *, output_size: Any = None) -> Any:
    """Repeat each entry as often, by sizes that are right for no entries, too."""
    if not x.ndim:
        return NotImplemented
    x, place = (x.reshape(-1), 0) if dim is None else (x, dim % x.ndim)
    shape = [*x.shape[: place + 1], repeats, *x.shape[place + 1 :]]
    return x.unsqueeze(place + 1).expand(shape).flatten(place, place + 1)


def _blocks(
    x: torch.Tensor,
    kernel_size: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    stride: Sequence[int],
) -> torch.Tensor:
    """Return the blocks of images that a kernel covers, as columns; the exporter's shape is wrong for no images."""
    x = torch.nn.functional.pad(x, [edge for each in reversed(padding) for edge in (each, each)])
    for place, dim in enumerate((2, 4)):
        inside = torch.arange(kernel_size[place], device=x.device) * dilation[place]
        count: Any = (x.shape[dim] - dilation[place] * (kernel_size[place] - 1) - 1) // stride[place] + 1
        rows = inside.unsqueeze(1) + torch.arange(count, device=x.device) * stride[place]
        shape = [*x.shape[:dim], kernel_size[place], count, *x.shape[dim + 1 :]]
        x = x.index_select(dim, rows.reshape(-1)).reshape(shape)
    images, channels, high, rows_of, wide, columns_of = x.shape
    return x.transpose(3, 4).reshape(images, channels * high * wide, rows_of * columns_of)


def _cross_entropy(x: torch.Tensor, *rest: Any, **named: Any) -> torch.Tensor:
    """Compute the loss from logarithms of shares; ONNX has none with smoothed labels or given probabilities."""
    return _loss(x.log_softmax(min(x.ndim - 1, 1)), *rest, **named)


def _loss(
    logs: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None = None,
    reduction: int = 1,
    ignore_index: Any = -100,
    label_smoothing: float = 0.0,
) -> torch.Tensor:
    count: Any
    dim = min(logs.ndim - 1, 1)
    classes = logs.shape[dim]
    weighted = logs if weight is None else logs * weight.reshape([-1, *[1] * (logs.ndim - dim - 1)])
    if target.is_floating_point():
        target = target * (1 - label_smoothing) + label_smoothing / classes if label_smoothing else target
        loss, count = -(weighted * target).sum(dim), logs.numel() / classes
    else:
        is_used = target != ignore_index
        # ONNX counts negative classes from the end, where PyTorch refuses them
        at = torch.where(is_used, torch.where(target < 0, classes, target), 0).to(torch.int64)
        loss = -weighted.gather(dim, at.unsqueeze(dim)).squeeze(dim)
        if label_smoothing:
            loss = loss * (1 - label_smoothing) - weighted.sum(dim) * (label_smoothing / classes)
        loss = torch.where(is_used, loss, 0.0)
        used = is_used.to(logs.dtype) if weight is None else torch.where(is_used, weight[at], 0.0)
        count = used.sum()
    if reduction == 0:
        return loss
    return loss.sum() / count if reduction == 1 else loss.sum()


def _places_in_sorted(
    sorted_sequence: torch.Tensor,
    x: torch.Tensor,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: torch.Tensor | None = None,
) -> Any:
    """Return how many sorted values lie before each value."""
    if sorter is not None or not x.ndim:
        return NotImplemented
    row, values = sorted_sequence.unsqueeze(-2), x.unsqueeze(-1)
    before = row <= values if right or side == "right" else row < values
    return before.sum(-1, dtype=torch.int32 if out_int32 else torch.int64)
