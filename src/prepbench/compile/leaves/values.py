"""Arguments and results of leaves as JSON: values, tensors without data, and their structure."""

from __future__ import annotations

import collections
import dataclasses
import math
import re
from collections.abc import Iterator
from typing import Any

import torch

from prepbench._torch_compat import pytree
from prepbench._torch_compat.fake_tensors import device_of, on_device
from prepbench.compile.manifest_check import MAX_DEPTH, MAX_SIZE
from prepbench.compile.result_classes import class_named, filled, made_object
from prepbench.running.object_nodes import Layout, Opened, register_nodes
from prepbench.running.recorded_calls import Given

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

    Args:
        value: the leaf.
        names: of the model's modules, by their ids.

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

    Args:
        data: from a file of anybody.
        model: has the modules among the values.

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
