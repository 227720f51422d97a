"""The outcome for each parameter, buffer and constant of a model, so that the report omits no tensor."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import fx, nn

from prepbench.document.model import Failure
from prepbench.quantize.layer_nodes import LOOKUPS, parameter_of, sources_of
from prepbench.quantize.plan import Plan
from prepbench.quantize.report import BY_RULE, FLOAT, NOT_REACHED, QUANTIZED, LayerReport, TensorReport
from prepbench.quantize.statistics import written_nodes
from prepbench.settings import ExplainedLayer, is_within

aten = torch.ops.aten

_SHOWN = 3
# operators that only pass a tensor on, so that what reads it is said of its readers
_PASS_ON = frozenset([
    aten.to.dtype, aten.to.dtype_layout, aten._to_copy.default, aten.numpy_T.default, aten.t.default,
    aten.transpose.int, aten.permute.default, aten.unsqueeze.default, aten.squeeze.dim, aten.view.default,
    aten.reshape.default, aten.expand.default, aten.select.int, aten.slice.Tensor, aten.alias.default,
    aten.detach.default, aten.detach_.default, aten.contiguous.default, aten.clone.default,
    aten.lift_fresh_copy.default,
])  # fmt: skip


@dataclass(frozen=True)
class Account:
    """The decisions for layers, and from them the outcome for each tensor.

    Attributes:
        program: the program in float.
        model: whose tensors are accounted for.
        leaves: leaf modules and lines.
        explained: the decision for each layer; None for a compile in float.
        layers: the report of each layer.
        plan: the weights of the layers that are quantized.
    """

    program: torch.export.ExportedProgram
    model: nn.Module
    leaves: Sequence[Failure] = ()
    explained: Sequence[ExplainedLayer] | None = None
    layers: Sequence[LayerReport] = ()
    plan: Plan = field(default_factory=Plan)

    def rows(self) -> tuple[TensorReport, ...]:
        """Return a row for each parameter and buffer of the model, and for each constant of the program."""
        return tuple(map(self._row, self._tensors()))

    @functools.cached_property
    def _quantized(self) -> dict[str, dict[str, LayerReport]]:
        """The quantized layers, by the names of the tensors that their weights are computed from."""
        found: dict[str, dict[str, LayerReport]] = {}
        for fqn, sources in _weights(self.plan):
            # a layer with adapters holds the original's as its base, and is reported under the original's name
            row = self._rows.get(fqn) or self._rows.get(fqn.removesuffix(".base_layer"))
            for name in sources:
                if row is not None and row.quantized:
                    found.setdefault(name, {})[fqn] = row
        return found

    @functools.cached_property
    def _joined(self) -> frozenset[str]:
        """The names of tensors that form a weight only together with others."""
        groups = (sources for _, sources in _weights(self.plan) if len(sources) > 1)
        return frozenset(itertools.chain.from_iterable(groups))

    @functools.cached_property
    def _rows(self) -> dict[str, LayerReport]:
        return {row.fqn: row for row in self.layers}

    @functools.cached_property
    def _rules(self) -> dict[str, str]:
        """The rules that keep layers in float."""
        return {row.fqn: row.rule for row in self.explained or () if row.settings is None}

    @functools.cached_property
    def _places(self) -> dict[str, fx.Node]:
        """The graph's placeholders of tensors, by the tensors' names in the model."""
        signature = self.program.graph_signature
        inputs = {
            **signature.inputs_to_parameters,
            **signature.inputs_to_buffers,
            **signature.inputs_to_lifted_tensor_constants,
        }
        nodes = self.program.graph.find_nodes(op="placeholder")
        return {inputs[node.name]: node for node in nodes if node.name in inputs}

    @functools.cached_property
    def _written(self) -> set[str]:
        """The names of the tensors that the graph writes to."""
        written = set(written_nodes(self.program.graph))
        return {name for name, node in self._places.items() if node in written}.union(
            self.program.graph_signature.buffers_to_mutate.values()
        )

    def _tensors(self) -> Iterator[_Tensor]:
        """Yield each tensor once; tied ones with all their names."""
        found: dict[int, _Tensor] = {}
        named = (
            ("parameter", self.model.named_parameters(remove_duplicate=False)),
            ("buffer", self.model.named_buffers(remove_duplicate=False)),
            ("constant", self._constants()),
        )
        for kind, pairs in named:
            for name, value in pairs:
                known = found.setdefault(id(value), _Tensor(value, kind, []))
                known.names.append(name)
        yield from found.values()

    def _constants(self) -> Iterator[tuple[str, torch.Tensor]]:
        buffers = set(self.program.graph_signature.inputs_to_buffers.values())
        for name, value in self.program.constants.items():
            if isinstance(value, torch.Tensor) and name not in buffers:
                yield name, value

    def _row(self, tensor: _Tensor) -> TensorReport:
        value, names = tensor.value, tensor.names
        size = value.numel() * value.element_size()
        layers = next((self._quantized[name] for name in names if name in self._quantized), None)
        if layers is not None:
            layer = next(iter(layers.values()))
            outcome, fqn, bits = QUANTIZED, layer.fqn, layer.weights_bits
            reason = self._how_stored(names[0], list(layers.values()))
        else:
            outcome, reason = self._why_float(tensor)
            fqn, bits = self._layer_of(names) or "", 8 * value.element_size()
        further = tuple(names[1:])
        return TensorReport(names[0], tensor.kind, fqn, value.numel(), size, bits, outcome, reason, further)

    def _how_stored(self, name: str, layers: Sequence[LayerReport]) -> str:
        if name in self._joined:
            return "computed with others to a weight"
        if len({(row.weights_bits, row.block_size) for row in layers}) > 1:
            return f"stored apart for {' and '.join(f'{row.fqn} ({row.weights_bits} bits)' for row in layers)}"
        return ""

    def _layer_of(self, names: Iterable[str]) -> str | None:
        """Return the layer whose row decides the outcome of a tensor of these names."""
        for name in names:
            for candidate in (name, name.rpartition(".")[0], name.partition(".parametrizations.")[0]):
                if candidate in self._rows:
                    return candidate
        return None

    def _why_float(self, tensor: _Tensor) -> tuple[str, str]:
        readers = [user for name in tensor.names if name in self._places for user in _readers_of(self._places[name])]
        if not readers:
            return NOT_REACHED, self._why_not_reached(tensor.names)
        if not tensor.value.is_floating_point():
            return FLOAT, f"holds {str(tensor.value.dtype).removeprefix('torch.')}, which is kept as it is"
        if self.explained is None:
            return FLOAT, "compiled in float"
        if not set(tensor.names).isdisjoint(self._written):
            return FLOAT, "the graph writes to it"
        if tensor.value.ndim < 2:
            return FLOAT, "no matrix: vectors and numbers, such as biases, are kept in float"
        fqn = self._layer_of(tensor.names)
        if fqn in self._rules:
            return BY_RULE, f"skipped by rule {self._rules[fqn]!r}"
        if fqn is not None and not self._rows[fqn].quantized and self._rows[fqn].reason:
            return FLOAT, self._rows[fqn].reason
        if tensor.kind == "constant":
            return FLOAT, "neither a parameter nor a buffer; register_buffer would make it a weight"
        if {reader.target for reader in readers} <= LOOKUPS.keys():
            return FLOAT, (
                "tables that are looked up in are quantized only where weights alone are, by the settings or by a rule"
            )
        operators = list(dict.fromkeys(str(reader.target).removesuffix(".default") for reader in readers))
        return FLOAT, f"no integer form of {', '.join(operators[:_SHOWN])} with it"

    def _why_not_reached(self, names: Sequence[str]) -> str:
        for leaf in self.leaves:
            if any(is_within(name, leaf.fqn) for name in names):
                what = f"the leaf module {leaf.fqn or 'model'}" if leaf.lines is None else f"{leaf.part}, a leaf,"
                return f"{what} may read it, in PyTorch ({leaf.kind})"
        return "nothing reads it on the tracing inputs"


@dataclass(frozen=True)
class _Tensor:
    value: torch.Tensor
    kind: str
    names: list[str]


def _weights(plan: Plan) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the layer and the names of the tensors that its weights are, or were computed from."""
    for fqn, nodes in plan.nodes.items():
        for weight in (weight for layer in nodes for weight in layer.weights):
            parameter = parameter_of(weight)
            assert parameter is not None
            yield fqn, sources_of(parameter)


def _readers_of(node: fx.Node) -> list[fx.Node]:
    """Return the readers of a tensor, past nodes that only pass it on; the results of the graph are readers, too."""
    found, rest, seen = [], list(node.users), set()
    while rest:
        user = rest.pop(0)
        if user in seen:
            continue
        seen.add(user)
        if user.target in _PASS_ON and user.users:
            rest += user.users
        elif user.target is not aten._assert_tensor_metadata.default:
            found.append(user)
    return found


def totals(rows: Iterable[TensorReport]) -> dict[str, int]:
    """Return the model's bytes by outcome, in the order of the outcomes; without constants of the program."""
    found = dict.fromkeys((QUANTIZED, BY_RULE, FLOAT, NOT_REACHED), 0)
    for row in rows:
        if row.kind != "constant":
            found[row.outcome] += row.bytes
    return found
