"""The module classes that stay one call in a module graph: layers, and registered leaves."""

from __future__ import annotations

from typing import Any

import torch

from prepbench.checks import described
from prepbench.errors import SettingsError, UnknownNameError

MARKER = "__prepbench_layer__"
"""A class with this attribute set is a layer, as the classes of ``torch.nn`` are."""

_PACKAGES = ("torch.nn.", "torch.ao.nn.")

_registered: set[type[torch.nn.Module]] = set()


def is_layer_class(kind: type[torch.nn.Module]) -> bool:
    """Return whether the class is one of torch's own, or a class of ours that holds one operation."""
    return kind.__module__.startswith(_PACKAGES) or bool(getattr(kind, MARKER, False))


def register_leaf(kind: Any) -> None:
    """Keep every module of this class as one call from now on.

    Raises:
        SettingsError: it is no class of modules.
    """
    _check_class(kind)
    _registered.add(kind)


def unregister_leaf(kind: type[torch.nn.Module]) -> None:
    """Trace into modules of this class again.

    Raises:
        UnknownNameError: the class was not registered.
    """
    _check_class(kind)
    if kind not in _registered:
        known = ", ".join(sorted(one.__name__ for one in _registered)) or "none"
        raise UnknownNameError(
            f"m: {described(kind)} is not registered as a leaf. Give one of the registered classes: {known}."
        )
    _registered.remove(kind)


def _check_class(kind: Any) -> None:
    if not isinstance(kind, type) or not issubclass(kind, torch.nn.Module):
        raise SettingsError(f"m must be a class of modules, got {described(kind)}. Give the class, type(module).")


def is_registered_leaf(kind: type[torch.nn.Module]) -> bool:
    """Return whether this very class was registered."""
    return kind in _registered
