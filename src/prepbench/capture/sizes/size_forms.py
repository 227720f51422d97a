"""What torch specialises to one sample's sizes, in forms that are one graph for all sizes.

Most of these operators take ``int`` in their schema, where others take ``SymInt``, or are written in C++ over concrete
sizes: windows, index pairs and frequencies, pooling over a whole dim, ``kron``, ``cov``, ``take_along_dim``.
``tensor_split`` branches on whether the parts are equal, and ``interpolate(mode="area")`` over one dim takes only
Python numbers.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from prepbench._torch_compat.scans import surely_different, surely_equal
from prepbench._torch_compat.sizes import named_expression, smallest
from prepbench.capture.sizes.dynamic_axes import SampleSizes


class SizeForms(TorchFunctionMode):
    """Call operators with symbolic sizes in their form for all sizes during the block."""

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        form = _FORMS.get(func)
        result = NotImplemented if form is None else form(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {})) if result is NotImplemented else result


def _max_pool1d(
    input: torch.Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """Compute 1d pooling as pooling of an image of one row."""
    if not _is_symbolic(input.shape[-1]) or return_indices:
        return NotImplemented
    if _is_symbolic(kernel_size):
        return _largest_of_all(1, input, kernel_size, stride, padding, dilation)
    window, pad, spread = _number(kernel_size), _number(padding), _number(dilation)
    # an empty list is what torch itself has for no stride
    step = window if stride is None or stride in ([], ()) else _number(stride)
    rows = F.max_pool2d(input.unsqueeze(-2), (1, window), (1, step), (0, pad), (1, spread), ceil_mode)
    return rows.squeeze(-2)


def _adaptive_avg_pool1d(input: torch.Tensor, output_size: Any) -> Any:
    size = _number(output_size)
    if not _is_symbolic(size):
        return NotImplemented
    return F.adaptive_avg_pool2d(input.unsqueeze(-2), (1, size)).squeeze(-2)


def _interpolate(input: torch.Tensor, size: Any = None, scale_factor: Any = None, mode: str = "nearest", *args: Any,
                 **kwargs: Any) -> Any:  # fmt: skip
    if mode != "area" or input.dim() != 3 or not (_is_symbolic(input.shape[-1]) or _is_symbolic(size)):
        return NotImplemented
    sizes = None if size is None else (1, _number(size))
    factors = None if scale_factor is None else (1.0, _number(scale_factor))
    return F.interpolate(input.unsqueeze(-2), sizes, factors, mode, *args, **kwargs).squeeze(-2)


def _linspace(start: Any, end: Any, steps: Any = None, *, out: Any = None, dtype: Any = None, device: Any = None,
              **kwargs: Any) -> Any:  # fmt: skip
    """Compute linspace from both ends to the middle, as torch does."""
    dtype = dtype or torch.get_default_dtype()
    are_numbers = not isinstance(start, torch.Tensor) and not isinstance(end, torch.Tensor)
    count: Any = steps
    if not _is_symbolic(count) or out is not None or not are_numbers or not dtype.is_floating_point:
        return NotImplemented
    places = torch.arange(count, dtype=dtype, device=device)
    each = (end - start) / torch.sym_max(count - 1, 1)
    is_first_half = places < torch.sym_max(count // 2, 1)
    return torch.where(is_first_half, start + places * each, end - (count - 1 - places) * each)


def _tensor_split(input: torch.Tensor, sections: Any, dim: int = 0) -> Any:
    """Split a tensor; the first parts have one more entry if the parts are unequal."""
    if type(sections) is not int or not _is_symbolic(input.shape[dim]):
        return NotImplemented
    size: Any = input.shape[dim]
    starts = [place * (size // sections) + torch.sym_min(size % sections, place) for place in range(sections)]
    lengths = [(size + (sections - 1 - place)) // sections for place in range(sections)]
    return tuple(input.narrow(dim, start, length) for start, length in zip(starts, lengths, strict=True))


def _arange(*bounds: Any, out: Any = None, dtype: Any = None, **kwargs: Any) -> Any:
    """Count the steps in double precision, as torch does; runtimes count those of real numbers in float32."""
    start, end, step = {1: (0, *bounds, 1), 2: (*bounds, 1), 3: bounds}.get(len(bounds), (0, 0, 0))
    if out is not None or not any(isinstance(value, torch.SymFloat) for value in (start, end, step)):
        return NotImplemented
    dtype = dtype or torch.get_default_dtype()
    places = torch.arange(math.ceil((end - start) / step), **kwargs)
    return (places.double() * step + start).to(dtype)


def _logspace(start: Any, end: Any, steps: Any = None, base: float = 10.0, **kwargs: Any) -> Any:
    powers = _linspace(start, end, steps, **kwargs)
    return powers if powers is NotImplemented else torch.pow(base, powers)


def _window(
    terms: Sequence[float], length: Any, *rest: Any, periodic: bool = True, dtype: Any = None, device: Any = None,
    **kwargs: Any,
) -> Any:  # fmt: skip
    """Compute a window that is a sum of cosines.

    Args:
        terms: the weight of each cosine: the first has no period in the window, the second one, and so on.
        length: of the window.
        rest: ``periodic`` by position, and further weights, for which there is no form.
        periodic: whether the window is one entry of a longer symmetric one short.
    """
    is_plain = len(rest) <= 1 and not {"out", "alpha", "beta"} & set(kwargs)
    if not _is_symbolic(length) or not is_plain:
        return NotImplemented
    periodic = rest[0] if rest else periodic
    angles = torch.arange(length, dtype=dtype or torch.get_default_dtype(), device=device)
    angles = angles * (2 * math.pi / (length if periodic else torch.sym_max(length - 1, 1)))
    window = torch.full_like(angles, terms[0])
    for place, weight in enumerate(terms[1:], 1):
        window = window + weight * torch.cos(place * angles)
    # one entry is 1, of which a formula makes the window's edge
    return torch.where(torch.scalar_tensor(length, device=device) == 1, torch.ones_like(window), window)


def _index_pairs(is_upper: bool, row: Any, col: Any = None, offset: int = 0, **kwargs: Any) -> Any:
    """Compute the indices of a square's triangle from the place in its list.

    A place before the end of row ``r`` has ``r (r + 1) / 2`` places of earlier rows before it.
    """
    if not _is_symbolic(row) or kwargs or (col is not None and col is not row and not surely_equal(row, col)):
        return NotImplemented
    is_lower = not is_upper
    if offset not in ((-1, 0) if is_lower else (0, 1)):
        return NotImplemented
    size = row - 1 if offset else row
    count = size * (size + 1) // 2
    places = torch.arange(count)
    places = places if is_lower else count - 1 - places
    rows = ((torch.sqrt(8.0 * places.double() + 1) - 1) / 2).long()
    columns = places - rows * (rows + 1) // 2
    if is_lower:
        return torch.stack([rows - offset, columns])
    return torch.stack([size - 1 - rows, row - 1 - columns])


def _frequencies(is_real: bool, n: Any, d: float = 1.0, *, out: Any = None, dtype: Any = None, device: Any = None,
                 **kwargs: Any) -> Any:  # fmt: skip
    if not _is_symbolic(n) or out is not None or kwargs:
        return NotImplemented
    dtype = dtype or torch.get_default_dtype()
    if is_real:
        return torch.arange(n // 2 + 1, dtype=dtype, device=device) / (n * d)
    places = torch.arange(n, dtype=dtype, device=device)
    return (places - n * (places >= (n + 1) // 2)) / (n * d)


def _one_hot(tensor: torch.Tensor, num_classes: Any = -1) -> Any:
    if not _is_symbolic(num_classes):
        return NotImplemented
    # torch raises for other classes, of which the comparison would make rows of zeros
    are_known = ((tensor >= 0) & (tensor < num_classes)).all()
    torch.ops.aten._assert_async.msg(are_known, "Class values must be from 0 to below num_classes.")
    return (tensor.unsqueeze(-1) == torch.arange(num_classes, device=tensor.device)).long()


def _vander(x: torch.Tensor, N: Any = None, *, increasing: bool = False) -> Any:
    size: Any = x.shape[-1] if N is None else N
    if not _is_symbolic(size):
        return NotImplemented
    is_first = torch.arange(size, device=x.device) == 0
    powers = torch.where(is_first, torch.ones_like(x).unsqueeze(-1), x.unsqueeze(-1)).cumprod(-1)
    return powers if increasing else powers.flip(-1)


def _affine_grid(theta: torch.Tensor, size: Any, align_corners: bool | None = None) -> Any:
    """Compute a grid as the product of each cell's place, from -1 to 1, with the matrices."""
    sizes = list(size)
    spans = sizes[2:]
    if not any(map(_is_symbolic, spans)):
        return NotImplemented
    axes: list[torch.Tensor] = []
    for dim, span in enumerate(spans):
        # not from sums of steps: what is exact in the middle stays so
        doubled = 2 * torch.arange(span, dtype=theta.dtype, device=theta.device) + 1
        line = (doubled - span) / (torch.sym_max(span - 1, 1) if align_corners else span)
        axes.insert(0, line.reshape(-1, *[1] * (len(spans) - 1 - dim)).expand(spans))  # the last axis comes first
    places = torch.stack([*axes, torch.ones_like(axes[0])], -1).flatten(0, -2)
    return (places @ theta.transpose(1, 2)).reshape(theta.shape[0], *spans, len(spans))


def _mean_of_all(
    dims: int,
    input: torch.Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Any:
    """Compute pooling whose window is all that there is as a mean."""
    if not _takes_all(dims, input, kernel_size, padding) or divisor_override is not None:
        return NotImplemented
    return input.mean(tuple(range(-dims, 0)), keepdim=True)


def _largest_of_all(
    dims: int,
    input: torch.Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """Compute pooling whose window is all that there is as a maximum."""
    if not _takes_all(dims, input, kernel_size, padding) or _number(dilation) != 1 or return_indices:
        return NotImplemented
    return input.amax(tuple(range(-dims, 0)), keepdim=True)


def _takes_all(dims: int, input: torch.Tensor, kernel_size: Any, padding: Any) -> bool:
    window = list(kernel_size) if isinstance(kernel_size, Sequence) else [kernel_size]
    window = window * dims if len(window) == 1 else window
    sizes = input.shape[-dims:]
    is_whole = all(surely_equal(one, size) for one, size in zip(window, sizes, strict=True))
    return is_whole and _number(padding) == 0 and any(map(_is_symbolic, window))


def _kron(input: torch.Tensor, other: torch.Tensor) -> Any:
    if not _has_symbols(input, other):
        return NotImplemented
    dims = max(input.dim(), other.dim())
    one, two = (tensor.reshape(*[1] * (dims - tensor.dim()), *tensor.shape) for tensor in (input, other))
    sizes = [a * b for a, b in zip(one.shape, two.shape, strict=True)]
    for dim in range(dims):
        one, two = one.unsqueeze(2 * dim + 1), two.unsqueeze(2 * dim)
    return (one * two).reshape(sizes)


def _take_along_dim(input: torch.Tensor, indices: torch.Tensor, dim: int | None = None, **kwargs: Any) -> Any:
    if not _has_symbols(input, indices) or kwargs:
        return NotImplemented
    if dim is None:
        return torch.gather(input.flatten(), 0, indices.flatten())
    if input.dim() != indices.dim():
        return NotImplemented  # torch's own error
    dim %= input.dim()
    return torch.gather(_spread(input, indices, dim), dim, _spread(indices, input, dim))


def _spread(one: torch.Tensor, other: torch.Tensor, dim: int) -> torch.Tensor:
    """Expand the dims of one entry to the sizes that another tensor has there, but for ``dim``."""
    pairs = enumerate(zip(one.shape, other.shape, strict=True))
    return one.expand([wanted if at != dim and surely_equal(size, 1) else size for at, (size, wanted) in pairs])


def _cov(input: torch.Tensor, *, correction: int = 1, fweights: Any = None, aweights: Any = None) -> Any:
    if not _has_symbols(input) or fweights is not None or aweights is not None:
        return NotImplemented
    rows = input.reshape(1, -1) if input.dim() < 2 else input
    rows = rows - rows.mean(1, keepdim=True)
    found = rows @ rows.mH / torch.sym_max(rows.shape[1] - correction, 0)
    return found.reshape([]) if input.dim() < 2 else found


def _corrcoef(input: torch.Tensor) -> Any:
    if not _has_symbols(input) or input.dim() < 2 or input.is_complex():
        return NotImplemented
    found = _cov(input)
    spread = found.diagonal().sqrt()
    return (found / spread.unsqueeze(1) / spread.unsqueeze(0)).clamp(-1, 1)


def _istft(
    input: torch.Tensor,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: torch.Tensor | None = None,
    center: bool = True,
    normalized: bool = False,
    onesided: bool | None = None,
    length: Any = None,
    return_complex: bool = False,
) -> Any:
    """Add the windowed inverses of all frames where they overlap, and divide by the windows' own sum of squares."""
    if not (_is_symbolic(input.shape[-1]) or _is_symbolic(length)) or return_complex:
        return NotImplemented
    hop, long = hop_length or n_fft // 4, win_length or n_fft
    if window is None:
        window = torch.ones(long, dtype=input.real.dtype, device=input.device)
    window = F.pad(window, ((n_fft - long) // 2, (n_fft - long + 1) // 2))
    one_sided = input.shape[-2] != n_fft if onesided is None else onesided
    norm = "ortho" if normalized else "backward"
    inverse = torch.fft.irfft(input.mT, n_fft, norm=norm) if one_sided else torch.fft.ifft(input.mT, norm=norm).real
    total = n_fft + hop * (input.shape[-1] - 1)
    added = partial(F.fold, output_size=(1, total), kernel_size=(1, n_fft), stride=(1, hop))
    frames = (inverse * window).mT  # fold takes a batch of them
    sounds = added(frames if frames.ndim == 3 else frames[None])[:, 0, 0]
    sounds = sounds if frames.ndim == 3 else sounds[0]
    weights = added(window.square()[None, :, None].expand(1, n_fft, frames.shape[-1]))[0, 0, 0]
    start = n_fft // 2 if center else 0
    kept = total - 2 * start if length is None else length
    missing = torch.sym_max(start + kept - total, 0)  # a length beyond the last frame is filled with zeros
    filled = (F.pad(part, (0, missing), value=value) for part, value in ((sounds, 0.0), (weights, 1.0)))
    sounds, weights = (part.narrow(-1, start, kept) for part in filled)
    return sounds / weights


def _contiguous(input: torch.Tensor, memory_format: Any = torch.contiguous_format) -> Any:
    """Copy a tensor that is contiguous for some sizes only, such as a slice that may be all there is.

    Torch asks which it is, and keeps the answer as a condition on sizes.
    """
    if not _has_symbols(input) or memory_format is not torch.contiguous_format:
        return NotImplemented
    expected: Any = 1
    is_open = False
    for size, stride in zip(reversed(input.shape), reversed(input.stride()), strict=True):
        if surely_equal(size, 1):
            continue
        if surely_different(stride, expected):
            return NotImplemented
        is_open |= not surely_equal(stride, expected)
        expected = expected * torch.sym_max(size, 1)
    return input.clone(memory_format=memory_format) if is_open else NotImplemented


def _number(value: Any) -> Any:
    return value[0] if isinstance(value, Sequence) else value


def _squeeze(input: torch.Tensor, dim: Any = None) -> Any:
    """Leave dims of another size than 1 alone, as torch does; operators of runtimes raise for them."""
    if dim is None or not any(map(_is_symbolic, input.shape)):
        return NotImplemented
    dims = [dim] if isinstance(dim, int) else list(dim)
    # asking makes a condition of it
    ones = [each for each in dims if isinstance(input.shape[each], int) or input.shape[each] == 1]
    return input if not ones else NotImplemented if len(ones) == len(dims) else input.squeeze(tuple(ones))


def _is_symbolic(size: Any) -> bool:
    return isinstance(_number(size), torch.SymInt)


def _has_symbols(*tensors: torch.Tensor) -> bool:
    return any(isinstance(size, torch.SymInt) for tensor in tensors for size in tensor.shape)


def _scatter(
    view: Callable[..., torch.Tensor], input: torch.Tensor, src: torch.Tensor, *args: Any, **kwargs: Any
) -> Any:
    """Compare the sizes of a source with those of its place, as torch's kernels do and traced operators do not."""
    if _has_symbols(input, src):
        _ = tuple(view(input, *args, **kwargs).shape) == tuple(src.shape)  # a condition of the graph
    return NotImplemented


_FORMS: Mapping[Any, Callable[..., Any]] = {
    F.max_pool1d: _max_pool1d,
    torch.max_pool1d: _max_pool1d,
    F.adaptive_avg_pool1d: _adaptive_avg_pool1d,
    F.interpolate: _interpolate,
    torch.squeeze: _squeeze,
    torch.Tensor.squeeze: _squeeze,
    torch.linspace: _linspace,
    torch.arange: _arange,
    torch.logspace: _logspace,
    torch.hann_window: partial(_window, (0.5, -0.5)),
    torch.hamming_window: partial(_window, (0.54, -0.46)),
    torch.blackman_window: partial(_window, (0.42, -0.5, 0.08)),
    torch.tril_indices: partial(_index_pairs, False),
    torch.triu_indices: partial(_index_pairs, True),
    torch.fft.fftfreq: partial(_frequencies, False),
    torch.fft.rfftfreq: partial(_frequencies, True),
    F.one_hot: _one_hot,
    torch.vander: _vander,
    torch.istft: _istft,
    torch.Tensor.istft: _istft,
    F.affine_grid: _affine_grid,
    F.avg_pool1d: partial(_mean_of_all, 1),
    F.avg_pool2d: partial(_mean_of_all, 2),
    F.avg_pool3d: partial(_mean_of_all, 3),
    F.max_pool2d: partial(_largest_of_all, 2),
    torch.max_pool2d: partial(_largest_of_all, 2),
    F.max_pool3d: partial(_largest_of_all, 3),
    torch.max_pool3d: partial(_largest_of_all, 3),
    torch.Tensor.contiguous: _contiguous,
    torch.kron: _kron,
    torch.take_along_dim: _take_along_dim,
    torch.Tensor.take_along_dim: _take_along_dim,
    torch.cov: _cov,
    torch.Tensor.cov: _cov,
    torch.corrcoef: _corrcoef,
    torch.Tensor.corrcoef: _corrcoef,
    torch.select_scatter: partial(_scatter, torch.select),
    torch.Tensor.select_scatter: partial(_scatter, torch.select),
    torch.slice_scatter: partial(_scatter, torch.ops.aten.slice.Tensor),
    torch.Tensor.slice_scatter: partial(_scatter, torch.ops.aten.slice.Tensor),
    torch.diagonal_scatter: partial(_scatter, torch.diagonal),
    torch.Tensor.diagonal_scatter: partial(_scatter, torch.diagonal),
    torch.tensor_split: _tensor_split,
    torch.Tensor.tensor_split: _tensor_split,
}


# Slices that exceed the bounds of a tensor in some samples only, such as the last entries of a cache.
#
# ``x[-8:]`` takes all of a shorter tensor. torch guards on whether it is shorter, so that a graph would hold for one
# answer only. Indexing from ``max(len(x) - 8, 0)`` on needs no guard.


class ClampedSlices(TorchFunctionMode):
    """Clamp by size the bounds of slices that lie outside of a tensor in some samples only, during the block."""

    def __init__(self, sizes: SampleSizes) -> None:
        super().__init__()
        self._sizes = sizes

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.__getitem__ and len(args) == 2:
            tensor, index = args
            parts = index if isinstance(index, tuple) else (index,)
            for dim, place in _slices(tensor, parts):
                bounds = self._bounds(parts[place], tensor.shape[dim])
                if bounds is not None:
                    # index_select, because a view would make torch guard on its memory layout, which is the same
                    # question
                    entries = torch.arange(*bounds, device=tensor.device)
                    tensor = torch.index_select(tensor, dim, entries)
                    parts = (*parts[:place], slice(None), *parts[place + 1 :])
            args = (tensor, parts if isinstance(index, tuple) else parts[0])
        return func(*args, **(kwargs or {}))

    def _bounds(self, part: slice, size: torch.SymInt) -> tuple[Any, Any] | None:
        """Return the start and end of a slice, if a bound lies outside in some samples only."""
        expression, names = named_expression(size)
        known = self._sizes.values(expression, names)
        given = [bound for bound in (part.start, part.stop) if type(bound) is int]
        if known is None or not any(len({abs(bound) > value for value in known}) == 2 for bound in given):
            return None
        start, stop = (_inside(bound, size) for bound in (part.start, part.stop))
        return (0 if start is None else start), (size if stop is None else stop)


def _slices(tensor: torch.Tensor, parts: tuple[Any, ...]) -> Iterator[tuple[int, int]]:
    """Yield the dims of symbolic size that are sliced without a step, each with its place in the index."""
    dim = 0
    for place, part in enumerate(parts):
        if part is Ellipsis:
            rest = parts[place + 1 :]
            if not all(one is None or type(one) in (int, slice) for one in rest):
                return
            dim = tensor.dim() - sum(one is not None for one in rest)
        elif isinstance(part, slice):
            is_plain = all(bound is None or type(bound) is int for bound in (part.start, part.stop))
            if part.step in (None, 1) and is_plain and isinstance(tensor.shape[dim], torch.SymInt):
                yield dim, place
            dim += 1
        elif type(part) is int:
            dim += 1
        elif part is not None:  # tensors as indices may take several dims
            return


def _inside(bound: int | None, size: torch.SymInt) -> Any:
    if bound is None:
        return None
    return torch.sym_max(size + bound, 0) if bound < 0 else torch.sym_min(size, bound)


# Sizes that a model computes as tensors: `torch.div(x.shape[1], 4, rounding_mode="trunc")` and `x.view` by it.


_SIZE = "_prepbench_size"
"""The attribute of a tensor that holds a size as its number."""


# torch takes the number in such a tensor for one that only the data tells, and cannot answer what it asks about it.
# Here the tensor is made from the size, and where torch wants a number, it gets the size.


class SizesInTensors(TorchFunctionMode):
    """Follow sizes through tensors of one number during the block."""

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        form = _ARITHMETIC.get(func)
        if form is not None and len(args) == 2 and kwargs.keys() == ({"rounding_mode"} if form is _divide else set()):
            size = form(*map(_read_number, args), **kwargs)
            if size is not NotImplemented:
                return _holding(size)
        if func in _READING and len(args) == 1 and _has_size(args[0]):
            return _read_number(args[0])
        if func in _TAKING_SIZES:
            args, kwargs = _with_numbers(args), _with_numbers(kwargs)
        elif args and _has_size(args[0]) and _changes(func):
            delattr(args[0], _SIZE)
        return func(*args, **kwargs)


def _divide(one: Any, other: Any, *, rounding_mode: str | None = None) -> Any:
    """Divide sizes; Python rounds down, which is the same as towards zero where nothing is negative."""
    if not _is_size(one) or type(other) is not int or other <= 0 or rounding_mode not in ("trunc", "floor"):
        return NotImplemented
    return one // other if rounding_mode == "floor" or smallest(one) >= 0 else NotImplemented


def _divide_down(one: Any, other: Any) -> Any:
    return _divide(one, other, rounding_mode="floor")


def _remainder(one: Any, other: Any) -> Any:
    return one % other if _is_size(one) and type(other) is int and other > 0 else NotImplemented


def _computed(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def computed(one: Any, other: Any) -> Any:
        are_numbers = all(_is_size(value) or type(value) is int for value in (one, other))
        return function(one, other) if are_numbers else NotImplemented

    return computed


def _is_size(value: Any) -> bool:
    return isinstance(value, torch.SymInt)


def _holding(size: Any) -> torch.Tensor:
    tensor = torch.scalar_tensor(size, dtype=torch.int64)
    setattr(tensor, _SIZE, size)
    return tensor


def _has_size(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and hasattr(value, _SIZE)


def _read_number(value: Any) -> Any:
    return getattr(value, _SIZE) if _has_size(value) else value


def _with_numbers(values: Any) -> Any:
    """Return arguments with sizes for the tensors that hold them."""
    if isinstance(values, dict):
        return {name: _with_numbers(value) for name, value in values.items()}
    if type(values) in (tuple, list, torch.Size):
        made = tuple(map(_with_numbers, values))
        return list(made) if type(values) is list else made
    if isinstance(values, slice):
        return slice(*map(_read_number, (values.start, values.stop, values.step)))
    return _read_number(values)


def _changes(func: Any) -> bool:
    """Return whether a function changes its first argument, by torch's names."""
    name = getattr(func, "__name__", "")
    return (name.endswith("_") and not name.endswith("__")) or name in _IN_PLACE


_IN_PLACE = {
    *("__setitem__", "__set__", "__iadd__", "__isub__", "__imul__", "__itruediv__", "__ifloordiv__", "__imod__"),
    *("__ipow__", "__iand__", "__ior__", "__ixor__", "__ilshift__", "__irshift__"),
}

_T = torch.Tensor
_ADD, _SUB, _MUL = map(_computed, (operator.add, operator.sub, operator.mul))
_ARITHMETIC: Mapping[Any, Callable[..., Any]] = {
    **dict.fromkeys((torch.div, torch.divide, _T.div, _T.divide), _divide),
    **dict.fromkeys((torch.floor_divide, _T.floor_divide, _T.__floordiv__), _divide_down),
    **dict.fromkeys((torch.remainder, _T.remainder, _T.__mod__), _remainder),
    **dict.fromkeys((torch.add, _T.add, _T.__add__, _T.__radd__), _ADD),
    **dict.fromkeys((torch.sub, torch.subtract, _T.sub, _T.__sub__), _SUB),
    **dict.fromkeys((_T.__rsub__,), lambda one, other: _SUB(other, one)),
    **dict.fromkeys((torch.mul, torch.multiply, _T.mul, _T.__mul__, _T.__rmul__), _MUL),
}
"""What computes sizes from sizes. ``torch.div`` of a size makes the first tensor."""

_READING = {_T.item, _T.tolist}

_TAKING_SIZES = {
    *(_T.view, _T.reshape, _T.expand, _T.repeat, _T.as_strided, _T.narrow, _T.unflatten, _T.tile, _T.__getitem__),
    *(_T.new_zeros, _T.new_ones, _T.new_full, _T.new_empty, _T.split, _T.unfold, _T.repeat_interleave),
    *(torch.reshape, torch.as_strided, torch.narrow, torch.tile, torch.split, torch.unflatten),
    *(torch.zeros, torch.ones, torch.full, torch.empty, torch.arange, torch.rand, torch.randn),
}
"""What would read the number out of a tensor, because it wants a size there."""
