"""Digests of tensors, values and models: do they hold what they held before?

A :class:`StateDigest` holds in this process and reads everything. The others are texts that stand in files, so their
bytes never change: ``tests/unit/objects/test_digest.py`` has some of earlier versions.
"""

from __future__ import annotations

import collections
import hashlib
import os
import types
import weakref
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import fx, nn

from prepbench._torch_compat import pytree
from prepbench._torch_compat.tensors import version_of
from prepbench.document.bench import SavedModule, SavedTensor
from prepbench.errors import printable
from prepbench.objects.parts import (
    PLAIN,
    WRAPPERS,
    attributes,
    is_own_class,
    is_own_function,
    is_own_object,
    named_globals,
    parts,
    stored,
)

_DIGITS = 16
_BLOCK = 2**26  # bytes that are hashed at a time
_PLAIN_TENSORS = (torch.Tensor, nn.Parameter, nn.Buffer)


# -- tensors


def tensor_digest(value: torch.Tensor) -> str:
    """Return a digest of the values in index order; "" for tensors without readable bytes."""
    is_plain = type(value) in _PLAIN_TENSORS and value.layout is torch.strided and not value.is_quantized
    return _hex(lambda digest: _add_values(digest, value)) if is_plain and not value.is_meta else ""


@torch.no_grad()
def _add_values(digest: Any, value: torch.Tensor) -> None:
    """Add the values in index order.

    Raises:
        RuntimeError, TypeError: they cannot be read.
    """
    plain = value.detach()
    plain = plain.dequantize() if plain.is_quantized else plain
    plain = plain.to_dense() if plain.layout is not torch.strided else plain
    if not plain.numel():
        return
    data = plain.resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)
    for block in (data,) if data.numel() <= _BLOCK else data.split(_BLOCK):
        digest.update(block.cpu().numpy())


# -- values, for files


def data_digest(data: Iterable[Any]) -> str:
    """Digest the values of all elements, which are read one at a time."""
    return _hex(lambda digest: [digest.update(state_digest(each, by_value=True).digest) for each in data])[:_DIGITS]


def leaves_digest(values: Iterable[Any]) -> str:
    """Digest tensors and plain values; how these are nested does not count."""

    def add(digest: Any) -> None:
        for leaf in (leaf for value in values for leaf in pytree.tree_leaves(value)):
            if isinstance(leaf, torch.Tensor):
                digest.update(f"{leaf.dtype}{tuple(leaf.shape)}".encode())
                _add_values(digest, leaf)
            else:
                digest.update(_encoded(repr(leaf)))

    return _hex(add)[:_DIGITS]


def code_bytes(code: Any) -> bytes:
    """Return what code does, as bytes: neither lines nor names of files are in them."""
    plain = [repr(value) for value in code.co_consts if not hasattr(value, "co_code")]
    inner = [code_bytes(value) for value in code.co_consts if hasattr(value, "co_code")]
    return b"".join((code.co_code, _encoded(repr((plain, code.co_names))), *inner))


def _encoded(text: str) -> bytes:
    return text.encode(errors="surrogatepass")


def _hex(add: Callable[[Any], Any]) -> str:
    digest = hashlib.sha256()
    add(digest)
    return digest.hexdigest()


# -- models, for files


def modules_of(model: nn.Module) -> tuple[SavedModule, ...]:
    """Return the modules of a model with their own parameters and buffers, in ``named_modules()`` order."""
    return tuple(
        SavedModule(printable(fqn), printable(type(module).__name__), tuple(_tensors(module)))
        for fqn, module in model.named_modules()
    )


def structure_of(modules: Iterable[SavedModule]) -> str:
    """Return a digest of the names and shapes."""
    return _hex(lambda digest: [digest.update(_encoded(repr(module))) for module in modules])[:_DIGITS]


def model_digest(model: nn.Module) -> str:
    """Return ``"<structure>-<values>"``: equal for models with equal modules, names, shapes and values.

    Tensors without values, as on the meta device, count by their shapes only.
    """

    def add(digest: Any) -> None:
        tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        for name in sorted(tensors):
            digest.update(_encoded(name))
            value = tensors[name]
            if not (nn.parameter.is_lazy(value) or value.is_meta or value.layout != torch.strided):
                _add_values(digest, value)

    return f"{structure_of(modules_of(model))}-{_hex(add)[:_DIGITS]}"


def _tensors(module: nn.Module) -> Iterable[SavedTensor]:
    for name, tensor in (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)):
        shape = () if nn.parameter.is_lazy(tensor) else tuple(tensor.shape)
        yield SavedTensor(printable(name), shape, str(tensor.dtype).removeprefix("torch."))


# -- state, for this process

_LOOKED_AT = 64  # values of each tensor, about, spread over it


def value_mark(model: nn.Module) -> Hashable:
    """Return a value that changes once a model is trained, loaded or partly replaced; takes milliseconds at any size.

    It holds which tensors there are, how often torch saw them written, and some of their values: ``weight.data`` and
    NumPy write unseen. A :func:`state_digest` reads all values.
    """
    digest, seen = hashlib.sha256(), []
    for tensor in (*model.parameters(), *model.buffers()):
        is_made = not nn.parameter.is_lazy(tensor)
        seen.append((id(tensor), version_of(tensor) if is_made else -1))
        if is_made and type(tensor) in _PLAIN_TENSORS and tensor.layout == torch.strided and not tensor.is_meta:
            _add_values(digest, _some_values(tensor))
    return tuple(seen), digest.digest()


def _some_values(tensor: torch.Tensor) -> torch.Tensor:
    # along each axis, because to flatten a transposed tensor copies it
    count = round(_LOOKED_AT ** (1 / max(tensor.ndim, 1)))
    return tensor.detach()[tuple(slice(None, None, -(-size // count) or 1) for size in tensor.shape)]


@dataclass(frozen=True)
class StateDigest:
    """The digest of a model and its dependencies; equal digests mean equal state.

    Attributes:
        digest: of all values, and of which objects hold them.
        alive: those objects, because an object's identity means nothing once it is gone.
    """

    digest: bytes
    alive: tuple[Any, ...] = field(compare=False)


def state_digest(*roots: Any, by_value: bool = False) -> StateDigest:
    """Return the digest of all state that calls of modules, functions and objects can depend on.

    Of modules: tensors with their values, flags, hooks, submodules in their order, and other attributes. Of functions:
    code, defaults, closures and the globals that they name. Of a user's objects: their attributes. Objects outside of
    Python, and the contents of installed libraries' objects, are compared by identity only. Values are read, because
    torch's version counters are not sufficient: ``weight.data``, NumPy and batch norm write without raising them.

    Args:
        roots: the objects to read.
        by_value: tensors and arrays that hold the same are the same, as for samples, which a loader makes anew.
    """
    reader = _Reader(by_value)
    for root in roots:
        reader.read(root)
    return StateDigest(reader.digest.digest(), tuple(reader.alive))


class _Reader:
    """Walks objects in a deterministic order and digests them."""

    def __init__(self, by_value: bool) -> None:
        self.digest = hashlib.sha256()
        self.alive: list[Any] = []
        self._by_value = by_value
        self._seen: dict[int, int] = {}
        self._ways: dict[type, Callable[[_Reader, Any], None] | None] = {}

    def read(self, root: Any) -> None:
        waiting = [root]  # no recursion: models nest deeper than Python's stack
        while waiting:
            self._waiting: list[Any] = []
            self._one(waiting.pop())
            waiting += reversed(self._waiting)

    def _one(self, value: Any) -> None:
        kind = type(value)
        if kind not in self._ways:
            self._ways[kind] = _way_to_read(kind)
        way = self._ways[kind]
        if way is None:
            self._tell(kind.__name__, repr(value))
            return
        if id(value) in self._seen:
            self._tell("again", self._seen[id(value)])
            return
        self._seen[id(value)] = len(self._seen)
        self.alive.append(value)
        way(self, value)

    def _tell(self, *told: Any) -> None:
        self.digest.update(repr(told).encode())

    def _identity(self, value: Any) -> None:
        self._tell(type(value).__qualname__, 0 if self._by_value else id(value))

    def _identity_only(self, value: Any) -> None:
        self._tell("object", id(value))

    def _tensor(self, value: torch.Tensor) -> None:
        self._identity(value)
        self._tell(tuple(value.shape), value.dtype, value.device, value.layout, value.requires_grad)
        if value.device.type == "meta" or nn.parameter.is_lazy(value):
            return
        if value.layout is torch.strided:
            self._tell(value.stride())
        try:
            if type(value) not in _PLAIN_TENSORS:
                raise TypeError(type(value))
            _add_values(self.digest, value)
        except (RuntimeError, TypeError):  # it may have changed
            self.digest.update(os.urandom(16))
        self._waiting += vars(value).values()

    def _array(self, value: np.ndarray[Any, Any]) -> None:
        self._identity(value)
        self._tell(value.shape, value.dtype.str)
        if value.dtype.hasobject:
            self._waiting += value.ravel().tolist()
        else:
            self.digest.update(np.ascontiguousarray(value).tobytes())

    def _container(self, value: Any) -> None:
        self._tell(type(value).__qualname__, len(value))
        # twice as fast as by steps, and samples may be lists of thousands of numbers
        self._waiting += [one for pair in stored(value).items() for one in pair] if isinstance(value, dict) else value
        self._waiting.append(getattr(value, "__dict__", None))

    def _set(self, value: Any) -> None:
        # the order of a set is chance, so its members are put into the order of their digests
        found = [state_digest(part, by_value=self._by_value) for part in value]
        self._tell(type(value).__qualname__, sorted(one.digest for one in found))
        self.alive += found

    def _script(self, value: torch.jit.ScriptModule) -> None:
        self._identity_only(value)
        self._waiting += [value.training, list(value.named_parameters()), list(value.named_buffers())]

    def _type(self, kind: type) -> None:
        forward = getattr(kind, "forward", None)
        self._tell(kind.__module__, kind.__qualname__, id(kind), id(forward))
        self.alive.append(forward)  # somebody may put another one into the class
        if is_own_class(kind):
            own = [(name, part) for name, part in vars(kind).items() if name[:2] != "__" or name in _CALLED]
            self._named([*own, *enumerate(kind.__bases__)])

    def _function(self, value: types.FunctionType) -> None:
        self._tell("function", id(value.__code__))
        self.alive.append(value.__code__)
        self._named([*parts(value), *(named_globals(value) if is_own_function(value) else ())])

    def _wrapper(self, value: Any) -> None:
        self._tell(type(value).__qualname__)
        self._named(parts(value))

    def _module(self, value: nn.Module) -> None:
        self._identity_only(value)
        self._waiting.append(type(value))
        self._named(attributes(value).items())

    def _object(self, value: Any) -> None:
        self._identity(value)
        self._waiting.append(type(value))
        self._named(attributes(value).items())

    def _named(self, found: Iterable[tuple[Any, Any]]) -> None:
        self._tell([name for name, _ in found])
        self._waiting += [part for _, part in found]


_CALLED = frozenset({"__call__", "__getattr__", "__getitem__", "__torch_function__"})
"""Dunder names that a model's code may run nevertheless."""


def _way_to_read(kind: type) -> Callable[[_Reader, Any], None] | None:
    """Return how values of a type are read; None for those that their repr describes."""
    if issubclass(kind, (*PLAIN, torch.Size)):
        return None
    for known, way in _WAYS:
        if issubclass(kind, known):
            return way
    return _Reader._object if is_own_object(kind) else _Reader._identity_only


_WAYS: tuple[tuple[Any, Callable[[_Reader, Any], None]], ...] = (
    (torch.Tensor, _Reader._tensor),
    (torch.jit.ScriptModule, _Reader._script),
    (nn.Module, _Reader._module),
    (type, _Reader._type),
    (types.FunctionType, _Reader._function),
    ((*WRAPPERS, weakref.ref), _Reader._wrapper),
    (np.ndarray, _Reader._array),
    ((dict, list, tuple, collections.deque), _Reader._container),
    ((set, frozenset), _Reader._set),
)


# The form of a program: a digest that is equal in every process and notebook.


def program_form(program: torch.export.ExportedProgram) -> str:
    """Digest a program's operators, their arguments, and the shapes and types of its inputs and tensors.

    Two models with the same modules and weights may compute different functions, by their code or by a setting such
    as a stride. Then their programs differ.
    """
    digest = hashlib.sha256()
    for row in _rows(program.graph_module):
        digest.update(row.encode(errors="surrogatepass"))
    for spec in (*program.graph_signature.input_specs, *program.graph_signature.output_specs):
        digest.update(repr((str(spec.kind), str(spec.target))).encode(errors="surrogatepass"))
    return digest.hexdigest()[:16]


def _rows(module: torch.nn.Module) -> Iterable[str]:
    numbers: dict[fx.Node, int] = {}
    graph = getattr(module, "graph", None)
    for number, node in enumerate(graph.nodes if graph is not None else ()):
        numbers[node] = number
        args = fx.node.map_aggregate((node.args, dict(node.kwargs)), lambda value: _text(value, numbers))
        value = node.meta.get("val")
        shape = (tuple(map(str, value.shape)), str(value.dtype)) if isinstance(value, torch.Tensor) else ""
        yield repr((node.op, str(node.target) if node.op != "placeholder" else "", args, shape))
    for name, child in module.named_children():  # the sides of conditions
        yield name
        yield from _rows(child)


def _text(value: Any, numbers: dict[fx.Node, int]) -> str:
    return f"%{numbers.get(value)}" if isinstance(value, fx.Node) else f"{type(value).__name__} {value!r}"
