"""The form of a program: a digest that is equal in every process and notebook."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

import torch
from torch import fx


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
