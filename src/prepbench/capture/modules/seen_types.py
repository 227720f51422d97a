"""``type(x) is torch.Tensor`` in a model's code, while its tensors are stand-ins of other classes."""

from __future__ import annotations

import inspect
import sys
import types
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import fx

from prepbench._torch_compat.fake_tensors import is_fake
from prepbench.patching import patched_item


@contextmanager
def types_of_tensors(code: Iterable[Any]) -> Iterator[None]:
    """Inside the block ``type(x)`` is ``torch.Tensor`` for a tensor that is traced, in the files of these classes.

    Only files whose code asks for a type get the replacement. For everything else it does what ``type`` does.
    """
    spaces = {id(space): space for part in code for space in _namespaces_that_ask(part)}
    with ExitStack() as stack:
        for space in spaces.values():
            stack.enter_context(patched_item(space, "type", _Type))
        yield


def _namespaces_that_ask(part: Any) -> Iterator[dict[str, Any]]:
    """The global names of the functions of a class or function that name ``type``."""
    kind = part if inspect.isclass(part) or inspect.isroutine(part) else type(part)
    functions = [kind] if inspect.isroutine(kind) else [f for base in kind.__mro__ for f in vars(base).values()]
    for function in map(inspect.unwrap, filter(callable, functions)):
        if isinstance(function, types.FunctionType) and "type" in function.__code__.co_names:
            home = function.__module__ or ""
            if home.partition(".")[0] not in ("torch", "builtins", "prepbench") and home in sys.modules:
                yield function.__globals__


def _type_of_proxy(proxy: fx.Proxy) -> type:
    if proxy.node.op != "get_attr":
        return torch.Tensor
    path, _, name = str(proxy.node.target).rpartition(".")
    root: Any = proxy.tracer.root  # type: ignore[attr-defined]
    # not by getattr, which gives the proxy again
    return type(root.get_submodule(path)._parameters.get(name, torch.empty(0)))


class _LikeType(type):
    """Makes a class that stands for ``type`` itself."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if len(args) == 1 and not kwargs:
            seen = args[0]
            if is_fake(seen):
                return torch.nn.Parameter if isinstance(seen, torch.nn.Parameter) else torch.Tensor
            if issubclass(type(seen), fx.Proxy):
                return _type_of_proxy(seen)
        return type(*args, **kwargs)

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, type)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, type)

    def __eq__(cls, other: object) -> bool:
        return other is cls or other is type

    def __hash__(cls) -> int:
        return hash(type)


class _Type(type, metaclass=_LikeType):
    pass
