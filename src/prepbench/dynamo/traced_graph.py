"""A graph of dynamo, and the roles of its inputs and outputs."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn
from torch.utils.weak import TensorWeakRef

from prepbench._torch_compat.dynamo import GraphInput, graph_inputs
from prepbench._torch_compat.tensors import version_of
from prepbench.running.unchanged import unchanged


@dataclass(frozen=True)
class TracedGraph:
    """A graph from dynamo: the kind of each input, and for each output whether it is a tensor, else a number."""

    module: fx.GraphModule
    inputs: tuple[GraphInput, ...]
    tensor_outputs: tuple[bool, ...]

    @classmethod
    def of(cls, module: fx.GraphModule) -> TracedGraph:
        """Describe a graph from dynamo."""
        outputs = (isinstance(node, fx.Node) and is_tensor(node.meta.get("example_value")) for node in _outputs(module))
        return cls(module, graph_inputs(module), tuple(outputs))

    @property
    def tensor_inputs(self) -> list[int]:
        """The positions of the tensor inputs."""
        return [place for place, each in enumerate(self.inputs) if each.is_tensor]

    @property
    def numbers(self) -> list[int]:
        """The positions of the numbers that are not tensor sizes: they become constants."""
        return [place for place, each in enumerate(self.inputs) if not each.is_tensor and each.size_of is None]

    @property
    def symbolic_dims(self) -> int:
        """The number of dynamic sizes of its inputs."""
        return sum(len(each.symbolic) for each in self.inputs)

    def tensors(self, outputs: Iterable[Any]) -> list[torch.Tensor]:
        """Return the tensors among its outputs."""
        return [value for value, wanted in zip(outputs, self.tensor_outputs, strict=True) if wanted]

    def run(self, values: Sequence[Any], root: nn.Module) -> list[torch.Tensor]:
        """Return the graph's tensors. The inputs and the model ``root`` are not changed, for other threads, too."""
        weights = {id(parameter) for parameter in root.parameters()}
        own = [value.clone() if is_tensor(value) and id(value) not in weights else value for value in values]
        with unchanged(root, seed=0), torch.no_grad():
            return self.tensors(self.module(*own))

    def arguments(self, values: Mapping[str, Any]) -> list[Any]:
        """Return the arguments of a call: values by input names, and sizes taken from the tensors."""
        arguments: list[Any] = [values.get(each.name) for each in self.inputs]
        for place, each in enumerate(self.inputs):
            if each.size_of is not None:
                arguments[place] = arguments[each.size_of[0]].shape[each.size_of[1]]
        return arguments

    def by_name(self, values: Sequence[Any]) -> dict[str, Any]:
        """Return the inputs of a call by name."""
        return {each.name: value for each, value in zip(self.inputs, values, strict=True)}

    def places(self, tensors: Iterable[int]) -> tuple[int | None, ...]:
        """Return for each output the entry of ``tensors``, which has one for each tensor; None for a number."""
        order = iter(tensors)
        return tuple(next(order) if wanted else None for wanted in self.tensor_outputs)

    def numbers_only(self) -> fx.GraphModule | None:
        """Return the part that computes the number outputs; None if there are none."""
        if all(self.tensor_outputs):
            return None
        part = copy.copy(self.module)
        part.graph = copy.deepcopy(self.module.graph)
        (node,) = part.graph.find_nodes(op="output")
        values = zip(node.args[0], self.tensor_outputs, strict=True)
        node.args = (tuple(value for value, is_tensor_output in values if not is_tensor_output),)
        part.graph.eliminate_dead_code()
        part.recompile()
        return part


def _outputs(module: fx.GraphModule) -> Sequence[Any]:
    (node,) = module.graph.find_nodes(op="output")
    found: Sequence[Any] = node.args[0]
    return found


# Parameters and buffers of a model, and whether they were written to.


def named_state(root: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield parameters and buffers by FQN; a tied one under each of its names."""
    yield from root.named_parameters(remove_duplicate=False)
    yield from root.named_buffers(remove_duplicate=False)


def state_tensors(root: nn.Module) -> list[torch.Tensor]:
    """Return parameters, buffers, and plain tensor attributes of modules."""
    plain = [value for module in root.modules() for value in vars(module).values() if is_tensor(value)]
    return [*(tensor for _, tensor in named_state(root)), *plain]


class TensorVersions:
    """Records tensors at their current version, by weak reference."""

    def __init__(self) -> None:
        self._versions: dict[int, tuple[TensorWeakRef, int]] = {}

    def remember(self, tensors: Iterable[torch.Tensor]) -> None:
        """Record these tensors as well, or again."""
        alive = {key: known for key, known in self._versions.items() if known[0]() is not None}
        self._versions = {**alive, **{id(tensor): (TensorWeakRef(tensor), version_of(tensor)) for tensor in tensors}}

    def __contains__(self, tensor: torch.Tensor) -> bool:
        """Return whether this very tensor is recorded, and unchanged since."""
        reference, version = self._versions.get(id(tensor), (None, 0))
        return reference is not None and reference() is tensor and version == version_of(tensor)

    def __bool__(self) -> bool:
        return bool(self._versions)


def is_tensor(value: Any) -> bool:
    """Return whether ``value`` is a tensor."""
    return isinstance(value, torch.Tensor)


def are_identical(one: Sequence[Any], other: Sequence[Any]) -> bool:
    """Return whether the tensors of two lists are equal, with NaN at the same places; other values are not compared."""
    return len(one) == len(other) and all(
        (a.shape == b.shape and a.dtype == b.dtype and torch.allclose(a, b, rtol=0, atol=0, equal_nan=True))
        if is_tensor(a) and is_tensor(b)
        else is_tensor(a) == is_tensor(b)
        for a, b in zip(one, other, strict=True)
    )
