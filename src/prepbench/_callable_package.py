"""Packages that double as the function they are named after.

``prepbench.capture`` is a package and ``pb.capture(...)`` its main function; the import system binds the package to
the name as soon as
anything in it is imported. Python lets a module have a class of its own (data model, "Customizing module attribute
access"), so
the package answers the call itself, whichever of the two was asked for first.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from types import ModuleType
from typing import Any


class CallablePackage(ModuleType):
    """A package that forwards calls to one function of one of its modules, imported at the first call."""

    _call_home: str
    _call_name: str

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(self._function())

    @property
    def __wrapped__(self) -> Any:
        return self._function()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._function()(*args, **kwargs)

    def _function(self) -> Any:
        return getattr(importlib.import_module(self._call_home), self._call_name)


def make_callable(package: str, home: str, name: str) -> None:
    """Make ``package`` callable like ``home.name``."""
    module = sys.modules[package]
    module.__class__ = CallablePackage
    module.__dict__.update(_call_home=home, _call_name=name)
