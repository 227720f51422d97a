"""Remove modules that return their input in evaluation."""

from __future__ import annotations

from torch import nn

from prepbench.prepare.model import PreparedModel
from prepbench.prepare.passes.graph_edits import remove_module
from prepbench.prepare.report import Change

_IDENTITIES = (
    nn.Identity,
    nn.Dropout,
    nn.Dropout1d,
    nn.Dropout2d,
    nn.Dropout3d,
    nn.AlphaDropout,
    nn.FeatureAlphaDropout,
)


def remove_identity_(model: PreparedModel) -> list[Change]:
    """Remove ``Identity`` and dropout modules; afterwards the model has no dropout in training either."""
    changes = []
    for node in list(model.graph.nodes):
        if node.op != "call_module" or type(model.get_submodule(str(node.target))) not in _IDENTITIES:
            continue
        source = node.all_input_nodes[0] if len(node.all_input_nodes) == 1 else None
        if source is None or not _hookless(model.get_submodule(str(node.target))):
            continue
        name, kind = str(node.target), type(model.get_submodule(str(node.target))).__name__
        why = "it returns its input" if kind == "Identity" else "it returns its input in evaluation"
        changes.append(Change("module removed", node.name, "", "", name, f"{kind}: {why}", node.meta.get("source")))
        node.replace_all_uses_with(source)
        model.graph.erase_node(node)
        remove_module(model, name)
    return changes


def _hookless(module: nn.Module) -> bool:
    return not module._forward_hooks and not module._forward_pre_hooks
