"""Complex numbers as pairs of real ones, for targets without them, as in rotary embeddings and spectrograms.

Fourier transforms of a fixed length become products with the matrix of their cosines and sines: OpenVINO ignores the
axis of ONNX's own operator (2026.4), and the matrix of a window of speech is small.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import fx

from prepbench._torch_compat.operators import schema_of
from prepbench._torch_compat.programs import with_graph
from prepbench.targets.programs import is_complex

Program = torch.export.ExportedProgram
Pair = tuple[fx.Node, fx.Node]
"""The real and the imaginary part."""
aten = torch.ops.aten

# operators that move numbers, or treat both parts alike
_BY_PART = (
    "unsqueeze", "squeeze", "slice", "select", "view", "reshape", "_unsafe_view", "transpose", "permute", "expand",
    "clone", "contiguous", "alias", "detach", "flatten", "unflatten", "index_select", "cat", "stack", "repeat", "roll",
    "neg", "t", "mT", "sum", "mean",
)  # fmt: skip
_REAL = {torch.complex64: torch.float32, torch.complex128: torch.float64, torch.complex32: torch.float16}


def with_real_numbers(program: Program) -> Program:
    """Return the program with each complex tensor as two real ones.

    Args:
        program: it is not changed. Its inputs, outputs and state are real.

    Returns:
        The changed program; ``program`` itself where it has no complex tensors, or an operator on them that has no
        such form.
    """
    if not any(map(is_complex, program.graph.nodes)):
        return program
    graph = fx.Graph()
    graph.output(graph.graph_copy(program.graph, {}))
    parts = _Parts(graph)
    for node in list(graph.nodes):
        if (is_complex(node) or any(map(is_complex, node.all_input_nodes))) and not parts.replace(node):
            return program
    for node in reversed(parts.replaced):
        graph.erase_node(node)
    return with_graph(program, fx.GraphModule(program.graph_module, graph))


class _Parts:
    """The real and imaginary parts of a graph's complex nodes; nothing reads ``replaced`` nodes in the end."""

    def __init__(self, graph: fx.Graph) -> None:
        self._graph, self._pairs = graph, dict[fx.Node, Pair]()
        self._origin: fx.Node | None = None
        self.replaced: list[fx.Node] = []

    def replace(self, node: fx.Node) -> bool:
        """Rewrite a node with real numbers; return whether that is possible."""
        name = getattr(node.target, "overloadpacket", node.target)
        rule = _RULES.get(str(getattr(name, "__name__", name)))
        if node.op != "call_function" or rule is None:
            return False
        self._origin = node
        with self._graph.inserting_before(node):
            made = rule(self, node)
        if made is NotImplemented:
            return False
        if isinstance(made, tuple):
            self._pairs[node] = made
        elif made is not None:
            node.replace_all_uses_with(made)
        self.replaced.append(node)
        return True

    def call(self, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
        """Return a new node with its value, at the place of the replaced node."""
        assert self._origin is not None
        made = self._graph.call_function(target, args, kwargs)
        values = fx.node.map_arg((args, kwargs), lambda operand: operand.meta["val"])
        origin = {key: part for key, part in self._origin.meta.items() if key in ("nn_module_stack", "stack_trace")}
        with getattr(self._origin.meta["val"], "fake_mode", nullcontext()):  # where no operand says that it is fake
            made.meta = {**origin, "val": target(*values[0], **values[1])}
        return made

    def of(self, value: Any) -> tuple[Any, Any]:
        """Return the parts of a node or number; a real one has no imaginary part."""
        return self._pairs.get(value, (value, None)) if isinstance(value, fx.Node) else (value, None)

    def is_known(self, value: Any) -> bool:
        """Return whether a value is real, or a node with known parts."""
        return value in self._pairs if isinstance(value, fx.Node) and is_complex(value) else type(value) is not complex

    def by_part(self, node: fx.Node) -> Pair:
        """Apply an operator to the real and the imaginary part."""
        return self._part(node, 0), self._part(node, 1)

    def _part(self, node: fx.Node, part: int) -> fx.Node:
        args, kwargs = fx.node.map_arg((node.args, dict(node.kwargs)), lambda operand: self._chosen(operand, part))
        return self.call(node.target, *args, **kwargs)

    def _chosen(self, operand: fx.Node, part: int) -> fx.Node:
        return self._pairs[operand][part] if operand in self._pairs else operand


def _polar(parts: _Parts, node: fx.Node) -> Pair:
    size, angle = node.args
    cosine, sine = (parts.call(function, angle) for function in (aten.cos.default, aten.sin.default))
    return parts.call(aten.mul.Tensor, size, cosine), parts.call(aten.mul.Tensor, size, sine)


def _complex(_: _Parts, node: fx.Node) -> Any:
    real, imaginary = node.args
    return real, imaginary


def _view_as_complex(parts: _Parts, node: fx.Node) -> Pair:
    return parts.call(aten.select.int, node.args[0], -1, 0), parts.call(aten.select.int, node.args[0], -1, 1)


def _view_as_real(parts: _Parts, node: fx.Node) -> fx.Node:
    return parts.call(aten.stack.default, list(parts.of(node.args[0])), -1)


def _real(parts: _Parts, node: fx.Node) -> Any:
    return parts.of(node.args[0])[0]


def _imag(parts: _Parts, node: fx.Node) -> Any:
    return parts.of(node.args[0])[1]


def _conj(parts: _Parts, node: fx.Node) -> Any:
    real, imaginary = parts.of(node.args[0])
    return real, parts.call(aten.neg.default, imaginary)


def _same(parts: _Parts, node: fx.Node) -> Any:
    return parts.of(node.args[0])


def _abs(parts: _Parts, node: fx.Node) -> fx.Node:
    squares = [parts.call(aten.mul.Tensor, part, part) for part in parts.of(node.args[0])]
    return parts.call(aten.sqrt.default, parts.call(aten.add.Tensor, *squares))


def _add(parts: _Parts, node: fx.Node) -> Any:
    one, other = node.args[:2]
    if node.kwargs or len(node.args) > 2 or not (parts.is_known(one) and parts.is_known(other)):
        return NotImplemented
    (a, b), (c, d) = parts.of(one), parts.of(other)
    if b is None or d is None:
        return NotImplemented
    return parts.call(node.target, a, c), parts.call(node.target, b, d)


def _mul(parts: _Parts, node: fx.Node) -> Any:
    """Multiply two complex values, by element, as matrices, or as ``einsum`` says."""
    given: Any = node.args
    *equation, one, other = (given[0], *given[1]) if node.target is aten.einsum.default else given
    if node.kwargs or len(equation) > 1 or not (parts.is_known(one) and parts.is_known(other)):
        return NotImplemented

    def product(x: Any, y: Any) -> fx.Node:
        return parts.call(node.target, *equation, [x, y]) if equation else parts.call(node.target, x, y)

    (a, b), (c, d) = parts.of(one), parts.of(other)
    if d is None:
        return product(a, c), product(b, c)
    if b is None:
        return product(a, c), product(a, d)
    ac, bd, ad, bc = (product(*pair) for pair in ((a, c), (b, d), (a, d), (b, c)))
    return parts.call(aten.sub.Tensor, ac, bd), parts.call(aten.add.Tensor, ad, bc)


def _div(parts: _Parts, node: fx.Node) -> Any:
    one, other = node.args[:2]
    (a, b), (c, d) = parts.of(one), parts.of(other)
    if b is None or d is not None or node.kwargs or not parts.is_known(other):
        return NotImplemented
    return parts.call(node.target, a, c), parts.call(node.target, b, c)


def _cast(parts: _Parts, node: fx.Node) -> Any:
    value = node.meta["val"]
    if not value.dtype.is_complex:
        return NotImplemented
    real, imaginary = parts.of(node.args[0])
    if imaginary is None:
        imaginary = parts.call(aten.zeros_like.default, real)
    return tuple(parts.call(aten.to.dtype, part, _REAL[value.dtype]) for part in (real, imaginary))


def _zeros(parts: _Parts, node: fx.Node) -> Any:
    given = dict(node.kwargs) | {"dtype": _REAL[node.meta["val"].dtype]}
    arguments = [parts.of(argument)[0] if isinstance(argument, fx.Node) else argument for argument in node.args]
    real, imaginary = (parts.call(node.target, *arguments, **given) for _ in range(2))
    return real, imaginary  # two, because something may be written into them


def _write(parts: _Parts, node: fx.Node) -> Any:
    place, value = node.args[:2]
    is_plain = len(node.args) == 2 and not node.kwargs and isinstance(value, fx.Node)
    if not is_plain or not isinstance(place, fx.Node) or not is_complex(place):
        return NotImplemented
    real, imaginary = parts.of(value)
    if imaginary is None:
        imaginary = parts.call(aten.zeros_like.default, real)
    pairs = zip(parts.of(place), (real, imaginary), strict=True)
    one, other = (parts.call(node.target, *pair) for pair in pairs)
    return one, other


def _size(parts: _Parts, node: fx.Node) -> fx.Node:
    return parts.call(node.target, parts.of(node.args[0])[0], *node.args[1:])


def _nothing(_: _Parts, __: fx.Node) -> None:
    return None


def _angle(parts: _Parts, node: fx.Node) -> fx.Node:
    real, imaginary = parts.of(node.args[0])
    return parts.call(aten.atan2.default, imaginary, real)


_LONGEST = 2048
"""Values of a Fourier transform: the matrix of a longer one would take more than 16 MB, and more time than it saves."""


def _waves(parts: _Parts, like: fx.Node, rows: int, columns: int, count: int) -> Pair:
    """Return the cosines and sines of 2 pi row column / count, of the number type of ``like``, made in the graph."""
    across, down = (
        parts.call(aten.sub.Tensor, parts.call(aten.cumsum.default, parts.call(aten.new_ones.default, like, [n]), 0), 1)
        for n in (columns, rows)
    )
    # products of places are whole numbers below 2 ** 24, and exact; the angles of one turn keep their digits
    products = parts.call(aten.mul.Tensor, parts.call(aten.unsqueeze.default, down, 1), across)
    turns = parts.call(aten.remainder.Scalar, products, count)
    angles = parts.call(aten.mul.Tensor, turns, 2 * math.pi / count)
    # the sine of half a turn is not quite 0 in floating point, and its sign would decide about an angle
    from_half = parts.call(aten.abs.default, parts.call(aten.sub.Tensor, turns, count / 2))
    away = parts.call(aten.mul.Tensor, parts.call(aten.minimum.default, turns, from_half), 2)
    sines = parts.call(aten.sin.default, angles)
    sines = parts.call(aten.mul.Tensor, sines, parts.call(aten.clamp.default, away, None, 1))
    return parts.call(aten.cos.default, angles), sines


def _takes(like: Any, *sizes: Any) -> bool:
    exact = isinstance(like, fx.Node) and like.meta["val"].dtype in (torch.float32, torch.float64)
    return exact and all(type(size) is int and 0 < size <= _LONGEST for size in sizes)


def _scale(norm: str | None, count: int, *, inverse: bool) -> float:
    if norm == "ortho":
        return 1 / math.sqrt(count)
    return 1 / count if (norm == "forward") is not inverse else 1.0


def _products(parts: _Parts, part: fx.Node, dim: int, *matrices: fx.Node) -> list[fx.Node]:
    """Multiply the values along a dim with each matrix."""
    rows = parts.call(aten.transpose.int, part, dim, -1)
    made = (parts.call(aten.matmul.default, rows, matrix) for matrix in matrices)
    return [parts.call(aten.transpose.int, product, dim, -1) for product in made]


def _length(part: Any, dim: int) -> Any:
    return part.meta["val"].shape[dim] if isinstance(part, fx.Node) else None


def _stft(parts: _Parts, node: fx.Node) -> Any:
    given = _arguments(node)
    signal, count, window = given["self"], given["n_fft"], given["window"]
    hop, long = given["hop_length"] or count // 4, given["win_length"] or count
    if node.target is not aten.stft.default or given.get("align_to_window") or not _takes(signal, count):
        return NotImplemented
    if window is None and long < count:
        return NotImplemented
    bins = count if given["onesided"] is False else count // 2 + 1
    scale = count**-0.5 if given["normalized"] else 1.0
    kernels = list(_scaled(parts, _waves(parts, signal, bins, count, count), scale, -scale))
    if window is not None:
        left = (count - long) // 2
        window = parts.call(aten.constant_pad_nd.default, window, [left, count - long - left])
        kernels = [parts.call(aten.mul.Tensor, kernel, window) for kernel in kernels]
    # one channel of sound, of each of a batch
    sound = parts.call(aten.unsqueeze.default, signal, signal.meta["val"].ndim - 1)
    channels = (parts.call(aten.unsqueeze.default, kernel, 1) for kernel in kernels)
    real, imaginary = (parts.call(aten.conv1d.default, sound, kernel, None, [hop]) for kernel in channels)
    return real, _without_negative_zeros(parts, imaginary)


def _without_negative_zeros(parts: _Parts, imaginary: fx.Node) -> fx.Node:
    """Return the transform of real numbers with zeros as PyTorch has them, for an angle is pi or -pi by their sign.

    The first value is one, and the middle one of an even number: sums of zeros whose signs are those of the signal.
    """
    return parts.call(aten.masked_fill.Scalar, imaginary, parts.call(aten.eq.Scalar, imaginary, 0), 0.0)


def _scaled(parts: _Parts, waves: Pair, *scales: float) -> Pair:
    one, other = (parts.call(aten.mul.Tensor, wave, scale) for wave, scale in zip(waves, scales, strict=True))
    return one, other


def _from_real(parts: _Parts, signal: Any, dim: int, count: Any, norm: str | None) -> Any:
    length = _length(signal, dim)
    count = count or length
    if not _takes(signal, length, count):
        return NotImplemented
    kept = min(length, count)  # what is missing counts as zeros, and needs no row
    rows = parts.call(aten.slice.Tensor, signal, dim, 0, kept)
    scale = _scale(norm, count, inverse=False)
    waves = _scaled(parts, _waves(parts, signal, kept, count // 2 + 1, count), scale, -scale)
    real, imaginary = _products(parts, rows, dim, *waves)
    return real, _without_negative_zeros(parts, imaginary)


def _between_complex(parts: _Parts, pair: Any, dim: int, count: Any, norm: str | None, *, inverse: bool) -> Any:
    real, imaginary = pair
    length = _length(real, dim)
    count = count or length
    if not _takes(real, length, count):
        return NotImplemented
    kept = min(length, count)
    scale = _scale(norm, count, inverse=inverse)
    waves = _waves(parts, real, kept, count, count)
    is_conjugate = imaginary is None and inverse  # with the negative of each zero
    cosines, sines = _scaled(parts, waves, scale, scale if inverse and not is_conjugate else -scale)
    ac, ad = _products(parts, parts.call(aten.slice.Tensor, real, dim, 0, kept), dim, cosines, sines)
    if imaginary is None:
        ad = _without_negative_zeros(parts, ad)
        return ac, parts.call(aten.neg.default, ad) if is_conjugate else ad
    bc, bd = _products(parts, parts.call(aten.slice.Tensor, imaginary, dim, 0, kept), dim, cosines, sines)
    return parts.call(aten.sub.Tensor, ac, bd), parts.call(aten.add.Tensor, ad, bc)


def _to_real(parts: _Parts, pair: Any, dim: int, count: Any, norm: str | None) -> Any:
    real, imaginary = pair
    bins = _length(real, dim)
    count = count or (2 * (bins - 1) if type(bins) is int else None)
    if imaginary is None or not _takes(real, bins, count) or bins != count // 2 + 1:
        return NotImplemented
    # each but the first one, and the last one of an even number, stands for a second one on the other side
    nth = parts.call(aten.cumsum.default, parts.call(aten.new_ones.default, real, [bins, 1]), 0)
    first = parts.call(aten.relu.default, parts.call(aten.rsub.Scalar, nth, 2))
    weights = parts.call(aten.rsub.Scalar, first, 2)
    if count % 2 == 0 and bins > 1:
        last = parts.call(aten.relu.default, parts.call(aten.sub.Tensor, nth, bins - 1))
        weights = parts.call(aten.sub.Tensor, weights, last)
    weights = parts.call(aten.mul.Tensor, weights, _scale(norm, count, inverse=True))
    cosines, sines = (parts.call(aten.mul.Tensor, wave, weights) for wave in _waves(parts, real, bins, count, count))
    [kept], [taken] = _products(parts, real, dim, cosines), _products(parts, imaginary, dim, sines)
    return parts.call(aten.sub.Tensor, kept, taken)


def _fourier(kind: str) -> Rule:
    """Return the rule of a Fourier transform over dims: from real numbers, to them, or between complex ones."""

    def rule(parts: _Parts, node: fx.Node) -> Any:
        given = _arguments(node)
        value = parts.of(given["self"])
        if "n" in given:
            dims, counts = [given["dim"]], [given["n"]]
        else:
            dims = given["dim"] or list(range(-len(given["s"] or node.meta["val"].shape), 0))
            counts = given["s"] or [None] * len(dims)
        steps = list(zip(dims, counts, strict=True))
        if kind == "from real":
            dim, count = steps.pop()
            value = _from_real(parts, value[0], dim, count, given["norm"])
        last = steps.pop() if kind == "to real" else None
        for dim, count in reversed(steps):
            if value is not NotImplemented:
                value = _between_complex(
                    parts, value, dim, count, given["norm"], inverse=kind in ("to real", "inverse")
                )
        if last is None or value is NotImplemented:
            return value
        return _to_real(parts, value, *last, given["norm"])

    return rule


def _arguments(node: fx.Node) -> dict[str, Any]:
    """Return the arguments of a call by name, with the defaults of what is not given."""
    given = {argument.name: argument.default_value for argument in schema_of(node.target).arguments}
    return given | dict(zip(given, node.args, strict=False)) | dict(node.kwargs)


Rule = Callable[[_Parts, fx.Node], Any]
_RULES: dict[str, Rule] = {
    **dict.fromkeys(_BY_PART, _Parts.by_part),
    **dict.fromkeys(("to", "_to_copy"), _cast),
    **dict.fromkeys(("conj", "_conj", "_conj_physical", "conj_physical"), _conj),
    **dict.fromkeys(("resolve_conj", "resolve_neg", "lift_fresh_copy"), _same),
    **dict.fromkeys(("add", "sub"), _add),
    "polar": _polar,
    "complex": _complex,
    "copy_": _write,
    "view_as_complex": _view_as_complex,
    "view_as_real": _view_as_real,
    "real": _real,
    "imag": _imag,
    "abs": _abs,
    "angle": _angle,
    "stft": _stft,
    **dict.fromkeys(("fft_rfft", "fft_rfft2", "fft_rfftn"), _fourier("from real")),
    **dict.fromkeys(("fft_irfft", "fft_irfft2", "fft_irfftn"), _fourier("to real")),
    **dict.fromkeys(("fft_fft", "fft_fft2", "fft_fftn"), _fourier("forward")),
    **dict.fromkeys(("fft_ifft", "fft_ifft2", "fft_ifftn"), _fourier("inverse")),
    **dict.fromkeys(("mul", "matmul", "mm", "bmm", "einsum"), _mul),
    **dict.fromkeys(("zeros", "new_zeros"), _zeros),
    "div": _div,
    "sym_size": _size,
    "_assert_tensor_metadata": _nothing,
}
