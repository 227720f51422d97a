"""A pruned program as a module of the user's own classes, where their code accepts fewer channels."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping

import torch
from torch import fx, nn

from prepbench.adapt.layer_uses import uses_of

Groups = Mapping[str, int]
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_NORMS = (
    nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d,
)  # fmt: skip


def in_own_classes(model: nn.Module, program: torch.export.ExportedProgram) -> nn.Module:
    """Return a copy of a model with the tensors of a pruned program, and with its sizes in torch's own layers.

    A forward that uses other numbers, such as a number of heads, may fail on it: run it before use.

    Args:
        model: the captured model.
        program: with the names of its parameters and buffers.
    """
    made = copy.deepcopy(model)
    modules = dict(made.named_modules(remove_duplicate=False))
    shared: dict[int, nn.Parameter] = {}
    for name, tensor in program.state_dict.items():
        owner, _, last = name.rpartition(".")
        module = modules.get(owner)
        if module is None:
            continue
        if last in module._parameters and module._parameters[last] is not None:
            before = module._parameters[last]
            assert before is not None
            if id(tensor) not in shared:
                shared[id(tensor)] = nn.Parameter(tensor.detach().clone().to(before.dtype), before.requires_grad)
            _replace_everywhere(made, before, shared[id(tensor)])
        elif last in module._buffers:
            module._buffers[last] = tensor.detach().clone()
    groups = _groups(program)
    for fqn, module in made.named_modules():
        _renumber(module, groups.get(f"{fqn}.weight" if fqn else "weight"))
    return made


def _replace_everywhere(model: nn.Module, before: nn.Parameter, after: nn.Parameter) -> None:
    """Replace a tensor everywhere; tied weights stay tied."""
    for module in model.modules():
        for name, value in module._parameters.items():
            if value is before:
                module._parameters[name] = after


def _groups(program: torch.export.ExportedProgram) -> Groups:
    """Return the number of groups of convolutions and norms, by the name of the weight."""
    parameters = program.graph_signature.inputs_to_parameters
    found = {parameters[use.weight.name]: use.groups for use in uses_of(program)}
    for node in program.graph.nodes:
        weight = node.args[2] if node.target is torch.ops.aten.group_norm.default and len(node.args) > 2 else None
        if isinstance(weight, fx.Node) and weight.name in parameters:
            found[parameters[weight.name]] = int(node.args[1])
    return found


def _renumber(module: nn.Module, groups: int | None) -> None:
    for kind, change in _NUMBERS.items():
        if isinstance(module, kind):
            change(module, groups)


def _linear(module: nn.Module, _: int | None) -> None:
    module.out_features, module.in_features = module.weight.shape  # type: ignore[assignment, misc]


def _convolution(module: nn.Module, groups: int | None) -> None:
    assert isinstance(module, (*_CONVOLUTIONS, *_TRANSPOSED))
    module.groups = module.groups if groups is None else groups
    first, second = module.weight.shape[0], module.weight.shape[1] * module.groups
    is_transposed = isinstance(module, _TRANSPOSED)
    module.in_channels, module.out_channels = (first, second) if is_transposed else (second, first)


def _features(module: nn.Module, _: int | None) -> None:
    sized = module._parameters.get("weight")
    sized = sized if sized is not None else module._buffers.get("running_mean")  # type: ignore[assignment]
    if sized is not None:
        module.num_features = len(sized)  # type: ignore[assignment]


def _group_norm(module: nn.Module, groups: int | None) -> None:
    assert isinstance(module, nn.GroupNorm)
    if groups is not None:
        module.num_groups, module.num_channels = groups, len(module.weight)


def _table(module: nn.Module, _: int | None) -> None:
    module.num_embeddings, module.embedding_dim = module.weight.shape  # type: ignore[assignment, misc]


_NUMBERS: Mapping[type[nn.Module] | tuple[type[nn.Module], ...], Callable[[nn.Module, int | None], None]] = {
    nn.Linear: _linear,
    (*_CONVOLUTIONS, *_TRANSPOSED): _convolution,
    _NORMS: _features,
    nn.GroupNorm: _group_norm,
    nn.Embedding: _table,
}
