"""Compare a prepared model with the original: on samples, on unseen sizes, and in the other mode."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from prepbench.capture.sizes.dynamic_axes import DynamicAxes
from prepbench.capture.sizes.resizing import linked_axes, resized
from prepbench.errors import InputError, PreparationError
from prepbench.inputs import Sample, named_leaves
from prepbench.internal_errors import raise_if_internal
from prepbench.objects.compare import REWRITTEN, difference
from prepbench.objects.flatten import tensors_in
from prepbench.prepare.model import PreparedModel
from prepbench.prepare.report import Compared
from prepbench.prepare.sizes import prepared_difference
from prepbench.prepare.steps import record_steps
from prepbench.prepare.trace import in_other_mode
from prepbench.running.unchanged import outcome, own_copy, repeated_outcome, unchanged, without_output

_STEPS = (1, 2, 4, 8, 32)


def verify(
    model: torch.nn.Module, prepared: PreparedModel, samples: Sequence[Sample], traced: Sequence[Sample]
) -> tuple[Compared, ...]:
    """Compare outputs and buffers on the samples and on unseen sizes.

    Args:
        model: the original.
        prepared: the prepared model.
        samples: the user's samples.
        traced: the samples that were traced; sizes that differ between them are dynamic.

    Raises:
        PreparationError: they differ by more than 1e-5 of the largest value (float32). The message names the first
            node that differs.
    """
    return (*compare_on(model, prepared, samples), *_on_unseen_sizes(model, prepared, traced))


def compare_on(
    model: torch.nn.Module, prepared: PreparedModel, samples: Sequence[Sample], title: str = "inputs[{index}]"
) -> list[Compared]:
    """Compare on these samples only.

    Raises:
        PreparationError: they differ.
    """
    compared = []
    for sample in samples:
        name = title.format(index=sample.index)
        with without_output():
            expected, got = outcome(model, sample, model), outcome(prepared, sample, prepared)
        found = prepared_difference(model, expected, got)
        if not found.equal:
            with without_output():
                first = first_difference(model, prepared, sample)
            raise PreparationError(_message(prepared, name, found.text, first))
        compared.append(Compared(name, found.relative))
    return compared


def compare_in_other_mode(model: torch.nn.Module, prepared: PreparedModel, sample: Sample) -> tuple[Compared, bool]:
    """Compare in the other mode; return the comparisons, and whether the prepared model is wrong there."""
    name = f"inputs[{sample.index}] in {'evaluation' if model.training else 'training'}"
    with in_other_mode(model, prepared):
        try:
            with torch.no_grad(), unchanged(model), without_output():
                own_copy(sample).call(model)
        except Exception as error:  # batch norm on one value, a loss without labels
            raise_if_internal(error)
            note = f"not compared, because the model itself raises there ({type(error).__name__})"
            return Compared(name, note=note), False
        try:
            (found,) = compare_on(model, prepared, [sample], name)
        except Exception as error:  # any error counts as a difference from the original
            raise_if_internal(error)
            return Compared(name, note="the graph computes something else there"), True
    return found, False


def _on_unseen_sizes(model: torch.nn.Module, prepared: PreparedModel, samples: Sequence[Sample]) -> Iterator[Compared]:
    axes = DynamicAxes.infer(list(samples), model)
    groups = linked_axes(axes)
    if not groups:
        yield Compared("unseen sizes", note="all samples have the same sizes; give samples of two sizes to vary them")
    for symbol, group in groups.items():
        names = ", ".join(f"{axis.path}.shape[{axis.dim}]" for axis in group)
        sample = _larger(model, samples, symbol, groups)
        if sample is None:
            yield Compared(f"unseen {names}", note="the model itself takes no other size that was tried")
            continue
        try:
            (found,) = compare_on(model, prepared, [sample], f"unseen sizes: {_shapes(model, sample)}")
        except InputError as error:
            found = Compared(f"unseen {names}", note=str(error))
        yield found


def _larger(model: torch.nn.Module, samples: Sequence[Sample], symbol: str, groups: Any) -> Sample | None:
    for step in _STEPS:
        larger = resized(model, samples[-1], {symbol: step}, groups, samples)
        try:
            with without_output():
                expected = repeated_outcome(model, larger, model)
        except Exception as error:  # a size that the model itself rejects
            raise_if_internal(error)
            continue
        if expected is not None:
            return larger
    return None


def _shapes(model: torch.nn.Module, sample: Sample) -> str:
    leaves = [(path, leaf) for path, leaf in named_leaves(model, sample) if isinstance(leaf, torch.Tensor)]
    return ", ".join(f"{path} {tuple(leaf.shape)}" for path, leaf in leaves[:4])


def _message(prepared: PreparedModel, inputs: str, what: str, first: FirstDifference | None) -> str:
    text = f"The prepared {prepared.original_type.__name__} is not equal to the original on {inputs}: {what}."
    if first is None:
        return (
            text
            + " No single operation differs, so the reason is state outside tensors, such as an attribute or a closure."
        )
    node, source = first.node, first.node.meta.get("source")
    owner = node.meta["origin"][0]
    name = str(node.target) if node.op == "call_module" else node.name
    place = f", {source.file}:{source.line}: {source.code}" if source else ""
    text += f" The first node that differs is {name} ({first.what}{place})."
    if owner:
        text += f" Keep its module whole with modules_to_exclude=[model.get_submodule({owner!r})]."
    return text


# The first node of a prepared graph whose value is not that of the original.


@dataclass(frozen=True)
class FirstDifference:
    """The first node, in the order of the graph, whose value differs from the original's."""

    node: fx.Node
    what: str


def first_difference(model: torch.nn.Module, prepared: PreparedModel, sample: Sample) -> FirstDifference | None:
    """Run both models on one sample and compare node by node; ``None`` if no common node differs.

    Nodes are matched by their origin before preparation: the module they belong to, the operation, and its count.
    """
    origins = {node.meta.get("origin") for node in prepared.graph.nodes if node.op.startswith("call")}
    leaves = {origin[0] for origin in origins if origin is not None and origin[1] == ""}
    with torch.no_grad(), unchanged(model):
        seen = _values_of(model, own_copy(sample), leaves)
    watcher = _Watcher(prepared, seen)
    try:
        with torch.no_grad(), unchanged(prepared):
            own = own_copy(sample)
            nodes = prepared.graph.find_nodes(op="placeholder")[len(own.args) :]
            # by position, so that omitted arguments keep their places
            rest = [own.kwargs.get(str(node.target), next(iter(node.args), None)) for node in nodes]
            watcher.run(*own.args, *rest)
    except _Found:
        pass
    return watcher.found


class _Found(Exception):
    """Raised to stop at the first differing node."""


class _Watcher(fx.Interpreter):
    """Runs a graph until a node's value differs from the original's."""

    def __init__(self, prepared: PreparedModel, seen: dict[Any, list[Any]]) -> None:
        super().__init__(prepared)
        self._seen, self._count = seen, Counter[Any]()
        self.found: FirstDifference | None = None

    def run_node(self, n: fx.Node) -> Any:
        value = super().run_node(n)
        origin = n.meta.get("origin")
        if origin is None:
            return value
        number = self._count[origin]
        self._count[origin] += 1
        if number < len(self._seen.get(origin, ())):
            found = difference(self._seen[origin][number], tensors_in(value), REWRITTEN, "value")
            if not found.equal:
                self.found = FirstDifference(n, found.text)
                raise _Found
        return value


def _values_of(model: torch.nn.Module, sample: Sample, leaves: set[str]) -> dict[Any, list[Any]]:
    """Return the value of every operation and leaf module of the original, by owner and name, in order."""
    seen: dict[Any, list[Any]] = defaultdict(list)
    record_steps(
        model,
        sample,
        lambda _, name: name in leaves,
        lambda step: seen[step.owner, step.name].append([leaf.detach().clone() for leaf in tensors_in(step.result)]),
    )
    return seen
