"""Record the inputs of a module or method as samples while a pipeline runs."""

from __future__ import annotations

import copy
import functools
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch

from prepbench._torch_compat import pytree
from prepbench.checks import check_count, check_switch, described
from prepbench.errors import InputError
from prepbench.inputs import Sample
from prepbench.objects.parts import NO_DATA
from prepbench.running.nested_values import collect
from prepbench.running.object_nodes import holds_objects, register_nodes
from prepbench.running.unchanged import detached_copy

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
        register_nodes((args, kwargs))
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
    return not isinstance(value, tuple | list | dict) and not isinstance(value, NO_DATA) and not collect(value)


def _without_what_follows(leaf: Any) -> Any:
    """Return a copy of an object that holds no tensors yet, such as an empty cache, which the call may fill."""
    if isinstance(leaf, (torch.Tensor, *NO_DATA)) or collect(leaf):
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
    held = Counter(_text(part) for part in collect(value) if isinstance(part, torch.Tensor))
    if not held:
        return f"empty {name}" if holds_objects(value) else name
    return f"{name} of {', '.join(text if count == 1 else f'{count} {text}' for text, count in held.items())}"
