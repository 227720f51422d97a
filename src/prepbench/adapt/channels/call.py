"""One operator call in a graph, and the known channels of its operands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx

from prepbench._torch_compat.operators import schema_of
from prepbench.adapt.channels.values import ChannelClasses, Joiner, Value


class UnknownSizeError(Exception):
    """A size depends on data, so that no labels can be assigned."""


class Call(Joiner):
    """A node that calls an operator.

    Args:
        node: the node.
        values: the values of earlier nodes.
        classes: of all channels.

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
