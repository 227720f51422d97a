"""Complete a prepared model's signature, and refuse argument values that it was not prepared for."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import fx

from prepbench.errors import InputError
from prepbench.inputs import Sample
from prepbench.objects.flatten import collect, fixed_numbers
from prepbench.prepare.model import PreparedModel
from prepbench.prepare.report import Change

_PLAIN = (type(None), bool, int, float, str)


def complete_signature_(
    model: PreparedModel, signature: inspect.Signature | None = None, fixed: Mapping[str, Any] | None = None
) -> list[Change]:
    """Add parameters that tracing omitted because they have a default, and check ``fixed`` values, in place."""
    placeholders = [node for node in model.graph.nodes if node.op == "placeholder"]
    values = {str(node.target): node.meta["val"] for node in placeholders if "val" in node.meta}
    known = {name: value for name, value in values.items() if _is_fixed(value)}
    known.update(fixed or {})
    names = [str(node.target) for node in placeholders]
    missing: list[str] = []
    if signature is not None and not any(p.kind is p.VAR_POSITIONAL for p in signature.parameters.values()):
        missing = _add(model, signature, placeholders, known)
        names = [str(node.target) for node in model.graph.nodes if node.op == "placeholder"]
    if known:
        model.add_check(FixedArguments(tuple(names), dict(known)))
    return [
        Change("argument kept", name, "", "", f"{name}={known[name]!r}", "only this value was prepared for")
        for name in (*missing, *(name for name in known if name not in missing))
        if name in known
    ]


def _is_fixed(value: Any) -> bool:
    return isinstance(value, _PLAIN) or (isinstance(value, tuple | list | dict) and not collect(value) and bool(value))


def _add(
    model: PreparedModel, signature: inspect.Signature, placeholders: list[fx.Node], known: dict[str, Any]
) -> list[str]:
    have = {str(node.target).rstrip("_") if str(node.target) not in signature.parameters else str(node.target): node
            for node in placeholders}  # fmt: skip
    parameters = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
    if not set(have) <= {p.name for p in parameters}:
        return []  # **kwargs were given by name; their order is that of the samples
    missing = [parameter for parameter in parameters if parameter.name not in have]
    for parameter in missing:
        value = known.setdefault(parameter.name, parameter.default)
        with model.graph.inserting_before(next(iter(model.graph.nodes))):
            node = model.graph.placeholder(parameter.name, default_value=_default(value))
        node.meta = {"val": value, "source": None, "fqn": ""}
        have[parameter.name] = node
    ordered = [have[parameter.name] for parameter in parameters]
    for node in reversed(ordered):
        next(iter(model.graph.nodes)).prepend(node)
    _give_defaults({parameter.name: have[parameter.name] for parameter in parameters}, known)
    return [parameter.name for parameter in missing]


def _give_defaults(placeholders: dict[str, fx.Node], known: dict[str, Any]) -> None:
    """Give parameters with a known value a default, and those after them ``None``, because Python needs one there."""
    optional = False
    for name, node in placeholders.items():
        if not node.args and (optional or name in known):
            node.args = (_default(known.get(name)),)
        optional = optional or name in known


def _default(value: Any) -> Any:
    """Return a value as the default of a parameter; ``None`` for values that a signature cannot express."""
    return value if isinstance(value, _PLAIN) else None


@dataclass(frozen=True)
class FixedArguments:
    """Refuses argument values other than those that are part of the graph."""

    names: tuple[str, ...]
    values: dict[str, Any]

    def __call__(self, model: PreparedModel, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Check one call.

        Raises:
            InputError: an argument has another value than the one the model was prepared with.
        """
        given = {**dict(zip(self.names, args, strict=False)), **kwargs}
        for name, expected in self.values.items():
            if name not in given or given[name] is expected:
                continue
            if given[name] is None and not isinstance(expected, _PLAIN):
                continue  # None replaces a default that a signature cannot express
            if type(given[name]) is not type(expected) or not _equal(given[name], expected):
                raise InputError(
                    f"{name}={_shown(given[name])} was given, but this {model.original_type.__name__} was prepared "
                    f"with {name}={_shown(expected)}, which is part of its graph. Prepare it again with samples that "
                    f"pass {name}, or with concrete_args={{{name!r}: ...}}."
                )


@dataclass(frozen=True)
class FixedNumbers:
    """Refuses caches and other objects with other numbers than those that are part of the graph."""

    names: tuple[str, ...]
    values: dict[str, Any]

    @classmethod
    def of(cls, model: PreparedModel, sample: Sample) -> FixedNumbers:
        """Return the numbers of the sample that the model was prepared with."""
        names = tuple(str(node.target) for node in model.graph.find_nodes(op="placeholder"))
        return cls(names, fixed_numbers(names, sample.args, sample.kwargs))

    def __call__(self, model: PreparedModel, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Check one call.

        Raises:
            InputError: an object holds another number than the one the model was prepared with.
        """
        given = fixed_numbers(self.names, args, kwargs)
        for path, expected in self.values.items():
            if path in given and given[path] != expected:
                raise InputError(
                    f"{path} is {given[path]!r}, but this {model.original_type.__name__} was prepared with "
                    f"{expected!r}, which is part of its graph. Prepare it again with samples that have this value, "
                    "or let it be a tensor, if the model takes one."
                )


def _equal(one: Any, two: Any) -> bool:
    try:
        return bool(one == two)
    except (RuntimeError, TypeError, ValueError):
        return False


def _shown(value: Any) -> str:
    shape = getattr(value, "shape", None)
    return f"a {tuple(shape)} tensor" if shape is not None else repr(value)
