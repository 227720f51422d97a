"""Find the models and possible samples among the variables of a notebook.

A front end asks for them in a user's kernel. No user code is called: models do not run, data is not read, and only
plain containers are inspected.
"""

from __future__ import annotations

import keyword
import re
import sys
from collections import UserDict
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import chain, islice
from types import MethodType
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from prepbench.capture.sizes.axis import counted_places, in_pattern
from prepbench.capture.sizes.dynamic_axes import DynamicAxes
from prepbench.errors import PrepbenchError, printable
from prepbench.measure.generation import Generation
from prepbench.running.given_samples import normalize_samples
from prepbench.settings.numbers import FLOAT32

_MODELS, _SAMPLES = 200, 200  # listed at most; more are no use in a menu
_ITEMS, _DEPTH = 32, 6  # how many items, and how deep, are inspected
_TEXT = 120
_HINTS = re.compile(r"calib|sample|input|batch|^x$", re.IGNORECASE)


@dataclass(frozen=True)
class ModelVariable:
    """A variable that holds a model, its type in words, and how many parameters it has, -1 where unknown."""

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


# Find the caller's variable names for the bench's arguments, so that generated code runs where it is pasted.


@dataclass(frozen=True)
class Given:
    """One argument that the bench was given.

    Attributes:
        argument: the argument of ``Bench``, which is also an attribute of it.
        value: the object itself, as it came.
        wanted: what to fill in for it, in words.
        placeholder: an expression to be replaced, for code that knows no name.
    """

    argument: str
    value: Any
    wanted: str
    placeholder: str = "[...]"


@dataclass(frozen=True)
class Named:
    """How generated code refers to the bench's arguments.

    Attributes:
        expressions: an expression for each argument.
        definitions: lines to put first, for arguments without a variable.
    """

    expressions: Mapping[str, str]
    definitions: tuple[str, ...] = ()


def given_to(arguments: Mapping[str, Any], sizes: Iterable[tuple[str, int]]) -> tuple[Given, ...]:
    """Return the arguments of a bench by name, with the paths and sizes of its samples in words.

    Without tracing inputs, these are the calibration inputs.
    """
    shapes: dict[str, list[int]] = {}
    for path, size in sizes:
        shapes.setdefault(path, []).append(size)
    shown = ", ".join(f"{path} of shape {tuple(shape)}" for path, shape in shapes.items())
    wanted = {
        "model": ("the model", "..."),
        "tracing_inputs": (f"samples to trace with: {shown}", "[...]"),
        "calibration_inputs": (f"representative samples: {shown}", "[...]"),
        "data": ("(input, target) pairs to compare on", "[...]"),
        "metric": ("a function: metric(output, target) -> number", "..."),
        "decode": ("a function: decode(tokens) -> text, such as tokenizer.decode", "..."),
        "training_data": ("batches to train on: (input, target) pairs where there is a loss, else inputs", "[...]"),
        "loss": ("a function: loss(output, target) -> tensor of one number", "..."),
    }
    if isinstance(arguments.get("data"), Generation):
        new_tokens = arguments["data"].new_tokens
        wanted["data"] = ("the prompts, as a tokenizer returns them", f"pb.Generation(..., new_tokens={new_tokens})")
    values = dict(arguments)
    if values["tracing_inputs"] is None:
        values["tracing_inputs"] = values["calibration_inputs"]
    made = (  # the bench has tensors where the variables have texts and rows
        ("tokenizer", ("tracing_inputs", "calibration_inputs", "data")),
        ("transform", ("tracing_inputs", "calibration_inputs", "data", "training_data")),
    )
    for maker, names in made:
        if values.pop(maker, None) is not None:
            values |= {name: None if values[name] is None else object() for name in names}
    return tuple(Given(name, values[name], *wanted[name]) for name in wanted if values.get(name) is not None)


def names_of(
    bench: Any,
    arguments: Mapping[str, Any],
    axes: DynamicAxes,
    namespace: Mapping[str, Any] | None = None,
    *,
    only: str = "",
) -> Named:
    """Return how code refers to the arguments that a bench was given, or to one of them.

    Args:
        bench: the bench, from which objects without a variable are read.
        arguments: what it was given, by name.
        axes: of the inputs, which describe samples in words.
        namespace: the variables there; those of the notebook or script if left out.
        only: the argument to name; all if left out.
    """
    sizes = tuple((axis.path, axis.sizes[0]) for axis in axes.axes)
    given = tuple(each for each in given_to(arguments, sizes) if only in ("", each.argument))
    return named(given, bench, user_namespace() if namespace is None else namespace)


def user_namespace() -> dict[str, Any]:
    """Return the variables of the notebook, or of the script where there is none."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    namespace: dict[str, Any] = vars(sys.modules["__main__"]) if shell is None else shell.user_ns
    return namespace


def named(given: tuple[Given, ...], bench: Any, namespace: Mapping[str, Any]) -> Named:
    """Name each argument by a variable that is this object; else by an attribute of the bench; else by a
    placeholder.

    Example:
        >>> samples = [1, 2]
        >>> named((Given("data", samples, "the samples"),), None, {"batches": samples}).expressions
        {'data': 'batches'}
    """
    expressions, definitions = {}, []
    own = _name_of(bench, namespace)
    for each in given:
        name = _public_name(each.value)
        if name is None and not _is_iterator(each.value):
            name = _name_of(each.value, namespace, each.argument)
        if name is None and (name := _name_in_torch(each.value)) is not None:
            definitions.append("import torch")
        if name is None and own is not None:
            name = f"{own}.{each.argument}"
        if name is None:
            name = each.argument
            definitions.append(f"{name} = {each.placeholder}  # put here {each.wanted}")
        expressions[each.argument] = name
    return Named(expressions, tuple(definitions))


def float_name(model: nn.Module) -> str:
    """Return the dtype of most parameters, by which people call the original model, e.g. ``"bfloat16"``.

    Example:
        >>> float_name(nn.Linear(2, 2).double())
        'float64'
    """
    counts: dict[str, int] = {}
    for tensor in (*model.parameters(), *model.buffers()):
        if not is_lazy(tensor) and tensor.is_floating_point():
            name = str(tensor.dtype).removeprefix("torch.")
            counts[name] = counts.get(name, 0) + tensor.numel()
    return max(counts, key=lambda name: counts[name], default=FLOAT32.name)


def is_named(value: Any, namespace: Mapping[str, Any]) -> bool:
    """Return whether a variable of the notebook holds this object; results of cells do not count."""
    return any(_names_of(value, namespace))


def _name_of(value: Any, namespace: Mapping[str, Any], preferred: str = "") -> str | None:
    names = list(_names_of(value, namespace))
    return preferred if preferred in names else next(iter(names), None)


def _names_of(value: Any, namespace: Mapping[str, Any]) -> Iterator[str]:
    if value is None:
        return
    for name, other in list(namespace.items()):
        if other is value and name.isidentifier() and not name.startswith("_"):  # _ and _3 are results of cells
            yield name
    if isinstance(value, MethodType):  # each look-up makes another one: its object is what has a name
        yield from (f"{name}.{value.__name__}" for name in _names_of(value.__self__, namespace))


def _public_name(value: Any) -> str | None:
    """Return the public name of one of our own metrics."""
    name = getattr(value, "__name__", "")
    ours = sys.modules.get("prepbench.measure.metrics")
    return f"pb.metrics.{name}" if name and getattr(ours, name, None) is value else None


def _name_in_torch(value: Any) -> str | None:
    """Return the importable name of a loss in torch, e.g. ``torch.nn.functional.mse_loss``."""
    module, name = getattr(value, "__module__", None), getattr(value, "__name__", "")
    is_there = isinstance(module, str) and module.split(".")[0] == "torch" and "._" not in module
    found = getattr(sys.modules.get(module), name, None) if is_there and module else None
    return f"{module}.{name}" if found is value and value is not None else None


def _is_iterator(value: Any) -> bool:
    return hasattr(value, "__next__")


# Inputs whose sizes always agree are named together, such as all keys and values of a cache.


_NAMED = 2  # patterns


@dataclass(frozen=True)
class InputGroup:
    """Inputs of one argument whose sizes agree.

    Attributes:
        text: how they are called, as tables of axes do, e.g. ``"past.*"``.
        paths: the arguments of ``DynamicAxes``'s methods for exactly these inputs: patterns, or the paths where none
            fits.
        members: their paths.
    """

    text: str
    paths: tuple[str, ...]
    members: tuple[str, ...]


def input_groups(kinds: Mapping[str, Hashable]) -> list[InputGroup]:
    """Return the inputs of each argument grouped by kind, in their order.

    Args:
        kinds: by the path of each input, a value that inputs of one group share.

    Example:
        >>> kinds = {"x": 1, **{f"past[{i}].{part}": 2 for i in range(2) for part in ("key", "value")}}
        >>> [(group.text, group.paths, len(group.members)) for group in input_groups(kinds)]
        [('x', ('x',), 1), ('past.*', ('past.*',), 4)]
    """
    alike: dict[tuple[str, Hashable], list[str]] = {}
    for path, kind in kinds.items():
        alike.setdefault((re.split(r"[.\[]", path)[0], kind), []).append(path)
    return [_group(paths, kinds) for paths in alike.values()]


def _group(members: list[str], every: Mapping[str, Hashable]) -> InputGroup:
    patterns = [re.sub(r" \(\d+\)$", "", text) for text in counted_places(members, every)]
    meant = {path for path in every if any(in_pattern(pattern, path) for pattern in patterns)}
    # a pattern may mean others, too: every second layer of a cache may be another one
    paths = patterns if meant == set(members) else members
    rest = len(patterns) - _NAMED
    text = ", ".join(patterns[:_NAMED]) + (f" and {rest} more" if rest > 0 else "")
    return InputGroup(text, tuple(paths), tuple(members))
