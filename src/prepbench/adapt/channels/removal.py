"""A program without some of its channels: smaller weights, and graph sizes that are adjusted to them."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import fx

from prepbench._torch_compat.operators import argument_names
from prepbench._torch_compat.programs import copied_graph, with_contents
from prepbench.adapt.channels.values import Value, dim_of, only, varying
from prepbench.adapt.channels.walk import ChannelMap, live_nodes
from prepbench.capture.aten.export_program import dynamic_sizes, export_again
from prepbench.errors import PreparationError

Program = torch.export.ExportedProgram
_WHOLE = 2**31


class Removal:
    """The removal of channels from a program.

    Args:
        channels: of the program.
        removed: for each channel whether it is removed; the same for all channels of a class.
    """

    def __init__(self, channels: ChannelMap, removed: np.ndarray) -> None:
        self.channels = channels
        self._removed = torch.from_numpy(removed)

    def kept(self, value: Value) -> dict[int, torch.Tensor]:
        """Return the remaining indices of each dim of a value that loses some."""
        found: dict[int, torch.Tensor] = {}
        for layer in value.layers:
            (dim,) = varying(layer)
            stays = ~self._removed[only(layer, (dim,)).reshape(-1)]
            if not bool(stays.all()):
                found[dim] = found[dim] & stays if dim in found else stays
        return {dim: stays.nonzero().flatten() for dim, stays in found.items()}

    def program(self) -> Program:
        """Return the smaller program, exported again with the same dynamic sizes.

        Raises:
            PreparationError: a dynamic size became static.
        """
        program = self.channels.program
        graph = copied_graph(program.graph)
        by_name = {node.name: node for node in graph.nodes}
        live = live_nodes(program.graph)
        for node in program.graph.nodes:
            if node in live:
                self._edit(node, by_name[node.name])
        graph.eliminate_dead_code()
        state, constants = self.tensors(self._without)
        module = fx.GraphModule(program.graph_module, graph)
        module.meta.update(program.graph_module.meta)
        smaller = with_contents(program, module, state, constants)
        assert program.example_inputs is not None
        inputs, dynamic = program.example_inputs[0], dynamic_sizes(program)
        return export_again(smaller.module(check_guards=False), inputs, dynamic, _not_dynamic)

    def zeroed(self) -> Program:
        """Return the program with zeros in place of the channels: the reference for the smaller program."""
        program = self.channels.program
        return with_contents(program, program.graph_module, *self.tensors(self.with_zeros))

    def tensors(
        self, change: Callable[[torch.Tensor, dict[int, torch.Tensor]], torch.Tensor]
    ) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
        """Return the program's parameters and buffers, and its constants, with changed channels."""
        program, made = self.channels.program, {}
        skipped = _variances(program) if change == self.with_zeros else set()
        for node, value in self.channels.values.items():
            name = self.channels.parameters.get(node.name)
            if name is None or node.op != "placeholder" or not isinstance(value, Value):
                continue
            kept = self.kept(value)
            table = program.state_dict if name in program.state_dict else program.constants
            tensor = table[name]
            if kept and isinstance(tensor, torch.Tensor) and node.name not in skipped:
                changed = change(tensor.detach(), kept)
                is_parameter = isinstance(tensor, torch.nn.Parameter)
                made[name] = torch.nn.Parameter(changed, tensor.requires_grad) if is_parameter else changed
        tables = (program.state_dict, program.constants)
        state, constants = ({key: made.get(key, value) for key, value in table.items()} for table in tables)
        return state, constants

    @staticmethod
    def _without(tensor: torch.Tensor, kept: dict[int, torch.Tensor]) -> torch.Tensor:
        for dim, indices in kept.items():
            tensor = tensor.index_select(dim, indices.to(tensor.device))
        return tensor.contiguous()

    @staticmethod
    def with_zeros(tensor: torch.Tensor, kept: dict[int, torch.Tensor]) -> torch.Tensor:
        tensor = tensor.clone()
        for dim, indices in kept.items():
            gone = torch.ones(tensor.shape[dim], dtype=torch.bool)
            gone[indices] = False
            tensor.index_fill_(dim, gone.nonzero().flatten().to(tensor.device), 0)
        return tensor

    def _edit(self, node: fx.Node, copy: fx.Node) -> None:
        name = str(node.target).removeprefix("aten.").partition(".")[0]
        change = _EDITS.get(name)
        if node.op == "call_function" and change is not None:
            change(_Edit(self, node, copy))


class _Edit:
    """A node of the copied graph, with arguments that may have to change."""

    def __init__(self, removal: Removal, node: fx.Node, copy: fx.Node) -> None:
        self.removal, self.node, self.copy = removal, node, copy
        self.names = argument_names(node.target)

    def value(self, argument: Any) -> Value:
        found = self.removal.channels.values[argument]
        assert isinstance(found, Value)
        return found

    def results(self) -> list[Value]:
        found = self.removal.channels.values[self.node]
        return found if isinstance(found, list) else [found]

    def given(self, name: str, default: Any = None) -> Any:
        """Return an argument of the original node."""
        index = self.names.index(name)
        return self.node.args[index] if index < len(self.node.args) else self.node.kwargs.get(name, default)

    def set(self, name: str, value: Any) -> None:
        """Set an argument of the copy."""
        index = self.names.index(name)
        if index < len(self.copy.args):
            self.copy.update_arg(index, value)
        else:
            self.copy.update_kwarg(name, value)

    def kept(self, value: Value) -> dict[int, torch.Tensor]:
        return self.removal.kept(value)

    def source(self) -> Value:
        """Return the first operand."""
        return self.value(self.node.args[0])

    def count(self, value: Value, dim: int) -> int:
        """Return how many indices of a dim remain."""
        kept = self.kept(value)
        return len(kept[dim]) if dim in kept else value.shape[dim]


def _sizes(name: str) -> Callable[[_Edit], None]:
    def change(edit: _Edit) -> None:
        index = edit.names.index(name)
        given = list(edit.copy.args[index])  # type: ignore[arg-type]
        (result,) = edit.results()
        first = len(result.shape) - len(given)
        if "dim" in edit.names:  # a dim that becomes several
            first = dim_of(int(edit.given("dim")), len(edit.source().shape))
        for dim, kept in edit.kept(result).items():
            if 0 <= dim - first < len(given):
                given[dim - first] = _scaled(edit, given[dim - first], len(kept), result.shape[dim])
        edit.copy.update_arg(index, given)

    return change


def _scaled(edit: _Edit, size: Any, kept: int, whole: int) -> Any:
    """Return a size of which ``kept`` of ``whole`` remain."""
    if isinstance(size, int):
        return size if size < 0 else kept
    common = math.gcd(kept, whole)
    with edit.copy.graph.inserting_before(edit.copy):
        graph = edit.copy.graph
        product = graph.call_function(operator.mul, (size, kept // common))
        return graph.call_function(operator.floordiv, (product, whole // common))


def _cut(edit: _Edit) -> None:
    source = edit.source()
    dim = dim_of(int(edit.given("dim", 0)), len(source.shape))
    kept, size = edit.kept(source).get(dim), source.shape[dim]
    if kept is None:
        return
    for name in ("start", "end"):
        place = edit.given(name)
        if isinstance(place, int) and place < _WHOLE:
            edit.set(name, _before(kept, place + size if place < 0 else place))


def _narrowed(edit: _Edit) -> None:
    source = edit.source()
    dim = dim_of(int(edit.given("dim")), len(source.shape))
    kept = edit.kept(source).get(dim)
    if kept is not None:
        first = dim_of(int(edit.given("start")), source.shape[dim])
        start, end = _before(kept, first), _before(kept, first + int(edit.given("length")))
        edit.set("start", start)
        edit.set("length", end - start)


def _selected(edit: _Edit) -> None:
    source = edit.source()
    dim = dim_of(int(edit.given("dim")), len(source.shape))
    kept = edit.kept(source).get(dim)
    if kept is not None:
        edit.set("index", _before(kept, dim_of(int(edit.given("index")), source.shape[dim])))


def _before(kept: torch.Tensor, place: int) -> int:
    return int((kept < place).sum())


def _split(edit: _Edit) -> None:
    source = edit.source()
    dim = dim_of(int(edit.given("dim", 0)), len(source.shape))
    if dim in edit.kept(source):
        sizes = [edit.count(result, dim) for result in edit.results()]
        edit.copy.target = torch.ops.aten.split_with_sizes.default
        edit.copy.args = (edit.copy.args[0], sizes, dim)
        edit.copy.kwargs = {}


def _groups(edit: _Edit) -> None:
    groups = int(edit.given("groups", 1))
    if groups == 1:
        return
    weight = edit.value(edit.given("weight"))
    rank = len(weight.shape)
    (result,) = edit.results()
    is_transposed = "transpose" in str(edit.node.target)
    value = result if is_transposed else edit.source()
    channels = edit.count(value, len(value.shape) - rank + 1)
    edit.set("groups", channels // edit.count(weight, 1))


def _norm_groups(edit: _Edit) -> None:
    source = edit.source()
    inside = source.shape[1] // int(edit.given("num_groups"))
    edit.set("num_groups", edit.count(source, 1) // inside)


_EDITS: dict[str, Callable[[_Edit], None]] = {
    **dict.fromkeys(("view", "expand", "_unsafe_view", "view_copy"), _sizes("size")),
    "reshape": _sizes("shape"),
    "unflatten": _sizes("sizes"),
    "slice": _cut,
    "narrow": _narrowed,
    "select": _selected,
    **dict.fromkeys(("split", "split_with_sizes", "chunk", "unsafe_split", "unsafe_chunk"), _split),
    **dict.fromkeys([f"conv{n}d" for n in (1, 2, 3)] + [f"conv_transpose{n}d" for n in (1, 2, 3)], _groups),
    "group_norm": _norm_groups,
}


def _variances(program: Program) -> set[str]:
    """Return the placeholders of running variances, which must not become zero: they are divisors, and
    the channels that they scale are zero anyway.
    """
    found = set()
    for node in program.graph.nodes:
        if node.op == "call_function" and "_norm" in str(node.target) and len(node.args) > 4:
            found |= {each.name for each in node.args[3:5] if isinstance(each, fx.Node)}
    return found


def _not_dynamic(name: str) -> PreparationError:
    return PreparationError(
        f"Removing channels fixed the dynamic sizes of the input {name!r}. Make these axes static (DynamicAxes.set), "
        "or leave the layers that read it as they are, with layer_pruning_settings."
    )
