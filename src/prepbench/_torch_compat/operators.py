"""Registered operators and their translations (``torch._ops``, ``torch.onnx``)."""

from __future__ import annotations

import functools
import importlib
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from prepbench._torch_compat.checks import needed_for
from prepbench._torch_compat.onnx_exporter import translations_read_once
from prepbench.patching import logs_dropped_here, patched_here, warnings_ignored_here

with needed_for("telling operators apart"):
    from torch._ops import HigherOrderOperator as HigherOrderOperator
    from torch._ops import OpOverload as OpOverload
    from torch._ops import OpOverloadPacket as OpOverloadPacket

with needed_for("the functions of layers that torch implements in C++"):
    NN_FUNCTIONS: Any = torch._C._nn
    RNN_FUNCTIONS: Any = torch._VF


def schema_of(operator: Any) -> Any:
    """The arguments and results of an operator, of torch or of ExecuTorch's edge dialect; None for other things."""
    return getattr(operator, "_schema", None)


def argument_names(operator: Any) -> list[str]:
    """The names of an operator's arguments, in order."""
    with needed_for("the arguments of operators"):
        return [argument.name for argument in operator._schema.arguments]


def registered_operators() -> list[str]:
    """The names of all operators that torch knows, such as ``"aten::relu"``."""
    with needed_for("names of operators that are not taken"):
        names: list[str] = torch._C._dispatch_get_all_op_names()
    return names


def is_registered(name: str) -> bool:
    """Whether torch has an operator of this name, such as ``"aten::relu"``."""
    with needed_for("names of operators that are not taken"):
        return bool(torch._C._dispatch_has_kernel(name))


def register_quantized_operators() -> None:
    """Make the operators of converted graphs known to torch, as loading such a graph needs."""
    with needed_for("the operators of quantized graphs"):
        importlib.import_module("torch.ao.quantization.fx._decomposed")


@contextmanager
def operators_looked_up_once() -> Iterator[None]:
    """Inside the block, in this thread, torch makes Python objects of its operators once.

    For each table of decompositions it would look up every composite operator again, for each namespace of operators.
    What is registered meanwhile and then called has such an object already.
    """
    utils = sys.modules.get("torch._export.utils")
    if utils is None:
        yield
        return
    with needed_for("looking up operators once"):
        look_up = utils._materialize_cpp_cia_ops
    with patched_here(utils, "_materialize_cpp_cia_ops", functools.cache(look_up)):
        yield


def without_onnx_translation(program: torch.export.ExportedProgram) -> list[torch.fx.Node]:
    """The nodes, after decomposition, whose operator torch's ONNX exporter cannot translate.

    Assertions are not among them, because the exporter leaves them out.
    """
    with needed_for("finding operators that ONNX lacks"):
        from torch.onnx._internal.exporter import _decomp, _dispatching, _registration

    with logs_dropped_here(_registration.__name__, below=logging.ERROR), translations_read_once():
        registry = _registration.ONNXRegistry.from_torchlib()
    table = _decomp.create_onnx_friendly_decomposition_table(set(_decomp.get_onnx_implemented_overloads(registry)))
    with warnings_ignored_here(), torch.no_grad():
        graph = program.run_decompositions(table).graph
    return [
        node
        for node in graph.nodes
        if node.op == "call_function"
        and isinstance(node.target, OpOverload | HigherOrderOperator)
        and not str(node.target).startswith("aten._assert")
        and _dispatching.dispatch(node, registry)[0] is None
    ]
