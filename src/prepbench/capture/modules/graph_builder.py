"""The graph under construction: the node of each value, and rollback of the nodes of a failed call."""

from __future__ import annotations

import builtins
import operator
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import fx

from prepbench._torch_compat.fake_tensors import is_fake
from prepbench._torch_compat.operators import OpOverload
from prepbench._torch_compat.sizes import symbolic_value
from prepbench.capture.sizes.axis import SizeTexts
from prepbench.document.model import CodeFrame, Node
from prepbench.objects import flatten as structures
from prepbench.objects.flatten import tensors_in
from prepbench.objects.parts import SYMBOLS, Steps
from prepbench.running.source_lines import frame_of, source_of_frame

_PLAIN = (
    type(None), bool, int, float, complex, str, torch.dtype, torch.device, torch.layout, torch.memory_format, range,
    type(Ellipsis), OpOverload,
)  # fmt: skip


class UntracedTensor(RuntimeError):
    """Raised if a tensor was used that no node of the graph made."""


class GraphBuilder:
    """Builds one FX graph while a forward runs.

    Values are tensors and symbolic numbers. A tensor belongs to the node that made it, by identity; a symbolic number
    is an expression over sizes, and is computed in the graph from sizes of earlier nodes, so that the graph
    runs at other sizes.

    Args:
        names: fully qualified names of the parameters and buffers, by ``id``.
        find_attribute: looks for a tensor that a module holds as a plain attribute.
    """

    def __init__(self, names: dict[int, str], find_attribute: Callable[[Any], str | None]) -> None:
        self.graph = fx.Graph()
        self.constants: dict[str, Any] = {}
        self.scope: list[tuple[str, str, int]] = []  # name, class, which call
        self._names = names
        self._find_attribute = find_attribute
        self._values: dict[Any, tuple[fx.Node, Steps]] = {}
        self._sizes: dict[Any, tuple[torch.Tensor, int]] = {}
        self._flags: dict[Any, tuple[fx.Node, Steps]] = {}
        self._expressions: dict[Any, Any] = {}
        self._created: list[fx.Node] = []
        self._undo: list[tuple[dict[Any, Any], Any, Any]] = []
        # identity means nothing once an object is gone and its id is used again
        self._alive: list[Any] = []

    # -- nodes

    def add(self, op: str, target: Any, args: Any, kwargs: Any, result: Any, fqn: str | None = None) -> fx.Node:
        """Append a node for an operation with this result; ``args`` and ``kwargs`` are as the model passed them."""
        fx_args = self.argument(tuple(args))
        fx_kwargs = {name: self.argument(value) for name, value in kwargs.items()}
        return self.add_prepared(op, target, fx_args, fx_kwargs, result, fqn)

    def add_prepared(
        self, op: str, target: Any, args: Any, kwargs: Any, result: Any, fqn: str | None = None
    ) -> fx.Node:
        """Append a node as :meth:`add` does, from FX arguments that were made before the operation ran."""
        node = self.create(op, target, args, kwargs)
        if fqn is not None:
            node.meta["fqn"] = fqn
        node.meta["val"] = result
        self.bind(result, node)
        return node

    def _describe(self, node: fx.Node) -> None:
        node.meta["fqn"] = self.scope[-1][0] if self.scope else ""
        node.meta["source"] = source_of_frame(sys._getframe(2))
        node.meta["nn_module_stack"] = {path: (path, kind) for path, kind, _ in self.scope}
        node.meta["calls"] = {path: number for path, _, number in self.scope}

    def knows(self, symbol: Any) -> bool:
        """Return whether the graph can compute this symbol."""
        return symbol in self._values or symbol in self._sizes or symbol in self._flags

    def bind(self, value: Any, node: fx.Node) -> None:
        """Record ``node`` as the source of ``value`` and of every tensor inside it."""
        if isinstance(value, Iterator):
            self._set(self._values, id(value), (node, ()))
            self._alive.append(value)
            return
        for path, leaf in [((), value)] if structures.is_value(value) else structures.paths(value):
            if isinstance(leaf, torch.Tensor):
                self._set(self._values, id(leaf), (node, path))
                self._alive.append(leaf)
                self._bind_sizes(leaf)
            elif leaf.node.expr.is_Symbol and not self.knows(leaf.node.expr):
                self._set(self._values, leaf.node.expr, (node, path))
            elif isinstance(leaf, torch.SymBool) and len(leaf.node.expr.free_symbols) == 1:
                # the answer of .item() on a bool is "u == 1" for a new symbol u
                self._set(self._flags, next(iter(leaf.node.expr.free_symbols)), (node, path))
                self._set(self._values, leaf.node.expr, (node, path))

    def _bind_sizes(self, tensor: torch.Tensor) -> None:
        for dim, size in enumerate(tensor.shape):
            node = getattr(size, "node", None)  # a plain int has none
            if node is not None and node.expr.is_Symbol and not self.knows(node.expr):
                self._set(self._sizes, node.expr, (tensor, dim))

    def _set(self, table: dict[Any, Any], key: Any, value: Any) -> None:
        self._undo.append((table, key, table.get(key)))
        table[key] = value

    def mark(self) -> tuple[int, int]:
        """Return a mark for :meth:`rollback`."""
        return len(self._created), len(self._undo)

    def rollback(self, mark: tuple[int, int]) -> None:
        """Remove every node and value since ``mark``."""
        created, undone = mark
        for table, key, old in reversed(self._undo[undone:]):
            if old is None:
                table.pop(key, None)
            else:
                table[key] = old
        for node in reversed(self._created[created:]):
            self.graph.erase_node(node)
        del self._undo[undone:], self._created[created:]

    def create(self, op: str, target: Any, args: Any = (), kwargs: Any = None, name: str | None = None) -> fx.Node:
        """Append a node whose arguments are FX arguments already."""
        if target == "self" and name is None:
            name = "self_"  # the code of the graph calls the model itself so
        node = self.graph.create_node(op, target, args, kwargs or {}, name=name)
        self._created.append(node)
        self._describe(node)
        return node

    # -- arguments

    def argument(self, value: Any) -> Any:
        """Return ``value`` as an FX argument: nodes in place of tensors and symbolic numbers."""
        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        if isinstance(value, SYMBOLS):
            return self._number(value)
        if isinstance(value, _PLAIN):
            return value
        if isinstance(value, torch.Size):
            return tuple(self.argument(item) for item in value)
        if type(value) in (tuple, list):
            return type(value)(self.argument(item) for item in value)
        if type(value) is dict and all(isinstance(key, str | int) for key in value):
            return {key: self.argument(item) for key, item in value.items()}
        if isinstance(value, slice):
            return slice(self.argument(value.start), self.argument(value.stop), self.argument(value.step))
        if isinstance(value, np.generic):
            return value.item()
        return self._object(value)

    def _tensor(self, tensor: torch.Tensor) -> fx.Node:
        found = self._values.get(id(tensor))
        if found is not None:
            return self._resolved(id(tensor), *found)
        if is_fake(tensor):
            raise UntracedTensor(
                f"A {tuple(tensor.shape)} tensor reached this operation from code that tracing does not see "
                "(a C++ extension, a value kept from an earlier call, or an object that a part which cannot be traced "
                "wrote into)."
            )
        name = self._names.get(id(tensor)) or self._find_attribute(tensor) or self._constant(tensor, "_tensor_constant")
        return self._attribute(name, tensor)

    def _attribute(self, name: str, value: Any) -> fx.Node:
        node = self.create("get_attr", name)
        node.meta["val"] = value
        node.meta["fqn"] = name.rpartition(".")[0]
        self._set(self._values, id(value), (node, ()))
        self._alive.append(value)
        return node

    def _constant(self, value: Any, prefix: str) -> str:
        name = f"{prefix}{len(self.constants)}"
        self.constants[name] = value
        return name

    def _object(self, value: Any) -> fx.Node:
        if id(value) in self._values:
            return self._values[id(value)][0]
        if isinstance(value, Iterator):
            raise UntracedTensor(
                f"A {type(value).__name__} cannot be an input or output: Tensor iterator, used up once."
            )
        make, values = structures.Rebuild.of(value)
        if values:
            return self.add("call_function", make, values, {}, None)
        return self._attribute(self._constant(value, "_constant"), value)

    def _resolved(self, key: Any, node: fx.Node, path: Steps) -> fx.Node:
        """Return the node of one tensor in the output of ``node``, placed beside it so that all later uses share it."""
        if not path:
            return node
        for kind, step in path:
            target = {"item": operator.getitem, "attr": builtins.getattr, "tensor": structures.tensor_at}[kind]
            node = self._derived(node, "call_function", target, step)
        self._set(self._values, key, (node, ()))
        return node

    def _derived(self, node: fx.Node, op: str, target: Any, argument: Any) -> fx.Node:
        with self.graph.inserting_after(node):
            child = self.graph.create_node(op, target, (node, argument))
        self._created.append(child)
        child.meta = {key: node.meta[key] for key in ("source", "nn_module_stack", "calls")}
        child.meta["fqn"] = next(reversed(node.meta["nn_module_stack"]), "")
        return child

    # -- numbers

    def _number(self, value: Any) -> Any:
        expression = value.node.expr
        if expression.is_Number:
            return float(expression) if isinstance(value, torch.SymFloat) else int(expression)
        if expression in (True, False):
            return bool(expression)
        return self.expression(expression)

    def expression(self, expression: Any) -> Any:
        """Return a node that computes a sympy expression over sizes."""
        if expression.is_Symbol:
            return self._symbol(expression)
        if expression in self._values:
            return self._resolved(expression, *self._values[expression])
        if expression not in self._expressions:
            tracer = _NumberTracer(self)
            symbols = sorted(expression.free_symbols, key=str)
            known = {symbol: fx.Proxy(self._symbol(symbol), tracer) for symbol in symbols}
            result = symbolic_value(expression, known, tracer.call)
            self._set(self._expressions, expression, result.node)
        return self._expressions[expression]

    def _symbol(self, symbol: Any) -> fx.Node:
        found = self._values.get(symbol)
        if found is not None:
            return self._resolved(symbol, *found)
        if symbol in self._flags:
            flag = self._resolved(("flag", symbol), *self._flags[symbol])
            node = self._derived(flag, "call_function", operator.mul, 1)
            self._set(self._values, symbol, (node, ()))
            return node
        if symbol not in self._sizes:
            raise UntracedTensor(f"The size {symbol} belongs to no value in the graph.")
        tensor, dim = self._sizes[symbol]
        node = self._derived(self._tensor(tensor), "call_method", "size", dim)
        self._set(self._values, symbol, (node, ()))
        return node


class _NumberTracer(fx.proxy.TracerBase):
    """Appends arithmetic on sizes, as proxies perform it, to the graph of a builder."""

    def __init__(self, builder: GraphBuilder) -> None:
        super().__init__()
        self._builder = builder
        self.graph = builder.graph

    def create_node(self, *args: Any, **kwargs: Any) -> fx.Node:
        return self._builder.create(*args[:4])

    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """Apply ``function`` to numbers: as a node if one of them is computed in the graph."""
        if any(isinstance(arg, fx.Proxy) for arg in args):
            return self.create_proxy("call_function", function, args, {})
        return function(*args)


# The FX spelling of a call that a function mode reports.


# x.__radd__(1) is 1 + x
_REFLECTED = {
    f"__r{name}__": getattr(operator, special)
    for name, special in {
        "add": "add", "sub": "sub", "mul": "mul", "truediv": "truediv", "div": "truediv", "floordiv": "floordiv",
        "mod": "mod", "pow": "pow", "matmul": "matmul", "and": "and_", "or": "or_", "xor": "xor", "lshift": "lshift",
        "rshift": "rshift",
    }.items()
}  # fmt: skip
_DIRECT = {
    f"__{name}__": getattr(operator, f"__{name}__")
    for name in (
        "add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor", "lshift", "rshift",
        "iadd", "isub", "imul", "itruediv", "ifloordiv", "imod", "ipow", "iand", "ior", "ixor", "ilshift", "irshift",
        "neg", "pos", "invert", "abs", "eq", "ne", "lt", "le", "gt", "ge", "getitem", "setitem",
    )
} | {"__div__": operator.truediv, "__idiv__": operator.itruediv}  # fmt: skip

Spelled = tuple[str, Any, tuple[Any, ...], dict[str, Any]]


def spell(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Spelled:
    """Return ``(op, target, args, kwargs)`` of the FX node for ``func(*args, **kwargs)``.

    Example:
        >>> x = torch.ones(2)
        >>> spell(torch.Tensor.__rsub__, (x, 1), {})[:2]
        ('call_function', <built-in function sub>)
    """
    name = getattr(func, "__name__", type(func).__name__)
    if name == "__get__":
        return "call_function", builtins.getattr, (args[0], func.__self__.__name__), {}
    if name == "__set__":
        return "call_function", builtins.setattr, (args[0], func.__self__.__name__, *args[1:]), {}
    if name == "__deepcopy__":
        return "call_method", "clone", args[:1], {}
    if is_method(func, name) and args:
        if name in _REFLECTED and len(args) == 2:
            return "call_function", _REFLECTED[name], (args[1], args[0]), {}
        if name in _DIRECT and not kwargs:
            return "call_function", _DIRECT[name], args, {}
        return "call_method", name, args, kwargs
    return "call_function", func, args, kwargs


def is_method(func: Any, name: str) -> bool:
    """Return whether ``func`` is a method of ``torch.Tensor``."""
    return getattr(torch.Tensor, name, None) is func or getattr(func, "__objclass__", None) in torch.Tensor.__mro__


def has_side_effect(func: Any) -> bool:
    """Return whether a call that returns nothing still changes one of its arguments."""
    name = getattr(func, "__name__", "")
    return name in ("__setitem__", "__set__", "__delitem__") or (name.endswith("_") and not name.startswith("__"))


# Text and plain values of FX nodes, for the documents of both levels.


SHAPE_OUTPUTS = 8
"""At most this many outputs of one node have shapes in a document; caches have hundreds."""

FRAMES = 500
"""At most this many lines of code have their surroundings in a document."""


def label_text(node: fx.Node) -> str:
    """Return the label of a node in a diagram: the last part of a name, or the name of a function."""
    if node.op == "call_module":
        return str(node.target).rpartition(".")[2] or "module"
    if node.op in ("placeholder", "output", "call_method"):
        return str(node.target)
    if node.op == "get_attr":
        return str(node.target).rpartition(".")[2]
    return _short(node.target)


def _short(target: Any) -> str:
    if isinstance(target, OpOverload):
        return str(target.overloadpacket.__name__)
    return str(getattr(target, "__name__", type(target).__name__))


def target_text(target: Any) -> str:
    """Return an FX target as text without addresses, e.g. ``"torch.nn.functional.relu"``."""
    if isinstance(target, str | OpOverload):
        return str(target)
    name = str(getattr(target, "__name__", type(target).__name__))
    if is_method(target, name):
        return f"torch.Tensor.{name}"
    module = str(getattr(target, "__module__", "") or "")
    if module in ("_operator", "builtins"):
        module = "operator" if module == "_operator" else ""
    elif module.startswith("torch._C") or not module:
        module = "torch"
    return f"{module}.{name}" if module else name


def shapes_and_dtypes(
    value: Any, texts: SizeTexts, names: Mapping[str, str]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the shapes and dtypes of the first tensors in a value; ``names`` maps symbols to input sizes."""
    tensors = tensors_in(value)[:SHAPE_OUTPUTS]
    shapes = tuple(texts.shape(tensor.shape, names) for tensor in tensors)
    return shapes, tuple(str(tensor.dtype).removeprefix("torch.") for tensor in tensors)


def code_frames(nodes: Iterable[Node]) -> tuple[CodeFrame, ...]:
    """Return the code around the source line of each node, for the first :data:`FRAMES` lines."""
    sources = list(dict.fromkeys(node.source for node in nodes if node.source is not None))[:FRAMES]
    made = ((source, frame_of(source)) for source in sources)
    return tuple(CodeFrame(source.file, source.line, text) for source, text in made if text)


def count_parameters(module: torch.nn.Module) -> int:
    """Return the elements of all parameters; a lazy parameter has none yet."""
    return sum(0 if _is_lazy(parameter) else parameter.numel() for parameter in module.parameters())


def _is_lazy(parameter: torch.nn.Parameter) -> bool:
    return isinstance(parameter, torch.nn.parameter.UninitializedParameter)
