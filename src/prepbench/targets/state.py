"""Checks for models that change their buffers in each call, which ONNX files and constant-folded code cannot."""

from __future__ import annotations

import copy

import torch
from torch import fx

from prepbench.errors import TargetError
from prepbench.targets.programs import is_batch_norm_in_training, written_buffers

Program = torch.export.ExportedProgram


def check_stateless(program: Program) -> None:
    """Raise ``TargetError`` for batch norms in training mode, and for buffers as :func:`check_kept_state` does."""
    for node in program.graph.nodes:
        if is_batch_norm_in_training(node):
            stack = list((node.meta.get("nn_module_stack") or {}).values())
            raise TargetError(
                f"{stack[-1][0] if stack else node.name} is a batch norm in training mode: it updates its statistics "
                "at each call, and the target keeps nothing between calls. Compile in eval mode (leave out "
                "skip_eval_set_mode), call eval() on this module, or choose InductorDeployment()."
            )
    check_kept_state(program)


def check_kept_state(program: Program) -> None:
    """Raise ``TargetError`` when an output depends on a buffer that the model changes in each call."""
    signature = program.graph_signature
    nodes = {node.name: node for node in program.graph.nodes}
    needed = _ancestors([nodes[name] for name in signature.user_outputs])
    state = sorted({signature.inputs_to_buffers[name] for name in written_buffers(program) if nodes[name] in needed})
    if state:
        raise TargetError(
            f"The model changes its buffers at each call and its outputs depend on them: {', '.join(state)}. The "
            "target keeps nothing between calls. Make them arguments and results of forward, or "
            "choose EagerDeployment()."
        )


def _ancestors(nodes: list[fx.Node]) -> set[fx.Node]:
    seen: set[fx.Node] = set()
    rest = copy.copy(nodes)
    while rest:
        node = rest.pop()
        if node not in seen:
            seen.add(node)
            # normalised with the statistics of the call, a batch norm only writes to those that it keeps
            kept = node.args[3:5] if is_batch_norm_in_training(node) else ()
            rest += [each for each in node.all_input_nodes if each not in kept]
    return seen
