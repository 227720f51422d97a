"""A fingerprint of all that a model can reach: equal before and after a call that must leave the model as it was."""

from __future__ import annotations

import builtins
import collections
import functools
import math
import random
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import torch

Fingerprint = dict[str, Any]

_PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size, range)
_LIBRARIES = ("torch", "builtins", "numpy", "prepbench", "transformers")


def fingerprint(model: Any) -> Fingerprint:
    """What stands at each place that can be reached from a model, and the state that all of torch and Python share.

    Tensors by their bits, memory, dtype, device and flags; objects by identity and class, and by what is inside;
    classes and functions by their attributes; the globals that the user's functions name.
    """
    walk = _Walk()
    walk.visit("model", model)
    walk.found.update(_shared())
    return walk.found


def changes(before: Fingerprint, after: Fingerprint) -> list[str]:
    """The places that differ, with what stood and stands there."""
    names = dict.fromkeys((*before, *after))
    return [
        f"{name}: {before.get(name, 'nothing')} -> {after.get(name, 'nothing')}"
        for name in names
        if before.get(name) != after.get(name)
    ]


@contextmanager
def left_as_it_was(*models: Any) -> Iterator[None]:
    """Fail if the block changes a model, also if it raises."""
    before = [fingerprint(model) for model in models]
    try:
        yield
    finally:
        for model, known in zip(models, before, strict=True):
            different = changes(known, fingerprint(model))
            assert not different, "\n".join(different[:20])


def _shared() -> Fingerprint:
    replaced = (builtins.len, math.sqrt, torch.nn.Module.__call__, torch.nn.Module.__setattr__, torch.Tensor.item)
    return {
        "torch random": hash(torch.get_rng_state().numpy().tobytes()),
        "python random": hash(random.getstate()),
        "numpy random": hash(str(np.random.get_state())),
        "default dtype": torch.get_default_dtype(),
        "default device": torch.get_default_device(),
        "grad mode": torch.is_grad_enabled(),
        "inference mode": torch.is_inference_mode_enabled(),
        "threads": torch.get_num_threads(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "functions": tuple(map(id, replaced)),
    }


class _Walk:
    def __init__(self) -> None:
        self.found: Fingerprint = {}
        self._seen: dict[int, str] = {}
        self._alive: list[Any] = []
        self._storages: dict[int, str] = {}

    def visit(self, path: str, value: Any) -> None:
        waiting = [(path, value)]
        while waiting:
            place, part = waiting.pop()
            waiting += reversed(list(self._note(place, part)))

    def _note(self, path: str, value: Any) -> Iterator[tuple[str, Any]]:
        if isinstance(value, _PLAIN):
            # a NaN is not equal to itself, and 1 is not True
            self.found[path] = (type(value).__name__, repr(value))
            return
        known = self._seen.get(id(value))
        self.found[path] = (type(value).__qualname__, id(value), "same as " + known if known else "")
        if known is not None:
            return
        self._seen[id(value)] = path
        self._alive.append(value)
        if issubclass(type(value), torch.Tensor):  # a proxy says that it is one
            yield from self._tensor(path, value)
        elif isinstance(value, collections.abc.Mapping):
            self.found[f"{path} keys"] = [repr(key) for key in value]
            yield from ((f"{path}[{key!r}]", part) for key, part in value.items())
        elif isinstance(value, list | tuple | collections.deque):
            self.found[f"{path} length"] = len(value)
            yield from ((f"{path}[{index}]", part) for index, part in enumerate(value))
        elif isinstance(value, set | frozenset):
            self.found[f"{path} items"] = sorted(map(repr, value))
        elif isinstance(value, np.ndarray):
            self.found[f"{path} content"] = value.tobytes() if value.dtype.kind != "O" else repr(value.tolist())
        elif isinstance(value, functools.partial):
            yield from ((f"{path}.func", value.func), (f"{path}.args", value.args), (f"{path}.kw", value.keywords))
        elif isinstance(value, types.MethodType):
            yield from ((f"{path}.__func__", value.__func__), (f"{path}.__self__", value.__self__))
        elif isinstance(value, types.FunctionType):
            yield from self._function(path, value)
        elif isinstance(value, type) and not _is_library(value):
            yield from ((f"{path}.{name}", part) for name, part in vars(value).items() if name[:2] != "__")
        yield from self._attributes(path, value)

    def _tensor(self, path: str, value: torch.Tensor) -> Iterator[tuple[str, Any]]:
        self.found[f"{path} is"] = (
            value.dtype, str(value.device), tuple(value.shape), value.requires_grad, value.is_leaf, value.layout,
        )  # fmt: skip
        if value.layout is torch.strided and value.device.type != "meta" and not torch._is_functional_tensor(value):
            storage = value.untyped_storage()
            memory = self._storages.setdefault(storage.data_ptr(), path) if storage.nbytes() else path
            self.found[f"{path} memory"] = (memory, storage.data_ptr(), value.storage_offset(), value.stride())
            self.found[f"{path} bits"] = hash(_bits(value))
        if value.is_leaf and value.grad is not None:
            yield f"{path}.grad", value.grad

    def _function(self, path: str, value: types.FunctionType) -> Iterator[tuple[str, Any]]:
        self.found[f"{path} code"] = id(value.__code__)
        if (value.__module__ or "").partition(".")[0] in _LIBRARIES:
            return
        for index, cell in enumerate(value.__closure__ or ()):
            with suppress(ValueError):
                yield f"{path} closure {index}", cell.cell_contents
        for name in sorted(_names(value.__code__)):
            found = value.__globals__.get(name)
            if not isinstance(found, types.ModuleType) and found is not None and not _is_library(found):
                yield f"global {value.__module__}.{name}", found

    def _attributes(self, path: str, value: Any) -> Iterator[tuple[str, Any]]:
        if isinstance(value, type | types.ModuleType | torch.jit.ScriptModule):
            return
        if isinstance(value, torch.nn.Module) or not _is_library(type(value)) or isinstance(value, _HOLDERS):
            own = getattr(value, "__dict__", {})
            self.found[f"{path} attributes"] = list(own)
            yield from ((f"{path}.{name}", part) for name, part in own.items())
            slots = [name for kind in type(value).__mro__ for name in _listed(vars(kind).get("__slots__", ()))]
            yield from ((f"{path}.{name}", getattr(value, name)) for name in slots if hasattr(value, name))
            yield f"class {type(value).__module__}.{type(value).__qualname__}", type(value)


_HOLDERS = (types.SimpleNamespace, types.FunctionType)


def _listed(slots: Any) -> list[str]:
    names = [slots] if isinstance(slots, str) else list(slots)
    return [name for name in names if name not in ("__dict__", "__weakref__")]


def _bits(value: torch.Tensor) -> bytes:
    plain = value.detach().cpu().contiguous().resolve_neg().resolve_conj()
    return (
        plain.view(torch.uint8).numpy().tobytes()
        if plain.dim()
        else plain.reshape(1).view(torch.uint8).numpy().tobytes()
    )


def _names(code: types.CodeType) -> set[str]:
    inner = [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
    return set(code.co_names).union(*map(_names, inner))


def _is_library(value: Any) -> bool:
    kind = value if isinstance(value, type | types.FunctionType) else type(value)
    home = (getattr(kind, "__module__", None) or "").partition(".")[0]
    return home in _LIBRARIES or home in sys.stdlib_module_names
