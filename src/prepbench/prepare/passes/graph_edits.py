"""Shared parts of the passes: names for new modules, and edits of the graph and of the module hierarchy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from prepbench.prepare.model import PreparedModel

_CONTAINERS = (torch.nn.ModuleList, torch.nn.ModuleDict, torch.nn.Sequential)


class Names:
    """Names for new modules: ``layer1.0.module_add``; numbered, and unique."""

    def __init__(self, model: PreparedModel) -> None:
        self._model = model
        self._count: Counter[str] = Counter()

    def add(self, scope: str, name: str, module: torch.nn.Module, first: int = 0) -> str:
        """Add ``module`` to the module ``scope`` as ``module_<name>``; return its fully qualified name.

        Args:
            scope: where it is used. Lists and sequences number their children, so their owner gets the module instead.
            name: the name of its operation.
            module: the new module.
            first: the first number; 0 is not written. With 0 the whole model is counted, otherwise ``scope``.
        """
        owner = self._model.get_submodule(scope)
        while scope and isinstance(owner, _CONTAINERS):
            scope, _, last = scope.rpartition(".")
            name = f"{last}_{name}"
            owner = self._model.get_submodule(scope)
        while True:
            key = f"{scope}.{name}" if first else name
            number = self._count[key] + first
            self._count[key] += 1
            chosen = f"module_{name}_{number}" if number else f"module_{name}"
            if not _has(owner, chosen):
                break
        owner.add_module(chosen, module)
        return f"{scope}.{chosen}" if scope else chosen


def _has(owner: torch.nn.Module, name: str) -> bool:
    return name in vars(owner) or name in owner._modules or hasattr(type(owner), name) or hasattr(owner, name)


def call_module(
    model: PreparedModel, node: fx.Node, target: str, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None
) -> fx.Node:
    """Replace ``node`` by a call of the module ``target``."""
    with model.graph.inserting_before(node):
        new = model.graph.call_module(target, args, kwargs)
    new.meta = {**node.meta, "fqn": target}
    new.meta.pop("by_mode", None)
    node.replace_all_uses_with(new)
    model.graph.erase_node(node)
    return new


def owner_of(node: fx.Node) -> str:
    """Return the module whose code made a node."""
    return str(node.meta.get("fqn", ""))


def remove_module(model: PreparedModel, name: str) -> None:
    """Remove a module from the hierarchy if the graph no longer calls it."""
    if any(node.op == "call_module" and node.target == name for node in model.graph.nodes):
        return
    scope, _, last = name.rpartition(".")
    owner = model.get_submodule(scope)
    if isinstance(owner, torch.nn.Sequential | torch.nn.ModuleList):
        owner._modules[last] = torch.nn.Identity()  # the places of the others are their names
    else:
        del owner._modules[last]


def replace_module(model: PreparedModel, name: str, module: torch.nn.Module) -> None:
    """Assign another module to a name; the previous one belongs to the original model and is not changed."""
    scope, _, last = name.rpartition(".")
    model.get_submodule(scope)._modules[last] = module


def called(model: PreparedModel, node: object) -> torch.nn.Module | None:
    """Return the module that a node calls, or ``None`` if it calls none."""
    if isinstance(node, fx.Node) and node.op == "call_module":
        return model.get_submodule(str(node.target))
    return None


def only_user(node: fx.Node) -> fx.Node | None:
    """Return the only user of a node's value; None if there are several."""
    return next(iter(node.users)) if len(node.users) == 1 else None


def has_own_parameters(model: PreparedModel, name: str) -> bool:
    """Return whether a module's parameters are used by this module and call alone."""
    own = {id(parameter) for parameter in model.get_submodule(name).parameters()}
    calls = [node for node in model.graph.nodes if node.op == "call_module" and node.target == name]
    others = [
        parameter
        for path, module in model.named_modules()
        if path != name
        for parameter in module._parameters.values()
        if parameter is not None
    ]
    return len(calls) == 1 and not any(id(parameter) in own for parameter in others)


# Map and iterate over arguments of a call, nested in tuples, lists, dicts and slices.


class OtherStructure(ValueError):
    """Raised if two values have different nesting."""


def mapped(value: Any, function: Callable[[Any], Any]) -> Any:
    """Return ``value`` with ``function`` applied to every part that is not a container, in order."""
    if isinstance(value, tuple):
        return tuple(mapped(item, function) for item in value)
    if isinstance(value, list):
        return [mapped(item, function) for item in value]
    if isinstance(value, dict):
        return {key: mapped(item, function) for key, item in value.items()}
    if isinstance(value, slice):
        return slice(*[mapped(item, function) for item in _ends(value)])
    return function(value)


def parts(value: Any) -> list[Any]:
    """Return every part of ``value`` that is not a container, in the order of :func:`mapped`."""
    found: list[Any] = []
    mapped(value, found.append)
    return found


def mapped_together(one: Any, two: Any, function: Callable[[Any, Any], Any]) -> Any:
    """Apply ``function`` to the matching parts of two values with the same nesting.

    The result is nested as ``one`` is. Where only one of the two is a container, ``function`` gets it whole.

    Raises:
        OtherStructure: two containers have other lengths or keys.
    """
    if isinstance(one, tuple | list) and isinstance(two, tuple | list):
        if len(one) != len(two):
            raise OtherStructure(f"{len(one)} items and {len(two)} items")
        items = [mapped_together(a, b, function) for a, b in zip(one, two, strict=True)]
        return tuple(items) if isinstance(one, tuple) else items
    if isinstance(one, dict) and isinstance(two, dict):
        if set(one) != set(two):
            raise OtherStructure(f"keys {list(one)} and {list(two)}")
        return {key: mapped_together(one[key], two[key], function) for key in one}
    if isinstance(one, slice) and isinstance(two, slice):
        return slice(*[mapped_together(a, b, function) for a, b in zip(_ends(one), _ends(two), strict=True)])
    return function(one, two)


def _ends(value: slice) -> tuple[Any, Any, Any]:
    return value.start, value.stop, value.step
