"""Functions, methods and operators become modules that keep every argument."""

from __future__ import annotations

import builtins
import inspect
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import torch
from torch import fx

from prepbench.prepare import modules
from prepbench.prepare.arguments import mapped, parts
from prepbench.prepare.kept import function_of, numbers_of, operation_text, reason_to_stay
from prepbench.prepare.layers import layer_for
from prepbench.prepare.model import PreparedModel
from prepbench.prepare.modes import with_modes
from prepbench.prepare.modules import INPUT, Operator
from prepbench.prepare.operations import function_name, is_in_place, operation_of
from prepbench.prepare.passes.graph_edits import Names, call_module, owner_of
from prepbench.prepare.report import Change


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
        kind, why = type(module).__name__, "each operation is a module of its own"
        changes.append(Change("operation to module", new.name, name, kind, was, why, new.meta.get("source")))
    return changes


def module_for(node: fx.Node) -> tuple[torch.nn.Module, list[fx.Node]]:
    """The module that does what a node does, and the nodes that it takes."""
    function = function_of(node)
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
    takes_inputs_by_name = any(part is INPUT for part in parts(template[1]))
    settings: tuple[Any, ...] = () if _are_inputs(template[0]) and not takes_inputs_by_name else template[0]
    if issubclass(kind, modules.Concat) and len(settings) == 1 and _is_list_of_inputs(settings[0]):
        settings = ()
    made = kind(*settings, function=None if called in kind.functions[:1] else called, **template[1])
    return made.train(_training(node)), inputs


def _training(node: fx.Node) -> bool:
    model = node.graph.owning_module
    return model is None or bool(model.training)


def _joined(args: Any, kwargs: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of ``cat`` and ``stack``: the tensors by position, the dim by name."""
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


def _template(value: Any, inputs: list[fx.Node]) -> Any:
    """``value`` with :data:`INPUT` for each node; the nodes are added to ``inputs`` in order."""

    def place(part: Any) -> Any:
        if not isinstance(part, fx.Node):
            return part
        inputs.append(part)
        return INPUT

    return mapped(value, place)


def _without_defaults(function: Any, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Keyword arguments without those that have their default value; torch's Python functions pass all of them."""
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
    name = function_name(function_of(node))
    if is_in_place(function_of(node)):
        name = name[1:] if not name.endswith("_") else name.rstrip("_")
    return name
