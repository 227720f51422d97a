"""Functions and methods that stay calls in a prepared graph, with the reasons."""

from __future__ import annotations

import builtins
import operator
from typing import Any

import torch
from torch import fx

from prepbench._torch_compat.operators import HigherOrderOperator, OpOverload, OpOverloadPacket
from prepbench.capture.modules.graph_builder import target_text
from prepbench.capture.modules.interception import enter_grad_mode, exit_grad_mode
from prepbench.objects import flatten as structures
from prepbench.objects.flatten import collect
from prepbench.prepare.model import PreparedModel
from prepbench.prepare.operations import function_name, operation_of
from prepbench.prepare.passes.graph_edits import owner_of
from prepbench.prepare.report import Kept

NUMBERS = "it gives sizes, not tensors"
PART = "it takes one part of a result or of an input"
INTERNAL = "it is an internal function of torch, which has no module"
CUSTOM = "it is a custom operator"
FOREIGN = "it is a function of the user's"
REGION = "it opens or closes a region of the forward"
WRAPPED = "torch.fx.wrap keeps it whole"


def kept_operations(model: PreparedModel) -> list[Kept]:
    """Return the functions, methods and operators that stay calls in the graph, with the reasons."""
    numbers = numbers_of(model.graph)
    return [
        Kept(
            node.name,
            owner_of(node),
            operation_text(node),
            reason_to_stay(node, numbers) or "not replaced yet",
            node.meta.get("source"),
        )
        for node in model.graph.nodes
        if node.op in ("call_function", "call_method")
    ]


def reason_to_stay(node: fx.Node, numbers: set[fx.Node]) -> str:
    """Return why a function or method stays a call; "" if it has a module."""
    if node.meta.get("is_wrapped"):
        return WRAPPED
    function = function_of(node)
    if isinstance(function, structures.Rebuild):
        return "it puts values together into an output or argument"
    if isinstance(function, structures.Applied):
        return "it is a custom torch.autograd.Function, whose backward is kept"
    if isinstance(function, HigherOrderOperator):
        return "it runs functions of the model (control flow)"
    if function is structures.tensor_at or (function is getattr and len(node.args) > 2):
        return PART
    if node in numbers:
        return NUMBERS
    if function is operator.getitem and _is_part(node):
        return PART
    row = operation_of(function)
    if row is None:
        return _not_torchs(node, function)
    if row.reason:
        return row.reason
    return ""


def _not_torchs(node: fx.Node, function: Any) -> str:
    if isinstance(function, OpOverload | OpOverloadPacket):
        return INTERNAL if str(function).startswith("aten") else CUSTOM
    if node.target is builtins.getattr:
        return PART
    if node.op == "call_method":
        return f"Tensor.{node.target} has no module"
    if function in (enter_grad_mode, exit_grad_mode):
        return REGION
    if str(getattr(function, "__module__", "") or "torch").partition(".")[0] == "torch":
        return INTERNAL
    return FOREIGN


def function_of(node: fx.Node) -> Any:
    """Return the target of a node: a function, or the name of a method or property."""
    if node.target is builtins.getattr and len(node.args) == 2 and isinstance(node.args[1], str):
        return node.args[1]  # x.T and x.shape are read by name
    return node.target


def _is_part(node: fx.Node) -> bool:
    """Return whether ``x[i]`` takes an element of a tuple or dict, or may do so if that is unknown."""
    source, index = node.args[0], node.args[1]
    if not isinstance(source, fx.Node):
        return True
    if "val" in source.meta:
        return not isinstance(source.meta["val"], torch.Tensor)
    if any("val" in other.meta for other in node.graph.nodes if other.op == "placeholder"):  # traced by value
        return "val" not in node.meta
    if isinstance(index, str):
        return True
    return isinstance(index, int) and not _gives_tensor(source)


def _gives_tensor(node: fx.Node) -> bool:
    """Return whether a node of a symbolic trace certainly returns one tensor."""
    if node.op == "get_attr":
        return True
    if node.op not in ("call_function", "call_method"):
        return False
    row = operation_of(function_of(node))
    return row is not None and row.group in ("activation", "elementwise", "comparison", "matmul", "normalisation")


def numbers_of(graph: fx.Graph) -> set[fx.Node]:
    """Return the nodes whose values are sizes or other Python numbers."""
    found: set[fx.Node] = set()
    for node in graph.nodes:
        if node.op not in ("call_function", "call_method"):
            continue
        value = node.meta.get("val", _UNKNOWN)
        if value is not _UNKNOWN and value is not None:
            if not any(isinstance(leaf, torch.Tensor) for leaf in collect(value)) and collect(value):
                found.add(node)
            continue
        name = function_name(function_of(node)) if not isinstance(function_of(node), structures.Rebuild) else ""
        if name in ("size", "shape", "dim", "ndim", "numel", "nelement", "len", "ndimension", "stride"):
            found.add(node)
            continue
        inputs = set(node.all_input_nodes)
        if node.op == "call_function" and inputs and inputs <= found and not _makes_tensor(node):
            found.add(node)
    return found


_UNKNOWN = object()


def _makes_tensor(node: fx.Node) -> bool:
    row = operation_of(function_of(node))
    return row is not None and row.group in ("constant", "random") and node.target not in (range, min, max)


def operation_text(node: fx.Node) -> str:
    """Return the target of a node, as in source code."""
    function = function_of(node)
    if node.op == "call_method" or node.target is builtins.getattr:
        return f"torch.Tensor.{function}"
    return target_text(function)
