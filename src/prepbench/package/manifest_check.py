"""Check a manifest's calls and report before use, because a manifest is untrusted."""

from __future__ import annotations

import keyword
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any

import torch

from prepbench.adapt.prune import PrunedLayer
from prepbench.capture.failures.tensor_conditions import TensorCondition
from prepbench.capture.sizes.size_formulas import size_function
from prepbench.package.report import CompileReport
from prepbench.quantize.report import LayerReport, TensorReport

MAX_DEPTH = 60
MAX_SIZE = 2**48

_PLAIN = (type(None), bool, int, float, str)


def check_calls(data: Any) -> None:
    """Raise ``ValueError`` unless ``data`` has the form of :meth:`CallSpec.to_dict`; the message names the place."""
    _check_table(data, "calls", "inputs", "outputs", "input_constants", "output_constants", "tensors", "defaults")
    for name in ("parameters", "keywords", "paths"):
        _check_list(data, name, str)
    _check_list(data, "output_numbers", int)
    inputs, outputs = _check_tree(data["inputs"], "inputs", 0), _check_tree(data["outputs"], "outputs", 0)
    _check_arguments(data)
    _check_constants(data["input_constants"], "input_constants", inputs)
    _check_constants(data["output_constants"], "output_constants", outputs)
    for name in ("defaults", "object_numbers"):
        _check_constants(data.get(name, {}), name, None)
    _check_counted(data.get("counted", []))
    _check_table(data.get("identity", {}), "calls.identity")
    if any(not 0 <= place < outputs for place in data["output_numbers"]):
        raise ValueError("calls.output_numbers names a result that is not there")
    if not isinstance(data["tensors"], list) or not len(data["tensors"]) == len(data["paths"]) == inputs:
        raise ValueError(f"calls describes {inputs} inputs, and not each of them")
    for place, row in enumerate(data["tensors"]):
        if row is not None:
            _check_tensor(row, f"tensors[{place}]")
    if not isinstance(data.get("conditions", []), list):
        raise ValueError("calls.conditions must be a list")
    for place, row in enumerate(data.get("conditions", [])):
        _check_condition(row, f"conditions[{place}]", data["tensors"])
    if not isinstance(data.get("assertions", []), list):
        raise ValueError("calls.assertions must be a list")
    for place, row in enumerate(data.get("assertions", [])):
        _check_words(row, f"assertions[{place}]")
    if not isinstance(data.get("of_tensors", []), list):
        raise ValueError("calls.of_tensors must be a list")
    for place, row in enumerate(data.get("of_tensors", [])):
        _check_table(row, f"calls.of_tensors[{place}]", "kind", "source", "strided")
        _check_list(row, "strided", int, f"calls.of_tensors[{place}]")
        _check_words({"text": row["kind"], "source": row["source"]}, f"of_tensors[{place}]")
        TensorCondition.from_dict(row)
    if not set(data.get("ordered", [])) <= set(data["keywords"]):
        raise ValueError("calls.ordered must be names of keywords")
    written = data.get("written", [])
    if not isinstance(written, list) or not all(type(one) is int and 0 <= one < inputs for one in written):
        raise ValueError("calls.written must be a list of places of inputs")
    if any(data["tensors"][one] is None for one in written):
        raise ValueError("calls.written must be places of tensors")
    _check_variants(data, outputs - len(data["output_constants"]))


def check_variants(data: Any, count: int) -> None:
    """Raise ``ValueError`` unless ``data`` has the samples and the report of that many variants."""
    if not isinstance(data, list) or len(data) != count:
        raise ValueError("variants must be a list with a row for each variant of calls")
    for index, row in enumerate(data):
        _check_table(row, f"variants[{index}]", "samples", "report")
        _check_list(row, "samples", int, f"variants[{index}]")
        check_report(row["report"])


def check_report(data: Any) -> None:
    """Raise ``ValueError`` unless ``data`` has the form of :meth:`CompileReport.to_dict`."""
    _check_table(data, "report", "target", "seconds", "layers")
    if not isinstance(data["layers"], list):
        raise ValueError("report.layers must be a list")
    for place, row in enumerate(data["layers"]):
        _check_fields(row, f"report.layers[{place}]", _LAYER)
    for name, checks in (("pruned", _PRUNED), ("tensors", _TENSOR)):
        if not isinstance(data.get(name, []), list):
            raise ValueError(f"report.{name} must be a list")
        for place, row in enumerate(data.get(name, [])):
            _check_fields(row, f"report.{name}[{place}]", checks)
    _check_fields({name: data[name] for name in _REPORT if name in data}, "report", _REPORT)


def _check_variants(data: Mapping[str, Any], outputs: int) -> None:
    """Check that each variant has conditions, a row for each input, and plain values for some of the results."""
    if not isinstance(data.get("variants", []), list):
        raise ValueError("calls.variants must be a list")
    for index, variant in enumerate(data.get("variants", [])):
        where = f"variants[{index}]"
        _check_table(variant, f"calls.{where}", "conditions", "tensors", "constants", "assertions")
        rows = variant["tensors"]
        if not isinstance(rows, list) or [row is None for row in rows] != [row is None for row in data["tensors"]]:
            raise ValueError(f"calls.{where}.tensors must describe each input")
        for place, (row, whole) in enumerate(zip(rows, data["tensors"], strict=True)):
            if row is not None:
                _check_tensor(row, f"{where}.tensors[{place}]")
                if len(row["shape"]) != len(whole["shape"]):
                    raise ValueError(f"calls.{where}.tensors[{place}] has other dims than the model takes")
        if not isinstance(variant["conditions"], list):
            raise ValueError(f"calls.{where}.conditions must be a list")
        for place, row in enumerate(variant["conditions"]):
            _check_condition(row, f"{where}.conditions[{place}]", rows)
        _check_constants(variant["constants"], f"{where}.constants", outputs)
        if type(variant["assertions"]) is not int or variant["assertions"] < 0:
            raise ValueError(f"calls.{where}.assertions must be a number of assertions")
    if data.get("variants") and sum(row["assertions"] for row in data["variants"]) != len(data.get("assertions", [])):
        raise ValueError("calls.assertions must have a row for each assertion of the variants")


def _check_table(data: Any, where: str, *needed: str) -> None:
    if not isinstance(data, dict):
        raise ValueError(f"{where} must be an object")
    for name in needed:
        if name not in data:
            raise ValueError(f"{where}.{name} is missing")


def _check_counted(rows: Any) -> None:
    """Check that each row has the steps to a number, and the steps to each tensor with a dim and a sign."""
    try:
        steps = [row[0] for row in rows] + [term[0] for row in rows for term in row[1]]
        numbers = [number for row in rows for term in row[1] for number in term[1:]]
        is_right = isinstance(rows, list) and all(len(row) == 2 and row[1] for row in rows)
        is_right &= all(len(term) == 3 for row in rows for term in row[1]) and all(type(n) is int for n in numbers)
        is_right &= all(kind in ("item", "attr") and type(key) in (str, int) for way in steps for kind, key in way)
        is_right &= all(way and way[0][0] == "item" for way in steps)
    except (TypeError, ValueError, LookupError):
        is_right = False
    if not is_right:
        raise ValueError("calls.counted must say of which sizes numbers are sums")


def _check_list(data: Mapping[str, Any], name: str, kind: type, where: str = "calls") -> None:
    found = data.get(name, [])
    if not isinstance(found, list) or not all(type(item) is kind for item in found):
        raise ValueError(f"{where}.{name} must be a list of {kind.__name__}")


def _check_arguments(data: Mapping[str, Any]) -> None:
    """Check that the inputs' structure is that of positional arguments and keywords."""
    tree, positional = data["inputs"], data["positional"]
    if type(positional) is not int or not 0 <= positional <= len(data["paths"]):
        raise ValueError("calls.positional must count arguments")
    kinds = [item["kind"] for item in tree.get("items", ())]
    if tree["kind"] != "tuple" or kinds != ["tuple", "dict"]:
        raise ValueError("calls.inputs must be positional arguments and keywords")
    args, kwargs = tree["items"]
    if len(args["items"]) != positional or sorted(map(str, kwargs["keys"])) != sorted(data["keywords"]):
        raise ValueError("calls.inputs has other arguments than calls says")


def _check_tree(tree: Any, where: str, depth: int) -> int:
    """Check a pytree; return its number of leaves."""
    if depth > MAX_DEPTH or not isinstance(tree, dict) or tree.get("kind") not in _KINDS:
        raise ValueError(f"calls.{where} is no nesting of values")
    if tree["kind"] == "leaf":
        return 1
    items, keys = tree.get("items"), tree.get("keys", [])
    if not isinstance(items, list):
        raise ValueError(f"calls.{where}.items must be a list")
    if tree["kind"] in ("dict", "object", "namedtuple"):
        if not isinstance(keys, list) or not all(type(key) in _PLAIN for key in keys):
            raise ValueError(f"calls.{where}.keys must be a list of plain values")
        if len(keys) != len(items) or len(set(keys)) != len(keys):
            raise ValueError(f"calls.{where}.keys must name each item")
    if tree["kind"] in ("object", "namedtuple") and not isinstance(tree.get("type"), str):
        raise ValueError(f"calls.{where}.type must be a name")
    if tree["kind"] == "namedtuple" and not (_is_name(tree["type"]) and all(map(_is_field, keys))):
        raise ValueError(f"calls.{where} must have names that Python allows")
    if not isinstance(tree.get("class", ""), str):
        raise ValueError(f"calls.{where}.class must be a name")
    _check_constants(tree.get("fixed", {}), f"{where}.fixed", None)
    return sum(_check_tree(item, f"{where}.items[{place}]", depth + 1) for place, item in enumerate(items))


_KINDS = frozenset({"leaf", "tuple", "list", "sizes", "dict", "object", "namedtuple"})


def _is_name(name: Any) -> bool:
    return isinstance(name, str) and name.isidentifier() and not keyword.iskeyword(name)


def _is_field(name: Any) -> bool:
    return _is_name(name) and not name.startswith("_")


def _check_constants(table: Any, where: str, count: int | None) -> None:
    if not isinstance(table, dict) or not all(type(value) in _PLAIN for value in table.values()):
        raise ValueError(f"calls.{where} must hold plain values")
    if count is not None and any(not key.isdecimal() or int(key) >= count for key in table):
        raise ValueError(f"calls.{where} names a value that is not there")


def _check_tensor(row: Any, where: str) -> None:
    _check_table(row, f"calls.{where}", "dtype", "shape")
    if not isinstance(row["dtype"], str) or not isinstance(getattr(torch, row["dtype"], None), torch.dtype):
        raise ValueError(f"calls.{where}.dtype is no dtype")
    if not _are_sizes(row["shape"], dynamic=True):
        raise ValueError(f"calls.{where}.shape must be a list of sizes")
    example = row.get("example")
    if example is not None and (not _are_sizes(example) or len(example) != len(row["shape"])):
        raise ValueError(f"calls.{where}.example must be a list of as many sizes")
    symbols = row.get("symbols", [""] * len(row["shape"]))
    if not isinstance(symbols, list) or [type(name) for name in symbols] != [str] * len(row["shape"]):
        raise ValueError(f"calls.{where}.symbols must be a list of as many texts")
    is_index = row["dtype"] in ("int32", "int64") and type(row.get("below")) is int and row["below"] >= 0
    if "below" in row and not is_index:
        raise ValueError(f"calls.{where}.below must be a number of rows, for indices")
    least = row.get("from", 0)
    if type(least) is not int or least > 0 or ("from" in row and "below" not in row):
        raise ValueError(f"calls.{where}.from must be the least index, for indices")


def _check_condition(row: Any, where: str, tensors: Sequence[Any]) -> None:
    """Check that a condition has words, a formula in the grammar of sizes, and a tensor dim for each size in it."""
    _check_table(row, f"calls.{where}", "text", "sizes", "source", "formula", "places")
    _check_list(row, "sizes", str, f"calls.{where}")
    _check_words(row, where)
    places = row["places"]
    if not isinstance(row["formula"], str):
        raise ValueError(f"calls.{where} must have a formula")
    if not isinstance(places, list) or len(places) != len(row["sizes"]):
        raise ValueError(f"calls.{where}.places must name a dim for each size")
    for place in places:
        is_place = isinstance(place, list) and [type(part) for part in place] == [int, int]
        spec = tensors[place[0]] if is_place and 0 <= place[0] < len(tensors) else None
        if spec is None or not 0 <= place[1] < len(spec["shape"]):
            raise ValueError(f"calls.{where}.places names a dim that is not there")
    if row["formula"]:
        size_function(row["formula"], len(places))


def _check_words(row: Any, where: str) -> None:
    """Check that a condition names its subject and its source line."""
    _check_table(row, f"calls.{where}", "text", "source")
    source = row["source"]
    if not isinstance(row["text"], str):
        raise ValueError(f"calls.{where} must have words")
    is_line = isinstance(source, list) and [type(part) for part in source] == [str, int, str]
    if source is not None and not is_line:
        raise ValueError(f"calls.{where}.source must be a file, a line and its text")


def _are_sizes(sizes: Any, *, dynamic: bool = False) -> bool:
    if not isinstance(sizes, list) or not all(type(size) is int or (dynamic and size is None) for size in sizes):
        return False
    fixed = [size for size in sizes if size is not None]
    return all(size >= 0 for size in fixed) and math.prod(fixed) < MAX_SIZE


def _is_number(value: Any) -> bool:
    return type(value) in (int, float)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _is_range(value: Any) -> bool:
    return isinstance(value, Sequence) and len(value) == 2 and all(map(_is_number, value))


def _are_counts(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_count, value))


def _are_texts(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(map(_is_text, value))


def _or_none(check: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or check(value)


_BY_TYPE: Mapping[str, Callable[[Any], bool]] = {
    "bool": lambda value: type(value) is bool,
    "str": _is_text,
    "int": _is_count,
    "int | None": _or_none(_is_count),
    "float | None": _or_none(_is_number),
    "tuple[float, float] | None": _or_none(_is_range),
    "tuple[int, ...]": _are_counts,
    "tuple[str, ...]": _are_texts,
    "Mapping[str, float]": lambda value: isinstance(value, dict) and all(map(_is_number, value.values())),
}
"""The check of a field, by its type as it is written."""


def _checks_of(kind: type, without: tuple[str, ...] = ()) -> Mapping[str, Callable[[Any], bool]]:
    return {field.name: _BY_TYPE[str(field.type)] for field in fields(kind) if field.name not in without}


_LAYER, _PRUNED, _TENSOR = map(_checks_of, (LayerReport, PrunedLayer, TensorReport))
_REPORT = _checks_of(CompileReport, ("layers", "pruned", "tensors"))


def _check_fields(row: Any, where: str, checks: Mapping[str, Callable[[Any], bool]]) -> None:
    if not isinstance(row, dict):
        raise ValueError(f"{where} must be an object")
    for name, value in row.items():
        if name not in checks or not checks[name](value):
            raise ValueError(f"{where}.{name[:60]} is not what prepbench writes")
