"""Find the models and possible samples among the variables of a notebook.

A front end asks for them in a user's kernel. No user code is called: models do not run, data is not read, and only
plain containers are inspected.
"""

from __future__ import annotations

import keyword
import re
import sys
from collections import UserDict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import chain, islice
from typing import Any

import torch
from torch import nn

from prepbench.bench.names import user_namespace
from prepbench.errors import PrepbenchError, printable
from prepbench.inputs import normalize_samples

_MODELS, _SAMPLES = 200, 200  # listed at most; more are no use in a menu
_ITEMS, _DEPTH = 32, 6  # how many items, and how deep, are inspected
_TEXT = 120
_HINTS = re.compile(r"calib|sample|input|batch|^x$", re.IGNORECASE)


@dataclass(frozen=True)
class ModelVariable:
    """A variable that holds a model.

    Attributes:
        name: of the variable.
        type: of the model, in words.
        parameters: how many it has; -1 where that is not known.
    """

    name: str
    type: str
    parameters: int


@dataclass(frozen=True)
class SampleVariable:
    """A variable that may hold samples.

    Attributes:
        name: of the variable.
        expression: the argument for a bench: the variable, or a list with it if it is one call.
        text: its content, in words.
        fits: the names of the models whose ``forward`` takes it.
    """

    name: str
    expression: str
    text: str
    fits: tuple[str, ...]


@dataclass(frozen=True)
class KernelVariables:
    """The variables from which a bench can be made.

    Attributes:
        models: those with parameters first.
        samples: the likeliest first.
        bench: a name that no variable has.
        package: the name that code can give to the package.
    """

    models: tuple[ModelVariable, ...]
    samples: tuple[SampleVariable, ...]
    bench: str
    package: str

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        return {"application/json": asdict(self), "text/plain": repr(self)}


def variables(namespace: Mapping[str, Any] | None = None) -> KernelVariables:
    """Inspect the variables of the notebook, or of ``namespace``.

    Example:
        >>> found = variables({"net": nn.Linear(4, 2), "batches": [torch.ones(2, 4)]})
        >>> found.models[0].parameters, found.samples[0].expression, found.samples[0].fits
        (10, 'batches', ('net',))
    """
    known = dict(user_namespace() if namespace is None else namespace)
    named = [(name, value) for name, value in known.items() if _is_name(name)]
    ours = sys.modules["prepbench"]
    models = {name: value for name, value in named if _is(value, nn.Module)}
    rows = [ModelVariable(name, _type_of(model), _parameters_of(model)) for name, model in models.items()]
    models_told = sorted(rows, key=lambda row: row.parameters == 0)[:_MODELS]
    offered = {row.name: models[row.name] for row in models_told}
    return KernelVariables(
        tuple(models_told),
        tuple(_samples(named, offered)),
        next(name for name in _names("bench") if name not in known),
        next(name for name in chain(["pb"], _names("prepbench")) if known.get(name, ours) is ours),
    )


def _names(name: str) -> Iterator[str]:
    yield name
    yield from (f"{name}_{number}" for number in range(2, sys.maxsize))


def _is_name(name: Any) -> bool:
    return isinstance(name, str) and name.isidentifier() and not name.startswith("_") and not keyword.iskeyword(name)


def _is(value: Any, kind: type | tuple[type, ...]) -> bool:
    return issubclass(type(value), kind)  # isinstance would ask the object


def _type_of(value: Any) -> str:
    return printable(type(value).__name__)[:_TEXT]


def _parameters_of(model: nn.Module) -> int:
    try:
        return sum(parameter.numel() for parameter in nn.Module.parameters(model))
    except Exception:  # its __init__ failed, or a subclass of tensors answers with its own code: the others are listed
        return -1


def _samples(named: Iterable[tuple[str, Any]], models: Mapping[str, nn.Module]) -> list[SampleVariable]:
    found: list[tuple[int, SampleVariable]] = []
    for name, value in named:
        text = _text_of(value)
        if text is None:
            continue
        fits = tuple(model for model, module in models.items() if _fits(module, value))
        expression = f"[{name}]" if _is(value, tuple) else name
        likely = 4 * bool(fits) + 2 * bool(_HINTS.search(name)) + (_is(value, list) and len(value) > 1)
        found.append((likely, SampleVariable(name, expression, text, fits)))
        if len(found) == _SAMPLES:
            break
    return [sample for _, sample in sorted(found, key=lambda pair: -pair[0])]


def _text_of(value: Any) -> str | None:
    """Describe a value that may hold samples; None for any other."""
    leaves = list(islice(_leaves(value), _ITEMS))
    tensors = [leaf for leaf in leaves if _is(leaf, torch.Tensor)]
    if not tensors or not all(leaf is None or _is(leaf, (torch.Tensor, bool, int, float, str)) for leaf in leaves):
        return None
    shape = _shape_of(tensors[0])
    if _is(value, torch.Tensor):
        return f"tensor {shape}"
    kind = "list" if _is(value, list) else "tuple" if _is(value, tuple) else "dict"
    return f"{kind} of {len(value)}, the first tensor {shape}"


def _shape_of(tensor: torch.Tensor) -> str:
    try:
        sizes = "×".join(map(str, tuple(tensor.shape))) or "without dims"
        return printable(f"{sizes} {str(tensor.dtype).removeprefix('torch.')}")[:_TEXT]
    except Exception:  # a subclass of tensors answers with its own code, which may raise anything
        return "of unknown shape"


def _leaves(value: Any, depth: int = 0) -> Iterator[Any]:
    if depth > _DEPTH:
        yield object()
    elif _is(value, (list, tuple)):
        for item in islice(value, _ITEMS):
            yield from _leaves(item, depth + 1)
    elif _is(value, (dict, UserDict)):
        for item in islice(vars(value)["data"].values() if _is(value, UserDict) else dict.values(value), _ITEMS):
            yield from _leaves(item, depth + 1)
    else:
        yield value


def _fits(model: nn.Module, value: Any) -> bool:
    """Return whether the signature of ``forward`` accepts the first sample."""
    first = value[0] if _is(value, list) else value
    try:
        return bool(normalize_samples(model, [first]))
    except (PrepbenchError, ValueError, TypeError, AttributeError):
        return False
