"""A traced graph becomes a module that runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from prepbench.capture.modules.assumptions import SizeCheck
from prepbench.capture.modules.trace_result import TraceResult

_ROOT = "module"


def runnable(target: torch.nn.Module | Callable[..., Any], trace: TraceResult) -> fx.GraphModule:
    """A ``GraphModule`` for ``trace``, sharing the parameters and leaf modules of ``target``, which is not changed."""
    graph = fx.Graph()
    graph.output(graph.graph_copy(trace.graph, {}))
    for new, old in zip(graph.nodes, trace.graph.nodes, strict=True):
        new.meta = dict(old.meta)
    root = torch.nn.Module()
    if isinstance(target, torch.nn.Module):
        # a shell with the same content: FX attaches constants to what it is given
        vars(root).update({name: dict(v) if isinstance(v, dict) else v for name, v in vars(target).items()})
        for name in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"):
            vars(root)[name] = type(vars(target)[name])()
    for name, value in trace.constants.items():
        if isinstance(value, torch.Tensor):
            root.register_buffer(name, value, persistent=False)
        else:
            setattr(root, name, value)
    for node in graph.nodes:
        if node.op == "call_module" and node.target == "":
            node.target = _ROOT
            root.add_module(_ROOT, target)  # type: ignore[arg-type]
    name = type(target).__name__ if isinstance(target, torch.nn.Module) else getattr(target, "__name__", "Graph")
    module = fx.GraphModule(root, graph, class_name=name)
    check = SizeCheck.of(trace)
    if check is not None:
        module.register_forward_pre_hook(check, with_kwargs=True)
    return module
