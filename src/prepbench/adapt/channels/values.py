"""The channels that the elements of a tensor belong to.

A value has layers of labels: each layer assigns every element the number of one channel, and an element is removed
with any of its channels. A weight has a layer for its rows and one for its columns; the result of a model's layer
has one. Layers have the shape of the value, with stride 0 along dims in which they do not vary, so that these take
no memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import fx

from prepbench._torch_compat.operators import schema_of


@dataclass(frozen=True)
class Value:
    """A tensor of the graph, at the sizes of the traced sample.

    Attributes:
        shape: its sizes.
        layers: labels of its elements.
        is_weight: whether only parameters and constants decide it.
        why: why it has no channels that could be removed, where it had some.
    """

    shape: tuple[int, ...]
    layers: tuple[torch.Tensor, ...] = ()
    is_weight: bool = False
    why: str = ""


def weight_value(classes: ChannelClasses, shape: Sequence[int]) -> Value:
    """Return the value of a parameter: the indices of each dim are channels of their own."""
    sizes = tuple(shape)
    layers = [along(classes.new(size), dim, sizes) for dim, size in enumerate(sizes) if size > 1]
    return Value(sizes, tuple(layers), True)


def along(labels: torch.Tensor, dim: int, shape: Sequence[int]) -> torch.Tensor:
    """Return a layer that has these labels along one dim."""
    sizes = [1] * len(shape)
    sizes[dim] = len(labels)
    return labels.reshape(sizes).expand(tuple(shape))


def varying(layer: torch.Tensor) -> tuple[int, ...]:
    """Return the dims along which a layer has different labels."""
    return tuple(d for d, (size, step) in enumerate(zip(layer.shape, layer.stride(), strict=True)) if step and size > 1)


def compact(layer: torch.Tensor) -> torch.Tensor:
    """Return the same layer with stride 0 along each dim in which it does not vary."""
    small = layer[tuple(slice(0, 1) if step == 0 else slice(None) for step in layer.stride())]
    for dim, size in enumerate(small.shape):
        if size > 1 and bool((small == small.narrow(dim, 0, 1)).all()):
            small = small.narrow(dim, 0, 1)
    # a dim of size 1 may have any stride, and expand gives it 0 only where it grows
    return small.expand(layer.shape)


def only(layer: torch.Tensor, dims: Sequence[int]) -> torch.Tensor:
    """Return the labels along some dims, at index 0 of all others, which become size 1."""
    return layer[tuple(slice(None) if dim in dims else slice(0, 1) for dim in range(layer.ndim))]


def aligned(value: Value, shape: Sequence[int]) -> Value:
    """Return the value with leading dims of size 1, as broadcasting to ``shape`` adds them."""
    more = len(shape) - len(value.shape)
    sizes = (1,) * more + value.shape
    return Value(
        sizes, tuple(layer[(None,) * more] if more else layer for layer in value.layers), value.is_weight, value.why
    )


class Joiner:
    """The effects of operators on channels.

    Args:
        classes: of all channels.
        where: the operator, its module and why it ties channels, for messages.
    """

    def __init__(self, classes: ChannelClasses, where: str) -> None:
        self.classes, self.where = classes, where

    def tie(self, layer: torch.Tensor, dim: int, why: str, reason: str = "") -> torch.Tensor:
        """Make the channels along a dim one class; return the layer, which no longer varies along it."""
        if dim in varying(layer):
            small = only(layer, varying(layer))
            self.classes.join(small.narrow(dim, 0, 1).expand_as(small), small, reason or f"{self.where} {why}")
        return self.settled(layer)

    def settled(self, layer: torch.Tensor) -> torch.Tensor:
        """Return the layer by classes. A layer that varies along no dim would remove the whole value, so it is kept."""
        found = compact(self.classes.of(layer))
        if not varying(found) and found.numel():
            self.classes.keep(found.reshape(-1)[:1], f"{self.where} would be left with nothing")
        return found

    def joined(self, operands: Sequence[Value], shape: Sequence[int], why: str) -> Value:
        """Return the value of operands that are broadcast to one shape and combined element by element."""
        values = [aligned(value, shape) for value in operands]
        for value in values:
            for layer in value.layers:
                for other in values:
                    if other is not value:
                        self._meet(layer, other, tuple(shape), why)
        layers = [layer.expand(tuple(shape)) for value in values for layer in value.layers]
        return Value(tuple(shape), self.distinct(layers), all(value.is_weight for value in operands))

    def _meet(self, layer: torch.Tensor, other: Value, shape: tuple[int, ...], why: str) -> None:
        dims = [dim for dim in varying(layer) if other.shape[dim] == shape[dim]]
        met = [each for each in other.layers if not set(varying(each)).isdisjoint(dims)]
        covered = {dim for each in met for dim in varying(each)}
        for dim in dims:
            if dim not in covered:
                self.tie(layer.expand(shape), dim, f"{why} with something that has none to remove there", other.why)
        for each in met:
            both = set(varying(layer)) | set(varying(each))
            left, right = (only(labels.expand(shape), sorted(both)) for labels in (layer, each))
            self.classes.join(left, right)

    def distinct(self, layers: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """Return the distinct layers by classes, without those that do not vary."""
        found: list[torch.Tensor] = []
        for layer in map(self.settled, layers):
            if varying(layer) and not any(same(layer, each) for each in found):
                found.append(layer)
        return tuple(found)

    def keep(self, value: Value, why: str) -> None:
        """Mark all channels of a value as not removable."""
        for layer in value.layers:
            self.classes.keep(only(layer, varying(layer)), f"{self.where} {why}")

    def contracted(
        self, operands: Sequence[tuple[str, Value]], result: str, shape: Sequence[int], why: str = "sums over channels"
    ) -> Value:
        """Return the value of a sum of products, written as for ``torch.einsum``.

        The columns of a weight join the channels that they multiply: removing both equals zeros in these columns. A
        sum over channels without a weight has no such equivalent.

        Args:
            operands: the letters of the dims of each operand, and its value.
            result: the letters of the result.
            shape: its sizes.
            why: the reason for tied channels.
        """
        left = []
        for letters, value in operands:
            others = [(names, other) for names, other in operands if other is not value or names != letters]
            kept = [self._summed(layer, letters, value, others, result, why) for layer in value.layers]
            left.append(self._in_result(letters, value, [each for each in kept if each is not None], result, shape))
        return self.joined(left, shape, why)

    def _summed(
        self,
        layer: torch.Tensor,
        letters: str,
        value: Value,
        others: Sequence[tuple[str, Value]],
        result: str,
        why: str,
    ) -> torch.Tensor | None:
        """Handle the summed dims; return the layer without them, or None where nothing is left."""
        for letter in [letters[dim] for dim in varying(layer) if letters[dim] not in result]:
            dim = letters.index(letter)
            if dim not in varying(layer):
                continue
            met = [
                (other, names.index(letter), each)
                for names, other in others
                if letter in names
                for each in other.layers
                if varying(each) == (names.index(letter),)
            ]
            has_weight = value.is_weight or any(other.is_weight for other, _, _ in met)
            if met and has_weight and varying(layer) == (dim,):
                for _, place, each in met:
                    self.classes.join(only(layer, (dim,)).reshape(-1), only(each, (place,)).reshape(-1))
                return None
            layer = self.tie(layer, dim, why)
        return layer if varying(layer) else None

    @staticmethod
    def _in_result(
        letters: str, value: Value, layers: Sequence[torch.Tensor], result: str, shape: Sequence[int]
    ) -> Value:
        """Return a value with its dims where the result has them, and size 1 elsewhere."""
        dims = [letters.find(letter) for letter in result]
        sizes = tuple(1 if dim < 0 else value.shape[dim] for dim in dims)
        moved = []
        for layer in layers:
            small = only(layer, [dim for dim in range(layer.ndim) if letters[dim] in result])
            order = [dim for dim in dims if dim >= 0] + [d for d in range(layer.ndim) if letters[d] not in result]
            moved.append(small.permute(order).reshape([1 if d < 0 else small.shape[d] for d in dims]).expand(sizes))
        return Value(sizes, tuple(compact(layer) for layer in moved), value.is_weight)


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether two layers of one shape are equal."""
    if varying(one) != varying(other):
        return False
    dims = varying(one)
    return torch.equal(only(one, dims), only(other, dims))


# Classes of channels that can only be removed together, and the channels that cannot be removed.


class ChannelClasses:
    """A union-find of channels by number; those of one class are removed together or not at all.

    Attributes:
        kept: why a class cannot be removed, by its first channel.
        tied: where channels of a class met that are one channel for an operator, such as all that a norm reads.
        joins: how often two classes became one.
    """

    def __init__(self) -> None:
        self._parents = np.zeros(0, dtype=np.int64)
        self.kept: dict[int, str] = {}
        self.tied: dict[int, str] = {}
        self.joins = 0

    def __len__(self) -> int:
        return len(self._parents)

    def new(self, count: int) -> torch.Tensor:
        """Return the numbers of ``count`` new channels."""
        first = len(self._parents)
        self._parents = np.concatenate([self._parents, np.arange(first, first + count)])
        return torch.arange(first, first + count)

    def of(self, labels: torch.Tensor) -> torch.Tensor:
        """Return the class of each channel, in the same shape; dims along which nothing varies keep stride 0."""
        small = labels[tuple(slice(0, 1) if stride == 0 else slice(None) for stride in labels.stride())]
        return torch.from_numpy(self._roots(small.numpy())).expand(labels.shape)

    def _roots(self, numbers: np.ndarray) -> np.ndarray:
        roots: np.ndarray = self._parents[numbers]
        while True:
            further = self._parents[roots]
            if np.array_equal(further, roots):
                return roots
            roots = further

    def join(self, one: torch.Tensor, other: torch.Tensor, tied: str = "") -> None:
        """Put these channels into one class, pair by pair; ``tied`` says where and why, if an operator does."""
        pairs = np.stack([self._roots(one.numpy().reshape(-1)), self._roots(other.numpy().reshape(-1))], 1)
        pairs = np.unique(pairs[pairs[:, 0] != pairs[:, 1]], axis=0)
        for left, right in pairs.tolist():
            first, second = sorted((self._root(left), self._root(right)))
            if first != second:
                self._parents[second] = first
                self.joins += 1
                for table in (self.kept, self.tied):
                    if second in table:
                        table.setdefault(first, table.pop(second))
            if tied:
                self.tied.setdefault(first, tied)

    def _root(self, number: int) -> int:
        while (parent := int(self._parents[number])) != number:
            self._parents[number] = self._parents[parent]
            number = parent
        return number

    def keep(self, labels: torch.Tensor, why: str) -> None:
        """Mark these channels as not removable."""
        for root in np.unique(self._roots(labels.numpy().reshape(-1))).tolist():
            self.kept.setdefault(root, self.tied.get(root, why))

    def why_kept(self, label: int) -> str:
        """Return why a channel cannot be removed; empty if it can."""
        return self.kept.get(self._root(label), "")


# One operator call in a graph, and the known channels of its operands.


class UnknownSizeError(Exception):
    """A size depends on data, so that no labels can be assigned."""


class Call(Joiner):
    """A node that calls an operator.

    Attributes:
        name: of the operator, e.g. ``"conv2d"``.
        given: its arguments by name, with defaults.
    """

    def __init__(self, node: fx.Node, values: Mapping[fx.Node, Any], classes: ChannelClasses) -> None:
        super().__init__(classes, place_of(node))
        self.node, self._values = node, values
        schema = schema_of(node.target)
        self.name = schema.name.partition("::")[2]
        self.given: dict[str, Any] = {}
        for index, argument in enumerate(schema.arguments):
            default = argument.default_value if argument.has_default_value() else None
            by_place = node.args[index] if index < len(node.args) else default
            self.given[argument.name] = node.kwargs.get(argument.name, by_place)

    def value(self, name: str) -> Value | None:
        """Return the value of a tensor argument; None for a missing argument or a number."""
        return self.value_of(self.given.get(name))

    def value_of(self, argument: Any) -> Value | None:
        """Return the value of a node; None if it is no tensor."""
        found = self._values.get(argument) if isinstance(argument, fx.Node) else None
        return found if isinstance(found, Value) else None

    def needed(self, name: str) -> Value:
        """Return the value of a required tensor argument."""
        value = self.value(name)
        assert value is not None, name
        return value

    def listed(self, name: str) -> list[Value]:
        """Return the values of an argument that is a list of tensors."""
        return [value for each in self.given[name] if (value := self.value_of(each)) is not None]

    def operands(self) -> list[Value]:
        """Return all tensor operands."""
        found: list[Value] = []
        for node in self.node.all_input_nodes:
            each = self._values.get(node)
            found += [value for value in (each if isinstance(each, list) else [each]) if isinstance(value, Value)]
        return found

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """Return the sizes of its results."""
        made = self.node.meta.get("val")
        return [sizes_of(each) for each in (made if isinstance(made, list | tuple) else [made])]

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the sizes of its only or first result."""
        return self.shapes[0]


def sizes_of(value: Any) -> tuple[int, ...]:
    """Return the sizes of a traced tensor at the traced sample."""
    return tuple(number_of(size) for size in value.shape) if isinstance(value, torch.Tensor) else ()


def number_of(size: Any) -> int:
    """Return a size as a number.

    Raises:
        UnknownSizeError: only a run would tell.
    """
    if isinstance(size, fx.Node):
        size = size.meta.get("val")
    if isinstance(size, torch.SymInt):
        hint = size.node.hint if size.node.has_hint() else None
        if hint is None:
            raise UnknownSizeError
        return int(hint)
    return int(size)


def dim_of(dim: int, rank: int) -> int:
    """Return a dim counted from the start; it may be given from the end."""
    return dim + rank if dim < 0 else dim


def dims_of(dims: int | Sequence[int] | None, rank: int) -> list[int]:
    """Return one dim, several, or all, as a list."""
    if dims is None or (not isinstance(dims, int) and len(dims) == 0):
        return list(range(rank))
    return [dim_of(dim, rank) for dim in ([dims] if isinstance(dims, int) else dims)]


# Name the place of an operator for messages.


def module_of(node: fx.Node) -> str:
    """Return the FQN of the module that calls an operator; empty for the model itself."""
    stack = [str(path) for path, _ in (node.meta.get("nn_module_stack") or {}).values()]
    return stack[-1] if stack and not stack[-1].startswith("_empty_nn") else ""


def place_of(node: fx.Node) -> str:
    """Return an operator's name and place for messages: ``add in layer1.0``."""
    operator = str(node.target).removesuffix(".default")
    name = operator.partition(".")[2].partition(".")[0] or operator  # behind the name of its library
    return f"{name} in {module_of(node) or 'the model'}"
