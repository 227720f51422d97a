"""What each submodule really received and returned on the samples: the outputs of parts that cannot be traced.

One real forward per sample, run only when something fails. Tensors are kept as meta tensors: no memory is held.
"""

from __future__ import annotations

import types
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch

from prepbench._torch_compat.fake_tensors import on_device
from prepbench._torch_compat.symbolic_fx import wrapped_functions
from prepbench.capture.sizes.dynamic_axes import DynamicAxes
from prepbench.capture.sizes.resizing import varied
from prepbench.capture.sizes.rules import Known, learn_rule
from prepbench.errors import CaptureError, InputError
from prepbench.inputs import Sample
from prepbench.patching import only_here, patched_here, patched_item
from prepbench.running.module_state import restored
from prepbench.running.nested_values import Mapper, collect, is_value, map_values
from prepbench.running.object_nodes import closed, opened

Sizes = tuple[int, ...]


@dataclass(frozen=True)
class Call:
    """One call of one submodule on one sample."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    output: Any = None
    restructured: bool = False
    """Whether the call put other tensors into its own arguments, such as a cache that grows."""


class Observed:
    """The calls of every submodule of a model, by name and by sample."""

    def __init__(
        self, calls: list[dict[str, list[Call]]], error: Exception | None = None, further: Sequence[Any] = ()
    ) -> None:
        self._calls = calls
        self._further = list(further)
        self.error = error
        """What the model raised on a sample without any tracing, if it did."""

    @classmethod
    def of(cls, root: torch.nn.Module, samples: Sequence[Sample]) -> Observed:
        """Run ``root`` on every sample and note what its submodules see; the model is left as it was.

        A sample on which the model raises contributes the calls that finished. Samples of further sizes are made up, to
        tell rules over sizes apart; those on which the model raises say nothing.
        """
        seen = [_observe(root, sample) for sample in samples]
        error = next((error for _, error in seen if error is not None), None)
        further = [_observe(root, sample) for sample in _varied(root, samples)] if error is None else []
        return cls([calls for calls, _ in seen], error, [calls for calls, error in further if error is None])

    def count(self, fqn: str) -> int:
        """How often the module ran on the first sample that reached it."""
        return max(len(calls.get(fqn, ())) for calls in self._calls)

    def samples_for(self, fqn: str) -> list[Sample]:
        """The inputs of the module's first call on each sample, as samples without data."""
        first = [calls[fqn][0] for calls in self._calls if calls.get(fqn)]
        return [Sample(call.args, call.kwargs, index) for index, call in enumerate(first)]

    def output(self, fqn: str, number: int, inputs: Any, make: Callable[[torch.Tensor, Any], Any], fresh: Any) -> Any:
        """A fake output for the ``number``-th call of a module: sizes follow from those of ``inputs`` where they can.

        Args:
            fqn: the module.
            number: which of its calls, from 0.
            inputs: what the module receives while tracing.
            make: turns a meta tensor and its new sizes into a fake tensor.
            fresh: makes a size that nothing is known about.

        Raises:
            CaptureError: the output cannot be known before the module runs, so the module around it fails too.
        """
        calls = [c[fqn][min(number, len(c[fqn]) - 1)] for c in (*self._calls, *self._further) if c.get(fqn)]
        calls = [call for call in calls if _alike(call, calls[0])]
        if calls[0].restructured:
            raise CaptureError(_restructures(fqn))
        now = [size for tensor in _tensors(inputs) for size in tensor.shape]
        seen = list(zip(*([s for t in _tensors((c.args, c.kwargs)) for s in t.shape] for c in calls), strict=False))
        known = list(zip(seen, now, strict=False)) if len(seen) == len(now) else []
        outputs = [_tensors(call.output) for call in calls]
        sizes = iter(
            [
                [_size(values, known, fresh) for values in zip(*(tensor.shape for tensor in same), strict=True)]
                for same in zip(*outputs, strict=True)
            ]
        )
        numbers = iter(_numbers_now(fqn, [call.output for call in calls], known))
        output = closed(_MapNumbers(lambda _: next(numbers)).visit(opened(calls[0].output)))
        if isinstance(output, Iterator):
            return _Unreadable(fqn)
        return map_values(output, lambda leaf: make(leaf, next(sizes)) if isinstance(leaf, torch.Tensor) else leaf)


class _MapNumbers(Mapper):
    """Applies a function to every Python number and text in a value, in place of every tensor."""

    def visit(self, value: Any) -> Any:
        if type(value) in (int, float, bool, complex, str):
            return self.function(value)
        return value if is_value(value) else super().visit(value)


class _Unreadable:
    """Stands for an iterator that a failed module returned: it may be handed on, but not read."""

    def __init__(self, fqn: str) -> None:
        self._fqn = fqn

    def __iter__(self) -> _Unreadable:
        return self

    def __next__(self) -> Any:
        raise CaptureError(
            f"{self._fqn} returns an iterator and cannot be traced, so what it yields is not known here. Return a "
            "tuple or a list instead."
        )


def _numbers_now(fqn: str, outputs: Sequence[Any], known: Sequence[tuple[Sizes, Any]]) -> list[Any]:
    """The Python values in an output: the same in all calls, or following from the sizes of the inputs."""
    seen: list[list[Any]] = []
    for output in outputs:
        values: list[Any] = []
        _MapNumbers(lambda value, kept=values: kept.append(value) or value).visit(opened(output))  # type: ignore[misc]
        seen.append(values)
    if len({len(values) for values in seen}) > 1:
        raise CaptureError(
            f"{fqn} returns another structure on each sample, so what it returns cannot be known before it runs. "
            "Return the same tensors in every case."
        )
    return [_number_now(fqn, values, known) for values in zip(*seen, strict=True)]


def _number_now(fqn: str, values: tuple[Any, ...], known: Sequence[tuple[Sizes, Any]]) -> Any:
    if all(type(value) is type(values[0]) and value == values[0] for value in values):
        return values[0]
    if all(type(value) is int for value in values):
        rule = learn_rule(values, [Known("", sizes) for sizes, _ in known])
        if rule is not None:
            return rule.compute([now for _, now in known])
    shown = ", ".join(map(repr, values[:4]))
    raise CaptureError(
        f"{fqn} returns a Python number from a tensor ({shown} on the samples), which is not known before it runs. "
        "Return it as a tensor."
    )


def _restructures(fqn: str) -> str:
    return (
        f"{fqn} cannot be traced and its own arguments are mutated by it (a cache that grows): what they hold "
        "afterwards is not known here. Return what is new instead."
    )


def _varied(root: torch.nn.Module, samples: Sequence[Sample]) -> list[Sample]:
    try:
        return varied(root, samples, DynamicAxes.infer(list(samples), root))
    except InputError:  # samples that differ in more than sizes
        return []


def _alike(one: Call, other: Call) -> bool:
    pairs = ((one.args, other.args), (one.kwargs, other.kwargs), (one.output, other.output))
    return all([t.dim() for t in _tensors(a)] == [t.dim() for t in _tensors(b)] for a, b in pairs)


def _size(values: Sizes, known: Sequence[tuple[Sizes, Any]], fresh: Callable[[], Any]) -> Any:
    """A size by the simplest rule that explains it on all samples, else one about which nothing is known."""
    rule = learn_rule(values, [Known("", seen) for seen, _ in known])
    return fresh() if rule is None else rule.compute([now for _, now in known])


def _tensors(value: Any) -> list[torch.Tensor]:
    return [leaf for leaf in collect(value) if isinstance(leaf, torch.Tensor)]


def _without_data(value: Any) -> Any:
    def meta(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        result = torch.empty_like(leaf, device="meta")
        return on_device(result, leaf.device)

    return map_values(value, meta)


def wrapped_name(function: Any) -> str:
    """Under which name the calls of a function kept whole by ``torch.fx.wrap`` are noted."""
    return f"<{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', repr(function))}>"


def _observe(root: torch.nn.Module, sample: Sample) -> tuple[dict[str, list[Call]], Exception | None]:
    names = {id(module): name for name, module in root.named_modules()}
    calls: dict[str, list[Call]] = defaultdict(list)
    raised = None
    original = torch.nn.Module.__call__

    def noted(name: str, run: Callable[[], Any], args: Any, kwargs: Any) -> Any:
        seen = _without_data((args, kwargs))
        before = [id(tensor) for tensor in _tensors((args, kwargs))]
        output = run()
        restructured = before != [id(tensor) for tensor in _tensors((args, kwargs))]
        calls[name].append(Call(seen[0], seen[1], _without_data(output), restructured))
        return output

    def call(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        name = names.get(id(module))
        if name is None:
            return original(module, *args, **kwargs)
        return noted(name, lambda: original(module, *args, **kwargs), args, kwargs)

    def wrapped(function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args, **kwargs: noted(wrapped_name(function), lambda: function(*args, **kwargs), args, kwargs)

    with ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        stack.enter_context(torch.random.fork_rng(devices=[]))
        stack.enter_context(restored(root))
        stack.enter_context(patched_here(torch.nn.Module, "__call__", call))
        for namespace, name, function in wrapped_functions():
            if isinstance(function, types.FunctionType):
                stack.enter_context(patched_item(namespace, name, only_here(function, wrapped(function))))
        try:
            own = sample.map(lambda leaf: leaf.clone() if isinstance(leaf, torch.Tensor) else leaf)
            own.call(root)
        except Exception as error:
            raised = error
    return calls, raised
