"""Which module classes stay one call in a module graph: layers, and classes that the user registered as leaves."""

from __future__ import annotations

import torch

MARKER = "__prepbench_layer__"
"""A class with this attribute set is a layer, as the classes of ``torch.nn`` are."""

_PACKAGES = ("torch.nn.", "torch.ao.nn.")

_registered: set[type[torch.nn.Module]] = set()


def is_layer_class(kind: type[torch.nn.Module]) -> bool:
    """Whether the class is one of torch's own, or a class of ours that holds one operation."""
    return kind.__module__.startswith(_PACKAGES) or bool(getattr(kind, MARKER, False))


def register_leaf(kind: type[torch.nn.Module]) -> None:
    """Keep every module of this class as one call from now on."""
    _registered.add(kind)


def unregister_leaf(kind: type[torch.nn.Module]) -> None:
    """Trace into modules of this class again.

    Raises:
        KeyError: the class was not registered.
    """
    _registered.remove(kind)


def is_registered_leaf(kind: type[torch.nn.Module]) -> bool:
    """Whether this very class was registered."""
    return kind in _registered
