"""One call of a dynamo graph, and the runner of such calls once it is compiled."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from torch import fx, nn

from prepbench._torch_compat.dynamo import OptimizedCall
from prepbench.dynamo.session import Place, Session, is_training
from prepbench.dynamo.traced_graph import TracedGraph, is_tensor
from prepbench.errors import SettingsError


@dataclass(frozen=True)
class InputRoles:
    """Positions of a graph's inputs: ``given`` by each call, and the model's ``state``, for which it compiles anew."""

    given: tuple[int, ...] = ()
    state: tuple[int, ...] = ()


@dataclass(frozen=True)
class GraphCall:
    """A call of a graph, inside the call of the model that it is part of.

    Attributes:
        graph: the graph.
        values: its inputs.
        model_call: the call of the model.
        root: the model.
        session: the state shared with the other graphs of the model.
        place: the code that dynamo made the graph of.
        fixed_sizes: whether the graph is compiled for each size on its own.
    """

    graph: TracedGraph
    values: Sequence[Any]
    model_call: OptimizedCall
    root: nn.Module
    session: Session
    place: Place | None
    fixed_sizes: bool

    def roles(self, is_given: Collection[int]) -> InputRoles:
        """Return the roles of the inputs; ``is_given`` holds the ``id`` of each tensor of the call.

        Buffers that a model in training mode updates itself are in neither group.
        """
        tensors = [(place, self.values[place]) for place in self.graph.tensor_inputs]
        counting = is_training(self.root)
        return InputRoles(
            tuple(place for place, value in tensors if id(value) in is_given),
            tuple(
                place
                for place, value in tensors
                if id(value) not in is_given and (not counting or isinstance(value, nn.Parameter))
            ),
        )


def variant(values: Sequence[Any], roles: InputRoles, numbers: Sequence[int]) -> Any:
    """Return the key of a compiled variant beyond its given inputs: dynamo shares one graph between the weights of
    equal layers.

    ``numbers`` are the positions of the inputs that become constants.
    """
    return tuple(id(values[place]) for place in roles.state), tuple(_number(values[place]) for place in numbers)


def _number(value: Any) -> Any:
    return value.item() if is_tensor(value) else value


@dataclass(frozen=True)
class GraphRunner:
    """The compiled form of a graph.

    Attributes:
        call: from the graph's inputs to output leaves.
        leaves: the number of leaves of the result.
        outputs: for each output of the graph its place among the leaves; None for a number.
        numbers: computes the outputs that are numbers, if there are any.
        roles: the roles of its inputs.
        fixed_sizes: whether it takes the sizes of one call only.
    """

    call: Callable[[Sequence[Any]], Sequence[Any]]
    leaves: int
    outputs: tuple[int | None, ...]
    numbers: fx.GraphModule | None
    roles: InputRoles = InputRoles()
    fixed_sizes: bool = False

    def __call__(self, values: Sequence[Any]) -> tuple[Any, ...]:
        leaves = self.call(values)
        if len(leaves) != self.leaves:
            raise SettingsError(
                f"The compiled model returns {len(leaves)} values where the model returns {self.leaves}. Return "
                "tensors, tuples or dicts from the model."
            )
        numbers = iter(self.numbers(*values) if self.numbers is not None else ())
        return tuple(next(numbers) if place is None else leaves[place] for place in self.outputs)
