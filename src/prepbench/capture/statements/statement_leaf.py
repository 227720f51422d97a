"""A range of statements as a callable: the implementation of the operator that stands for it in a graph."""

from __future__ import annotations

import types
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import torch

from prepbench.capture.statements.outline import UNBOUND, Outlined
from prepbench.errors import CaptureError


class StatementLeaf:
    """The statements of one range, run for one module.

    Args:
        outlined: the range as a function.
        code: the code of that function.
        origin: the function that the range was cut out of; gives global names and closures.
        owner_fqn: the module that is the first argument, or else that in which the range was met first.
        owner: the module itself, if it is the first argument.
        reason: why the statements cannot be in a graph.
    """

    def __init__(
        self,
        outlined: Outlined,
        code: types.CodeType,
        origin: types.FunctionType,
        owner_fqn: str,
        owner: torch.nn.Module | None = None,
        *,
        reason: Exception,
    ) -> None:
        self.outlined = outlined
        self.owner_fqn = owner_fqn
        self.reason = reason
        self.has_owner = owner is not None
        self._code = code
        self._origin = origin
        self._owner = owner

    @property
    def file(self) -> str:
        """The name of the file that the statements are in."""
        return self._code.co_filename

    @property
    def name(self) -> str:
        """The lines, and the name of their module."""
        first, last = self.outlined.lines
        lines = f"Line {first}" if first == last else f"The code on lines {first} to {last}"
        return f"{lines} of {self.owner_fqn or 'the model'}"

    def forward(self, *values: Any) -> Any:
        """Run the statements.

        Args:
            values: those of ``outlined.inputs``, without the owner where the leaf knows it.

        Returns:
            The values of ``outlined.outputs`` as a tuple; or what the statements return.
        """
        return _run(self.outlined, self._code, self._origin, self._owner, values)

    def on(self, model: torch.nn.Module) -> Callable[..., Any]:
        """Run :meth:`forward` on the modules of a twin of the model."""
        return self.released(lambda part: part).on(model)

    def released(self, original: Callable[[Any], Any]) -> ReleasedLeaf:
        """Return the leaf without strong references to the model.

        Args:
            original: gives the function that the one here was made of.
        """
        return ReleasedLeaf(
            self.outlined, self._code, weakref.ref(original(self._origin)), self.owner_fqn, self.has_owner
        )


class ReleasedLeaf:
    """The statements of a :class:`StatementLeaf`, for any model with the same modules.

    Attributes:
        outlined: the range as a function.
        owner_fqn: the module that is the first argument, or else that in which the range was met first.
        has_owner: whether the module is the first argument.
    """

    def __init__(
        self,
        outlined: Outlined,
        code: types.CodeType,
        origin: weakref.ref[types.FunctionType],
        owner_fqn: str,
        has_owner: bool,
    ) -> None:
        self.outlined = outlined
        self.owner_fqn = owner_fqn
        self.has_owner = has_owner
        self._code = code
        self._origin = origin

    @property
    def file(self) -> str:
        """The name of the file that contains the statements."""
        return self._code.co_filename

    def on(self, model: torch.nn.Module) -> Callable[..., Any]:
        """Return a function that runs the statements on the modules of a model."""
        origin = self._origin()
        if origin is None:
            raise CaptureError(f"The function around lines {self.outlined.lines} no longer exists: keep the model.")
        owner = model.get_submodule(self.owner_fqn) if self.has_owner else None
        return lambda *values: _run(self.outlined, self._code, origin, owner, values)

    def released(self, original: Callable[[Any], Any]) -> ReleasedLeaf:
        """Return itself."""
        return self


def _run(
    outlined: Outlined,
    code: types.CodeType,
    origin: types.FunctionType,
    owner: torch.nn.Module | None,
    values: tuple[Any, ...],
) -> Any:
    cells = dict(zip(origin.__code__.co_freevars, origin.__closure__ or (), strict=True))
    closure = tuple(cells[name] for name in code.co_freevars)
    function = types.FunctionType(code, origin.__globals__, code.co_name, None, closure)
    takes_owner = owner is not None and outlined.owner in outlined.inputs
    found = function(*((owner,) if takes_owner else ()), *values)
    if outlined.outputs is None:
        return found
    return tuple(found.get(name, UNBOUND) for name in outlined.outputs)


class LeafCall:
    """The function that replaces a range in the code.

    Args:
        outlined: the range.

    Attributes:
        by_owner: the leaf of each module whose method the function is, by the module's id.
        other: the leaf for all other calls.
    """

    def __init__(self, outlined: Outlined) -> None:
        self.by_owner: dict[int, StatementLeaf] = {}
        self.other: StatementLeaf | None = None
        self.outlined = outlined

    def __call__(self, variables: Mapping[str, Any]) -> Any:
        leaf = self.by_owner.get(id(variables.get(self.outlined.owner)))
        known = () if leaf is None else (self.outlined.owner,)
        leaf = leaf or self.other
        assert leaf is not None
        return leaf.forward(*(variables.get(name, UNBOUND) for name in self.outlined.inputs if name not in known))
