"""Sizes that are the same in all samples: try another batch size, and refuse sizes that the graph specialises."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from prepbench.capture.aten.trial_calls import LONGEST
from prepbench.capture.modules.trace_result import TraceResult
from prepbench.capture.sizes.axis import Axis
from prepbench.capture.sizes.dynamic_axes import DynamicAxes, value_at
from prepbench.capture.sizes.resizing import linked_axes, resized, sizes_in, with_sizes
from prepbench.document.model import SourceLine
from prepbench.errors import InputError
from prepbench.inputs import Sample, named_leaves
from prepbench.internal_errors import raise_if_internal
from prepbench.objects.compare import REWRITTEN, Difference, Outcome, difference
from prepbench.objects.flatten import tensors_in
from prepbench.prepare.model import PreparedModel
from prepbench.running.first_calls import built_buffers
from prepbench.running.time_limit import TimeLimit, TimeLimitReached
from prepbench.running.unchanged import outcome, own_copy, repeated_outcome, unchanged, without_output

Place = tuple[str, int]


def with_other_batch(model: torch.nn.Module, samples: Sequence[Sample]) -> list[Sample]:
    """Return the samples, with one more of another batch size if none differs in it and the model takes it.

    The batch size is the size that the tensors' first axes share with the first tensor's.
    """
    shapes = [_shapes(model, sample) for sample in samples]
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
class FixedSizes:
    """Refuses input sizes for which the graph differs from the original.

    Attributes:
        names: the arguments in the order of the graph.
        places: ``(number of the tensor, dim, size, what people call it)``.
    """

    names: tuple[str, ...]
    places: tuple[tuple[int, int, int, str], ...]

    def __call__(self, model: PreparedModel, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Check one call.

        Raises:
            InputError: a size is not the one that the graph is for.
        """
        tensors = _tensors(self.names, args, kwargs)
        for index, dim, size, name in self.places:
            if index < len(tensors) and dim < tensors[index].dim() and tensors[index].shape[dim] != size:
                raise InputError(
                    f"{name} is {tensors[index].shape[dim]}, but this {model.original_type.__name__} was prepared with "
                    f"samples in which it is always {size}, and its graph is for this size only. Prepare it with "
                    "samples of at least two sizes."
                )


def fixed_sizes(
    model: torch.nn.Module, prepared: PreparedModel, sample: Sample, varying: Sequence[Sample]
) -> FixedSizes | None:
    """Return the check for axes along which the prepared model is wrong at other sizes, found by trying one."""
    shapes = _shapes(model, sample)
    seen = [_shapes(model, other) for other in varying]
    groups: dict[int, list[Place]] = {}
    for path, shape in shapes.items():
        for dim, size in enumerate(shape):
            if all(other[path][dim] == size for other in seen):
                groups.setdefault(size, []).append((path, dim))
    wrong: list[tuple[str, int, int]] = []
    for size, axes in groups.items():
        if not size:
            continue  # there is no entry to repeat
        tried = with_sizes(model, sample, dict.fromkeys(axes, size + 1), varying)
        if _runs(model, tried) and not _equal(model, prepared, tried):
            wrong += [(path, dim, size) for path, dim in axes]
    if not wrong:
        return None
    names = tuple(str(node.target) for node in prepared.graph.nodes if node.op == "placeholder")
    numbers = {id(tensor): index for index, tensor in enumerate(_tensors(names, sample.args, sample.kwargs))}
    paths = dict(named_leaves(model, sample))
    places = [(numbers[id(paths[path])], dim, size, f"{path}.shape[{dim}]") for path, dim, size in wrong]
    return FixedSizes(names, tuple(places))


@dataclass(frozen=True)
class UnequalSizes:
    """Refuses inputs with sizes of 0 and 1 for which the graph differs from the original.

    Attributes:
        names: the arguments in the order of the graph.
        places: ``(number of the tensor, dim, size, what people call it, the line that asks)``.
    """

    names: tuple[str, ...]
    places: tuple[tuple[int, int, int, str, SourceLine | None], ...]

    def __call__(self, model: PreparedModel, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Check one call.

        Raises:
            InputError: a size is one for which the graph is wrong.
        """
        tensors = _tensors(self.names, args, kwargs)
        for index, dim, size, name, source in self.places:
            if index < len(tensors) and dim < tensors[index].dim() and tensors[index].shape[dim] == size:
                line = f", because of {source.file}:{source.line} ({source.code})" if source else ""
                raise InputError(
                    f"{name} is {size}, and the graph of this {model.original_type.__name__} computes something else "
                    f"for this size than the original{line}. Prepare it with samples that all have this size, or "
                    "change the model so that it does not ask."
                )


def unequal_sizes(
    model: torch.nn.Module, prepared: PreparedModel, samples: Sequence[Sample], trace: TraceResult
) -> UnequalSizes | None:
    """Return the check for sizes of 0 and 1, which tracing assumes impossible, found by trying them.

    Args:
        model: the original.
        prepared: its graph.
        samples: those that were traced.
        trace: the trace, with its guards on sizes.
    """
    groups = linked_axes(DynamicAxes.infer(list(samples), model))
    now = sizes_in(model, samples[0])
    names = tuple(str(node.target) for node in prepared.graph.nodes if node.op == "placeholder")
    numbers = {id(tensor): index for index, tensor in enumerate(_tensors(names, samples[0].args, samples[0].kwargs))}
    paths = dict(named_leaves(model, samples[0]))
    places = []

    def differs(change: dict[str, int]) -> bool:
        made = resized(model, samples[0], change, groups)
        return _ends(model, made) and not _equal(model, prepared, made)

    for symbol, group in groups.items():
        axis = min(group, key=lambda axis: axis.sizes[0])
        before, number = now.get((axis.path, axis.dim)), numbers.get(id(paths.get(axis.path)))
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
    return UnequalSizes(names, tuple(places)) if places else None


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


def _shapes(model: torch.nn.Module, sample: Sample) -> dict[str, tuple[int, ...]]:
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

    Args:
        model: the original, as it is before a call.
        expected: a call of the original.
        got: the same call of the prepared model.
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
