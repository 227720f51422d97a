"""Registered operators and their translations (``torch._ops``, ``torch.onnx``)."""

from __future__ import annotations

import functools
import importlib
import logging
import sys
import typing
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from types import MappingProxyType
from typing import Any

import torch

from prepbench._torch_compat.checks import needed_for
from prepbench._torch_compat.onnx_exporter import translations_read_once
from prepbench.patching import logs_dropped_here, patched_here, patched_together, warnings_ignored_here

with needed_for("telling operators apart"):
    from torch._ops import HigherOrderOperator as HigherOrderOperator
    from torch._ops import OpOverload as OpOverload
    from torch._ops import OpOverloadPacket as OpOverloadPacket

with needed_for("the functions of layers that torch implements in C++"):
    NN_FUNCTIONS: Any = torch._C._nn
    RNN_FUNCTIONS: Any = torch._VF


def schema_of(operator: Any) -> Any:
    """Return the schema of an operator, of torch or of ExecuTorch's edge dialect; None for other objects."""
    return getattr(operator, "_schema", None)


def given_arguments(node: torch.fx.Node) -> dict[str, Any]:
    """Return the arguments that a node gives to its operator, by name."""
    schema = schema_of(node.target)
    names = [argument.name for argument in schema.arguments] if schema else []
    return {**dict(zip(names, node.args, strict=False)), **node.kwargs}


def draws(node: torch.fx.Node) -> bool:
    """Return whether a node draws random numbers: dropout outside of training and attention without it do not."""
    if torch.Tag.nondeterministic_seeded not in getattr(node.target, "tags", ()):
        return False
    given = given_arguments(node)
    if given.get("train") is False or given.get("training") is False:
        return False
    attention = "dropout_p" in str(schema_of(node.target))
    return bool(given.get("dropout_p", given.get("p", 0.0 if attention else None)) != 0)


def argument_names(operator: Any) -> list[str]:
    """Return the names of an operator's arguments, in order."""
    with needed_for("the arguments of operators"):
        return [argument.name for argument in operator._schema.arguments]


def registered_operators() -> list[str]:
    """Return the names of all operators that torch knows, such as ``"aten::relu"``."""
    with needed_for("names of operators that are not taken"):
        names: list[str] = torch._C._dispatch_get_all_op_names()
    return names


def is_registered(name: str) -> bool:
    """Return whether torch has an operator of this name, such as ``"aten::relu"``."""
    with needed_for("names of operators that are not taken"):
        return bool(torch._C._dispatch_has_kernel(name))


def register_quantized_operators() -> None:
    """Register the operators of converted graphs with torch, which loading such a graph requires."""
    with needed_for("the operators of quantized graphs"):
        importlib.import_module("torch.ao.quantization.fx._decomposed")


@contextmanager
def cached_operators() -> Iterator[None]:
    """Cache torch's Python objects of operators inside the block, in this thread.

    Otherwise torch looks up every composite operator for each table of decompositions and each namespace. Operators
    that are registered inside the block and then called have such an object already.

    A decomposition registers some 10,000 kernels, and torch evaluates the annotation ``Callable[_P, _T]`` twice for
    each. ``typing`` keeps what it has evaluated, ``collections.abc`` does not.
    """
    utils = sys.modules.get("torch._export.utils")
    if utils is None:
        yield
        return
    with needed_for("looking up operators once"):
        look_up = utils._materialize_cpp_cia_ops
    ops: Any = torch._ops
    annotations = patched_together(ops, "Callable", typing.Callable) if hasattr(ops, "Callable") else nullcontext()
    with annotations, patched_here(utils, "_materialize_cpp_cia_ops", functools.cache(look_up)):
        yield


def without_onnx_translation(
    program: torch.export.ExportedProgram, further: Mapping[Any, Any] = MappingProxyType({})
) -> list[torch.fx.Node]:
    """Return the nodes, after decomposition, whose operator torch's ONNX exporter cannot translate.

    Assertions are excluded, because the exporter drops them.

    Args:
        program: the graph.
        further: decompositions by operator beside the exporter's own.
    """
    with needed_for("finding operators that ONNX lacks"):
        from torch.onnx._internal.exporter import _decomp, _dispatching, _registration

    with logs_dropped_here(_registration.__name__, below=logging.ERROR), translations_read_once():
        registry = _registration.ONNXRegistry.from_torchlib()
    table = _decomp.create_onnx_friendly_decomposition_table(set(_decomp.get_onnx_implemented_overloads(registry)))
    with warnings_ignored_here(), torch.no_grad():
        graph = program.run_decompositions({**table, **further}).graph
    return [
        node
        for node in graph.nodes
        if node.op == "call_function"
        and isinstance(node.target, OpOverload | HigherOrderOperator)
        and not str(node.target).startswith("aten._assert")
        and _dispatching.dispatch(node, registry)[0] is None
    ]
