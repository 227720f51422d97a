"""Digests of a program and of data that are equal in every process and notebook."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import fx

from prepbench.running.fingerprint import fingerprint


def program_form(program: torch.export.ExportedProgram) -> str:
    """Digest a program's operators, their arguments, and the shapes and types of its inputs and tensors.

    Two models with the same modules and weights may compute different functions, by their code or by a setting such
    as a stride. Then their programs differ.
    """
    digest = hashlib.sha256()
    for row in _rows(program.graph_module):
        digest.update(row.encode(errors="surrogatepass"))
    for spec in (*program.graph_signature.input_specs, *program.graph_signature.output_specs):
        digest.update(repr((str(spec.kind), str(spec.target))).encode(errors="surrogatepass"))
    return digest.hexdigest()[:16]


def data_digest(data: Iterable[Any]) -> str:
    """Digest the values of all elements, which are read one at a time."""
    digest = hashlib.sha256()
    for element in data:
        digest.update(fingerprint(element, by_value=True).digest)
    return digest.hexdigest()[:16]


def function_digest(function: Callable[..., Any] | None) -> str:
    """Digest the name and the code of a function, and the numbers and texts that it captured; no other objects."""
    if function is None:
        return ""
    inner = getattr(function, "func", function)
    name = f"{getattr(inner, '__module__', '')}.{getattr(inner, '__qualname__', type(inner).__qualname__)}"
    code = getattr(inner, "__code__", None)
    digest = hashlib.sha256(name.encode())
    if code is not None:
        digest.update(_code(code))
    digest.update(repr(getattr(function, "args", ())).encode())
    named = {**(getattr(function, "keywords", None) or {}), **(getattr(inner, "__kwdefaults__", None) or {})}
    cells = [_contents(cell) for cell in getattr(inner, "__closure__", None) or ()]
    values = [*cells, *(getattr(inner, "__defaults__", None) or ()), *sorted(named.items())]
    digest.update(repr([value for value in values if _is_plain(value)]).encode(errors="surrogatepass"))
    return digest.hexdigest()[:16]


def _contents(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # nothing was written to it yet
        return None


def _is_plain(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(map(_is_plain, value))
    return isinstance(value, bool | int | float | str | bytes)


def _code(code: Any) -> bytes:
    plain = [repr(value) for value in code.co_consts if not hasattr(value, "co_code")]
    inner = [_code(value) for value in code.co_consts if hasattr(value, "co_code")]
    return b"".join((code.co_code, repr((plain, code.co_names)).encode(errors="surrogatepass"), *inner))


def _rows(module: torch.nn.Module) -> Iterable[str]:
    numbers: dict[fx.Node, int] = {}
    graph = getattr(module, "graph", None)
    for number, node in enumerate(graph.nodes if graph is not None else ()):
        numbers[node] = number
        args = fx.node.map_aggregate((node.args, dict(node.kwargs)), lambda value: _text(value, numbers))
        value = node.meta.get("val")
        shape = (tuple(map(str, value.shape)), str(value.dtype)) if isinstance(value, torch.Tensor) else ""
        yield repr((node.op, str(node.target) if node.op != "placeholder" else "", args, shape))
    for name, child in module.named_children():  # the sides of conditions
        yield name
        yield from _rows(child)


def _text(value: Any, numbers: dict[fx.Node, int]) -> str:
    return f"%{numbers.get(value)}" if isinstance(value, fx.Node) else f"{type(value).__name__} {value!r}"
