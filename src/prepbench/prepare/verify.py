"""Compare a prepared model with the original: on samples, on unseen sizes, and in the other mode."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx

from prepbench.capture.aten.trial_calls import LONGEST
from prepbench.capture.modules.trace_result import TraceResult
from prepbench.capture.sizes.axis import Axis
from prepbench.capture.sizes.dynamic_axes import DynamicAxes, value_at
from prepbench.capture.sizes.resizing import linked_axes, resized, sizes_in, with_sizes
from prepbench.document.model import SourceLine
from prepbench.errors import InputError, PreparationError
from prepbench.inputs import Sample, named_leaves
from prepbench.internal_errors import raise_if_internal
from prepbench.interrupts import TimeLimit, TimeLimitReached
from prepbench.objects.compare import REWRITTEN, Difference, Outcome, difference
from prepbench.objects.flatten import tensors_in
from prepbench.prepare.model import PreparedModel
from prepbench.prepare.report import Compared
from prepbench.prepare.steps import record_steps
from prepbench.prepare.trace import in_other_mode
from prepbench.running.first_calls import built_buffers
from prepbench.running.unchanged import outcome, own_copy, repeated_outcome, unchanged, without_output

_STEPS = (1, 2, 4, 8, 32)


def verify(
    model: torch.nn.Module, prepared: PreparedModel, samples: Sequence[Sample], traced: Sequence[Sample]
) -> tuple[Compared, ...]:
    """Compare outputs and buffers on the samples and on unseen sizes.

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


# Sizes that are the same in all samples: try another batch size, and refuse sizes that the graph specialises.


Place = tuple[str, int]


def with_other_batch(model: torch.nn.Module, samples: Sequence[Sample]) -> list[Sample]:
    """Return the samples, with one more of another batch size if none differs in it and the model takes it.

    The batch size is the size that the tensors' first axes share with the first tensor's.
    """
    shapes = [_module_shapes(model, sample) for sample in samples]
    first = next(((path, shape) for path, shape in shapes[0].items() if shape), None)
    if first is None or any(shape[:1] != shapes[0][path][:1] for other in shapes for path, shape in other.items()):
        return list(samples)
    size = first[1][0]
    axes = [(path, 0) for path, shape in shapes[0].items() if shape and shape[0] == size]
    if not size:
        return list(samples)
    larger = with_sizes(model, samples[0], dict.fromkeys(axes, size + 1), samples)
    return [*samples, larger] if _runs(model, larger) else list(samples)


@dataclass(frozen=True)
class RefusedSizes:
    """Refuses input sizes for which the graph differs from the original.

    Attributes:
        names: the arguments in the order of the graph.
        places: ``(number of the tensor, dim, size, what people call it, the line that asks)``.
        only: whether the graph is for these sizes only; otherwise it is for all but these.
    """

    names: tuple[str, ...]
    places: tuple[tuple[int, int, int, str, SourceLine | None], ...]
    only: bool

    def __call__(self, model: PreparedModel, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Check one call.

        Raises:
            InputError: the graph is wrong for a size.
        """
        tensors, kind = _tensors(self.names, args, kwargs), model.original_type.__name__
        for index, dim, size, name, source in self.places:
            if index >= len(tensors) or dim >= tensors[index].dim() or (tensors[index].shape[dim] == size) == self.only:
                continue
            if self.only:
                raise InputError(
                    f"{name} is {tensors[index].shape[dim]}, but this {kind} was prepared with samples in which it is "
                    f"always {size}, and its graph is for this size only. Prepare it with samples of at least two "
                    "sizes."
                )
            line = f", because of {source.file}:{source.line} ({source.code})" if source else ""
            raise InputError(
                f"{name} is {size}, and the graph of this {kind} computes something else for this size than the "
                f"original{line}. Prepare it with samples that all have this size, or change the model so that it does "
                "not ask."
            )


def fixed_sizes(
    model: torch.nn.Module, prepared: PreparedModel, sample: Sample, varying: Sequence[Sample]
) -> RefusedSizes | None:
    """Return the check for axes along which the prepared model is wrong at other sizes, found by trying one."""
    shapes = _module_shapes(model, sample)
    seen = [_module_shapes(model, other) for other in varying]
    groups: dict[int, list[Place]] = {}
    for path, shape in shapes.items():
        for dim, size in enumerate(shape):
            if all(other[path][dim] == size for other in seen):
                groups.setdefault(size, []).append((path, dim))
    names, numbers = _numbered(model, prepared, sample)
    places = []
    for size, axes in groups.items():
        if not size:
            continue  # there is no entry to repeat
        tried = with_sizes(model, sample, dict.fromkeys(axes, size + 1), varying)
        if _runs(model, tried) and not _equal(model, prepared, tried):
            places += [(numbers[path], dim, size, f"{path}.shape[{dim}]", None) for path, dim in axes]
    return RefusedSizes(names, tuple(places), only=True) if places else None


def unequal_sizes(
    model: torch.nn.Module, prepared: PreparedModel, samples: Sequence[Sample], trace: TraceResult
) -> RefusedSizes | None:
    """Return the check for sizes of 0 and 1, which tracing assumes impossible, found by trying them."""
    groups = linked_axes(DynamicAxes.infer(list(samples), model))
    now = sizes_in(model, samples[0])
    names, numbers = _numbered(model, prepared, samples[0])
    places = []

    def differs(change: dict[str, int]) -> bool:
        made = resized(model, samples[0], change, groups)
        return _ends(model, made) and not _equal(model, prepared, made)

    for symbol, group in groups.items():
        axis = min(group, key=lambda axis: axis.sizes[0])
        before, number = now.get((axis.path, axis.dim)), numbers.get(axis.path)
        if not before or number is None:  # an empty tensor has no entry to repeat
            continue
        longer = dict.fromkeys((other for other in groups if other != symbol), 1)
        for size in (1, 0):
            change = {symbol: size - before}
            # at one size of the other axes, a wrong empty result may have the right shape by chance
            if size not in axis.sizes and (
                differs(change) or (longer and differs({**longer, **change}) and not differs(longer))
            ):
                places.append((number, axis.dim, size, f"{axis.path}.shape[{axis.dim}]", _asking(trace, axis, size)))
    return RefusedSizes(names, tuple(places), only=False) if places else None


def _numbered(
    model: torch.nn.Module, prepared: PreparedModel, sample: Sample
) -> tuple[tuple[str, ...], dict[str, int]]:
    """Return the arguments in the order of the graph, and the numbers of their tensors by path."""
    names = tuple(str(node.target) for node in prepared.graph.nodes if node.op == "placeholder")
    numbers = {id(tensor): index for index, tensor in enumerate(_tensors(names, sample.args, sample.kwargs))}
    return names, {path: numbers[id(leaf)] for path, leaf in named_leaves(model, sample) if id(leaf) in numbers}


def _asking(trace: TraceResult, axis: Axis, size: int) -> SourceLine | None:
    """Return the line whose guard is false for a size."""
    symbols = {
        symbol: size for symbol, known in trace.sizes.items() if (known.path, known.dim) == (axis.path, axis.dim)
    }
    for asked in trace.known:
        if asked.expression.free_symbols <= set(symbols) and value_at(asked.expression, symbols) == False:  # noqa: E712
            return asked.source
    return None


def _tensors(names: Sequence[str], args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
    given = [*args, *(kwargs[name] for name in names[len(args) :] if name in kwargs)]
    return tensors_in(given)


def _module_shapes(model: torch.nn.Module, sample: Sample) -> dict[str, tuple[int, ...]]:
    return {
        path: tuple(leaf.shape)
        for path, leaf in named_leaves(model, sample)
        if isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided
    }


def _runs(model: torch.nn.Module, sample: Sample) -> bool:
    try:
        with torch.no_grad(), unchanged(model), without_output():
            own_copy(sample).call(model)
    except Exception as error:  # the model itself rejects this size
        raise_if_internal(error)
        return False
    return True


def _ends(model: torch.nn.Module, sample: Sample) -> bool:
    """Return whether the model takes a size and terminates."""
    try:
        with TimeLimit(LONGEST):
            return _runs(model, sample)
    except TimeLimitReached:
        return False


def _equal(model: torch.nn.Module, prepared: PreparedModel, sample: Sample) -> bool:
    with without_output():
        expected = repeated_outcome(model, sample, model)
        if expected is None:
            return True  # such sizes are unknown
        try:
            got = outcome(prepared, sample, prepared)
        except InputError:
            return True  # its error says so already
        except Exception as error:  # a specialised size in the graph does not fit
            raise_if_internal(error)
            return False
    return prepared_difference(model, expected, got).equal


# Compare one call of a prepared model with one of the original, in results and in state.


def prepared_difference(model: torch.nn.Module, expected: Outcome, got: Outcome) -> Difference:
    """Return the first difference of a call of the prepared model from one of the original.

    A prepared model may lack buffers, but none that a call changes. Buffers that a call builds, it builds at each call.
    """
    before = dict(model.named_buffers())
    kept = {
        name: value for name, value in expected.buffers.items() if name not in built_buffers(before, expected.buffers)
    }
    changed = {name for name, value in kept.items() if not difference(before[name], value).equal}
    names = [name for name in kept if name in got.buffers or name in changed]
    return difference(
        replace(expected, buffers={name: expected.buffers[name] for name in names}),
        replace(got, buffers={name: got.buffers[name] for name in names if name in got.buffers}),
        REWRITTEN,
    )
