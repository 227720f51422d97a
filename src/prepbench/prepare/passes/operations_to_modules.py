"""Functions, methods and operators become modules that keep every argument."""

from __future__ import annotations

import builtins
import inspect
import operator
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import torch
from torch import fx

from prepbench.capture import structures
from prepbench.capture.grad_mode import enter_grad_mode, exit_grad_mode
from prepbench.capture.structures import collect
from prepbench.capture.to_document import target_text
from prepbench.prepare import modules
from prepbench.prepare.layers import layer_for
from prepbench.prepare.model import PreparedModel
from prepbench.prepare.modes import with_modes
from prepbench.prepare.modules import INPUT, Operator
from prepbench.prepare.operations import function_name, is_in_place, operation_of
from prepbench.prepare.passes.base import Change, Kept, Names, call_module, owner_of

NUMBERS = "it gives sizes, not tensors"
PART = "it takes one part of a result or of an input"
INTERNAL = "it is an internal function of torch that the table of operations does not have"
CUSTOM = "it is a custom operator"
FOREIGN = "it is a function of the user's"
REGION = "it opens or closes a region of the forward"
WRAPPED = "it was kept whole by torch.fx.wrap"


def operations_to_modules_(model: PreparedModel) -> list[Change]:
    """Replace every operation that has a module by a call of that module."""
    names, numbers = Names(model), numbers_of(model.graph)
    changes = []
    for node in list(model.graph.nodes):
        if node.op not in ("call_function", "call_method"):
            continue
        if reason_to_stay(node, numbers) and "by_mode" not in node.meta:
            continue
        module, inputs = module_for(node)
        name = names.add(owner_of(node), _name(node), module)
        was = operation_text(node)
        new = call_module(model, node, name, tuple(inputs))
        changes.append(
            Change(
                "operation to module",
                new.name,
                name,
                type(module).__name__,
                was,
                "each operation is a module of its own",
                new.meta.get("source"),
            )
        )
    return changes


def kept_operations(model: PreparedModel) -> list[Kept]:
    """The functions, methods and operators that are left in the graph, with the reasons."""
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


# -- which operations


def reason_to_stay(node: fx.Node, numbers: set[fx.Node]) -> str:
    """Why this function or method stays a call; "" if it has a module."""
    if node.meta.get("is_wrapped"):
        return WRAPPED
    function = _function(node)
    if isinstance(function, structures.Rebuild):
        return "it puts values together into an output or argument"
    if isinstance(function, structures.Applied):
        return "it is a custom torch.autograd.Function, whose backward is kept"
    if isinstance(function, torch._ops.HigherOrderOperator):
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
    if isinstance(function, torch._ops.OpOverload | torch._ops.OpOverloadPacket):
        return INTERNAL if str(function).startswith("aten") else CUSTOM
    if node.target is builtins.getattr:
        return PART
    if node.op == "call_method":
        return f"torch has no Tensor.{node.target} in the table of operations"
    if function in (enter_grad_mode, exit_grad_mode):
        return REGION
    if str(getattr(function, "__module__", "") or "torch").partition(".")[0] == "torch":
        return INTERNAL
    return FOREIGN


def _function(node: fx.Node) -> Any:
    if node.target is builtins.getattr and len(node.args) == 2 and isinstance(node.args[1], str):
        return node.args[1]  # x.T and x.shape are read by name
    return node.target


def _was_traced_by_value(node: fx.Node) -> bool:
    return any("val" in other.meta for other in node.graph.nodes if other.op == "placeholder")


def _is_part(node: fx.Node) -> bool:
    """Whether ``x[i]`` takes an element of a tuple or dict, or, where that is not known, may do so."""
    source, index = node.args[0], node.args[1]
    if not isinstance(source, fx.Node):
        return True
    if "val" in source.meta:
        return not isinstance(source.meta["val"], torch.Tensor)
    if _was_traced_by_value(node):
        return "val" not in node.meta
    if isinstance(index, str):
        return True
    return isinstance(index, int) and not _gives_tensor(source)


def _gives_tensor(node: fx.Node) -> bool:
    """Whether a node of a symbolic trace surely gives one tensor."""
    if node.op == "get_attr":
        return True
    if node.op not in ("call_function", "call_method"):
        return False
    row = operation_of(_function(node))
    return row is not None and row.group in ("activation", "elementwise", "comparison", "matmul", "normalisation")


def numbers_of(graph: fx.Graph) -> set[fx.Node]:
    """The nodes whose values are sizes or other Python numbers."""
    found: set[fx.Node] = set()
    for node in graph.nodes:
        if node.op not in ("call_function", "call_method"):
            continue
        value = node.meta.get("val", _UNKNOWN)
        if value is not _UNKNOWN and value is not None:
            if not any(isinstance(leaf, torch.Tensor) for leaf in collect(value)) and collect(value):
                found.add(node)
            continue
        name = function_name(_function(node)) if not isinstance(_function(node), structures.Rebuild) else ""
        if name in ("size", "shape", "dim", "ndim", "numel", "nelement", "len", "ndimension", "stride"):
            found.add(node)
            continue
        inputs = set(node.all_input_nodes)
        if node.op == "call_function" and inputs and inputs <= found and not _makes_tensor(node):
            found.add(node)
    return found


_UNKNOWN = object()


def _makes_tensor(node: fx.Node) -> bool:
    row = operation_of(_function(node))
    return row is not None and row.group in ("constant", "random") and node.target not in (range, min, max)


# -- the modules


def module_for(node: fx.Node) -> tuple[torch.nn.Module, list[fx.Node]]:
    """The module that does what a node does, and the nodes that it takes."""
    function = _function(node)
    args, kwargs = with_modes((node.args, node.kwargs), node.meta.get("by_mode"))
    kwargs = _without_defaults(node.target, kwargs)
    inputs: list[fx.Node] = []
    made = layer_for(function, args, kwargs)
    if made is not None:
        fx.node.map_arg((tuple(args), dict(kwargs)), inputs.append)
        return made.train(_training(node)), inputs
    row = operation_of(function)
    # what stays a call otherwise is a module where its settings follow the mode
    kind = modules.CLASSES[row.class_name] if row is not None and row.class_name else Operator
    if node.target is builtins.getattr:
        read = modules.READ[function]
        return kind(function=read).train(_training(node)), list(node.all_input_nodes)
    called: Callable[..., Any] = getattr(torch.Tensor, node.target) if isinstance(node.target, str) else node.target
    if issubclass(kind, modules.Concat) and "by_mode" not in node.meta:
        args, kwargs = _joined(args, kwargs)
    template = _template(tuple(args), inputs), _template(dict(kwargs), inputs)
    settings: tuple[Any, ...] = () if _are_inputs(template[0]) and not _holds_input(template[1]) else template[0]
    if issubclass(kind, modules.Concat) and len(settings) == 1 and _is_list_of_inputs(settings[0]):
        settings = ()
    made = kind(*settings, function=None if called in kind.functions[:1] else called, **template[1])
    return made.train(_training(node)), inputs


def _training(node: fx.Node) -> bool:
    model = node.graph.owning_module
    return model is None or bool(model.training)


def _joined(args: Any, kwargs: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of ``cat`` and its like: the tensors by place, the dim by name."""
    rest = dict(kwargs)
    given = list(args)
    if not given and "tensors" in rest:
        given = [rest.pop("tensors")]
    if len(given) == 2:
        rest["dim"] = given.pop()
    return tuple(given), rest


def _are_inputs(args: Any) -> bool:
    return all(part is INPUT for part in args)


def _is_list_of_inputs(part: Any) -> bool:
    return isinstance(part, tuple | list) and _are_inputs(part)


def _holds_input(value: Any) -> bool:
    if isinstance(value, tuple | list):
        return any(map(_holds_input, value))
    if isinstance(value, dict):
        return any(map(_holds_input, value.values()))
    if isinstance(value, slice):
        return any(map(_holds_input, (value.start, value.stop, value.step)))
    return value is INPUT


def _template(value: Any, inputs: list[fx.Node]) -> Any:
    """``value`` with :data:`INPUT` for each node, which are collected in order."""
    if isinstance(value, fx.Node):
        inputs.append(value)
        return INPUT
    if isinstance(value, tuple):
        return tuple(_template(item, inputs) for item in value)
    if isinstance(value, list):
        return [_template(item, inputs) for item in value]
    if isinstance(value, dict):
        return {key: _template(item, inputs) for key, item in value.items()}
    if isinstance(value, slice):
        return slice(*[_template(item, inputs) for item in (value.start, value.stop, value.step)])
    return value


def _without_defaults(function: Any, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Keyword arguments without those that have their default, which torch's Python functions all write down."""
    defaults = _defaults(function) if callable(function) else {}
    return {
        name: value
        for name, value in kwargs.items()
        if name not in defaults or type(value) is not type(defaults[name]) or value != defaults[name]
    }


@cache
def _defaults(function: Callable[..., Any]) -> dict[str, Any]:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # a builtin
        return {}
    plain = (bool, int, float, str, type(None))
    return {p.name: p.default for p in parameters if isinstance(p.default, plain)}


def _name(node: fx.Node) -> str:
    name = function_name(_function(node))
    if is_in_place(_function(node)):
        name = name[1:] if not name.endswith("_") else name.rstrip("_")
    return name


def operation_text(node: fx.Node) -> str:
    """What a node calls, as people write it."""
    function = _function(node)
    if node.op == "call_method" or node.target is builtins.getattr:
        return f"torch.Tensor.{function}"
    return target_text(function)
