"""Record the inputs and results of every submodule while a model runs, without the tensors' data."""

from __future__ import annotations

import copy
import functools
import threading
import types
from collections import Counter
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
from prepbench.checks import check_count, check_switch, described
from prepbench.errors import InputError
from prepbench.inputs import Sample
from prepbench.interrupts import interruptible
from prepbench.objects import flatten
from prepbench.objects.parts import NO_DATA
from prepbench.patching import only_here, patched_here, patched_item
from prepbench.running.callable_module import replaceable_modules, replaced_forward
from prepbench.running.unchanged import detached_copy, own_copy, unchanged

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
    known = flatten.count_registered()
    run = _record(model, sample, as_called)
    # classes seen for the first time were opaque to the flattening before that
    return run if flatten.count_registered() == known else _record(model, sample, as_called)


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
        flatten.register_nodes((args, kwargs))
        self._arguments = args, kwargs
        self._leaves, self._spec = pytree.tree_flatten(self._arguments)
        self._inputs = tuple(map(without_data, self._leaves))
        self._versions = list(map(version_of, self._leaves))
        self._places = dict(pytree.tree_leaves_with_path(flatten.opened(self._arguments)))

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
            if version_of(leaf) != version
        )
        shared = describe_shared_memory(self._leaves, changed, new)
        return RecordedCall(
            self._inputs, self._spec, tuple(outputs), output_spec, sample, changed, restructured, shared
        )

    def _is_restructured(self) -> bool:
        flatten.register_nodes(self._arguments)
        after, spec_after = pytree.tree_flatten(self._arguments)
        return spec_after != self._spec or any(
            a is not b for a, b in zip(after, self._leaves, strict=True) if isinstance(b, torch.Tensor)
        )

    def _left_where_they_were(self) -> list[int | None]:
        """Return, for each leaf of the arguments now, the input that it still is, if it is one."""
        indices = {id(leaf): index for index, leaf in enumerate(self._leaves) if not isinstance(leaf, _NUMBERS)}
        return [
            indices.get(id(leaf)) if self._places.get(path) is leaf else None
            for path, leaf in pytree.tree_leaves_with_path(flatten.opened(self._arguments))
        ]


def flatten_result(output: Any, arguments: Any = None) -> tuple[list[Any], pytree.TreeSpec]:
    """Return the leaves of a call's result: its output, and its arguments if the call put other objects into them."""
    flatten.register_nodes(output)
    return pytree.tree_flatten(flatten.opened(output if arguments is None else (output, arguments)))


def without_data(leaf: Any) -> Any:
    """Return ``leaf`` with its tensors on the ``meta`` device, so that no memory is held."""
    return leaf if isinstance(leaf, _NUMBERS) else flatten.map_values(leaf, _on_meta)


def _on_meta(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    try:
        return on_device(torch.empty_like(value, device="meta"), value.device)
    except RuntimeError:  # torch has no such kind of tensor without data
        return Undescribed(type(value).__name__)


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


# Record the inputs of a module or method as samples while a pipeline runs.


_MISSING = object()


class record_inputs:
    """Records the inputs of a module, or of a bound method, while the block runs.

    Tensors and empty caches are copied before each call, so that the call's writes into them do not show. The recording
    iterates over its samples, so it can be used wherever sample inputs are taken.

    Args:
        module_or_method: a module (calls of it, and of its ``forward``), or a bound method such as ``vae.decode``.
        max_samples: stop recording after so many calls.
        distinct_shapes: keep one call for each combination of shapes, such as prefill and decode.

    Raises:
        InputError: it is neither a module nor a bound method of an object.

    Example:
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU())
        >>> with record_inputs(model[1]) as recorded:
        ...     _ = model(torch.ones(2, 4)), model(torch.ones(5, 4))
        >>> [tuple(sample.args[0].shape) for sample in recorded]
        [(2, 3), (5, 3)]
    """

    def __init__(
        self, module_or_method: Callable[..., Any], *, max_samples: int | None = None, distinct_shapes: bool = False
    ) -> None:
        check_count("max_samples", max_samples, optional=True)
        check_switch("distinct_shapes", distinct_shapes)
        if isinstance(module_or_method, torch.nn.Module):
            self._owner, self._name = module_or_method, "forward"
            self.name = type(module_or_method).__name__
        else:
            owner, name = getattr(module_or_method, "__self__", None), getattr(module_or_method, "__name__", "")
            if owner is None or isinstance(owner, type) or not hasattr(owner, name):
                raise InputError(
                    f"module_or_method must be a module or a bound method such as model.decode, got "
                    f"{described(module_or_method)}. A plain function is called by name, so its "
                    "calls cannot be seen: pass the method of the object that is called."
                )
            self._owner, self._name = owner, name
            self.name = f"{type(owner).__name__}.{name}"
        self._limit = max_samples
        self._distinct = distinct_shapes
        self._samples: list[Sample] = []
        self._shapes: set[Any] = set()
        self._before: Any = _MISSING
        self._lock = threading.Lock()
        self.calls = 0
        """The number of calls that were seen, recorded or not."""

    def __enter__(self) -> record_inputs:
        self._before = vars(self._owner).get(self._name, _MISSING)
        original = getattr(self._owner, self._name)

        @functools.wraps(original)
        def recorded(*args: Any, **kwargs: Any) -> Any:
            self._record(args, kwargs)
            return original(*args, **kwargs)

        vars(self._owner)[self._name] = recorded
        return self

    def __exit__(self, *error: object) -> None:
        if self._before is _MISSING:
            del vars(self._owner)[self._name]
        else:
            vars(self._owner)[self._name] = self._before

    def _record(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        flatten.register_nodes((args, kwargs))
        shapes = tuple(map(_shape, pytree.tree_leaves((args, kwargs))))
        with self._lock:
            self.calls += 1
            full = self._limit is not None and len(self._samples) >= self._limit
            if full or (self._distinct and shapes in self._shapes):
                return
            self._shapes.add(shapes)
            copied = pytree.tree_map(_without_what_follows, detached_copy((args, kwargs)), is_leaf=_holds_nothing)
            self._samples.append(Sample(copied[0], copied[1], len(self._samples)))

    @property
    def samples(self) -> list[Sample]:
        """The recorded calls.

        Raises:
            InputError: there was none.
        """
        if not self._samples:
            raise InputError(
                f"{self.name} was not called inside the block, so no inputs were recorded. Run the pipeline inside "
                "`with record_inputs(...):`, and check that it calls this object and not a copy of it."
            )
        return list(self._samples)

    def __iter__(self) -> Iterator[Sample]:
        return iter(self.samples)

    def __len__(self) -> int:
        return len(self._samples)

    def __repr__(self) -> str:
        lines = [f"{len(self._samples)} inputs of {self.name} recorded, {self.calls} calls"]
        for sample in self._samples[:8]:
            args = [_text(arg) for arg in sample.args] + [f"{key}={_text(arg)}" for key, arg in sample.kwargs.items()]
            lines.append(f"  ({', '.join(args)})")
        if len(self._samples) > 8:
            lines.append(f"  … {len(self._samples) - 8} more")
        return "\n".join(lines)


def _holds_nothing(value: Any) -> bool:
    """Return whether it is an object without tensors, of which pytrees would copy only the outermost part."""
    return not isinstance(value, tuple | list | dict) and not isinstance(value, NO_DATA) and not flatten.collect(value)


def _without_what_follows(leaf: Any) -> Any:
    """Return a copy of an object that holds no tensors yet, such as an empty cache, which the call may fill."""
    if isinstance(leaf, (torch.Tensor, *NO_DATA)) or flatten.collect(leaf):
        return leaf
    try:
        return copy.deepcopy(leaf)
    except Exception:  # it holds a lock, a file or the like, and is no cache
        return leaf


def _shape(leaf: Any) -> Any:
    return (tuple(leaf.shape), leaf.dtype) if isinstance(leaf, torch.Tensor) else type(leaf)


def _text(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    if isinstance(value, bool | int | float | str | None):
        return repr(value)
    name = type(value).__name__
    held = Counter(map(_text, flatten.tensors_in(value)))
    if not held:
        return f"empty {name}" if flatten.holds_objects(value) else name
    return f"{name} of {', '.join(text if count == 1 else f'{count} {text}' for text, count in held.items())}"
