"""Record the inputs and results of every submodule while a model runs, without the tensors' data."""

from __future__ import annotations

import types
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from prepbench._torch_compat import pytree
from prepbench._torch_compat.fake_tensors import on_device
from prepbench._torch_compat.modes import in_functorch
from prepbench._torch_compat.symbolic_fx import wrapped_functions
from prepbench._torch_compat.tensors import memory_of, version_of
from prepbench.inputs import Sample
from prepbench.interrupts import interruptible
from prepbench.patching import only_here, patched_here, patched_item
from prepbench.running.nested_values import map_values
from prepbench.running.object_nodes import count_registered, opened, register_nodes
from prepbench.running.replaced_forward import replaceable_modules, replaced_forward
from prepbench.running.unchanged import own_copy, unchanged

_NUMBERS = (bool, int, float, complex, str, type(None))


@dataclass(frozen=True)
class Given:
    """An input that a call left unchanged in its arguments."""

    index: int


@dataclass(frozen=True)
class Undescribed:
    """A tensor of a kind without a meta counterpart, such as a nested one."""

    kind: str


@dataclass(frozen=True)
class RecordedCall:
    """One call of one module or function. Tensors are on the ``meta`` device; :func:`device_of` knows their own.

    Attributes:
        inputs: the flattened ``(args, kwargs)``, as they were before the call.
        input_spec: the pytree of ``(args, kwargs)``.
        outputs: the flattened result; see :func:`flatten_result`.
        output_spec: the pytree of the result.
        sample: index of the sample that made the call.
        changed: positions of the inputs that the call wrote into.
        restructured: the call put other tensors into its own arguments (a cache that grew); the result is then the
            output and the arguments after the call.
        shared: the tensors of the call that share memory, in words; empty if none do.
    """

    inputs: tuple[Any, ...]
    input_spec: pytree.TreeSpec
    outputs: tuple[Any, ...]
    output_spec: pytree.TreeSpec
    sample: int = 0
    changed: frozenset[int] = frozenset()
    restructured: bool = False
    shared: str = ""

    def as_sample(self) -> Sample:
        """Return the inputs of the call, without data."""
        args, kwargs = pytree.tree_unflatten(self.inputs, self.input_spec)
        return Sample(args, kwargs, self.sample)


@dataclass
class RecordedRun:
    """One run of a model.

    Attributes:
        calls: the calls that finished, by the fully qualified name of the module; the name of the model itself is "".
        error: the exception of the model, if there was one.
    """

    calls: dict[str, list[RecordedCall]] = field(default_factory=dict)
    error: Exception | None = None


def record_calls(model: torch.nn.Module, samples: Iterable[Sample]) -> dict[str, list[RecordedCall]]:
    """Run ``model`` once per sample and return the calls of each submodule by name.

    Raises:
        Exception: whatever the model raises on a sample.

    Example:
        >>> calls = record_calls(torch.nn.Sequential(torch.nn.Linear(4, 2)), [Sample((torch.ones(3, 4),))])
        >>> calls["0"][0].outputs[0].shape
        torch.Size([3, 2])
    """
    calls: dict[str, list[RecordedCall]] = {}
    for sample in samples:
        run = record_run(model, sample)
        if run.error is not None:
            raise run.error
        for fqn, seen in run.calls.items():
            calls.setdefault(fqn, []).extend(seen)
    return calls


def record_run(model: torch.nn.Module, sample: Sample, *, as_called: bool = False) -> RecordedRun:
    """Run ``model`` once and return the calls of each submodule.

    The model runs in its present mode under ``no_grad``; its buffers, attributes, the random state and the sample's
    tensors are as before afterwards. A module that is registered under several names appears under the first.

    Args:
        as_called: note modules as their callers see them, hooks included, and also the calls of functions that
            ``torch.fx.wrap`` was called for (see :func:`wrapped_name`). Else what each module's ``forward`` gets.
    """
    known = count_registered()
    run = _record(model, sample, as_called)
    # classes seen for the first time were opaque to the flattening before that
    return run if count_registered() == known else _record(model, sample, as_called)


def _record(model: torch.nn.Module, sample: Sample, as_called: bool) -> RecordedRun:
    run = RecordedRun()

    def recorded(name: str, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        if (
            in_functorch()
        ):  # functorch wrappers have no memory of their own; the module that calls the transform is recorded
            return function(*args, **kwargs)
        watched = _WatchedCall(args, kwargs)
        output = function(*args, **kwargs)
        run.calls.setdefault(name, []).append(watched.finished(output, sample.index))
        return output

    listening = _modules_and_functions if as_called else _forwards
    try:
        with unchanged(model), torch.no_grad(), listening(model, recorded), interruptible():
            own_copy(sample).call(model)
    except Exception as error:
        run.error = error
    return run


_Recorder = Callable[[str, Callable[..., Any], Any, Any], Any]


@contextmanager
def _forwards(model: torch.nn.Module, recorded: _Recorder) -> Iterator[None]:
    """Route the forwards of all submodules through ``recorded`` during the block."""

    def listening(fqn: str, forward: Callable[..., Any]) -> Callable[..., Any]:
        def listen(*args: Any, **kwargs: Any) -> Any:
            return recorded(fqn, forward, args, kwargs)

        # code that inspects self.forward must still see the user's signature
        listen.__wrapped__ = forward  # type: ignore[attr-defined]
        return listen

    with ExitStack() as stack:
        for fqn, module in replaceable_modules(model):
            stack.enter_context(replaced_forward(model, fqn, listening(fqn, module.forward)))
        yield


@contextmanager
def _modules_and_functions(model: torch.nn.Module, recorded: _Recorder) -> Iterator[None]:
    """Route calls of submodules, with their hooks, and of wrapped functions through ``recorded`` during the block."""
    names = {id(module): name for name, module in model.named_modules()}
    original = torch.nn.Module.__call__

    def call(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        name = names.get(id(module))
        if name is None:
            return original(module, *args, **kwargs)
        return recorded(name, types.MethodType(original, module), args, kwargs)

    def listening(function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args, **kwargs: recorded(wrapped_name(function), function, args, kwargs)

    with ExitStack() as stack:
        stack.enter_context(patched_here(torch.nn.Module, "__call__", call))
        for namespace, name, function in wrapped_functions():
            if isinstance(function, types.FunctionType):
                stack.enter_context(patched_item(namespace, name, only_here(function, listening(function))))
        yield


def wrapped_name(function: Any) -> str:
    """Return the name under which calls of a function are recorded that ``torch.fx.wrap`` was called for."""
    return f"<{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', repr(function))}>"


class _WatchedCall:
    """The inputs of a call that has not finished."""

    def __init__(self, args: Any, kwargs: Any) -> None:
        register_nodes((args, kwargs))
        self._arguments = args, kwargs
        self._leaves, self._spec = pytree.tree_flatten(self._arguments)
        self._inputs = tuple(map(without_data, self._leaves))
        self._versions = list(map(_version, self._leaves))
        self._places = dict(pytree.tree_leaves_with_path(opened(self._arguments)))

    def finished(self, output: Any, sample: int) -> RecordedCall:
        """Return the complete call, after it returned ``output``."""
        restructured = self._is_restructured()
        flat, output_spec = flatten_result(output, self._arguments if restructured else None)
        outputs = list(map(without_data, flat))
        if restructured:
            stayed = self._left_where_they_were()
            start = len(outputs) - len(stayed)
            outputs[start:] = [
                seen if index is None else Given(index) for seen, index in zip(outputs[start:], stayed, strict=True)
            ]
        new = [leaf for leaf, seen in zip(flat, outputs, strict=True) if not isinstance(seen, Given)]
        changed = frozenset(
            index
            for index, (leaf, version) in enumerate(zip(self._leaves, self._versions, strict=True))
            if _version(leaf) != version
        )
        shared = describe_shared_memory(self._leaves, changed, new)
        return RecordedCall(
            self._inputs, self._spec, tuple(outputs), output_spec, sample, changed, restructured, shared
        )

    def _is_restructured(self) -> bool:
        register_nodes(self._arguments)
        after, spec_after = pytree.tree_flatten(self._arguments)
        return spec_after != self._spec or any(
            a is not b for a, b in zip(after, self._leaves, strict=True) if isinstance(b, torch.Tensor)
        )

    def _left_where_they_were(self) -> list[int | None]:
        """Return, for each leaf of the arguments now, the input that it still is, if it is one."""
        indices = {id(leaf): index for index, leaf in enumerate(self._leaves) if not isinstance(leaf, _NUMBERS)}
        return [
            indices.get(id(leaf)) if self._places.get(path) is leaf else None
            for path, leaf in pytree.tree_leaves_with_path(opened(self._arguments))
        ]


def flatten_result(output: Any, arguments: Any = None) -> tuple[list[Any], pytree.TreeSpec]:
    """Return the leaves of a call's result: its output, and its arguments if the call put other objects into them."""
    register_nodes(output)
    return pytree.tree_flatten(opened(output if arguments is None else (output, arguments)))


def without_data(leaf: Any) -> Any:
    """Return ``leaf`` with its tensors on the ``meta`` device, so that no memory is held."""
    return leaf if isinstance(leaf, _NUMBERS) else map_values(leaf, _on_meta)


def _on_meta(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    try:
        return on_device(torch.empty_like(value, device="meta"), value.device)
    except RuntimeError:  # torch has no such kind of tensor without data
        return Undescribed(type(value).__name__)


def _version(leaf: Any) -> int:
    return version_of(leaf) if isinstance(leaf, torch.Tensor) else 0


# Which tensors of a call share memory: a graph of separate tensors would lose what is written through one of them.


def describe_shared_memory(inputs: Sequence[Any], changed: Collection[int], outputs: Sequence[Any]) -> str:
    """Return in words which tensors of one call share memory; empty if a graph of separate tensors is equivalent.

    Args:
        inputs: the leaves that the call received.
        changed: positions of the inputs that the call wrote into.
        outputs: the leaves that it returned.
    """
    first: dict[int, int] = {}
    for index, leaf in enumerate(inputs):
        memory = _memory(leaf)
        other = index if memory is None else first.setdefault(memory, index)
        if inputs[other] is not leaf and (index in changed or other in changed):
            return "writes into one of two arguments that share memory"
    seen: dict[int, Any] = {}
    for leaf in outputs:
        memory = _memory(leaf)
        if memory is None:
            continue
        if memory in first:
            return "returns " + ("its argument" if any(leaf is given for given in inputs) else "a view of its argument")
        if seen.setdefault(memory, leaf) is not leaf:
            return "returns two tensors that share memory"
    return ""


def _memory(leaf: Any) -> int | None:
    if not isinstance(leaf, torch.Tensor) or leaf.layout is not torch.strided or leaf.is_nested or leaf.numel() == 0:
        return None
    return memory_of(leaf)
