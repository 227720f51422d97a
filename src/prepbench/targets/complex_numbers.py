"""Complex numbers as pairs of real ones, for targets without them, as in rotary embeddings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from prepbench._torch_compat.programs import with_graph

Program = torch.export.ExportedProgram
Pair = tuple[fx.Node, fx.Node]
"""The real and the imaginary part."""
aten = torch.ops.aten

# operators that move numbers, or treat both parts alike
_BY_PART = (
    "unsqueeze", "squeeze", "slice", "select", "view", "reshape", "_unsafe_view", "transpose", "permute", "expand",
    "clone", "contiguous", "alias", "detach", "flatten", "unflatten", "index_select", "cat", "stack", "repeat", "roll",
    "neg", "t", "sum", "mean",
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


def is_complex(node: fx.Node) -> bool:
    """Return whether a node of an exported program is a complex tensor."""
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.dtype.is_complex


class _Parts:
    """The real and imaginary parts of a graph's complex nodes.

    Attributes:
        replaced: nodes that nothing reads any more once all are replaced.
    """

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
    one, other = node.args
    if not (parts.is_known(one) and parts.is_known(other)):
        return NotImplemented
    (a, b), (c, d) = parts.of(one), parts.of(other)
    if b is None:
        (a, b), (c, d) = (c, d), (a, b)
    if d is None:
        return parts.call(aten.mul.Tensor, a, c), parts.call(aten.mul.Tensor, b, c)
    ac, bd, ad, bc = (parts.call(aten.mul.Tensor, *pair) for pair in ((a, c), (b, d), (a, d), (b, c)))
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


def _size(parts: _Parts, node: fx.Node) -> fx.Node:
    return parts.call(node.target, parts.of(node.args[0])[0], *node.args[1:])


def _nothing(_: _Parts, __: fx.Node) -> None:
    return None


Rule = Callable[[_Parts, fx.Node], Any]
_RULES: dict[str, Rule] = {
    **dict.fromkeys(_BY_PART, _Parts.by_part),
    **dict.fromkeys(("to", "_to_copy"), _cast),
    **dict.fromkeys(("conj", "_conj", "_conj_physical", "conj_physical"), _conj),
    **dict.fromkeys(("resolve_conj", "resolve_neg", "lift_fresh_copy"), _same),
    **dict.fromkeys(("add", "sub"), _add),
    "polar": _polar,
    "complex": _complex,
    "view_as_complex": _view_as_complex,
    "view_as_real": _view_as_real,
    "real": _real,
    "imag": _imag,
    "abs": _abs,
    "mul": _mul,
    "div": _div,
    "sym_size": _size,
    "_assert_tensor_metadata": _nothing,
}
