"""Leaf operators as JSON: how their arguments become a call, and the calls from which their results were learned.

The rules for the sizes of results are not written: they are learned again from the same calls.
"""

from __future__ import annotations

import collections
import dataclasses
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from prepbench._torch_compat import pytree
from prepbench._torch_compat.fake_tensors import device_of, on_device
from prepbench._torch_compat.programs import flat_program
from prepbench.calls.output_tree import class_named, filled, made_object
from prepbench.capture.aten.capture import capture
from prepbench.capture.aten.captured import Captured
from prepbench.capture.aten.leaf_operators import CHOSEN, LeafDefinition, LeafOutputs, Signature
from prepbench.capture.sizes.learned_outputs import LearnedOutputs, sizes_of
from prepbench.capture.sizes.resizing import varied
from prepbench.capture.statements.outline import Address, CutFunction, CutRange, Move
from prepbench.errors import PrepbenchError
from prepbench.inputs import Sample
from prepbench.internal_errors import raise_if_internal
from prepbench.interrupts import interruptible
from prepbench.objects.flatten import Layout, Opened, register_nodes
from prepbench.package.manifest_check import MAX_DEPTH, MAX_SIZE
from prepbench.running.callable_module import replaced_forward
from prepbench.running.recorded_calls import Given, RecordedCall
from prepbench.running.unchanged import own_copy, unchanged
from prepbench.targets import Runtime
from prepbench.targets.base import Lowering
from prepbench.targets.partition import FALLBACK
from prepbench.targets.programs import is_repeatable

MAX_CALLS = 64
_MAX_WORK = 60_000
"""The limit on tried formulas for sizes: more than any known model needs, and a few seconds of work."""

_KINDS = ("", "Tensor", "SymInt", "float")


def definition_to_json(made: LeafDefinition, names: dict[int, str], *, are_statements: bool) -> dict[str, Any]:
    """Return an operator as JSON.

    Raises:
        NoJson: something in it has no such form.
    """
    (variant,) = made.outputs.learned.variants
    signature, first = made.signature, variant.calls[0]
    rows: dict[str, dict[str, Any]] = {}
    for call in variant.calls:
        row = {
            "inputs": [value_to_json(leaf, names) for leaf in call.inputs],
            "outputs": [value_to_json(leaf, names) for leaf in call.outputs],
            "changed": sorted(call.changed),
        }
        rows.setdefault(json.dumps(row), row)
    data = {
        "arguments": spec_to_json(signature.spec),
        "kinds": list(signature.kinds),
        "fixed": [value_to_json(value, names) for value in signature.fixed],
        "repeats": [list(pair) for pair in signature.repeats],
        "results": spec_to_json(first.output_spec),
        "restructured": first.restructured,
        "calls": list(rows.values()),
        "strict": made.strict,
    }
    _check_same(made, data, names, are_statements=are_statements)
    return data


def _check_same(made: LeafDefinition, data: dict[str, Any], names: dict[int, str], *, are_statements: bool) -> None:
    """Check that reading returns what was written."""
    modules = _Named(names)
    again = definition_from_json(made.fqn, made.outputs.name, data, modules, are_statements=are_statements)
    (before,), (after,) = made.outputs.learned.variants, again.outputs.learned.variants
    if again.signature.spec != made.signature.spec or after.calls[0].output_spec != before.calls[0].output_spec:
        raise NoJson("values inside of objects that differ once they are read back")
    if list(after.describe()) != list(before.describe()) or after.unknown != before.unknown:
        raise NoJson(f"results of sizes that more than {MAX_CALLS} calls decide")


class _Named(torch.nn.Module):
    """A model that only maps modules to the names they have elsewhere."""

    def __init__(self, names: dict[int, str]) -> None:
        super().__init__()
        self._known = {name: torch.nn.Module() for name in names.values()}

    def named_modules(self, *args: Any, **kwargs: Any) -> Any:
        return iter(self._known.items())


def definition_from_json(
    fqn: str, name: str, data: Mapping[str, Any], model: torch.nn.Module | None, *, are_statements: bool
) -> LeafDefinition:
    """Read an operator from JSON of :func:`definition_to_json`; ``data`` is untrusted.

    Raises:
        ValueError: it is something else.
        CaptureError: no operator can return what its calls returned.
    """
    spec, output_spec = spec_from_json(data["arguments"]), spec_from_json(data["results"])
    kinds, fixed, repeats = data["kinds"], data["fixed"], data["repeats"]
    for table in (kinds, fixed, repeats, data["calls"]):
        if not isinstance(table, list) or len(table) > MAX_LEAVES:
            raise NoJson("lists of another kind")
    if not len(kinds) == len(fixed) == spec.num_leaves or not all(kind in _KINDS for kind in kinds):
        raise NoJson("other arguments than it says")
    pairs = [tuple(pair) for pair in repeats if isinstance(pair, list)]
    if len(pairs) < len(repeats) or not all(_is_repeat(pair, kinds) for pair in pairs):
        raise NoJson("repeated arguments that are not there")
    if type(data["restructured"]) is not bool or type(data["strict"]) is not bool:
        raise NoJson("flags of another kind")
    if not 0 < len(data["calls"]) <= MAX_CALLS:
        raise NoJson(f"not between 1 and {MAX_CALLS} calls")
    calls = [_call(row, spec, output_spec, data["restructured"], model) for row in data["calls"]]
    for index, (kind, value) in enumerate(zip(kinds, calls[0].inputs, strict=True)):
        is_repeat = any(index == place for place, _ in pairs)
        if not _takes(kind, value) and not (is_repeat and isinstance(value, torch.Tensor)):
            raise NoJson("arguments of other kinds than those of its calls")
    _check_work(calls)
    signature = Signature(
        spec, tuple(kinds), tuple(value_from_json(value, model) for value in fixed), tuple((a, b) for a, b in pairs)
    )
    outputs = LeafOutputs.learn(calls, name, are_statements=are_statements).for_call(calls[0].inputs)
    if len(outputs.learned.variants[0].calls) != len(calls):
        raise NoJson("calls of several kinds")
    return LeafDefinition(fqn, signature, outputs, data["strict"])


def _takes(kind: str, value: Any) -> bool:
    if kind == "Tensor":
        return isinstance(value, torch.Tensor)
    if kind == "SymInt":
        return type(value) is int
    return type(value) is float if kind == "float" else not isinstance(value, torch.Tensor)


def _is_repeat(pair: tuple[Any, ...], kinds: Sequence[str]) -> bool:
    if len(pair) != 2 or not all(type(index) is int and 0 <= index < len(kinds) for index in pair):
        return False
    return bool(kinds[pair[0]] == "" and kinds[pair[1]] == "Tensor" and pair[1] < pair[0])


def _call(row: Any, spec: Any, output_spec: Any, restructured: bool, model: torch.nn.Module | None) -> RecordedCall:
    if not isinstance(row, dict) or set(row) != {"inputs", "outputs", "changed"}:
        raise NoJson("calls of another kind")
    tables = [row["inputs"], row["outputs"], row["changed"]]
    if not all(isinstance(table, list) and len(table) <= MAX_LEAVES for table in tables):
        raise NoJson("calls of another kind")
    inputs, outputs = (tuple(value_from_json(value, model) for value in table) for table in tables[:2])
    changed = row["changed"]
    if len(inputs) != spec.num_leaves or len(outputs) != output_spec.num_leaves:
        raise NoJson("calls with other numbers of values")
    if not all(type(i) is int and 0 <= i < len(inputs) and isinstance(inputs[i], torch.Tensor) for i in changed):
        raise NoJson("changed arguments that are not there")
    given = [leaf for leaf in outputs if isinstance(leaf, Given)]
    if any(leaf.index >= len(inputs) for leaf in given) or (given and not restructured):
        raise NoJson("results that are arguments which are not there")
    return RecordedCall(inputs, spec, outputs, output_spec, 0, frozenset(changed), restructured)


def _check_work(calls: Sequence[RecordedCall]) -> None:
    """Limit the work of learning rules, which tries formulas of each pair of sizes for each size of the results."""
    inputs = [tuple(column) for column in zip(*(sizes_of(call.inputs) for call in calls), strict=True)]
    outputs = [tuple(column) for column in zip(*(sizes_of(call.outputs) for call in calls), strict=True)]
    known = len({column for column in inputs if len(set(column)) > 1})
    wanted = sum(len(set(column)) > 1 for column in outputs)
    if known**2 * wanted > _MAX_WORK or known**3 > _MAX_WORK:
        raise NoJson(f"{wanted} sizes that depend on {known} others")


# Functions with ranges cut out, in the JSON of a manifest.


_MOST = 10_000
_FIELD = re.compile(r"body|orelse|finalbody|handlers|cases")
_DIGEST = re.compile(r"[0-9a-f]{16}")


def function_to_json(cut: CutFunction) -> dict[str, Any]:
    """Return a function as JSON."""
    return {
        "path": [list(step) for step in cut.path],
        "module": cut.module,
        "source": list(cut.source),
        "syntax": cut.syntax,
        "moves": [[move.line, move.column, move.number] for move in cut.moves],
        "ranges": [
            {
                "start": [list(step) for step in each.start],
                "end": [list(step) for step in each.end],
                "lines": list(each.lines),
                "fqn": each.fqn,
            }
            for each in cut.ranges
        ],
    }


def function_from_json(data: Any) -> CutFunction:
    """Read a function from JSON of :func:`function_to_json`.

    Raises:
        NoJson: it is something else.
    """
    if not isinstance(data, dict) or set(data) != {"path", "module", "source", "syntax", "moves", "ranges"}:
        raise NoJson("a function of another form")
    source = _list(data["source"], lambda text: isinstance(text, str) and _DIGEST.fullmatch(text) is not None)
    moves = _list(data["moves"], lambda row: isinstance(row, list) and len(row) == 3 and all(map(_is_count, row)))
    if not isinstance(data["module"], str) or not isinstance(data["syntax"], str):
        raise NoJson("a function of another form")
    path = _steps(data["path"], lambda name: len(name) < 1000)
    return CutFunction(
        path,
        data["module"],
        tuple(source),
        data["syntax"],
        tuple(Move(*row) for row in moves),
        tuple(_range(row, len(source)) for row in _list(data["ranges"], lambda row: isinstance(row, dict))),
    )


def _range(row: dict[str, Any], count: int) -> CutRange:
    if set(row) != {"start", "end", "lines", "fqn"} or not isinstance(row["fqn"], str):
        raise NoJson("a range of another form")
    lines = _list(row["lines"], _is_count)
    if len(lines) != 2 or not 0 <= lines[0] <= lines[1] < count:
        raise NoJson("a range of lines that the function has not")
    start, end = (_steps(row[name], lambda name: _FIELD.fullmatch(name) is not None) for name in ("start", "end"))
    return CutRange(start, end, (lines[0], lines[1]), row["fqn"])


def _steps(data: Any, is_name: Callable[[str], bool]) -> Address:
    def is_step(step: Any) -> bool:
        return isinstance(step, list) and len(step) == 2 and isinstance(step[0], str) and _is_count(step[1])

    steps = _list(data, is_step)
    if not steps or not all(is_name(name) for name, _ in steps):
        raise NoJson("a place that is none")
    return tuple((name, index) for name, index in steps)


def _list(data: Any, is_part: Callable[[Any], bool]) -> list[Any]:
    if not isinstance(data, list) or len(data) > _MOST or not all(map(is_part, data)):
        raise NoJson("a list of another form")
    return data


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**31


# Leaves that export on their own: a saved model has their programs and needs none of their Python.


_MOST_SAMPLES = 12


def exported_piece(captured: Captured, made: LeafDefinition) -> Runtime | None:
    """Return a user-chosen leaf as a program; None if it does not export."""
    chosen = any(leaf.fqn == made.fqn and leaf.kind == CHOSEN for leaf in captured.leaves)
    call = made.outputs.learned.variants[0].calls[0]
    only_tensors = all(kind in ("", "Tensor") for kind in made.signature.kinds)
    if not chosen or not only_tensors or call.restructured or call.changed or made.outputs.learned.variants[0].unknown:
        return None
    module = captured.model.get_submodule(made.fqn)
    samples = [sample for sample in _recorded(captured, made.fqn) if _is_such(sample, made)][:_MOST_SAMPLES]
    if not samples:
        return None
    try:
        program = capture(module, [(*sample.args, sample.kwargs) for sample in samples]).program
    except (PrepbenchError, RuntimeError, ValueError, TypeError):
        return None
    if not is_repeatable(program) or program.call_spec.out_spec.num_leaves != len(call.outputs):
        return None
    names = tuple(f"x{index}" for index in range(len(made.signature.kinds)))
    flat = flat_program(program, names)
    results = tuple(f"y{index}" for index in range(len(call.outputs)))
    return FALLBACK.lower(Lowering(flat, names, results, {}), FALLBACK.settings_type())


def flattened(made: LeafDefinition) -> LeafDefinition:
    """Return the operator of a program that takes leaves and returns leaves."""
    (variant,) = made.outputs.learned.variants
    spec = pytree.tree_structure(((0,) * len(made.signature.kinds), {}))
    output_spec = pytree.tree_structure((0,) * len(variant.calls[0].outputs))
    calls = tuple(_flat(call, spec, output_spec) for call in variant.calls)
    outputs = LearnedOutputs(made.outputs.name, (replace(variant, calls=calls),))
    return replace(made, signature=replace(made.signature, spec=spec), outputs=LeafOutputs(made.outputs.name, outputs))


def _flat(call: RecordedCall, spec: Any, output_spec: Any) -> RecordedCall:
    return replace(call, input_spec=spec, output_spec=output_spec)


def running(runtime: Runtime) -> Callable[..., Any]:
    """Return the callable that runs a piece."""

    def run(*leaves: Any) -> Any:
        return tuple(runtime.run(leaves))

    return run


def _recorded(captured: Captured, fqn: str) -> list[Sample]:
    """Return the calls of a module on the samples and on samples of other sizes, with their data."""
    found: list[Sample] = []
    module: Any = captured.model.get_submodule(fqn)
    forward = module.forward

    def listen(*args: Any, **kwargs: Any) -> Any:
        found.append(own_copy(Sample(args, kwargs, len(found))))
        return forward(*args, **kwargs)

    listen.__wrapped__ = forward  # type: ignore[attr-defined]
    further = varied(captured.model, captured.samples, captured.axes)
    for sample in [*captured.samples, *further]:
        before = len(found)
        try:
            with unchanged(captured.model), torch.no_grad(), replaced_forward(captured.model, fqn, listen):
                with interruptible():
                    own_copy(sample).call(captured.model)
        except PrepbenchError:
            raise
        except Exception as error:  # the model rejects this made-up size
            raise_if_internal(error)
            del found[before:]
    return found


def _is_such(sample: Sample, made: LeafDefinition) -> bool:
    """Return whether the operator stands for a call."""
    leaves, spec = pytree.tree_flatten((sample.args, sample.kwargs))
    tensors: Sequence[bool] = [isinstance(leaf, torch.Tensor) for leaf in leaves]
    repeats = {index for index, _ in made.signature.repeats}
    wanted = [kind == "Tensor" or index in repeats for index, kind in enumerate(made.signature.kinds)]
    return bool(spec == made.signature.spec) and list(tensors) == wanted


# Arguments and results of leaves as JSON: values, tensors without data, and their structure.


MAX_RANK = 16
MAX_LEAVES = 1000
_PLAIN = (type(None), bool, int, float, str)
_NAMED = {
    "dtype": torch.dtype,
    "layout": torch.layout,
    "memory_format": torch.memory_format,
}
_DEVICE = re.compile(r"[a-z]{2,12}(:\d{1,3})?")
_DICTS: dict[str, type] = {"dict": dict, "ordered": collections.OrderedDict}


class NoJson(ValueError):
    """Raised if JSON cannot hold a value, or does not hold one; the text says which."""


# -- values ------------------------------------------------------------------------------------------------------------


def value_to_json(value: Any, names: dict[int, str]) -> Any:
    """Return a leaf of a call as JSON; a tensor without its data.

    Raises:
        NoJson: JSON cannot hold it.
    """
    if isinstance(value, torch.Tensor):
        return _tensor_to_json(value)
    if type(value) in _PLAIN:
        if type(value) is int and abs(value) >= MAX_SIZE:
            raise NoJson(f"the number {value}")
        return value
    if type(value) is complex:
        return {"complex": [value.real, value.imag]}
    if isinstance(value, torch.device):
        return {"device": str(value)}
    if isinstance(value, Given):
        return {"given": value.index}
    for name, kind in _NAMED.items():
        if isinstance(value, kind):
            return {name: str(value).removeprefix("torch.")}
    if id(value) in names:
        return {"module": names[id(value)]}
    raise NoJson(f"a {type(value).__module__}.{type(value).__qualname__}")


def _tensor_to_json(value: torch.Tensor) -> dict[str, Any]:
    if type(value) is not torch.Tensor or value.layout is not torch.strided or value.dim() > MAX_RANK:
        raise NoJson(f"a tensor of the type {type(value).__name__}")
    order = value.dim() == 4 and value.is_contiguous(memory_format=torch.channels_last) and not value.is_contiguous()
    row: dict[str, Any] = {"tensor": str(value.dtype).removeprefix("torch."), "shape": list(value.shape)}
    row |= {"channels_last": True} if order else {}
    return row if device_of(value).type == "cpu" else {**row, "device": str(device_of(value))}


def value_from_json(data: Any, model: torch.nn.Module | None) -> Any:
    """Read a value from JSON of :func:`value_to_json`.

    Raises:
        NoJson: it is something else.
    """
    if type(data) in _PLAIN:
        if type(data) is int and abs(data) >= MAX_SIZE:
            raise NoJson("a number that is too large")
        return data
    if not isinstance(data, dict):
        raise NoJson("a value of another kind")
    if "tensor" in data:
        return _tensor_from_json(data)
    if len(data) != 1:
        raise NoJson("a value of another kind")
    ((name, text),) = data.items()
    if name == "complex" and isinstance(text, list) and len(text) == 2 and all(type(part) is float for part in text):
        return complex(*text)
    if name == "device":
        return _device(text)
    if name == "given" and type(text) is int and 0 <= text < MAX_LEAVES:
        return Given(text)
    if name in _NAMED:
        return _of_torch(text, _NAMED[name])
    if name == "module" and isinstance(text, str) and model is not None:
        found = dict(model.named_modules()).get(text)
        if found is not None:
            return found
    raise NoJson("a value of another kind")


def _tensor_from_json(data: dict[str, Any]) -> torch.Tensor:
    dtype, shape = _of_torch(data["tensor"], torch.dtype), data.get("shape")
    if set(data) - {"tensor", "shape", "channels_last", "device"} or not isinstance(shape, list):
        raise NoJson("a tensor of another kind")
    if len(shape) > MAX_RANK or not all(type(size) is int and 0 <= size < MAX_SIZE for size in shape):
        raise NoJson("a tensor of sizes that are none")
    if math.prod(shape) >= MAX_SIZE or (data.get("channels_last") is not None and len(shape) != 4):
        raise NoJson("a tensor of sizes that are none")
    order = torch.channels_last if data.get("channels_last") is True else torch.contiguous_format
    made = torch.empty(shape, dtype=dtype, device="meta", memory_format=order)
    return on_device(made, _device(data.get("device", "cpu")))


def _of_torch(name: Any, kind: type) -> Any:
    found = getattr(torch, name, None) if isinstance(name, str) and name.isidentifier() else None
    if not isinstance(found, kind):
        raise NoJson(f"a name that is no {kind.__name__} of torch")
    return found


def _device(text: Any) -> torch.device:
    if not isinstance(text, str) or not _DEVICE.fullmatch(text):
        raise NoJson("a name that is no device")
    try:
        return torch.device(text)
    except RuntimeError as error:
        raise NoJson("a name that is no device") from error


# -- nesting -----------------------------------------------------------------------------------------------------------


def spec_to_json(spec: pytree.TreeSpec) -> dict[str, Any]:
    """Return a pytree spec as JSON.

    Raises:
        NoJson: they lie in something that JSON cannot hold.
    """
    if spec.is_leaf():
        return {"kind": "leaf"}
    items = [spec_to_json(child) for child in spec.children()]
    kind, context = spec.type, spec.context
    if kind in (tuple, list):
        return {"kind": kind.__name__, "items": items}
    if kind in _DICTS.values():
        name = next(name for name, known in _DICTS.items() if known is kind)
        return {"kind": name, "keys": _plain(list(context)), "items": items}
    if kind is collections.namedtuple:
        return {"kind": "namedtuple", "class": _class_name(context), "items": items}
    if kind is Opened:
        return {"kind": "opened", **_layout(context), "items": items}
    if isinstance(context, Layout):
        return {"kind": "object", **_layout(context), "items": items}
    if dataclasses.is_dataclass(kind):
        return _registered(spec, items)
    raise NoJson(f"values inside of a {_class_name(kind)}")


def _layout(layout: Layout) -> dict[str, Any]:
    fixed = {name: _plain(value) for name, value in layout.fixed.items()}
    return {"class": _class_name(layout.kind), "keys": list(layout.names), "fixed": fixed}


def _registered(spec: pytree.TreeSpec, items: list[Any]) -> dict[str, Any]:
    """Return a dataclass that its own module registered: an instance shows its fields."""
    made = pytree.tree_unflatten([torch.empty(0, device="meta")] * spec.num_leaves, spec)
    names = [field.name for field in dataclasses.fields(made)]
    values = {name: getattr(made, name) for name in names}
    held = [name for name in names if any(isinstance(leaf, torch.Tensor) for leaf in pytree.tree_leaves(values[name]))]
    if len(held) != len(items):
        raise NoJson(f"values inside of a {_class_name(type(made))}")
    fixed = {name: _plain(value) for name, value in values.items() if name not in held}
    return {"kind": "object", "class": _class_name(type(made)), "keys": held, "fixed": fixed, "items": items}


def _class_name(kind: Any) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _plain(value: Any) -> Any:
    if isinstance(value, list) and all(type(part) in _PLAIN for part in value):
        return value
    if type(value) not in _PLAIN:
        raise NoJson(f"an object with a {type(value).__module__}.{type(value).__qualname__} among its attributes")
    return value


def spec_from_json(data: Any) -> pytree.TreeSpec:
    """Read a pytree spec from JSON of :func:`spec_to_json`. Classes must be imported already; none is imported.

    Raises:
        NoJson: it is something else, or a class is not there.
    """
    value = _nested(data, iter(range(MAX_LEAVES)), 0)
    register_nodes(value)
    spec: pytree.TreeSpec = pytree.tree_structure(value)
    if spec_to_json(spec) != data:
        raise NoJson("values nested in a way that this process has no classes for")
    return spec


def _nested(data: Any, leaves: Iterator[int], depth: int) -> Any:
    if not isinstance(data, dict) or depth > MAX_DEPTH:
        raise NoJson("values nested in another way")
    kind, items = data.get("kind"), data.get("items", [])
    if kind == "leaf":
        if next(leaves, None) is None:
            raise NoJson("more values than a call has")
        return torch.empty(0, device="meta")
    if not isinstance(items, list):
        raise NoJson("values nested in another way")
    made = [_nested(item, leaves, depth + 1) for item in items]
    if kind in ("tuple", "list"):
        return made if kind == "list" else tuple(made)
    keys = data.get("keys")
    if kind in _DICTS:
        if not isinstance(keys, list) or not all(type(key) in _PLAIN for key in keys) or len(set(keys)) != len(made):
            raise NoJson("a dict without keys")
        return _DICTS[kind](zip(keys, made, strict=True))
    if kind not in ("namedtuple", "object", "opened") or not isinstance(data.get("class"), str):
        raise NoJson("values nested in another way")
    found = class_named(data["class"])
    if found is None:
        raise NoJson(f"a {data['class']}, which this process has not imported: import its module first")
    if kind == "namedtuple":
        if not (issubclass(found, tuple) and len(getattr(found, "_fields", ())) == len(made)):
            raise NoJson(f"a {data['class']}, which is no such named tuple")
        return tuple.__new__(found, made)
    fixed = data.get("fixed")
    if not isinstance(keys, list) or not isinstance(fixed, dict) or len(keys) != len(made):
        raise NoJson("an object without names")
    if not all(isinstance(name, str) and name.isidentifier() and name[:2] != "__" for name in (*keys, *fixed)):
        raise NoJson("an object without names")
    for value in fixed.values():
        _plain(value)
    if kind == "opened":
        return Opened(made, Layout(found, tuple(keys), fixed))
    parts = {**dict(zip(keys, made, strict=True)), **fixed}
    whole = made_object(data["class"], parts)
    return filled(found, parts) if whole is None else whole


def texts_in(data: Any) -> Iterator[str]:
    """Yield the texts that a spec holds for objects."""
    if isinstance(data, dict):
        for value in data.get("fixed", {}).values():
            yield from (part for part in (value if isinstance(value, list) else [value]) if isinstance(part, str))
        for item in data.get("items", ()):
            yield from texts_in(item)
