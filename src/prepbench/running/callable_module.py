"""Wrap functions and bound methods as modules for ``torch.export``, and replace a submodule's forward."""

from __future__ import annotations

import ast
import copy
import functools
import inspect
import textwrap
import threading
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from prepbench.checks import described
from prepbench.errors import InputError
from prepbench.inputs import scripted_signature
from prepbench.objects.parts import is_user_file
from prepbench.patching import patched, patched_item


class FunctionModule(torch.nn.Module):
    """A module whose forward is a function; modules that the function refers to are its children, by their names.

    ``is_scripted`` says that it calls a scripted module.
    """

    def __init__(self, function: Callable[..., Any], *, is_scripted: bool = False) -> None:
        super().__init__()
        self.is_scripted = is_scripted
        for name, module in _modules_used_by(function).items():
            self.add_module(name, module)
        self.forward = function


def as_module(module_or_function: Any) -> torch.nn.Module:
    """Return the module itself, or a module that calls the function or bound method; parameters are shared.

    Raises:
        InputError: it is a class, or not callable.
    """
    if isinstance(module_or_function, torch.jit.ScriptModule):
        # its forward runs outside Python, so a module around it is captured
        def call(*args: Any, **kwargs: Any) -> Any:
            return module_or_function(*args, **kwargs)

        vars(call)["__signature__"] = scripted_signature(module_or_function)
        return _named(module_or_function.original_name)(call, is_scripted=True)
    if isinstance(module_or_function, torch.nn.Module):
        return module_or_function
    if isinstance(module_or_function, type) and issubclass(module_or_function, torch.nn.Module):
        name = module_or_function.__name__
        raise InputError(
            f"module_or_func must be a module or a function, got the class {name}. Create one with {name}(...)."
        )
    if not callable(module_or_function):
        raise InputError(
            f"module_or_func must be a module or a function, got {described(module_or_function)}. Give what you call."
        )
    owner = getattr(module_or_function, "__self__", None)
    if isinstance(owner, torch.nn.Module):
        # a shallow copy shares parameters and children, so names stay those of the owner
        clone = copy.copy(owner)
        clone.__dict__["forward"] = as_forward(types.MethodType(module_or_function.__func__, clone))
        return clone
    return _named(getattr(module_or_function, "__name__", type(module_or_function).__name__))(module_or_function)


@functools.cache
def _named(name: str) -> type[FunctionModule]:
    """Return the class under the name that texts show."""
    return type(name, (FunctionModule,), {"__module__": __name__})


def with_forward_fn(module_or_function: Any, forward_fn: Callable[..., Any]) -> torch.nn.Module:
    """Return a module that calls ``forward_fn(model, args, kwargs)`` in place of the model's own forward.

    Parameters, children and their names are those of the model. ``model``, as the function gets it, is called like the
    original and has its attributes.
    """
    module = copy.copy(as_module(module_or_function))
    original = module.forward
    if isinstance(original, types.MethodType) and original.__self__ is not module:
        original = types.MethodType(original.__func__, module)
    inner, once = _Inner(module, original), EnteredOnce()

    def forward(*args: Any, **kwargs: Any) -> Any:
        # a method that it calls may call the model itself
        return once.call(lambda: forward_fn(inner, args, kwargs), lambda: original(*args, **kwargs))

    module.__dict__["forward"] = forward
    return module


def calls_forward_fn(module: torch.nn.Module) -> bool:
    """Return whether :func:`with_forward_fn` made a module, or made the original of this twin."""
    forward = vars(module).get("forward")
    return getattr(forward, "__qualname__", "") == f"{with_forward_fn.__qualname__}.<locals>.forward"


class _Inner:
    """The model that a ``forward_fn`` receives."""

    def __init__(self, module: torch.nn.Module, original: Callable[..., Any]) -> None:
        self._module = module
        self._original = original

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._original(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return self._original if name == "forward" else getattr(self._module, name)


def _modules_used_by(function: Callable[..., Any]) -> dict[str, torch.nn.Module]:
    plain = inspect.unwrap(function)
    while isinstance(plain, functools.partial):
        plain = plain.func
    if not isinstance(plain, types.FunctionType):
        return {}
    used = inspect.getclosurevars(plain)
    return {
        name: value for name, value in {**used.globals, **used.nonlocals}.items() if isinstance(value, torch.nn.Module)
    }


# Re-entrant calls must reach the original forward: ``generate`` calls ``self(x)`` and means the model's own forward.


class EnteredOnce:
    """Distinguishes the first call in a thread from re-entrant calls."""

    def __init__(self) -> None:
        self._running: set[int] = set()

    def call(self, first: Callable[[], Any], again: Callable[[], Any]) -> Any:
        """Call ``first``; re-entrant calls during it run ``again`` instead."""
        if torch.compiler.is_dynamo_compiling():
            return first()
        thread = threading.get_ident()
        if thread in self._running:
            return again()
        self._running.add(thread)
        try:
            return first()
        finally:
            self._running.discard(thread)


def as_forward(method: types.MethodType) -> Callable[..., Any]:
    """Return a method that stands in for its owner's forward, and may call that forward itself."""
    owner, function = method.__self__, method.__func__
    kind: Any = type(owner)
    if not _calls_owner(kind, function):
        return method
    own, once = kind.forward, EnteredOnce()

    @functools.wraps(method)
    def forward(*args: Any, **kwargs: Any) -> Any:
        return once.call(lambda: function(owner, *args, **kwargs), lambda: own(owner, *args, **kwargs))

    return forward


def _calls_owner(kind: type, function: Any) -> bool:
    """Return whether a method, or a method that it names, calls the module or its forward."""
    waiting, seen = [function], set()
    while waiting:
        code = getattr(waiting.pop(), "__code__", None)
        if not isinstance(code, types.CodeType) or code in seen or not is_user_file(code.co_filename):
            continue
        seen.add(code)
        if "forward" in code.co_names or _calls_first_argument(code):
            return True
        waiting += [getattr(kind, name, None) for name in code.co_names]
    return False


def _calls_first_argument(code: types.CodeType) -> bool:
    """Return whether a method contains ``self(...)``; true if there is no source to read."""
    owner = code.co_varnames[:1]
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(code)))
    except (OSError, TypeError, SyntaxError):
        return bool(owner)
    calls = (node.func for node in ast.walk(tree) if isinstance(node, ast.Call))
    return any(isinstance(called, ast.Name) and called.id in owner for called in calls)


# Replace the forward of a submodule during a block.


FURTHER = "__prepbench_further_forwards__"
"""The attribute of a model that has more objects with a ``forward`` by name; their callers ask for it, as for that of a
module. They are not among its modules, because forwards go through these."""


def replaceable_modules(model: torch.nn.Module) -> list[tuple[str, Any]]:
    """Return everything whose forward Python can replace, by name: all modules but those inside scripted ones, and the
    further objects of the model.
    """
    modules = list(model.named_modules())
    scripted = [fqn for fqn, module in modules if isinstance(module, torch.jit.ScriptModule)]
    found = [(fqn, module) for fqn, module in modules if not any(fqn.startswith(f"{outer}.") for outer in scripted)]
    return [*found, *vars(model).get(FURTHER, {}).items()]


def part_named(model: torch.nn.Module, fqn: str) -> Any:
    """Return the submodule or further object of this name."""
    return vars(model).get(FURTHER, {}).get(fqn) or model.get_submodule(fqn)


@contextmanager
def replaced_forward(model: torch.nn.Module, fqn: str, forward: Callable[..., Any]) -> Iterator[None]:
    """Run ``forward`` for calls of the submodule ``fqn``, or of a further object, during the block."""
    module = part_named(model, fqn)
    if not isinstance(module, torch.jit.ScriptModule):
        with patched(module, "forward", forward):
            yield
        return
    parent, _, name = fqn.rpartition(".")
    children: dict[str, Any] = model.get_submodule(parent)._modules
    with patched_item(children, name, _StandIn(module, forward)):
        yield


class _StandIn(torch.nn.Module):
    """Stands in for a scripted module, whose forward runs outside of Python and cannot be replaced on it."""

    def __init__(self, original: torch.nn.Module, forward: Callable[..., Any]) -> None:
        super().__init__()
        self.__dict__["original"] = original
        self.forward = forward

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["original"], name)
