"""Replace a module that is called several times by one module for each call."""

from __future__ import annotations

import copy

import torch

from prepbench.prepare.model import PreparedModel
from prepbench.prepare.passes.graph_edits import Names, call_module
from prepbench.prepare.report import Change


def unroll_reused_(model: PreparedModel) -> list[Change]:
    """Give every further call of a module an instance of its own.

    Instances of modules with parameters or buffers share them with the first one: their state stays one state, also
    when the model is moved, cast or loaded.
    """
    names, seen, changes = Names(model), set[int](), []
    for node in list(model.graph.nodes):
        if node.op != "call_module":
            continue
        target = str(node.target)
        module = model.get_submodule(target)
        if id(module) not in seen:
            seen.add(id(module))
            continue
        if isinstance(module, torch.jit.ScriptModule):
            continue  # its code cannot be copied without its state; validate_model names it
        made = instance_of(module)
        scope, _, last = target.rpartition(".")
        name = names.add(scope, last, made, first=1)
        stateful = any(part._parameters or part._buffers for part in made.modules())
        why = "called again; shares parameters and buffers with " if stateful else "called again; independent of "
        node = call_module(model, node, name, node.args, dict(node.kwargs))
        kind, source = type(module).__name__, node.meta.get("source")
        changes.append(Change("reused module", node.name, name, kind, target, why + target, source))
    return changes


def instance_of(module: torch.nn.Module) -> torch.nn.Module:
    """Return another module of the same kind and state: it shares the tables of parameters and buffers."""
    made: torch.nn.Module = object.__new__(type(module))
    for name, value in vars(module).items():
        if name == "_modules":
            value = {key: None if child is None else instance_of(child) for key, child in value.items()}
        elif name not in ("_parameters", "_buffers"):
            value = _own(name, value)
        vars(made)[name] = value
    return made


def _own(name: str, value: object) -> object:
    if isinstance(value, dict) and name.startswith("_"):
        return copy.copy(value)  # the same hooks, in a separate table
    return value
